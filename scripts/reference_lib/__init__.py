"""The generated pages of docs/reference."""
