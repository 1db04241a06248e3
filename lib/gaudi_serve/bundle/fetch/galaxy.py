"""Ansible collections: ansible-galaxy downloads them with their dependencies."""

from __future__ import annotations

import json
import re
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from ...core.yaml_text import load
from ..items import Item
from ..roles import ROOT
from .base import Bundle, FetchError, Got, Outcome, again, of_kind

FOLDER, REQUIREMENTS = "collections", "collections/requirements.yml"


def program() -> str:
    """Return the path of this Python's ansible-galaxy, or of the system's."""
    own = Path(sys.executable).with_name("ansible-galaxy")
    return str(own) if own.is_file() else shutil.which("ansible-galaxy") or "ansible-galaxy"


def fetch(bundle: Bundle, items: Sequence[Item]) -> Outcome:
    """Download the collections together; nothing is queried if all are present, because their versions are fixed."""
    wanted = of_kind(items, "collection")
    if not wanted:
        return Outcome()
    last = [(one, bundle.last(one)) for one in wanted]
    if all(known for _, known in last) and bundle.has(REQUIREMENTS) and set(_listed(bundle)) <= set(bundle.sums):
        return Outcome(
            {one.identity: again(known) for one, known in last if known}, {}, {REQUIREMENTS, *_listed(bundle)}
        )
    try:
        got = _downloaded(bundle, wanted)
    except (FetchError, OSError) as problem:
        reason = bundle.access.cleaned(str(problem))
        bundle.tell(f"collections: failed: {reason}")
        return Outcome(failed=dict.fromkeys((one.identity for one in wanted), reason), keeps={FOLDER})
    return Outcome(got, {}, {REQUIREMENTS, *_listed(bundle)})


def _listed(bundle: Bundle) -> list[str]:
    """Return the files in ansible-galaxy's requirements file."""
    found = load((bundle.folder / REQUIREMENTS).read_text(encoding="utf-8"), quick=True)
    return [f"{FOLDER}/{one['name']}" for one in found["collections"]]


def _downloaded(bundle: Bundle, wanted: Sequence[Item]) -> dict[tuple[str, ...], Got]:
    stage = bundle.work / FOLDER
    shutil.rmtree(stage, ignore_errors=True)
    stage.mkdir(parents=True)
    words = ["collection", "download", "--requirements-file", str(ROOT / "collections/requirements.yml")]
    bundle.run([program(), *words, "--download-path", stage], {"ANSIBLE_NOCOLOR": "1"})
    (bundle.folder / FOLDER).mkdir(exist_ok=True)
    # The requirements file is moved last, so that all files that it names exist.
    for path in sorted(stage.iterdir(), key=lambda path: path.name == "requirements.yml"):
        target = bundle.folder / FOLDER / path.name
        if not target.exists() or target.read_bytes() != path.read_bytes():
            path.replace(target)
    got = {}
    for one in wanted:
        pattern = f"{one.name.replace('.', '-')}-{one.version or '*'}.tar.gz"
        found = [path for path in _listed(bundle) if Path(path).match(pattern)]
        if not found:
            raise FetchError(f"ansible-galaxy: did not fetch {pattern}")
        bundle.tell(f"{one.label}: {found[0]}")
        place = bundle.folder / found[0]
        version = "" if one.version else re.sub(r".*-|\.tar\.gz$", "", found[0])
        got[one.identity] = Got(
            found[0], place.stat().st_size, bundle.sum(found[0]), fetched=version, licence=_licence(place)
        )
    return got


def _licence(path: Path) -> str:
    """Return the licences of a collection."""
    with tarfile.open(path) as archive:
        member = archive.extractfile("MANIFEST.json")
        about = json.load(member)["collection_info"] if member else {}
    return ", ".join(about.get("license") or ()) or str(about.get("license_file") or "")
