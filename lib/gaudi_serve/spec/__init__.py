"""What a user writes: the keys of a model, the catalog, the variables of an inventory, facts that were saved."""
