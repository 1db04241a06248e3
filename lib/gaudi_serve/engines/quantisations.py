"""The quantised weights that an engine loads. A server that cannot load them stops only after the downloads.

Methods are values of ``quantization_config.quant_method`` in a config.json. ModelOpt writes one method for all, so its
name is followed by the ``quant_algo``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import shown
from ..model.architecture import Architecture

MODELOPT = "modelopt"
NVFP4_BITS = 4
# Some tools write the name in the platform's own code, or another name for the same method.
SAME = {"awq_hpu": "awq", "gptq_hpu": "gptq", "gpt_oss_mxfp4": "mxfp4", "modelopt_fp4": f"{MODELOPT} NVFP4"}
SAME |= {"compressed_tensors": "compressed-tensors"}


@dataclass(frozen=True)
class Loads:
    """The quantisations that an engine loads on a platform.

    since: methods, each with the first vLLM that loads it; empty for all. refused: methods that it does not load; None
    means all others. floats: it loads floating-point weights with fewer than 16 bits.
    """

    since: Mapping[str, str]
    refused: frozenset[str] | None = None
    floats: bool = True

    def method(self, name: str) -> str | None:
        """Return the first vLLM that loads a method, empty for all; None if none is known to load it."""
        return self.since.get(name)


# The sources are the vendor's pages, and the code of its plugin at tags 0.11.2, 0.16.0 and 0.26.0. gpt-oss is on the
# list of validated models of 0.17.1.
FORK = dict.fromkeys(("compressed-tensors", "fp8", "inc", "awq", "gptq", "bitsandbytes"), "")
OF_FORK = Loads(FORK)
OF_PLUGIN = Loads(
    {
        **{name: since for name, since in FORK.items() if name != "bitsandbytes"},
        f"{MODELOPT} FP8": "0.16.0",
        "mxfp4": "0.17.1",
    }
)
# vLLM on CPUs loads AWQ and GPTQ, and integers of compressed-tensors. The others are not tested.
OF_CPU = Loads(
    dict.fromkeys(("awq", "gptq", "compressed-tensors"), ""),
    frozenset({"fp8", "fbgemm_fp8", "inc", f"{MODELOPT} FP8", f"{MODELOPT} NVFP4"}),
    floats=False,
)


@dataclass(frozen=True)
class Stored:
    """The quantisation of weights: the method as in ``Loads``, and the text of the config.json."""

    method: str
    said: str
    floats: bool


def stored(model: Architecture) -> Stored | None:
    """Return the quantisation of a model's weights; None if there is none or its config.json does not name it."""
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
        # NVFP4 in another format. It is not known to load if floats of eight bits do.
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
