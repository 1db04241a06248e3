"""The shapes that a server warms up, with one file per strategy, and the time of the warm-up."""
