"""The page of a fleet: ``view`` builds its data, ``html`` renders it."""
