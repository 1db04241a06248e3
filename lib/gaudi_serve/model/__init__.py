"""The model that a user requests, and the host for which a run plans."""
