"""What engines share whose models are quantised by Intel Neural Compressor (INC) while they are loaded."""

from __future__ import annotations

import re

from ..core.errors import label, refusal
from ..platforms import platform_of
from .base import Host, Spec

GENERATION = re.compile(r"(?:^|[_\W])(?:g|gaudi)([23])(?=[_\W]|$)", re.IGNORECASE)


def refuse_generation(spec: Spec, host: Host, key: str, path: str) -> None:
    """Refuse measurements that were made on the other generation of cards, as their name says.

    Args:
        spec: the model.
        host: its host.
        key: the key of the model by which the file was chosen.
        path: the file that says where the measurements are; empty for none.

    Raises:
        InputError: naming the key, the file and both generations.
    """
    generation = platform_of(host.accelerator).generation(host) if host.device_name else None
    made_for = {f"GAUDI{number}" for number in GENERATION.findall(path)}
    if generation and made_for and generation not in made_for:
        allowed = (
            f"takes {path}, which is of {' and '.join(sorted(made_for))}: measurements of one generation do not serve "
            f"the other, and this host has {host.device_name}; measure on this one"
        )
        raise refusal(label(spec), key, spec.get(key), allowed)
