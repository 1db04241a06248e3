"""What all unit tests share."""

from __future__ import annotations

import gc

# Some thousand tests that compute keep little that could be garbage; looking for it takes them a tenth of their time.
gc.set_threshold(100_000, 50, 100)
