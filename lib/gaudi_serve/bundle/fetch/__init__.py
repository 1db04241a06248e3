"""Fetching what the list of a bundle has: one file a kind, each with the programs that everybody uses for that."""
