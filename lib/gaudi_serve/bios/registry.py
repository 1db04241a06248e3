"""The attribute registry of a BIOS: its attributes, their allowed values, and their dependencies."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.errors import near, shown

Known = Mapping[str, Any]
# The suffix that Supermicro adds to a name for each board, such as #0840 or, in newer firmware, _0840.
SUFFIX = re.compile(r"(#[0-9A-Fa-f]+|_[0-9A-Fa-f]{4,})$")
SAME = {"enable": "enabled", "disable": "disabled"}
CONDITIONS = {
    "EQU": lambda one, other: one == other,
    "NEQ": lambda one, other: one != other,
    "GTR": lambda one, other: one > other,
    "GEQ": lambda one, other: one >= other,
    "LSS": lambda one, other: one < other,
    "LEQ": lambda one, other: one <= other,
}
SHOWN = 8  # allowed values in a message


def base_name(name: str) -> str:
    """Return an attribute's name without its board's suffix, with _ for all characters except letters and digits."""
    return re.sub(r"[^A-Za-z0-9]+", "_", SUFFIX.sub("", name)).strip("_")


@dataclass(frozen=True)
class Attribute:
    """One attribute of a registry.

    values: allowed values of an enumeration, each with its displayed text. low, high: limits of integers, and of the
    lengths of texts. step: of integers; 0 for none.
    """

    name: str
    kind: str
    read_only: bool = False
    values: tuple[tuple[str, str], ...] = ()
    low: int | None = None
    high: int | None = None
    step: int = 0

    @classmethod
    def of(cls, entry: Known) -> Attribute:
        """Return the attribute of a registry entry."""
        text = entry.get("Type") == "String"
        low, high = ("MinLength", "MaxLength") if text else ("LowerBound", "UpperBound")
        values = [one for one in _objects(entry.get("Value")) if "ValueName" in one]
        return cls(
            name=str(entry["AttributeName"]),
            kind=str(entry.get("Type") or ""),
            read_only=_flag(entry.get("ReadOnly")) or _flag(entry.get("Immutable")),
            values=tuple((str(one["ValueName"]), str(one.get("ValueDisplayName") or "")) for one in values),
            low=_number(entry.get(low)),
            high=_number(entry.get(high)),
            step=_number(entry.get("ScalarIncrement")) or 0,
        )

    def value(self, desired: Any) -> tuple[Any, str]:
        """Return a value in the registry's spelling, and a message on allowed values; it is empty for a valid one."""
        if self.kind == "Enumeration":
            found = self._spelled(desired) if isinstance(desired, str) else None
            return found, "" if found is not None else f"must be {self._choices}"
        if self.kind == "Boolean":
            # Some BIOSes show it as a text.
            desired = (
                {"true": True, "false": False}.get(desired.lower(), desired) if isinstance(desired, str) else desired
            )
            return desired, "" if isinstance(desired, bool) else "must be true or false"
        if self.kind == "Integer":
            return self._integer(desired)
        if self.kind == "String":
            fits = isinstance(desired, str) and (self.low or 0) <= len(desired) <= (self.high or 10**6)
            return (
                desired,
                "" if fits else f"must be a text of {self.low or 0} to {self.high or 'any number of'} characters",
            )
        return desired, f"is of type {self.kind or 'unknown'}, which is not set here"

    def _spelled(self, desired: str) -> str | None:
        """Return the registry's spelling of a value: by name, by displayed text, or by letters and digits only."""
        for found in (
            [name for name, _ in self.values if name == desired],
            [n for n, d in self.values if d == desired],
        ):
            if len(found) == 1:
                return found[0]
        wanted = _letters(desired)
        found = [name for name, display in self.values if wanted in (_letters(name), _letters(display))]
        return found[0] if len(found) == 1 else None

    @property
    def _choices(self) -> str:
        names = [name if display in ("", name) else f"{name} ({display})" for name, display in self.values]
        more = f" or one of {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        return f"{', '.join(names[:SHOWN])}{more}" if names else "one of no values: the registry has none"

    def _integer(self, desired: Any) -> tuple[Any, str]:
        number = int(desired) if isinstance(desired, str) and re.fullmatch(r"\d{1,18}", desired, re.ASCII) else desired
        whole = isinstance(number, int) and not isinstance(number, bool)
        fits = whole and (self.low is None or number >= self.low) and (self.high is None or number <= self.high)
        if fits and self.step > 1 and (number - (self.low or 0)) % self.step:
            fits = False
        low, high = (f"{one}" if one is not None else "any" for one in (self.low, self.high))
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return number, "" if fits else f"must be an integer from {low} to {high}{steps}"


