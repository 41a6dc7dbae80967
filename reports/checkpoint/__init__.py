"""Results of `checkpoint`: their document, metrics, text and page."""
