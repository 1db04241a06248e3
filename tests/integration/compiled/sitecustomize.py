"""Lets modules that Ansible runs on this machine keep what is compiled of them, as the test hosts do (compiled.py).

Every Python that has this folder in PYTHONPATH imports it when it starts.
"""

import os
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "molecule/shared/hostimage"))
import compiled

compiled.FOLDER = os.environ["GAUDI_SERVE_COMPILED"]
