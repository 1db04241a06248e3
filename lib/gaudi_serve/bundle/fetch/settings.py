"""What a user may say of fetching, checked."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.errors import InputError, shown
from ..items import Item

APT_SOURCES = (
    "must be a mapping of systems, such as debian 12, each to a list of package sources with uris, suites, components "
    "and signed_by"
)
KEYS = {"uris", "suites", "components", "signed_by"}


@dataclass(frozen=True)
class Settings:
    """The variables of fetching; README of the folder: docs/air-gap.md.

    apt_sources: package sources of distributions, by system. signing_key: id of a key of the user's keyring; empty for
    one of the toolkit's own. key_dir: where that is kept. allow_unpinned: fetch what may be something else tomorrow.
    leave_out: patterns of what the site brings in another way, as the list calls it.
    """

    apt_sources: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    signing_key: str = ""
    key_dir: Path = Path("~/.config/gaudi-serve/bundle-key")
    allow_unpinned: bool = False
    leave_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Read the variables.

        Args:
            values: without their prefix ``bundle_``.

        Raises:
            InputError: with everything that is wrong, a line each.
        """
        sources, left = values.get("apt_sources") or {}, values.get("leave_out") or []
        wrong = []
        if not _are_sources(sources):
            wrong.append(f"bundle_apt_sources (hidden): {APT_SOURCES}")
        if not isinstance(left, list) or not all(isinstance(one, str) and one for one in left):
            wrong.append(f"bundle_leave_out {shown(left)}: must be a list of patterns, such as [package habanalabs-*]")
        if wrong:
            raise InputError("\n".join(wrong))
        return cls(
            sources,
            str(values.get("signing_key") or ""),
            Path(str(values.get("key_dir") or cls.key_dir)).expanduser(),
            bool(values.get("allow_unpinned")),
            tuple(left),
        )

    def leaves_out(self, item: Item) -> bool:
        """Tell whether the site brings an item in another way."""
        return any(fnmatch.fnmatchcase(item.label, one) or f"{item.kind} {item.name}" == one for one in self.leave_out)

    def unused(self, items: Iterable[Item]) -> list[str]:
        """Return patterns that are for none of the items: slips, most likely."""
        listed = list(items)
        return [
            f"bundle_leave_out {shown(one)}: is for nothing in the list"
            for one in self.leave_out
            if not any(Settings(leave_out=(one,)).leaves_out(item) for item in listed)
        ]


def _are_sources(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and isinstance(entries, list)
        and entries
        and all(
            isinstance(one, Mapping) and one.get("uris") and one.get("suites") and set(one) <= KEYS for one in entries
        )
        for name, entries in value.items()
    )
