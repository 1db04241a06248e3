"""Numbers that YAML reads in another way, and keys that stand twice, in an inventory's files on the control node."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml


class Notation(NamedTuple):
    """A notation of integers that few users intend: its form, its name and its alternative in messages."""

    form: re.Pattern[str]
    name: str
    instead: str


NOTATIONS = (
    Notation(re.compile(r"[-+]?0[0-7_]+"), "as octal", "write it without the leading zero"),
    Notation(re.compile(r"[-+]?[1-9][0-9_]*(:[0-5]?[0-9])+"), "in base 60", "write it without colons, or quote it"),
)
USUAL = re.compile(r"[-+]?[0-9_]{1,20}")
INTEGER = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])*")
MERGE = "tag:yaml.org,2002:merge"
# PyYAML 6.0.4 takes the last value of a key that several merged mappings have; YAML and older releases take the first.
LAST_WINS = yaml.safe_load("{a: &a {key: 1}, b: &b {key: 2}, c: {<<: [*a, *b]}}")["c"]["key"] == 2
# Files of hosts, and files of variables with the endings that Ansible reads.
HOSTS, VARIABLES, ENDINGS = ("*.yml", "*.yaml"), ("group_vars/**/*", "host_vars/**/*"), ("", ".yml", ".yaml", ".json")
Place = tuple[str | int, ...]  # a variable, and the keys and indices below it


class Written(NamedTuple):
    """The integers of the files of an inventory.

    places: by place the texts that stand there.
    templates: the places of templates.
    others: by number the text of a variable in an unusual notation, which a template may use elsewhere; without the
    numbers that also stand somewhere as usual.
    doubled: a sentence for each key that stands twice in a mapping, or that this PyYAML merges wrongly.
    """

    places: Mapping[Place, frozenset[str]] = {}
    templates: frozenset[Place] = frozenset()
    others: Mapping[int, str] = {}
    doubled: tuple[str, ...] = ()

    def texts_of(self, place: Place, number: int) -> frozenset[str]:
        """Return the texts of a number: those at its place, or the one that a template there may take elsewhere."""
        filled = any(place[: end + 1] in self.templates for end in range(len(place)))
        other = {self.others[number]} if filled and number in self.others else ()
        return self.places.get(place) or frozenset(other)


class Misread(NamedTuple):
    """A number in a variable of a host: its key, its value, its text in the file, and the notation of that."""

    key: str
    number: int
    text: str
    notation: Notation


def misread(values: Mapping[str, Any], folder: Any) -> Iterator[Misread]:
    """Yield all numbers in variables of a host that YAML read in an unusual notation.

    A number that comes by a template from a variable of another name counts too. Numbers of ``-e``, and of files
    outside the inventory's folder, are not known.

    Args:
        values: the variables that are searched.
        folder: ``inventory_dir`` of the host; anything but a text has no files.
    """
    written = _of_folder(folder)
    for name, place, number in _integers(values, "", ()):
        for text in sorted(written.texts_of(place, number)):
            notation = _notation(text)
            if notation and _value(text) == number:
                yield Misread(name, number, text, notation)
                break


def doubled(folder: Any) -> tuple[str, ...]:
    """Return a sentence for each key that stands twice in a mapping of an inventory's files, or is merged wrongly.

    A key that overrides one of a merged mapping (``<<``) stands once.
    """
    return _of_folder(folder).doubled


def _of_folder(folder: Any) -> Written:
    return _written(folder) if isinstance(folder, str) else Written()


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


def _notation(text: str) -> Notation | None:
    """Return the unusual notation of a text of a file, or None."""
    return next((one for one in NOTATIONS if one.form.fullmatch(text)), None)


def _value(text: str) -> int:
    """Return the number that YAML reads in a text."""
    return int(yaml.safe_load(text))


@cache
def _written(folder: str) -> Written:
    """Return the integers in the files of an inventory's folder. A file that is no YAML, or is encrypted, has none."""
    places: dict[Place, set[str]] = {}
    templates: set[Place] = set()
    twice: list[str] = []
    for path in _files(Path(folder)):
        try:
            node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
            # Playbooks, and files of other programs, can be beside the files of hosts.
            if path.parent == Path(folder) and not _has_groups(node):
                continue
            doubles, scalars = list(_wrong(node)), list(_scalars(node, ()))
        # A list can contain itself.
        except (OSError, UnicodeDecodeError, yaml.YAMLError, RecursionError):
            continue
        twice += [f"{path}: {text}" for text in doubles]
        for place, text in scalars:
            # In a file of hosts, variables stand below groups and hosts: each name along the way may be one.
            for start in range(len(place)):
                if "{{" in text:
                    templates.add(place[start:])
                else:
                    places.setdefault(place[start:], set()).add(text)
    every = set().union(*places.values())
    usual = {_value(text) for text in every if USUAL.fullmatch(text) and not _notation(text)}
    others = {_value(text): text for text in sorted(every) if _notation(text) and _value(text) not in usual}
    texts = {place: frozenset(found) for place, found in places.items()}
    return Written(texts, frozenset(templates), others, tuple(dict.fromkeys(twice)))


