"""The bundle for a site without internet: the list of everything that a run downloads, and its download."""
