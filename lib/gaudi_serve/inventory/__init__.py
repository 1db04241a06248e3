"""What a user writes: the variables of an inventory, facts that were saved, slips of YAML."""
