"""A requested model: the keys merged from all layers, and the values that the plan reads from them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from ..core.errors import Problem
from ..core.words import counted
from .distributed import FIRST_PORT, HOSTS, PORT, Members, Ports, members_of
from .shared import OWN, SHARED, members


@dataclass(frozen=True, eq=False)
class Spec(Mapping[str, Any]):
    """The keys of one model, frozen.

    Most keys are options of vLLM and change with its releases. So it is a mapping, with typed properties for the
    plan's own keys. Keys without a value are left out.
    """

    keys_of: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Leave out keys without a value, and make the others read-only."""
        known = {key: value for key, value in self.keys_of.items() if value is not None}
        object.__setattr__(self, "keys_of", MappingProxyType(known))

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key."""
        return self.keys_of[key]

    def __iter__(self) -> Iterator[str]:
        """Return the keys in the order in which they were written."""
        return iter(self.keys_of)

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self.keys_of)

    def but(self, **changed: Any) -> Spec:
        """Return a spec with other values."""
        return Spec({**self.keys_of, **changed})

    @property
    def name(self) -> str:
        """Return the name of the model and of its unit."""
        return str(self["name"])

    @property
    def weights(self) -> str:
        """Return the folder of its weights."""
        return str(self["weights"])

    @property
    def served(self) -> tuple[Spec, ...]:
        """Return the models of its server: this one, then those that share its card, each complete."""
        others = members(self)
        if not others:
            return (self,)
        common = {key: value for key, value in self.keys_of.items() if key not in (*OWN, SHARED)}
        named = [{**common, **one, "served_model_name": one["name"]} for one in others]
        return (self.but(**{SHARED: None}), *map(Spec, named))

    @property
    def cards(self) -> int:
        """Return the number of devices per host, over which its tensors, layers and copies are spread."""
        return self.tensors * self.stages * self.copies // self.nodes

    @property
    def cards_said(self) -> str:
        """Return the keys that set the number of devices, for a message."""
        others = [f" and {text}" for text in self._other_sizes]
        return f"tensor_parallel_size is {self.tensors}{''.join(others)}"

    @property
    def _other_sizes(self) -> list[str]:
        keys = ("pipeline_parallel_size", "data_parallel_size_local", "data_parallel_size")
        return [f"{key} {self[key]}" for key in keys if self.get(key) not in (None, 1)]

    def size_problem(self, allowed: str) -> Problem:
        """Return a problem with the number of devices, under the keys and values that set it."""
        key, value = size_key(self)
        sizes = [f"with {' and '.join(self._other_sizes)}"] if self._other_sizes else []
        sizes += [f"over {self.nodes} hosts"] if self.nodes > 1 else []
        needs = f"{counted(self.cards, 'card')}{' on each' if self.nodes > 1 else ''}"
        return key, value, f"{' '.join(sizes)} needs {needs}; {allowed}" if sizes else allowed

    @property
    def members(self) -> Members | None:
        """Return the hosts of a model over several hosts, or None."""
        return members_of(self.get(HOSTS))

    @property
    def nodes(self) -> int:
        """Return the number of hosts over which one copy's tensors and layers are spread."""
        members = self.members
        return len(members.names) if members and not self.copied_over_hosts else 1

    @property
    def copied_over_hosts(self) -> bool:
        """Return whether each of its hosts has its own complete copies."""
        return self.members is not None and int(self.get("data_parallel_size") or 1) > 1

    @property
    def cluster_ports(self) -> Ports:
        """Return the ports between its hosts."""
        return Ports(int(self.get(PORT) or FIRST_PORT))

    @property
    def answers(self) -> bool:
        """Return whether its server on this host has an endpoint."""
        hybrid = self.copied_over_hosts and bool(self.get("data_parallel_hybrid_lb"))
        return self.members is None or self.members.rank == 0 or hybrid

    @property
    def tensors(self) -> int:
        """Return the number of devices over which its tensors are split."""
        return int(self["tensor_parallel_size"])

    @property
    def stages(self) -> int:
        """Return the number of device groups over which its layers are spread."""
        return int(self.get("pipeline_parallel_size") or 1)

    @property
    def copies(self) -> int:
        """Return the number of copies on this host that share the requests."""
        copies = int(self.get("data_parallel_size") or 1)
        local = copies // len(self.members.names) if self.members and copies > 1 else copies
        return int(self.get("data_parallel_size_local") or local or 1)

    @property
    def module_ids(self) -> tuple[int, ...]:
        """Return the devices that the entry names."""
        return tuple(self.get("module_ids") or ())

    @property
    def port(self) -> int:
        """Return the port on which its server listens."""
        return int(self["port"])

    @property
    def launch_profile(self) -> str:
        """Return the name of its engine."""
        return str(self["launch_profile"])

    @property
    def stopped(self) -> bool:
        """Return whether it is stopped. It keeps its cards."""
        return self.get("state") == "stopped"


def size_key(spec: Mapping[str, Any]) -> tuple[str, Any]:
    """Return the key that sets the number of devices of a model, and its value: module_ids sets it too."""
    modules, tensors = list(spec.get("module_ids") or ()), int(spec.get("tensor_parallel_size") or 1)
    return ("module_ids", modules) if len(modules) == tensors else ("tensor_parallel_size", tensors)
