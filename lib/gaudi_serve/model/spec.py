"""A model as it is wished for: the one merge of what all layers say, and what the plan reads of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from .distributed import FIRST_PORT, HOSTS, PORT, Members, Ports, members_of
from .shared import OWN, SHARED, members


@dataclass(frozen=True, eq=False)
class Spec(Mapping[str, Any]):
    """The keys of one model, frozen.

    Most keys are options of vLLM, which change with its releases; so it is a mapping, of which the plan's own keys have
    names and types. A key without a value is none.
    """

    keys_of: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Leave out keys without a value, and let nobody change the others."""
        known = {key: value for key, value in self.keys_of.items() if value is not None}
        object.__setattr__(self, "keys_of", MappingProxyType(known))

    def __getitem__(self, key: str) -> Any:
        """Return the value of a key."""
        return self.keys_of[key]

    def __iter__(self) -> Iterator[str]:
        """Go through the keys, in the order in which they were written."""
        return iter(self.keys_of)

    def __len__(self) -> int:
        """Return how many keys there are."""
        return len(self.keys_of)

    def but(self, **changed: Any) -> Spec:
        """Return a spec with other values."""
        return Spec({**self.keys_of, **changed})

    @property
    def name(self) -> str:
        """Return the name of the model, which its unit has too."""
        return str(self["name"])

    @property
    def weights(self) -> str:
        """Return the folder of its weights."""
        return str(self["weights"])

    @property
    def served(self) -> tuple[Spec, ...]:
        """Return the models that its server serves: itself, then those that share its card, each complete."""
        others = members(self)
        if not others:
            return (self,)
        common = {key: value for key, value in self.keys_of.items() if key not in (*OWN, SHARED)}
        named = [{**common, **one, "served_model_name": one["name"]} for one in others]
        return (self.but(**{SHARED: None}), *map(Spec, named))

    @property
    def cards(self) -> int:
        """Return how many devices of one host it takes: its tensors, layers and copies are spread over them."""
        return self.tensors * self.stages * self.copies // self.nodes

    @property
    def cards_said(self) -> str:
        """Return which keys say how many devices it takes, for a sentence."""
        keys = ("pipeline_parallel_size", "data_parallel_size_local", "data_parallel_size")
        others = [f" and {key} {self[key]}" for key in keys if self.get(key) not in (None, 1)]
        return f"tensor_parallel_size is {self.tensors}{''.join(others)}"

    @property
    def members(self) -> Members | None:
        """Return the hosts that it runs on; None where that is one."""
        return members_of(self.get(HOSTS))

    @property
    def nodes(self) -> int:
        """Return over how many hosts the tensors and layers of one copy are spread."""
        members = self.members
        return len(members.names) if members and not self.copied_over_hosts else 1

    @property
    def copied_over_hosts(self) -> bool:
        """Tell whether each of its hosts has copies of its own, which are complete."""
        return self.members is not None and int(self.get("data_parallel_size") or 1) > 1

    @property
    def cluster_ports(self) -> Ports:
        """Return the ports between its hosts."""
        return Ports(int(self.get(PORT) or FIRST_PORT))

    @property
    def answers(self) -> bool:
        """Tell whether its server on this host has an endpoint."""
        hybrid = self.copied_over_hosts and bool(self.get("data_parallel_hybrid_lb"))
        return self.members is None or self.members.rank == 0 or hybrid

    @property
    def tensors(self) -> int:
        """Return how many devices its tensors are split over."""
        return int(self["tensor_parallel_size"])

    @property
    def stages(self) -> int:
        """Return how many groups of devices its layers are spread over."""
        return int(self.get("pipeline_parallel_size") or 1)

    @property
    def copies(self) -> int:
        """Return how many copies of it on this host share the requests."""
        copies = int(self.get("data_parallel_size") or 1)
        local = copies // len(self.members.names) if self.members and copies > 1 else copies
        return int(self.get("data_parallel_size_local") or local or 1)

    @property
    def module_ids(self) -> tuple[int, ...]:
        """Return the devices that it names."""
        return tuple(self.get("module_ids") or ())

    @property
    def port(self) -> int:
        """Return the port that its server listens on."""
        return int(self["port"])

    @property
    def launch_profile(self) -> str:
        """Return the name of its engine."""
        return str(self["launch_profile"])

    @property
    def stopped(self) -> bool:
        """Tell whether it keeps its cards without being served."""
        return self.get("state") == "stopped"
