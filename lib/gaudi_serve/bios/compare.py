"""Compares desired, pending and current BIOS values: a table, the changes to send, and refusals."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..core.errors import readable, shown
from ..core.table import table
from .registry import Registry

Known = Mapping[str, Any]
HEAD = ["ATTRIBUTE", "DESIRED", "PENDING", "CURRENT"]


@dataclass(frozen=True)
class Row:
    """One desired setting. pending: the value after the next reset; None if the reset does not change it."""

    name: str
    desired: Any
    pending: Any
    current: Any

    @property
    def is_current(self) -> bool:
        """Return whether the value is as desired, now and after the next reset."""
        return bool(self.current == self.desired and self.pending in (None, self.desired))

    @property
    def is_staged(self) -> bool:
        """Return whether the next reset sets the desired value."""
        return bool(self.pending == self.desired and self.current != self.desired)

    @property
    def line(self) -> str:
        """Return the difference as a line."""
        now = "pending until a reset" if self.is_staged else f"pending {shown_value(self.pending)}"
        more = f" ({now})" if self.pending is not None else ""
        return f"{self.name}: {shown_value(self.current)} -> {shown_value(self.desired)}{more}"


@dataclass(frozen=True)
class Comparison:
    """The comparison of a BIOS with the desired settings.

    rows: one for each desired setting. patch: values to send now. later: names that can be set only after a first
    reset, because another value makes them read-only until then. others: values by attribute that the next reset
    changes without being desired here. refusals: why nothing may be sent. left_out: optional settings of the profile
    that this BIOS does not have.
    """

    rows: Sequence[Row] = ()
    patch: Mapping[str, Any] = field(default_factory=dict)
    later: Sequence[str] = ()
    others: Mapping[str, Any] = field(default_factory=dict)
    refusals: Sequence[str] = ()
    left_out: Sequence[str] = ()

    @property
    def differing(self) -> list[Row]:
        """Return the rows that are not as desired."""
        return [one for one in self.rows if not one.is_current]

    @property
    def lines(self) -> list[str]:
        """Return a table of the rows that differ."""
        rows = [
            [
                one.name,
                *("-" if value is None else shown_value(value) for value in (one.desired, one.pending, one.current)),
            ]
            for one in self.differing
        ]
        return table([HEAD, *rows]) if rows else []


def shown_value(value: Any) -> str:
    """Return a value as tables show it."""
    return readable(value) if isinstance(value, str) and value else shown(value)


def compared(desired: Known, seen: Known, profile: Known | None = None, optional: Collection[str] = ()) -> Comparison:
    """Return the comparison of settings with a BIOS.

    Args:
        desired: values by name, both in the user's spelling.
        seen: the result of ``observed``, with the registry.
        profile: default settings; ``desired`` overrides those for the same attribute.
        optional: names of the profile that are left out if the BIOS does not have them.
    """
    registry = Registry.of(seen["registry"])
    own = {name for key in desired if (name := registry.name(key)[0])}
    below = {key: value for key, value in (profile or {}).items() if registry.name(key)[0] not in own}
    left_out = [key for key in below if key in optional and not registry.has(key, seen["current"])]
    desired = {**{key: value for key, value in below.items() if key not in left_out}, **desired}
    current, pending = seen["current"], seen["pending"] or {}
    if not registry.attributes:
        return Comparison(refusals=["the BMC shows no attribute registry, which is needed to check settings"])
    values, refusals = _values(desired, registry, current)
    rows = [Row(name, value, pending.get(name), _spelled(registry, name, current)) for name, value in values.items()]
    effective = {**current, **pending}
    patch = {one.name: one.desired for one in rows if _spelled(registry, one.name, effective) != one.desired}
    later = [name for name in patch if registry.closed(name, current)]
    then = {**effective, **patch}
    for name in later:
        if reason := registry.closed(name, then):
            refusals.append(
                f"{name}: {shown_value(values[name])} cannot be set: it is read-only while {reason}; set that too"
            )
    others = {name: value for name, value in pending.items() if name not in values}
    return Comparison(rows, {k: v for k, v in patch.items() if k not in later}, later, others, refusals, left_out)


def _spelled(registry: Registry, name: str, values: Known) -> Any:
    """Return a value of the BIOS in its registry's spelling; unchanged if the registry does not have it."""
    value = values.get(name)
    found, wrong = registry.attributes[name].value(value)
    return value if wrong else found


def _values(desired: Known, registry: Registry, current: Known) -> tuple[dict[str, Any], list[str]]:
    """Return the desired values by attribute, and messages on invalid ones."""
    values: dict[str, Any] = {}
    written: dict[str, str] = {}
    refusals: list[str] = []
    for key, value in desired.items():
        name, problem = registry.name(key)
        if not problem and name not in current:
            problem = "the registry has this attribute, but the BIOS of this system does not show it"
        if problem:
            refusals.append(f"{readable(key)}: {problem}")
            continue
        attribute = registry.attributes[name]
        found, allowed = attribute.value(value)
        if allowed:
            hint = "; quote it, YAML reads on, off, yes and no as true and false" if isinstance(value, bool) else ""
            refusals.append(f"{name}: {shown(value)} {allowed}{hint}")
        elif attribute.read_only and _spelled(registry, name, current) != found:
            refusals.append(f"{name}: is read-only, and {shown_value(current[name])} in place of {shown_value(found)}")
        elif name in values and values[name] != found:
            refusals.append(f"{name}: {written[name]} and {key} mean this attribute, and give it different values")
        values |= {} if allowed else {name: found}
        written[name] = key
    return values, refusals
