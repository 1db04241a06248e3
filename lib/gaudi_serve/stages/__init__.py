"""The stages of a run: the state that each requires, how a host differs from it, and what a reset undoes."""
