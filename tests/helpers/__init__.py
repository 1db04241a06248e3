"""Common parts of several test files: hosts, models, stand-ins, servers, vectors. Fixtures are in conftest.py."""
