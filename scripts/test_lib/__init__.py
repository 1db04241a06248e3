"""The parts of the tests: what they run, what they cover, and on which state each of them last passed."""
