"""A model over several hosts: an entry of ``vllm_distributed_models``, and its part on each host."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import is_whole, near, readable, shown
from .shared import with_name

Groups = Mapping[str, Sequence[str]]
Chosen = Mapping[str, Sequence[str]]

EXECUTOR, MP = "distributed_executor_backend", "mp"
HOSTS, PORT = "hosts", "cluster_port"
# The key for the inventory group from which the plan chooses hosts, if ``hosts`` is a number.
GROUP = "group"
# vLLM's default for its rendezvous is the second port of this block.
FIRST_PORT, PORTS = 29500, 100
MOST = 16  # The most hosts of one model.


@dataclass(frozen=True)
class Members:
    """The hosts of a model, the head first, and the index of the planned host."""

    names: tuple[str, ...]
    rank: int

    @property
    def here(self) -> str:
        """Return the planned host."""
        return self.names[self.rank]

    @property
    def head(self) -> str:
        """Return the host whose server answers requests."""
        return self.names[0]


@dataclass(frozen=True)
class Ports:
    """The ports between the hosts of one model: one block that begins with ``cluster_port``.

    supervisors: where the supervisor of the head waits for the others. rendezvous: of vLLM's processes, and of Ray's
    global control store. copies, copies_torch: of data parallel. ray: node manager, object manager, runtime
    environments, dashboard agent, its gRPC, metrics. client: of Ray's clients, on the head. workers: the range of Ray's
    own processes.
    """

    first: int

    @property
    def supervisors(self) -> int:
        """Return the port of the head's supervisor."""
        return self.first

    @property
    def rendezvous(self) -> int:
        """Return the port of the head's process group, or of Ray."""
        return self.first + 1

    @property
    def copies(self) -> int:
        """Return the port on which data-parallel copies find the head."""
        return self.first + 2

    @property
    def copies_torch(self) -> int:
        """Return the port of the copies' process group."""
        return self.first + 3

    @property
    def ray(self) -> tuple[int, ...]:
        """Return the ports of the services that Ray runs on every host."""
        return tuple(range(self.first + 4, self.first + 10))

    @property
    def client(self) -> int:
        """Return the port of Ray's clients. It is unused, but Ray needs one."""
        return self.first + 10

    @property
    def workers(self) -> tuple[int, int]:
        """Return the first and the last port of Ray's processes."""
        return self.first + 20, self.last

    @property
    def last(self) -> int:
        """Return the last port of the block."""
        return self.first + PORTS - 1


def entries_of(distributed: Any) -> list[Mapping[str, Any]]:
    """Return the valid entries of ``vllm_distributed_models``: those with hosts, by name or as a number."""
    listed = distributed if isinstance(distributed, list) else []
    return [with_name(one) for one in listed if isinstance(one, Mapping) and not hosts_problem(one.get(HOSTS))]


def is_counted(entry: Mapping[str, Any]) -> bool:
    """Return whether an entry has a number of hosts, which the plan chooses."""
    return is_whole(entry.get(HOSTS), 2, MOST)


def may_serve(entry: Mapping[str, Any], host: str, groups: Groups | None) -> bool:
    """Return whether the plan may choose a host for an entry, by the groups of the inventory."""
    return host in (groups or {}).get(str(entry.get(GROUP)), ())


def entry_problems(distributed: Any, host: str, inventory: Collection[str], groups: Groups | None = None) -> list[str]:
    """Return the problems with the ``hosts`` of distributed models that concern a host or no host at all.

    Args:
        distributed: ``vllm_distributed_models`` of the host.
        host: Its name in the inventory.
        inventory: The names of all hosts.
        groups: The hosts of each inventory group; None if they are unknown.
    """
    found = []
    for place, one in enumerate(distributed if isinstance(distributed, list) else []):
        name = one.get("name") if isinstance(one, Mapping) else None
        where = f"vllm_distributed_models[{place}]{f' ({readable(str(name))})' if name else ''}"
        hosts: Any = one.get(HOSTS) if isinstance(one, Mapping) else None
        if not isinstance(one, Mapping):
            found.append(f"{where}: {shown(one)}: must be a mapping with name, hosts and the other keys of a model")
        elif allowed := hosts_problem(hosts):
            found.append(f"{where}: hosts {shown(hosts)}: {allowed}")
        elif problem := _group_problem(one, groups):
            found.append(f"{where}: {problem}")
        elif is_counted(one):
            continue
        elif host in hosts or not {*hosts} & {*inventory}:
            found += [
                f"{where}: hosts: {shown(other)} is not a host of the inventory{near(other, inventory, 1)}"
                for other in hosts
                if other not in inventory
            ]
    return found


