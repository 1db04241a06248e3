"""Which quantised weights an engine loads: a server that does not stops when image and weights have been fetched.

Methods are those of ``quantization_config.quant_method`` in a config.json. ModelOpt writes one method for all: its name
is followed by the ``quant_algo``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import shown
from ..model.architecture import Architecture

MODELOPT = "modelopt"
NVFP4_BITS = 4
# Some tools write the name that the platform's own code has, or another one for the same.
SAME = {"awq_hpu": "awq", "gptq_hpu": "gptq", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": f"{MODELOPT} NVFP4"}
SAME |= {"compressed_tensors": "compressed-tensors"}


@dataclass(frozen=True)
class Loads:
    """What an engine loads on a platform.

    since: methods, each with the first vLLM that loads it; empty for all. refused: methods that it does not load; all
    others where it is None. floats: it loads weights of floating-point numbers with fewer than 16 bits.
    """

    since: Mapping[str, str]
    refused: frozenset[str] | None = None
    floats: bool = True

    def method(self, name: str) -> str | None:
        """Return the first vLLM that loads a method, empty for all; None if none does or is known to."""
        return self.since.get(name)


# The vendor's pages, and the code of its plugin at the tags that were looked at: 0.11.2, 0.16.0 and 0.26.0. gpt-oss is
# on the list of validated models of 0.17.1.
FORK = dict.fromkeys(("compressed-tensors", "fp8", "inc", "awq", "gptq", "bitsandbytes"), "")
OF_FORK = Loads(FORK)
OF_PLUGIN = Loads(
    {
        **{name: since for name, since in FORK.items() if name != "bitsandbytes"},
        f"{MODELOPT} FP8": "0.16.0",
        "mxfp4": "0.17.1",
    }
)
# vLLM on CPUs: AWQ and GPTQ, and integers of compressed-tensors. Nobody has tried all others.
OF_CPU = Loads(
    dict.fromkeys(("awq", "gptq", "compressed-tensors"), ""),
    frozenset({"fp8", "fbgemm_fp8", "inc", f"{MODELOPT} FP8", f"{MODELOPT} NVFP4"}),
    floats=False,
)


@dataclass(frozen=True)
class Stored:
    """How weights are quantised: the method as ``Loads`` names it, and as the config.json has it."""

    method: str
    said: str
    floats: bool


def stored(model: Architecture) -> Stored | None:
    """Return how the weights of a model are quantised; None if they are not, or its config.json does not say."""
    found = model.quantisation
    method = found.get("quant_method")
    if not isinstance(method, str) or not method:
        return None
    name, said = method.lower(), f"quantization_config.quant_method {shown(method)}"
    algorithm = found.get("quant_algo")
    if name == MODELOPT:
        text = algorithm if isinstance(algorithm, str) and algorithm else "FP8"
        return Stored(f"{MODELOPT} {text.upper()}", f"{said}, quant_algo {shown(algorithm)}", True)
    weights = _weights(found)
    if any(one.get("type") == "float" and one.get("num_bits") == NVFP4_BITS for one in weights):
        # NVFP4 in another wrapping: not known to load where floats of eight bits do.
        return Stored(f"{SAME.get(name, name)} NVFP4", f"{said} with floating-point weights of 4 bits", True)
    floats = any(one.get("type") == "float" for one in weights)
    return Stored(SAME.get(name, name), said + " with floating-point weights" * floats, floats)


def _weights(found: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    groups = found.get("config_groups")
    weights = [
        group.get("weights")
        for group in (groups.values() if isinstance(groups, Mapping) else ())
        if isinstance(group, Mapping)
    ]
    return [one for one in weights if isinstance(one, Mapping)]
