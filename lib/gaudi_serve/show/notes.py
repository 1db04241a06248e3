"""Notes on hosts without drift: notes of several hosts are merged, acknowledged notes are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.words import some_names

# Notes that stay until an operator acts, by their name in ``fleet_acknowledged``.
STANDING = {
    "link_validation": re.compile(r"\w+ validation pending"),
    "driver_held": re.compile(r"driver .* (?:is not held|nothing holds it)"),
    "container_runtime_release": re.compile(r"habanalabs-container-runtime .* is not of release"),
}


def open_notes(notes: Sequence[str], acknowledged: Any) -> list[str]:
    """Return the notes of a host that its inventory does not acknowledge.

    Args:
        notes: sentences.
        acknowledged: ``fleet_acknowledged`` of the host: names of STANDING. Another check refuses other values.
    """
    known = acknowledged if isinstance(acknowledged, (list, tuple)) else ()
    patterns = [STANDING[name] for name in known if isinstance(name, str) and name in STANDING]
    return [note for note in notes if not any(pattern.match(note) for pattern in patterns)]


def shared_lines(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return notes as lines that begin with the host; hosts with the same note share a line.

    Args:
        notes: sentences by host.
    """
    hosts: dict[str, list[str]] = {}
    for host, texts in notes.items():
        for text in dict.fromkeys(texts):
            hosts.setdefault(text, []).append(host)
    return [f"{some_names(found)}: {text}" for text, found in hosts.items()]
