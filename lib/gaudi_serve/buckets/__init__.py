"""Which shapes a server warms up, one file a strategy, and how long that takes."""
