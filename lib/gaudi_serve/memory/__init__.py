"""Checks whether a model fits: the vendor's memory rules, and the numbers of a config.json."""
