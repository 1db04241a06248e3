"""How a container gets exactly some devices of a host, as data for the launch file, which the supervisor reads."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..core.run import read_text


@dataclass(frozen=True)
class Node:
    """A file that must exist before a start.

    path: a pattern with {index} or {id} of the device. named_by: a pattern of files, of which the first existing one
    gives {name} in the path; if none exists, the device needs no such node.
    """

    path: str
    named_by: str = ""


@dataclass(frozen=True)
class DeviceAccess:
    """How a container gets exactly some devices, and how that is verified.

    A device has an id, by which its driver identifies it permanently, and an index, which may change with each boot.
    Texts with braces are templates: {id} and {index} are those of one device, {ids} and {indices} those of all devices
    of a model, joined by commas.

    given_by: the name in messages of what gives the devices. ids: the ids of a model's devices, in the order of its
    module_ids; empty if these are the ids.

    runtime: the runtime of the container engine, if it must differ from the default. options: of docker create. each:
    options for every device. variables: of the container, which nothing else may set. forbidden: variables that must
    not be set. groups: files whose groups the server is a member of.

    files: a pattern of the files that show the present devices. device: a regular expression with the groups ``id`` and
    ``index``, searched in a file's path, a line feed and its text; an id may have two lines. Without both, an id is its
    own index.

    nodes: nodes that must exist before a start. without: the consequence of missing ones, for the end of the message.
    beside: nodes of network cards that the container gets too; each must exist before a start.

    inside: a pattern, relative to the container's root, of every node that it may have got. expected: which of them
    each device has; a server with others, or fewer, is stopped. shows: a program that is run in the container for the
    same purpose. shown: a regular expression with the group ``id`` of each device in its output.

    error: the variable of the container by which the runtime reports an error. hint: what to do if the runtime has
    ended silently.
    """

    given_by: str = "the container engine"
    ids: tuple[str, ...] = ()
    runtime: str | None = None
    options: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    forbidden: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    files: str = ""
    device: str = ""
    nodes: tuple[Node, ...] = ()
    without: str = ""
    beside: tuple[Node, ...] = ()
    inside: str = ""
    expected: tuple[str, ...] = ()
    shows: tuple[str, ...] = ()
    shown: str = ""
    error: str = ""
    hint: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the content for a launch file in JSON: all non-empty fields, but the runtime is a separate entry."""
        known = {key: value for key, value in asdict(self).items() if value and key != "runtime"}
        found: dict[str, Any] = json.loads(json.dumps(known))
        return found

    def docker_options(self, indices: Sequence[int], ids: Sequence[str] = (), root: str = "/") -> list[str]:
        """Return the docker run options that give these devices to a container that is not a model's."""
        known = {"indices": ",".join(map(str, indices)), "ids": ",".join(ids or map(str, indices))}
        options = ["--runtime", self.runtime] if self.runtime else []
        options += [_filled(option, known) for option in self.options]
        for index, name in zip(indices, ids or map(str, indices), strict=True):
            options += [_filled(option, {"index": str(index), "id": name}) for option in self.each]
        files = [_below(root, path) for pattern in self.groups for path in self._each(pattern, indices, ids)]
        # Use the number: an image may lack the name.
        for group in sorted({path.stat().st_gid for found in files for path in found}):
            options += ["--group-add", str(group)]
        for name, value in self.variables.items():
            options += ["--env", f"{name}={_filled(value, known)}"]
        return options

    def missing_nodes(self, indices: Sequence[int], ids: Sequence[str] = (), root: str = "/") -> list[str]:
        """Return the missing nodes of these devices; without them some runtimes omit a device."""
        missing = []
        for index, name in zip(indices, ids or map(str, indices), strict=True):
            for node in self.nodes:
                known = {"index": str(index), "id": name}
                if node.named_by:
                    if not (by := _below(root, _filled(node.named_by, known))):
                        continue
                    known["name"] = by[0].name
                path = _filled(node.path, known)
                missing += [] if _below(root, path) else [path]
        return list(dict.fromkeys(missing))

    def nodes_beside(self, root: str = "/") -> tuple[list[str], list[str]]:
        """Return the nodes of network cards that the container gets, and the missing ones."""
        found, missing = [], []
        for node in self.beside:
            by = _below(root, node.named_by) if node.named_by else []
            path = _filled(node.path, {"name": by[0].name if by else ""})
            if node.named_by and not by:
                missing.append(node.named_by)
            elif _below(root, path):
                found.append(path)
            else:
                missing.append(path)
        return found, missing

    def _each(self, pattern: str, indices: Sequence[int], ids: Sequence[str]) -> list[str]:
        return [
            _filled(pattern, {"index": str(index), "id": name})
            for index, name in zip(indices, ids or map(str, indices), strict=True)
        ]

    def ids_of(self, environment: Sequence[str], root: str = "/") -> list[str]:
        """Return the ids of the devices that a variable gave to a container; empty without that variable."""
        templates = {name: value for name, value in self.variables.items() if value in ("{indices}", "{ids}")}
        given = [entry.partition("=") for entry in environment if entry.partition("=")[0] in templates]
        # An old version set it twice; the supervisor's value is the last.
        words = given[-1][2].split(",") if given else []
        if not given or templates[given[-1][0]] == "{ids}":
            return words
        today = self.devices(root)
        return [today[index] for index in words if index in today]

    def devices(self, root: str = "/") -> dict[str, str]:
        """Return ``{index: id}`` of the devices that the driver shows now."""
        found: dict[str, str] = {}
        for path in _below(root, self.files) if self.files else ():
            device = re.search(self.device, f"/{path.relative_to(root)}\n{read_text(path) or ''}")
            if device:
                found[device["index"]] = " ".join(device["id"].split())
        return found


def _below(root: str, pattern: str) -> list[Path]:
    """Return the files of a pattern, with or without a leading slash."""
    return sorted(Path(root).glob(pattern.removeprefix("/")))


def _filled(template: str, values: Mapping[str, str]) -> str:
    return re.sub(r"\{(\w+)\}", lambda name: values.get(name[1], name[0]), template)
