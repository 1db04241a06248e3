"""Which image this is: that of the fork of 1.21, that of upstream's vLLM and the plugin, or upstream's for GPUs."""

from __future__ import annotations

import os

STACK = os.environ.get("STANDIN_STACK", "")
PLUGIN, GPUS = STACK == "plugin", STACK == "gpus"
UPSTREAM = PLUGIN or GPUS
VERSION = "0.26.0" if UPSTREAM else "0.9.0.1+gaudi1213"