def _files(folder: Path) -> list[Path]:
    """Return the files in which an inventory's folder can have variables."""
    found = {path for pattern in (*HOSTS, *VARIABLES) for path in folder.glob(pattern) if path.suffix in ENDINGS}
    # Ansible skips hidden files.
    shown = [path for path in found if not any(part.startswith(".") for part in path.relative_to(folder).parts)]
    return sorted(path for path in shown if path.is_file())


def _has_groups(node: yaml.Node | None) -> bool:
    """Return whether a file has groups of hosts."""
    groups = [group for _, group in node.value] if isinstance(node, yaml.MappingNode) else []
    keys = {key.value for group in groups if isinstance(group, yaml.MappingNode) for key, _ in group.value}
    return bool(keys & {"hosts", "children", "vars"})


def _wrong(node: yaml.Node | None) -> Iterator[str]:
    """Yield a sentence for each key below a node that stands twice, or that this PyYAML merges wrongly."""
    if isinstance(node, yaml.MappingNode):
        for _, value in node.value:
            yield from _wrong(value)
        yield from _twice(node)
        yield from _merged_wrongly(node) if LAST_WINS else ()
    for value in node.value if isinstance(node, yaml.SequenceNode) else ():
        yield from _wrong(value)


def _twice(node: yaml.MappingNode) -> Iterator[str]:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in node.value:
        if isinstance(key, yaml.ScalarNode) and key.tag != MERGE:
            line, name = key.start_mark.line + 1, (key.tag, key.value)
            if first := lines.get(name):
                yield f"line {line}: {key.value} stands twice, first in line {first}; YAML takes the last one"
            lines.setdefault(name, line)


def _merged_wrongly(node: yaml.MappingNode) -> Iterator[str]:
    own = {key.value for key, _ in node.value if key.tag != MERGE}
    for key, value in node.value:
        first: dict[str, str] = {}
        for part in value.value if key.tag == MERGE and isinstance(value, yaml.SequenceNode) else ():
            for name, text in _flat(part).items():
                if first.setdefault(name, text) != text and name not in own:
                    yield (
                        f"line {key.start_mark.line + 1}: << merges two values of {name}; YAML takes the first one, "
                        f"and PyYAML {yaml.__version__} of the control node the last one: write the key beside <<, or "
                        "install PyYAML 6.0.3"
                    )
                    own.add(name)


def _flat(node: yaml.Node) -> dict[str, str]:
    """Return the keys of a mapping, including merged ones, with the text of their values."""
    found: dict[str, str] = {}
    for key, value in node.value if isinstance(node, yaml.MappingNode) else ():
        if key.tag == MERGE:
            for part in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                found = {**_flat(part), **found}
        else:
            found[str(key.value)] = yaml.serialize(value)
    return found


def _scalars(node: yaml.Node | None, place: Place) -> Iterator[tuple[Place, str]]:
    """Yield the place and the text of each unquoted number and of each template below a node."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            merged = key.tag == MERGE
            for part in value.value if merged and isinstance(value, yaml.SequenceNode) else (value,):
                yield from _scalars(part, place if merged else (*place, str(key.value)))
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _scalars(value, (*place, index))
    elif isinstance(node, yaml.ScalarNode) and (
        "{{" in node.value or (node.style is None and INTEGER.fullmatch(node.value))
    ):
        yield place, node.value
