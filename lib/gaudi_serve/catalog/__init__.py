"""The keys of a model, their merge, and the files of the catalog."""
