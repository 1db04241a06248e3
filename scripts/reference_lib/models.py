"""The page of the keys of a model."""

from __future__ import annotations

from pathlib import Path

from gaudi_serve.catalog.keys import CHECKS, OPTION_CHECKS
from gaudi_serve.core.tiers import TIERS

from . import mappings
from .entries import Entry, data_of

HEAD = """# Model keys

An entry of `vllm_models` or `vllm_distributed_models` takes these keys. Each has a row on the page of its tier. Every
other option of vLLM's server works too, by its name with underscores. The guide to [models](../guides/models.md)
shows how to use them. `scripts/reference` writes this page.

| tier | keys |
|---|---|
"""
MAPPINGS = """
## Keys with keys of their own

A key that takes a mapping has a table of its keys, all since 1.0.0.

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
        found.append(Entry.of(name, data, allowed, f"engines {engines}" if engines else ""))
    return found


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    found = entries()
    keys = {tier: ", ".join(f"`{one.name}`" for one in found if one.tier == tier) for tier in TIERS[:-1]}
    keys[TIERS[-1]] = "all others"
    index = "".join(f"| [{tier}]({tier}.md#keys-of-a-model) | {names} |\n" for tier, names in keys.items())
    return {root / "docs/reference/model-keys.md": HEAD + index + MAPPINGS + mappings.sections(found)}
