"""The user's settings for the download of a bundle; inventory/variables.py checks them."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core.checks import is_true
from ...core.errors import shown
from ..items import Item


@dataclass(frozen=True)
class Settings:
    """The variables of docs/guides/air-gap.md without their prefix ``bundle_``.

    apt_sources: package sources of distributions, by system. signing_key: id of a key in the user's keyring; empty for
    the toolkit's own key. key_dir: folder of that key. allow_unpinned: also download items that may change later.
    leave_out: patterns of items, by their label, that the site provides in another way.
    """

    apt_sources: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)
    signing_key: str = ""
    key_dir: Path = Path("~/.config/gaudi-serve/bundle-key")
    allow_unpinned: bool = False
    leave_out: tuple[str, ...] = ()

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Settings:
        """Return the settings of variables, each of which is optional."""
        return cls(
            values.get("apt_sources") or {},
            str(values.get("signing_key") or ""),
            Path(str(values.get("key_dir") or cls.key_dir)).expanduser(),
            is_true(values.get("allow_unpinned")),
            tuple(values.get("leave_out") or ()),
        )

    def leaves_out(self, item: Item) -> bool:
        """Return whether the site provides an item in another way."""
        return any(fnmatch.fnmatchcase(item.label, one) or f"{item.kind} {item.name}" == one for one in self.leave_out)

    def unused(self, items: Iterable[Item]) -> list[str]:
        """Return messages on patterns that match no item and are probably mistyped."""
        listed = list(items)
        return [
            f"bundle_leave_out {shown(one)}: matches nothing in the list"
            for one in self.leave_out
            if not any(Settings(leave_out=(one,)).leaves_out(item) for item in listed)
        ]
