"""Whether a model fits: the vendor's figures, and what a config.json says."""
