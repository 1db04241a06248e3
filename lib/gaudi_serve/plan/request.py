"""A user's models on their way through the checks, and the inputs of these checks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..catalog.keys import OWN_KEYS
from ..core.errors import Default, Problem
from ..model.host import Host
from ..model.spec import Spec
from ..model.vllm_options import OPTION_NAMES
from ..model.weights import WeightsFacts
from .meeting import Reach, addresses_of

# A model as its user wrote it, and the problem with one of its keys.
Mistake = tuple[Any, Problem]
# Keys that the plan reads from elsewhere if they are not written, such as from the image's name.
FOUND = ("vllm_version",)
# Keys from which the check of a key follows. If one of them is wrong, the key's own problem is only a consequence.
SIZES = ("tensor_parallel_size", "module_ids", "dtype", "gpu_memory_utilization", "kv_cache_dtype", "env", "weights")
FOLLOWS_FROM = {
    **dict.fromkeys(("tensor_parallel_size", "module_ids"), SIZES),
    "max_model_len": SIZES,
    "max_num_batched_tokens": ("max_model_len", "max_num_seqs", "input_range"),
    "warmup_budget_minutes": ("input_range", "output_range", "max_num_seqs", "max_num_batched_tokens", "max_model_len"),
}


def with_default(problem: Problem, given: Collection[str]) -> Problem:
    """Return a problem that names its value as a default if nobody has written its key.

    Args:
        problem: key, value, what is allowed.
        given: the keys that are written in the inventory or in the catalog.
    """
    key, value, allowed = problem
    written = value is None or key in given or key in FOUND or key not in OWN_KEYS | OPTION_NAMES
    return problem if written else (key, Default(value), allowed)


@dataclass
class ResolvedModel:
    """One model for further checks, without its invalid keys, which ``bad`` names.

    weights: of each model that its server serves.
    """

    spec: Spec
    given: frozenset[str]
    bad: set[str]
    notes: tuple[str, ...] = ()
    weights: tuple[WeightsFacts, ...] = ()

    def new(self, problems: Sequence[Problem]) -> list[Problem]:
        """Record problems, and return those that are not only consequences of invalid keys."""
        known = set(self.bad)
        found = [
            item
            for item in problems
            if not known or (item[0] not in known and self._is_own(re.split("[.:]", item[0])[0], known))
        ]
        self.bad.update(key for key, _, _ in found)
        return found

    def _is_own(self, key: str, known: set[str]) -> bool:
        """Return whether a problem with a key that the user set does not follow from the known ones."""
        return key in self.given and not known & {key, *FOLLOWS_FROM.get(key, ())}

    def mistakes(self, problems: Sequence[Problem]) -> list[Mistake]:
        """Return the new problems as mistakes of this model."""
        return [(self.spec, with_default(problem, self.given)) for problem in self.new(problems)]


@dataclass(frozen=True)
class Site:
    """The inputs for the resolution of a model.

    release: of the host's software. catalog: known models by name. defaults: keys for every model in which neither it
    nor the catalog sets them. images: entries of ``vllm_images``; built ones have an alias, and each may have a
    vllm_version. hosts: how to reach each host of models over several hosts; hosts without facts are missing.
    offline: the host has no internet.
    """

    host: Host
    release: str
    catalog: Mapping[str, Any]
    defaults: Mapping[str, Any]
    images: Sequence[Mapping[str, Any]]
    hosts: Mapping[str, Reach] = field(default_factory=dict)
    offline: bool = False

    def addresses(self, spec: Spec) -> dict[str, str]:
        """Return by host of a model its address; empty for a model on one host."""
        return addresses_of(spec.name, spec.members.names, self.hosts) if spec.members else {}
