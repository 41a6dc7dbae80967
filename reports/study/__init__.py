"""What `reproduce` says of published studies: verdicts, text and page."""