def _group_problem(entry: Mapping[str, Any], groups: Groups | None) -> str | None:
    """Return the problem with the group from which the hosts of an entry are chosen."""
    group, count = entry.get(GROUP), entry[HOSTS]
    if not is_counted(entry):
        return f"{GROUP} {shown(group)}: is for a number of hosts, such as hosts: 2; leave it out" if group else None
    if group is None:
        return f"hosts {count}: needs group: NAME, the group of the inventory from which the plan chooses the hosts"
    if not isinstance(group, str) or group not in (groups or {group: ()}):
        return f"{GROUP} {shown(group)}: is not a group of the inventory{near(str(group), sorted(groups or {}), 1)}"
    if groups is not None and len(groups[group]) < count:
        return f"hosts {count}: group {group} has {len(groups[group])}"
    return None


def hosts_problem(value: Any) -> str | None:
    """Return what ``hosts`` of an entry must be, or None if it is valid."""
    if is_whole(value, 2, MOST):
        return None
    fits = isinstance(value, list) and 1 < len(value) <= MOST and all(isinstance(name, str) and name for name in value)
    allowed = (
        f"must be a list of 2 to {MOST} different hosts of the inventory, the head first, such as [gaudi01, gaudi02], "
        f"or their number, 2 to {MOST}, if the plan is to choose them"
    )
    return None if fits and len(set(value)) == len(value) else allowed


def host_models(
    models: Any, distributed: Any, host: str, chosen: Chosen | None = None, groups: Groups | None = None
) -> Any:
    """Return the models of a host, including its parts of models over several hosts.

    Args:
        models: ``vllm_models`` of the host; None if it is not set.
        distributed: ``vllm_distributed_models`` of the host.
        host: Its name in the inventory.
        chosen: The hosts that the plan chose for models, in place of ``hosts`` of their entries. An empty list: this
            run plans no part of the model. An entry with a number of hosts that is not listed here counts for each
            host from which the plan may choose.
        groups: The hosts of each inventory group; None if they are unknown.

    Returns:
        The list of models, each with its name, or ``models`` unchanged if it is no list.
    """
    parts, offered = [], False
    for one in entries_of(distributed):
        hosts = (chosen or {}).get(str(one.get("name")), one[HOSTS])
        own = {key: value for key, value in one.items() if key != GROUP}
        offers = is_counted(one) and may_serve(one, host, groups)
        offered = offered or offers
        if not isinstance(hosts, int) and host in hosts:
            parts.append({**own, HOSTS: _part(hosts, host)})
        elif isinstance(hosts, int) and offers:
            parts.append(own)
    if not (parts or offered) or not (models is None or isinstance(models, list)):
        return list(map(with_name, models)) if isinstance(models, list) else models
    return [*map(with_name, models or []), *parts]


def _part(names: Sequence[str], host: str) -> dict[str, Any]:
    return {"names": list(names), "rank": list(names).index(host)}


def members_of(value: Any) -> Members | None:
    """Return the hosts of a part, or None for a model on one host."""
    return Members(tuple(value["names"]), int(value["rank"])) if isinstance(value, Mapping) else None


def answers(model: Mapping[str, Any]) -> bool:
    """Return whether a model has an endpoint on its host. A worker has none.

    Args:
        model: The model in a plan, a launch file or a snapshot of a rollout.
    """
    return bool((model.get("group") or {"answers": model.get("answers", True)})["answers"])


def hosts_of(model: Mapping[str, Any] | None) -> list[str]:
    """Return the hosts of a model over several hosts, the head first; empty for a model on one host.

    Args:
        model: The model in a plan or a launch file, or None.
    """
    return list(((model or {}).get("group") or {"hosts": []})["hosts"])


def left_models(plan: Mapping[str, Any], units: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the models that a plan leaves unchanged, from their launch files.

    Args:
        plan: The plan of a host, as filter vllm_plan returns it.
        units: The units in ``gaudi_services``.
    """
    launches = [(units.get(name) or {}).get("launch") for name in plan.get("left") or ()]
    return [{**launch, "state": "started"} for launch in launches if launch]


def part_problem(value: Any) -> str | None:
    """Return the problem with ``hosts`` in an entry of ``vllm_models``. Only host_models may set it."""
    if isinstance(value, Mapping) and set(value) == {"names", "rank"} and not hosts_problem(value["names"]):
        return None
    return "is only for entries of vllm_distributed_models, which all hosts of a model see; write the model there"
