"""What all outputs share: how numbers read, lines, figures, pages."""
