"""The driver amdgpu's records in the kernel's log: uncorrectable errors and resets of GPUs.

The lines have the formats of the kernel's drivers/gpu/drm/amd/amdgpu (amdgpu_ras.c, amdgpu_device.c), where a healthy
GPU has "no uncorrectable hardware errors detected".
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.words import counted
from .kernel_log import Record

PLACE = r"amdgpu ([0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]): "
ERRORS = re.compile(rf"{PLACE}.*?\b([1-9]\d*) (?:new )?uncorrectable hardware errors detected .*?(\w+) block")
RESET = re.compile(rf"{PLACE}.*GPU reset begin!")
PATTERN = "amdgpu .*([1-9][0-9]* (new )?uncorrectable hardware errors detected|GPU reset begin!)"


def gpu_errors(records: Sequence[Record]) -> dict[str, str]:
    """Return ``{bus_id: clauses}`` of the GPUs with errors or resets since the boot."""
    errors: dict[str, str] = {}
    resets: dict[str, list[str]] = {}
    for record in records:
        if found := ERRORS.search(record.text):
            count = counted(int(found[2]), "uncorrectable error")
            errors[found[1]] = f"{count} in its block {found[3]} at {record.at}"
        elif found := RESET.search(record.text):
            resets.setdefault(found[1], []).append(record.at)
    texts = {place: [text] for place, text in errors.items()}
    for place, times in resets.items():
        text = f"{counted(len(times), 'reset')} by its driver, the last at {times[-1]}: each ends what runs on it"
        texts.setdefault(place, []).append(text)
    return {place: f"the kernel's log of this boot: {'; '.join(clauses)}" for place, clauses in texts.items()}
