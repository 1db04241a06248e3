"""What several test files need: hosts, models, stand-ins, servers, readers of vectors. Fixtures are in conftest.py."""
