"""Downloads the items of a bundle: one module for each kind, each with the usual program for that kind."""
