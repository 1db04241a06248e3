"""The code that the filters on the controller and the modules on the hosts share.

Standard library only: the same files run inside ansible-core's own environment and, as
``ansible.module_utils.gaudi_serve``, with whatever python3 a host has (3.10 or newer).
"""

import sys

OLDEST_PYTHON = (3, 10)
# Before any of these files is read that such a Python does not understand.
if sys.version_info < OLDEST_PYTHON:
    raise ImportError(f"Python {sys.version.split()[0]} is too old for the toolkit")
