"""What is worth knowing of hosts though nothing differs: shared notes once, and none that a user has acknowledged."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.words import some_names

# Notes that stand until somebody acts, by the name under which ``fleet_acknowledged`` takes them.
STANDING = {
    **dict.fromkeys(("link_validation", "hccl_validation"), re.compile(r"\w+ validation pending")),
    "driver_held": re.compile(r"driver .* (?:is not held|nothing holds it)"),
    "container_runtime_release": re.compile(r"habanalabs-container-runtime .* is not of release"),
}


def open_notes(notes: Sequence[str], acknowledged: Any) -> list[str]:
    """Return the notes of a host without those that its inventory acknowledges.

    Args:
        notes: sentences.
        acknowledged: ``fleet_acknowledged`` of the host: names of STANDING. Other values are refused elsewhere.
    """
    known = acknowledged if isinstance(acknowledged, (list, tuple)) else ()
    patterns = [STANDING[name] for name in known if isinstance(name, str) and name in STANDING]
    return [note for note in notes if not any(pattern.match(note) for pattern in patterns)]


def shared_lines(notes: Mapping[str, Sequence[str]]) -> list[str]:
    """Return notes as lines that begin with their host; one that several hosts have is one line.

    Args:
        notes: sentences by host.
    """
    hosts: dict[str, list[str]] = {}
    for host, texts in notes.items():
        for text in dict.fromkeys(texts):
            hosts.setdefault(text, []).append(host)
    return [f"{some_names(found)}: {text}" for text, found in hosts.items()]
