"""Profiles: settings for a purpose, as data by maker, model and BIOS version."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from ..core.errors import near, readable, shown
from ..core.templates import ROLES
from ..core.yaml_text import load

Known = Mapping[str, Any]
FOLDER = ROLES / "bios/files/profiles"
KEYS = ("maker", "model", "bios", "settings", "first", "optional")
ALLOWED = (
    "must be a mapping of profiles to lists of entries. Each entry has maker, model and bios (patterns such as "
    "'SYS-822GA*', or lists of them). It has settings (a mapping of attributes to values). It may have first (the "
    "attributes that must be current before the others), and optional (those that are left out if a BIOS lacks them)"
)


@dataclass(frozen=True)
class Variant:
    """The settings of a profile for some systems, by patterns of maker, model and BIOS; an empty list matches all.

    first: names of settings that must be current before others can be set, if no registry contains this rule.
    optional: names of settings that are left out where a BIOS does not have them.
    """

    maker: tuple[str, ...]
    model: tuple[str, ...]
    bios: tuple[str, ...]
    settings: Mapping[str, Any]
    first: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()

    @classmethod
    def of(cls, entry: Known) -> Variant:
        """Return the variant of a valid entry."""
        maker, model, bios = (_patterns(entry.get(key)) for key in KEYS[:3])
        first, optional = (_patterns(entry.get(key)) for key in KEYS[4:])
        return cls(maker, model, bios, dict(entry.get("settings") or {}), first, optional)

    @property
    def patterns(self) -> dict[str, tuple[str, ...]]:
        """Return the patterns by key of the system."""
        return {"maker": self.maker, "model": self.model, "bios": self.bios}

    def fits(self, system: Known) -> bool:
        """Return whether the variant fits a system; a maker must match the beginning of the BMC's value."""
        patterns = {**self.patterns, "maker": [f"{one}*" for one in self.maker]}
        return all(
            not wanted or any(fnmatchcase(str(system[key]).lower(), one.lower()) for one in wanted)
            for key, wanted in patterns.items()
        )

    @property
    def about(self) -> str:
        """Return a description of the matching systems, for a message."""
        return " ".join(f"{key} {' or '.join(one)}" for key, one in self.patterns.items() if one) or "every system"


def _patterns(value: Any) -> tuple[str, ...]:
    if value is None or value == "":
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


@functools.cache
def builtin() -> Mapping[str, Sequence[Variant]]:
    """Return the project's own profiles: ``roles/bios/files/profiles/<name>.yml``."""
    return {
        path.stem: [Variant.of(one) for one in load(path.read_text(encoding="utf-8"))]
        for path in sorted(FOLDER.glob("*.yml"))
    }


def is_setting(value: Any) -> bool:
    """Return whether a value is valid for an attribute."""
    return isinstance(value, (str, int)) and (not isinstance(value, str) or value.isprintable())


def is_settings(value: Any) -> bool:
    """Return whether a value is a mapping of attributes to valid values."""
    return isinstance(value, Mapping) and all(
        isinstance(key, str) and key.strip() and key.isprintable() and is_setting(one) for key, one in value.items()
    )


def is_profiles(value: Any) -> bool:
    """Return whether a value is a valid mapping of a site's profiles."""
    if not isinstance(value, Mapping):
        return False
    return all(
        isinstance(name, str) and isinstance(entries, list) and all(_is_entry(one) for one in entries)
        for name, entries in value.items()
    )


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or set(entry) - set(KEYS) or not is_settings(entry.get("settings")):
        return False
    return all(_is_pattern(entry.get(key)) for key in (*KEYS[:3], *KEYS[4:]))


def _is_pattern(value: Any) -> bool:
    if value is None or isinstance(value, str):
        return True
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def known_names(own: Known) -> list[str]:
    """Return the names of all profiles."""
    return sorted({*builtin(), *own})


def unknown_profile(name: str, own: Known) -> str:
    """Return the message for an unknown profile; empty if the profile exists."""
    names = known_names(own)
    if not name or name in names:
        return ""
    return f"bios_profile {shown(name)}: must be one of {', '.join(names)}{near(name, names, 1)}"


def first_settings(own: Known, system: Known) -> set[str]:
    """Return the settings of a system that must be current before others can be set, from all profiles."""
    entries = [Variant.of(one) for name in own for one in own[name]]
    entries += [one for variants in builtin().values() for one in variants]
    return {name for one in entries if one.fits(system) for name in one.first}


def profile_settings(name: str, own: Known, system: Known) -> tuple[Known, str]:
    """Return the settings of a profile for a system, and a message if there are none.

    Args:
        name: name of the profile; empty for none.
        own: the site's profiles (``bios_profiles``).
        system: the BMC's system: maker, model, bios.
    """
    if not name:
        return {}, ""
    if wrong := unknown_profile(name, own):
        return {}, wrong
    if variant := _variant(name, own, system):
        return variant.settings, ""
    text = f"{readable(system['maker'])} {readable(system['model'])} with BIOS {readable(system['bios'])}"
    about = "; ".join(one.about for one in _variants(name, own))
    return {}, f"bios_profile {name}: has no entry for {text}, only for {about}; add one in bios_profiles"


def optional_settings(name: str, own: Known, system: Known) -> tuple[str, ...]:
    """Return the settings of a profile that are left out where the BIOS does not have them; arguments as above."""
    variant = _variant(name, own, system) if name else None
    return variant.optional if variant else ()


def _variants(name: str, own: Known) -> list[Variant]:
    return [*(Variant.of(one) for one in own.get(name) or []), *builtin().get(name, [])]


def _variant(name: str, own: Known, system: Known) -> Variant | None:
    """Return the entry that fits with the most conditions; with equal numbers, the site's own."""
    fitting = [one for one in _variants(name, own) if one.fits(system)]
    return max(fitting, key=lambda one: sum(map(bool, one.patterns.values())), default=None)
