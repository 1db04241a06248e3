"""The keys of a model, their one merge, and the files of known models."""
