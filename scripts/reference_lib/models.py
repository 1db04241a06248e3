"""The page of the keys of a model."""

from __future__ import annotations

from pathlib import Path

from gaudi_serve.catalog.keys import CHECKS, OPTION_CHECKS

from . import mappings
from .entries import Entry, data_of

HEAD = """# Model keys

Every key of an entry of `vllm_models` and `vllm_distributed_models` that the toolkit knows. Every other
option of vLLM's server works too, by its name with underscores. The guide to [models](../guides/models.md)
shows how to use them. A key that takes a mapping has a table of its keys, all since 1.0.0. `scripts/reference`
writes this page.

## Keys

"""


# Keys whose messages are about the value itself.
SAYS_MORE = ("slo", "hosts")


def entries() -> list[Entry]:
    """Return the keys in the order of their data."""
    found = []
    for name, data in data_of("model_keys").items():
        check = CHECKS.get(name) or OPTION_CHECKS.get(name)
        allowed = data.get("allowed") or ((check(object()) or "") if check and name not in SAYS_MORE else "")
        engines = ", ".join(f"`{one}`" for one in data.get("engines", ()))
        found.append(Entry.of(name, data, allowed, f"engines {engines}" if engines else "all engines"))
    return found


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    return {root / "docs/reference/model-keys.md": HEAD + "\n".join(map(mappings.section, entries()))}
