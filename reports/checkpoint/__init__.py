"""Results of `checkpoint`: their document, metrics, admission, text and page."""
