"""A model as a user wants it, and a host as planning sees it."""