def _letters(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "", text.lower())
    return SAME.get(plain, plain)


def _objects(found: Any) -> list[Known]:
    """Return the objects of a list; a BMC's registry may also contain other values."""
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _flag(value: Any) -> bool:
    # AMI's registries contain texts.
    return value is True or (isinstance(value, str) and value.lower() == "true")


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def passwords(entries: Known) -> list[str]:
    """Return the names of the attributes of ``RegistryEntries`` whose values are secret."""
    found = _objects(entries.get("Attributes"))
    return [str(one.get("AttributeName")) for one in found if one.get("Type") == "Password"]


@dataclass(frozen=True)
class Registry:
    """All attributes of a BIOS, and the rules by which one value makes another attribute read-only."""

    attributes: Mapping[str, Attribute]
    rules: Sequence[Known]

    @classmethod
    def of(cls, entries: Known) -> Registry:
        """Return the registry of ``RegistryEntries``."""
        found = [Attribute.of(one) for one in _objects(entries.get("Attributes")) if one.get("AttributeName")]
        rules = [one.get("Dependency") for one in _objects(entries.get("Dependencies"))]
        return cls({one.name: one for one in found}, [one for one in rules if isinstance(one, Mapping)])

    def name(self, desired: str) -> tuple[str, str]:
        """Return the attribute for a name, and a message if there is none.

        Supermicro's names match without their suffix, which depends on the board and its firmware.
        """
        if desired in self.attributes:
            return desired, ""
        base = base_name(desired)
        found = [name for name in self.attributes if base_name(name) == base]
        if len(found) == 1:
            return found[0], ""
        if found:
            return "", f"is the name of several attributes: {', '.join(found)}; write one of them"
        return "", f"this BIOS has no such attribute{near(desired, self.attributes, 1)}"

    def has(self, desired: str, current: Known) -> bool:
        """Return whether a BIOS with these current values has the attribute; an ambiguous name counts."""
        base = base_name(desired)
        return any(name in current and base in (base_name(name), name) for name in self.attributes)

    def closed(self, name: str, values: Known) -> str:
        """Return why an attribute is read-only while others have these values; empty if it can be set."""
        for rule in self.rules:
            property_ = rule.get("MapToProperty")
            if rule.get("MapToAttribute") != name or property_ not in ("ReadOnly", "GrayOut"):
                continue
            if _flag(rule.get("MapToValue")) and (reason := _holds(_objects(rule.get("MapFrom")), values)):
                return reason
        return ""


def _holds(terms: Sequence[Known], values: Known) -> str:
    """Return the terms of a rule as text if they are true; empty if they are false or cannot be read."""
    holds, texts = False, []
    for number, term in enumerate(terms):
        attribute, value = str(term.get("MapFromAttribute")), term.get("MapFromValue")
        known = CONDITIONS.get(str(term.get("MapFromCondition")))
        if known is None or term.get("MapFromProperty") != "CurrentValue" or attribute not in values:
            return ""
        try:
            now = bool(known(values[attribute], value))
        except TypeError:
            return ""
        holds = now if number == 0 else (holds or now if term.get("MapTerms") == "OR" else holds and now)
        texts.append(f"{attribute} is {shown(values[attribute])}")
    return " and ".join(dict.fromkeys(texts)) if holds else ""
