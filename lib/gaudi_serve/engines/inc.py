"""Common checks of engines that quantise models with Intel Neural Compressor (INC) at load."""

from __future__ import annotations

import re

from ..core.errors import label, refusal
from ..platforms import platform_of
from .base import Host, Spec

GENERATION = re.compile(r"(?:^|[_\W])(?:g|gaudi)([23])(?=[_\W]|$)", re.IGNORECASE)


def refuse_generation(spec: Spec, host: Host, key: str, path: str) -> None:
    """Refuse measurements whose name shows that they were made on the other generation of cards.

    Args:
        spec: The model.
        host: Its host.
        key: The key of the model that chose the file.
        path: The file that names the measurements; empty for none.

    Raises:
        InputError: The generations differ. The message names the key, the file and both generations.
    """
    generation = platform_of(host.accelerator).generation(host) if host.device_name else None
    made_for = {f"GAUDI{number}" for number in GENERATION.findall(path)}
    if generation and made_for and generation not in made_for:
        allowed = (
            f"uses {path}, which is for {' and '.join(sorted(made_for))}: measurements of one generation do not work "
            f"on the other, and this host has {host.device_name}; measure on this one"
        )
        raise refusal(label(spec), key, spec.get(key), allowed)
