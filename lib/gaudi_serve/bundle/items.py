"""The items that a run downloads, the manifest of all items, and the differences between two manifests."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any

from ..core.errors import InputError, shown
from ..core.hide import without_credentials

SCHEMA = 1
NAME = "manifest.json"
# Kinds in the order of the report, with their headings.
KINDS = {
    "image": "container images",
    "repository": "package repositories",
    "key": "signing keys",
    "package": "packages",
    "source": "git sources",
    "download": "downloads",
    "weights": "weights",
    "python": "Python packages",
    "collection": "Ansible collections",
}
QUERY = re.compile(r"(\w+://[^\s?#]*)[?#]\S*")


@dataclass(frozen=True)
class Need:
    """Who needs an item.

    hosts: empty for the control node. models: the models that need it. why: the roles that download it.
    """

    hosts: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    def joined(self, other: Need) -> Need:
        """Return the joint need of both."""
        return Need(
            tuple(sorted({*self.hosts, *other.hosts})),
            tuple(sorted({*self.models, *other.models})),
            tuple(sorted({*self.why, *other.why})),
        )


@dataclass(frozen=True)
class Item:
    """One item that a run downloads.

    kind: a key of KINDS. version: version, tag, digest, commit or revision; empty if none is set. origin: its source.
    system: release and architecture of a package. need: who needs it. pinned: whether the name always gives the same
    content. problem: why it is not pinned or cannot be downloaded, and what to do. licence: empty if unknown.
    bytes: its size; None if unknown.

    After a download: path of its file or folder in the bundle, sha256 of the file, digest of an image, and in fetched
    the version or commit if the list has none. left_out: the site provides it in another way.
    """

    kind: str
    name: str
    version: str = ""
    origin: str = ""
    system: str = ""
    need: Need = Need()
    pinned: bool = False
    problem: str = ""
    licence: str = ""
    bytes: int | None = None
    path: str = ""
    sha256: str = ""
    digest: str = ""
    fetched: str = ""
    left_out: bool = False

    @property
    def identity(self) -> tuple[str, ...]:
        """Return the values that identify the item."""
        return (self.kind, self.name, self.version, self.origin, self.system)

    @property
    def label(self) -> str:
        """Return its name for messages."""
        joint = {"image": "@" if self.version.startswith("sha256:") else ":"}.get(self.kind, " ")
        text = f"{self.name}{joint}{self.version}" if self.version else self.name
        return f"{self.kind} {text}{f' ({self.system})' if self.system else ''}"

    @property
    def users(self) -> list[str]:
        """Return the hosts that need it, or the control node."""
        return [*(self.need.hosts or ["control node"])]

    def as_dict(self) -> dict[str, Any]:
        """Return the item as a mapping for a manifest."""
        values = asdict(self)
        need = {key: list(value) for key, value in values.pop("need").items()}
        values = {key: value for key, value in values.items() if value or key not in (*FETCHED, "left_out")}
        return {**values, "why": need.pop("why"), "needed_by": need}

    @classmethod
    def of(cls, value: Mapping[str, Any]) -> Item:
        """Return the item of a mapping of as_dict; invalid values raise a TypeError, KeyError or ValueError."""
        if value["kind"] not in KINDS or not all(isinstance(value[key], str) for key in TEXTS):
            raise ValueError(value["kind"])
        hosts, models = (tuple(map(str, value["needed_by"][key])) for key in ("hosts", "models"))
        texts = {key: value[key] for key in TEXTS}
        texts |= {key: str(value.get(key, "")) for key in FETCHED}
        size = value["bytes"]
        return cls(
            **texts,
            left_out=bool(value.get("left_out")),
            need=Need(hosts, models, tuple(map(str, value["why"]))),
            pinned=bool(value["pinned"]),
            bytes=None if size is None else int(size),
        )

    def redacted(self) -> Item:
        """Return it without user, password and query in any address."""
        texts: dict[str, Any] = {key: QUERY.sub(r"\1", str(without_credentials(getattr(self, key)))) for key in TEXTS}
        return replace(self, **texts)

    def joined(self, other: Item) -> Item:
        """Return the same item for the users of both."""
        sizes = [one.bytes for one in (self, other) if one.bytes is not None]
        return replace(
            self,
            need=self.need.joined(other.need),
            pinned=self.pinned and other.pinned,
            problem=self.problem or other.problem,
            licence=self.licence or other.licence,
            bytes=max(sizes, default=None),
        )


TEXTS = ("kind", "name", "version", "origin", "system", "problem", "licence")
FETCHED = ("path", "sha256", "digest", "fetched")


def joined(items: Iterable[Item]) -> tuple[Item, ...]:
    """Return each item once, without credentials, in a stable order."""
    found: dict[tuple[str, ...], list[Item]] = {}
    for item in map(Item.redacted, items):
        found.setdefault(item.identity, []).append(item)
    order = list(KINDS)
    return tuple(
        reduce(Item.joined, found[key][1:], found[key][0].joined(found[key][0]))
        for key in sorted(found, key=lambda key: (order.index(key[0]), *key[1:]))
    )


@dataclass(frozen=True)
class Manifest:
    """The list of a bundle; ``made`` is when it last changed, in UTC."""

    items: tuple[Item, ...]
    made: str = ""

    @property
    def text(self) -> str:
        """Return the text of the manifest file."""
        known = {"schema": SCHEMA, "made": self.made, "items": [one.as_dict() for one in self.items]}
        return json.dumps(known, indent=1, ensure_ascii=False) + "\n"

    @property
    def size(self) -> int:
        """Return the bytes of all items whose size is known."""
        return sum(one.bytes or 0 for one in self.items)

    def with_fetched(self, old: Manifest | None) -> Manifest:
        """Return it with the downloaded files that an older manifest records."""
        then = {one.identity: one for one in (old.items if old else ()) if one.path or one.left_out}
        return replace(self, items=tuple(_as_fetched(one, then.get(one.identity)) for one in self.items))

    def after(self, old: Manifest | None) -> Manifest:
        """Return it with the time of an older manifest if nothing else differs."""
        return replace(self, made=old.made) if old and old.items == self.items else self

    def differences(self, old: Manifest) -> dict[str, list[str]]:
        """Return the labels of items that were added, removed and changed since an older manifest."""
        now, then = ({one.identity: one for one in each.items} for each in (self, old))
        return {
            "added": [one.label for key, one in now.items() if key not in then],
            "removed": [one.label for key, one in then.items() if key not in now],
            "changed": [one.label for key, one in now.items() if key in then and then[key] != one],
        }


def _as_fetched(item: Item, old: Item | None) -> Item:
    if old is None:
        return item
    known = {key: getattr(old, key) for key in (*FETCHED, "left_out")}
    return replace(item, **known, licence=old.licence or item.licence, bytes=old.bytes if old.path else item.bytes)


def read_manifest(folder: str, inventory: Sequence[str] = ()) -> Manifest | None:
    """Return the manifest of a folder; None if it has none yet.

    Args:
        folder: of the bundle, on the control node.
        inventory: sources of the inventory; Ansible would read a manifest inside one as hosts.

    Raises:
        InputError: if the folder cannot be a bundle, or contains another file of that name.
    """
    place = Path(folder)
    said = f"bundle {shown(folder)}"
    if not place.is_absolute():
        raise InputError(f"{said}: must be a folder on the control node")
    if place.exists() and not place.is_dir():
        raise InputError(f"{said}: is a file, where a folder belongs; name another folder")
    for source in map(Path, inventory):
        if source.is_dir() and (source.resolve() == place.resolve() or source.resolve() in place.resolve().parents):
            raise InputError(
                f"{said}: is in the inventory {source}; the next run would read it as hosts; choose another"
            )
    path = place / NAME
    if not path.exists():
        return None
    return _manifest(path)


def _manifest(path: Path) -> Manifest:
    help_text = "move it away, or name another folder"
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise InputError(f"{path}: cannot be read: {problem.strerror}") from None
    except (ValueError, RecursionError):
        raise InputError(f"{path}: is not JSON; {help_text}") from None
    schema = value.get("schema") if isinstance(value, dict) else None
    if schema != SCHEMA:
        raise InputError(f"{path}: schema {shown(schema)}: must be {SCHEMA}, that of this version; {help_text}")
    try:
        return Manifest(tuple(map(Item.of, value["items"])), str(value["made"]))
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"{path}: is not a manifest of a bundle; {help_text}") from None
