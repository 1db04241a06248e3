"""The source of a model's weights: the rules for the key ``source``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..core.checks import is_address

KINDS = {"hub": "repo", "modelscope": "repo", "git": "url", "path": "path"}
KEYS = {"kind", "repo", "url", "path", "revision", "endpoint", "include", "exclude"}
CONVERSIONS = ("g2",)
OF_MEASUREMENT = KEYS | {"folder"}
EXTRAS = {"convert", "calibrate", "measurement", "folder"}
REPO = re.compile(r"[\w.-]+/[\w.-]+")
FOLDER = re.compile(r"/[\w./@+-]+")
URL = re.compile(r"(https?|ssh|file)://[^\s@]+|[\w.-]+@[\w.-]+:[^\s]+")


def source_problem(value: Any) -> str | None:
    """Return what is allowed if a model's ``source`` is wrong, else None."""
    if not isinstance(value, Mapping):
        return "must be a mapping, such as {kind: hub, repo: Qwen/QwQ-32B}"
    problem = _problem(value, KEYS | EXTRAS) or _extras(value)
    return f"must have {problem}" if problem else None


def adapter_source_problem(value: Any) -> str | None:
    """Return what is allowed if the ``source`` of an adapter is wrong, else None."""
    if not isinstance(value, Mapping):
        return "that is a mapping, such as {kind: hub, repo: owner/name}"
    problem = _problem(value, KEYS)
    return f"with {problem}" if problem else None


def _problem(value: Mapping[str, Any], keys: set[str]) -> str | None:
    kind = value.get("kind")
    if kind not in KINDS:
        return f"a kind of {', '.join(KINDS)}, not {kind!r}"
    unknown = sorted(set(map(str, value)) - keys)
    if unknown:
        return f"only the keys {', '.join(sorted(keys))}, not {', '.join(unknown)}"
    own, place = KINDS[kind], value.get(KINDS[kind])
    shapes = {"repo": (REPO, "owner/name"), "url": (URL, "an address without a token"), "path": (FOLDER, "a path")}
    shape, told = shapes[own]
    if not isinstance(place, str) or not shape.fullmatch(place) or ".." in place.split("/") or not is_address(place):
        return f"a key {own} with kind {kind}: {told}"
    for key in ("revision", "endpoint"):
        text = value.get(key)
        if text is not None and (
            not isinstance(text, str) or not re.fullmatch(r"[^\s@-][^\s@]*", text) or not is_address(text)
        ):
            return f"{'an' if key == 'endpoint' else 'a'} {key} that is a quoted text without blanks and tokens"
    for key in ("include", "exclude"):
        patterns = value.get(key, [])
        if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
            return f"a list of file patterns as {key}, such as ['*.safetensors', '*.json']"
    return None


def _extras(value: Mapping[str, Any]) -> str | None:
    if value.get("convert") not in (None, *CONVERSIONS):
        return "convert: g2, or none"
    if not isinstance(value.get("calibrate", False), bool):
        return "calibrate: true or false"
    if value.get("folder") is not None and not _is_folder(value["folder"]):
        return "a folder that is an absolute path without .."
    return _measurement(value["measurement"]) if value.get("measurement") is not None else None


def _measurement(measurement: Any) -> str | None:
    if not isinstance(measurement, Mapping):
        return "a measurement that is a source, such as {kind: hub, repo: owner/name}"
    told = _problem({"kind": "hub", **measurement}, OF_MEASUREMENT)
    if told:
        return f"a measurement that is a source: {told}"
    if measurement.get("folder") is not None and not _is_folder(measurement["folder"]):
        return "a measurement whose folder is an absolute path without .."
    return None


def _is_folder(value: Any) -> bool:
    """Return whether a value names one folder below the root, without . or .. in its path."""
    if not isinstance(value, str) or not FOLDER.fullmatch(value):
        return False
    return bool(value.strip("/")) and not {".", ".."} & set(value.split("/"))
