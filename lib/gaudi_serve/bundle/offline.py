"""The items that a run needs on a host and that the mirror of its site lacks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ..core.errors import InputError
from ..core.images import vllm_image_id
from .host import BundleHost
from .items import Item, joined
from .listing import PARTS, host_items

# The kinds that hosts download.
KINDS = ("image", "package", "source", "download", "weights", "python")
# Items of a kind that a message names.
MOST = 8
LACKS = (
    "{host}: the mirror {url} lacks {names}; make the bundle again with this inventory on the connected machine "
    "(playbooks/bundle.yml), and carry it to the mirror"
)

ELSEWHERE = (
    "{host}: weights {names} come from {origin}, which a mirror does not replace; carry the folder, which the bundle "
    "has below weights/folders, to the host, and name it as source: {{kind: path, path: FOLDER}} "
    "(docs/guides/weights.md)"
)


def missing_lines(host: BundleHost, url: str, has: Iterable[Sequence[str]], due: Sequence[str]) -> list[str]:
    """Return messages on items that a run needs and the mirror lacks, one for each kind; empty if it has all.

    Args:
        host: the host of the run.
        url: address of the mirror.
        has: kind, name, version and system of all items of the mirror.
        due: roles of the stages with changes; other roles download nothing.
    """
    kept = {tuple(one) for one in has}
    try:
        items = joined(host_items(host, [role for role in due if role in PARTS]))
    except InputError as problem:
        return [str(problem)]
    elsewhere = [one for one in items if one.kind == "weights" and one.origin and not one.origin.startswith(f"{url}/")]
    items = tuple(one for one in items if one not in elsewhere)
    lacking = [one for one in items if one.kind in KINDS and not _is_there(one, kept, host)]
    found = [[one.label for one in lacking if one.kind == kind] for kind in KINDS]
    return [
        *(LACKS.format(host=host.name, url=url, names=_some(labels)) for labels in found if labels),
        *(ELSEWHERE.format(host=host.name, names=one.label, origin=one.origin) for one in elsewhere),
    ]


def _some(labels: Sequence[str]) -> str:
    more = f" and {len(labels) - MOST} more" if len(labels) > MOST else ""
    return f"{', '.join(labels[:MOST])}{more}"


def _is_there(item: Item, kept: set[tuple[str, ...]], host: BundleHost) -> bool:
    """Return whether the mirror or the host itself has an item."""
    if (item.kind, item.name, item.version, item.system) in kept:
        return True
    if item.kind == "image":
        joint = "@" if item.version.startswith("sha256:") else ":"
        images = (host.known.get("gaudi_services") or {}).get("images") or {}
        here = vllm_image_id(images, f"{item.name}{joint}{item.version}")
        return here is not None or item.origin.endswith(" on the host")
    # Without a version, any version is enough.
    return not item.version and any(one[:2] == (item.kind, item.name) and one[3] == item.system for one in kept)
