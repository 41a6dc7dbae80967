"""Results of `simulate`: their document, view and figures."""
