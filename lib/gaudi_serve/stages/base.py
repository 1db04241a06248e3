"""The interface of a stage: one object that its role, the plan, the status and a reset use."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from ..core.errors import InputError

Known = Mapping[str, Any]
# A refusal before the first change starts with this text; a run that ends with it has its own exit status.
REFUSED = "Nothing has been changed. What must be fixed first:"
SUPPORTED = {("debian", "12"), ("debian", "13"), ("ubuntu", "22.04"), ("ubuntu", "24.04")}
# How a name under the key of a difference becomes a sentence.
WORDS = {
    "repair": "dpkg was interrupted",
    "install": "{} is not installed",
    "hold": "{} is not held",
    "reload": "the loaded driver is not the planned one",
    "load": "module {} is not loaded",
    "take_over": "{} (a line that sets a planned key elsewhere)",
}


# Begins the lines about permissions among the pending changes of a stage.
CORRECT = "correct "


@dataclass(frozen=True)
class Given:
    """The input of a stage.

    host: name of the host. known: the variables and facts of the host by name; a value is rendered when it is read.
    seen: the result of the stage's own look at the host.
    """

    host: str
    known: Known
    seen: Known = field(default_factory=dict)

    def left(self, lines: Sequence[str]) -> list[str]:
        """Return the sentence for a stage that has run and still has pending changes; empty if it has none."""
        return [f"{self.host}: still to do after this run: {'; '.join(lines)}"] if lines else []

    @property
    def inventory(self) -> list[str]:
        """Return the names of all hosts of the inventory."""
        return list(self.known["groups"]["all"])


@dataclass(frozen=True)
class Pending:
    """The pending work of a stage on a host.

    changes: values for the tasks that carry them out. due: the same as lines. left: the error if these changes are
    still pending after the stage has run. refusal: why the stage must not begin. drift: how the host differs from the
    plan, for a status. stops: the models that it takes down. notes: information for users; None if unchanged. facts:
    values that other parts of a run read, by name without the role.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    due: Sequence[str] = ()
    left: Sequence[str] = ()
    refusal: Sequence[str] = ()
    drift: Sequence[str] = ()
    stops: Any = ()
    notes: Sequence[str] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def _nothing(_: Given) -> Pending:
    return Pending()


def _no_reset(_: Given) -> dict[str, Any]:
    return {"due": False, "did": [], "left": []}


def _no_look(_: Given) -> None:
    return None


def _all_stays(_: Given) -> dict[str, Any]:
    return {}


@dataclass(frozen=True)
class Stage:
    """One stage of a run.

    role: the role that carries it out; tag: its name in --tags, and of its playbook. reads: the subsets of gaudi_facts
    that it needs. planned: it needs a plan of the models without errors; the others may repair a host whose models have
    errors. of_fleet: it depends on the plans of other hosts, which are made first.

    down: minutes of downtime of serving models in addition to their start, and the reason; ends_all: the fact which
    shows that all models stop, if it differs from ``stops``. ``tells``: further facts. noted: where its notes are
    shown. given: options of its role that playbooks set in every run, each with the source of its value; an inventory
    cannot override them. taken: options that playbooks set for a reset.

    hosts: variables that name hosts with a task for others, with the functions that read the names. waits: whether
    hosts wait for each other in this stage, by their variables.

    look: a module and its arguments if what it reads depends on the desired state; None if it reads nothing. pending:
    the pending work. expected: the values of ``gaudi_host`` that this stage changes, for the plan of the models. reset:
    what a reset undoes.
    """

    role: str
    tag: str
    reads: tuple[str, ...] = ()
    planned: bool = False
    of_fleet: bool = False
    down: tuple[int, str] | None = None
    ends_all: str = ""
    reports: tuple[str, ...] = ()
    noted: tuple[str, ...] = ()
    given: Mapping[str, str] = field(default_factory=dict)
    taken: tuple[str, ...] = ()
    hosts: Mapping[str, Callable[[Any], Iterable[Any]]] = field(default_factory=dict)
    waits: Callable[[Known], bool] = lambda known: False
    look: Callable[[Given], tuple[str, dict[str, Any]] | None] = _no_look
    pending: Callable[[Given], Pending] = _nothing
    expected: Callable[[Given], dict[str, Any]] = _all_stays
    reset: Callable[[Given], dict[str, Any]] = _no_reset

    def names(self, *kinds: str) -> tuple[str, ...]:
        """Return the names of variables of the role."""
        return tuple(f"{self.role}_{kind}" for kind in kinds)

    def asked(self, given: Given, run: Callable[[str, dict[str, Any]], Known]) -> Pending:
        """Return the pending work of the stage, after its own look at the host.

        Args:
            given: the input of the stage.
            run: runs a module with arguments, and returns its result.

        Raises:
            InputError: if the desired state is invalid or the look fails.
        """
        look = self.look(given)
        if look:
            seen = run(*look)
            if seen.get("failed"):
                raise InputError(str(seen.get("msg") or "the host cannot be read"))
            # These values override the other variables, each of which is rendered when it is read.
            known = ChainMap(dict(seen.get("ansible_facts", {})), cast("MutableMapping[str, Any]", given.known))
            given = Given(given.host, known, seen)
        return self.compared(given)

    def compared(self, given: Given) -> Pending:
        """Return the pending work of the stage, with the permissions of its files that a host has changed."""
        found, differ = self.pending(given), list((given.known.get("gaudi_permissions") or {}).get(self.role) or ())
        lines = [f"{CORRECT}{text}" for text in differ]
        return replace(
            found,
            changes={**found.changes, "permissions": differ},
            due=[*found.due, *lines],
            left=[*found.left, *given.left(lines)],
            drift=[*found.drift, *differ],
        )

    def facts(self, found: Pending) -> dict[str, Any]:
        """Return the facts that later parts of a run read from a stage, by name."""
        told = {"due": list(found.due), "refusal": list(found.refusal), "stops": found.stops, **found.facts}
        told |= {} if found.notes is None else {"notes": list(found.notes)}
        return {f"{self.role}_{key}": value for key, value in told.items()}


def drift_lines(changes: Known, but: Sequence[str] = ()) -> list[str]:
    """Return the differences of a comparison as lines, one each.

    Args:
        changes: sentences or names by kind, as host_tuning_changes returns them.
        but: keys that are not differences.
    """
    lines = []
    for key, value in changes.items():
        if key in ("due", *but) or not value:
            continue
        for item in value if isinstance(value, list) else [value]:
            lines.append(WORDS.get(key, "{}").format(item))
    return lines


def system_refusal(system: Known, host_name: str) -> list[str]:
    """Return why this toolkit does not work on an operating system; empty if it does."""
    if (system["id"], system["version_id"]) in SUPPORTED:
        return []
    known = ", ".join(f"{name} {version}" for name, version in sorted(SUPPORTED))
    return [f"{host_name}: {system['pretty_name']} is not supported; supported are {known}"]
