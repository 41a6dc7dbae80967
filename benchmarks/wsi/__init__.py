"""Whole-slide images of stained tissue, whose patches VGG16 classifies (tumour-infiltrating lymphocytes)."""
