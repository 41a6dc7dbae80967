"""What all outputs share: kinds and their sections (begin at `kinds`), how numbers read, lines, figures, pages."""
