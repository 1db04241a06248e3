"""Which of the vendor's two images this is: that of the fork of 1.21, or that of upstream's vLLM and the plugin."""

from __future__ import annotations

import os

PLUGIN = os.environ.get("STANDIN_STACK") == "plugin"
VERSION = "0.26.0" if PLUGIN else "0.9.0.1+gaudi1213"
