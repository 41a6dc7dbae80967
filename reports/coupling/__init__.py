"""Results of `couple`: their document, text and page."""
