"""The user's input: variables of an inventory, saved facts, and mistakes in YAML."""
