"""A fleet as one page: ``view`` puts it together as data, ``html`` writes it."""
