"""Configuration files: their schema, how they are read, checked and written."""
