"""Tables and texts for people."""
