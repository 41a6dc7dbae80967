"""Results of `simulate`: their document, text, page and figures."""
