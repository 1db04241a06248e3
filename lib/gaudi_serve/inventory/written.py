"""Numbers of an inventory that YAML reads as octal, as they stand in its files, on the control node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

OCTAL = re.compile(r"-?0[0-7_]+")
PLACES = ("*.yml", "*.yaml", "group_vars/**/*", "host_vars/**/*")
Place = tuple[str | int, ...]  # a variable, and the keys and indices below it


class Written(NamedTuple):
    """The integers of the files of an inventory.

    places: by place the texts that stand there.
    others: by number the octal text of a variable that a template may use elsewhere.
    """

    places: Mapping[Place, frozenset[str]]
    others: Mapping[int, str]


def octals(values: Mapping[str, Any], folder: Any) -> Iterator[tuple[str, int, str]]:
    """Yield (key, number, text in the file) of all numbers in variables of a host that YAML read as octal.

    A number that comes by a template from a variable of another name counts too. Numbers of ``-e``, and of files
    outside the inventory's folder, are not known.

    Args:
        values: the variables that are searched.
        folder: ``inventory_dir`` of the host; anything but a text has no files.
    """
    written = _written(folder) if isinstance(folder, str) else Written({}, {})
    for name, place, number in _integers(values, "", ()):
        if texts := written.places.get(place):
            text = next((one for one in sorted(texts) if _is_octal(one, number)), None)
        else:
            text = written.others.get(number)
        if text is not None:
            yield name, number, text


def _integers(value: Any, name: str, place: Place) -> Iterator[tuple[str, Place, int]]:
    """Yield each integer but 0 below a value, with its name in messages and its place."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield from _integers(part, f"{name}: {key}" if name else str(key), (*place, str(key)))
    elif isinstance(value, list):
        kind = "model " if name == "vllm_models" else ""
        for index, part in enumerate(value):
            label = part.get("name") if isinstance(part, Mapping) else None
            yield from _integers(part, f"{name}: {kind}{label}" if label else name, (*place, index))
    elif isinstance(value, int) and not isinstance(value, bool) and value:
        yield name, place, int(value)


def _is_octal(text: str, number: int) -> bool:
    """Return whether a text of a file is octal and means a number."""
    return OCTAL.fullmatch(text) is not None and int(text.replace("_", ""), 8) == number


@cache
def _written(folder: str) -> Written:
    """Return the integers in the files of an inventory's folder. A file that is no YAML, or is encrypted, has none."""
    places: dict[Place, set[str]] = {}
    others: dict[int, str] = {}
    for path in sorted({path for pattern in PLACES for path in Path(folder).glob(pattern) if path.is_file()}):
        try:
            node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        except (OSError, UnicodeDecodeError, yaml.YAMLError):
            continue
        for place, text in _scalars(node, ()):
            # In a file of hosts, variables stand below groups and hosts: each name along the way may be one.
            for start in range(len(place)):
                places.setdefault(place[start:], set()).add(text)
            if OCTAL.fullmatch(text):
                others[int(text.replace("_", ""), 8)] = text
    return Written({place: frozenset(texts) for place, texts in places.items()}, others)


def _scalars(node: yaml.Node | None, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the place and the text of each unquoted number below a node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(value, (*place, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _scalars(value, (*place, index))
    elif isinstance(node, yaml.ScalarNode) and node.style is None and re.fullmatch(r"[-+]?[0-9][0-9_]*", node.value):
        yield place, node.value
