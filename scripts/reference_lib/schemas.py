"""JSON Schemas of what a user writes, for editors."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import compact_json
from gaudi_serve.inventory.variables import HANDED, INPUTS, KNOWN, PREFIXES
from gaudi_serve.model.vllm_options import OPTION_NAMES

from . import mappings, models, variables
from .entries import Entry

FOLDER = "docs/reference/schemas"
DRAFT = "https://json-schema.org/draft/2020-12/schema"
WIDTH = 220  # A variable or key has one line in a file, unless it is longer.
TEMPLATE = {"$ref": "#/$defs/template"}
# What every variable and key takes in addition to its own values. Null takes a default away.
SHARED: dict[str, Any] = {
    "template": {"type": "string", "pattern": r"\{\{"},
    "unset": {"anyOf": [TEMPLATE, {"type": "null"}]},
    "option": {"description": "Option of vLLM's server."},
}
UNSET = {"$ref": "#/$defs/unset"}
BELOW = re.compile(r"(\.[A-Z]+|\[\])*$")  # the names and list entries at the end of a path
# What the reference has as the default of a key that is required under a condition.
WITHOUT = re.compile(r"required without `\w+`( and `\w+`)*")
FOR = re.compile(r"required for `\w+`( and `\w+`)*")
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
KINDS: dict[str, Any] = {
    "int": {"type": "integer"},
    "float": {"type": "number"},
    "bool": {"type": "boolean"},
    "str": {"type": "string"},
    "path": {"type": "string"},
    "mapping": {"type": "object"},
    "dict": {"type": "object"},
    "raw": {},
    "mappings": {"type": "object"},
    "paths": {"type": "string"},
}


def of_kind(kind: str, choices: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of a type such as ``list of int``."""
    if kind.startswith("mapping of "):
        return {"type": "object", "additionalProperties": of_kind(kind.removeprefix("mapping of "), choices)}
    if " or " in kind:
        return {"anyOf": [of_kind(one, choices) for one in kind.split(" or ")]}
    if kind.startswith("list"):
        inner = kind.removeprefix("list").removeprefix(" of ").removeprefix("two ")
        return {
            "type": "array",
            "items": of_kind(inner, choices) if inner else ({"enum": list(choices)} if choices else {}),
        }
    return {"enum": list(choices)} if choices else dict(KINDS[kind])


def of_mapping(path: str) -> dict[str, Any]:
    """Return the schema of the mapping of a path."""
    known = {one.name: of(one, mappings.of_key(path, one.name)) for one in mappings.entries(path)}
    return {"type": "object", "properties": known, "additionalProperties": False, **required_keys(path)}


def of_value(path: str) -> dict[str, Any]:
    """Return the schema of the value that has the mapping of a path: itself, in a mapping by name, or in a list."""
    found: dict[str, Any] = {"$ref": f"#/$defs/{name_of(path)}.keys"}
    for part in reversed(re.findall(r"\.[A-Z]+|\[\]", path[len(BELOW.sub("", path)) :])):
        inner = {"anyOf": [found, TEMPLATE]}
        found = {"type": "array", "items": inner} if part == "[]" else {"type": "object", "additionalProperties": inner}
    # An empty mapping may mean none.
    empty = path in INPUTS and "required" in required_keys(path) and INPUTS[path].good({})
    return {"anyOf": [found, *([{"type": "object", "maxProperties": 0}] if empty else []), UNSET]}


def required_keys(path: str) -> dict[str, Any]:
    """Return the part of a mapping's schema that has its required keys: always, without others, or for some choices."""
    found = mappings.entries(path)
    rules = []
    for one in found:
        names = re.findall(r"`(\w+)`", one.default)
        if WITHOUT.fullmatch(one.default):
            rules.append({"anyOf": [{"required": part} for part in sorted([[one.name], names])]})
        elif FOR.fullmatch(one.default):
            chosen = next(other for other in found if {*names} <= {*other.choices})
            condition: dict[str, Any] = {"properties": {chosen.name: {"enum": names}}}
            if chosen.default not in names:
                condition["required"] = [chosen.name]
            rules.append({"if": condition, "then": {"required": [one.name]}})
    always = [one.name for one in found if one.default == "required"]
    unique = [rule for place, rule in enumerate(rules) if rule not in rules[:place]]
    return {name: value for name, value in (("required", always), ("allOf", unique)) if value}


def of(entry: Entry, path: str = "") -> dict[str, Any]:
    """Return the schema of a variable or key: its type, or a template. ``path``: of the mapping that is its value."""
    text = {"description": LINK.sub(r"\1", entry.help)}
    if entry.choices and not path:
        return {**text, "anyOf": [of_kind(entry.kind, entry.choices), UNSET]}
    return {**text, "$ref": f"#/$defs/{name_of(path or entry.kind)}"}


def name_of(shape: str) -> str:
    """Return the name of a type or of a mapping in the definitions."""
    return shape.replace("[]", "").replace(" ", "_")


def shapes(entries: Iterable[Entry]) -> dict[str, Any]:
    """Return the definitions of all mappings, and of the types of variables and keys."""
    paths = [path for path in mappings.DATA if path not in mappings.OF_PLAYBOOKS]
    kinds = {one.kind for one in [*entries, *(one for path in paths for one in mappings.entries(path))]}
    found = {name_of(kind): {"anyOf": [of_kind(kind, ()), UNSET]} for kind in kinds}
    # YAML reads some texts as numbers; a run reports where quotes are needed.
    found |= {kind: {"type": ["string", "number", "null"]} for kind in ("str", "path")}
    found |= {name_of(path): of_value(path) for path in paths}
    return found | {f"{name_of(path)}.keys": of_mapping(path) for path in paths} | SHARED


def model() -> dict[str, Any]:
    """Return the schema of an entry of vllm_models."""
    known: dict[str, Any] = {one.name: of(one, mappings.value_of(one.name)) for one in models.entries()}
    options = {name: {"$ref": "#/$defs/option"} for name in OPTION_NAMES if name not in known}
    return {"type": "object", "properties": {**known, **options}, "additionalProperties": False}


def inventory_variables() -> dict[str, Any]:
    """Return the schema of variables of hosts and groups."""
    properties = {one.name: of(one, mappings.value_of(one.name)) for one in variables.every()}
    for name in ("vllm_models", "vllm_distributed_models"):
        properties[name]["$ref"] = "#/$defs/models"
    properties["vllm_model_defaults"]["$ref"] = "#/$defs/model_defaults"
    others: dict[str, Any] = dict.fromkeys({*KNOWN, *HANDED} - {*properties}, True)
    # The toolkit's prefixes leave no room for names that it does not know.
    foreign = f"^(?!{'|'.join(map(re.escape, PREFIXES))})"
    # A file without variables is null. An alternative to the object would make validators print all of it.
    return {
        "type": ["object", "null"],
        "properties": {**properties, **others},
        "patternProperties": {foreign: True},
        "additionalProperties": False,
    }


def group() -> dict[str, Any]:
    """Return the schema of a group of an inventory in YAML."""
    variables_of = {"$ref": "variables.schema.json#/$defs/variables"}
    return {
        "type": ["object", "null"],
        "properties": {
            "hosts": {"type": ["object", "null"], "additionalProperties": variables_of},
            "vars": variables_of,
            "children": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/group"}},
        },
        "additionalProperties": False,
    }


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    entry = {"$ref": "#/$defs/model"}
    definitions = {
        "model": model(),
        "models": {"anyOf": [{"type": "array", "items": {"anyOf": [entry, TEMPLATE]}}, UNSET]},
        "model_defaults": {"anyOf": [entry, TEMPLATE]},
        "variables": inventory_variables(),
        **shapes([*models.entries(), *variables.every()]),
    }
    found = {
        "variables": {
            "title": "Variables of a gaudi-serve inventory",
            "$ref": "#/$defs/variables",
            "$defs": definitions,
        },
        "inventory": {
            "title": "An inventory of gaudi-serve",
            "type": "object",
            "additionalProperties": {"$ref": "#/$defs/group"},
            "$defs": {"group": group()},
        },
    }
    return {root / FOLDER / f"{name}.schema.json": text_of(schema) for name, schema in found.items()}


def text_of(schema: dict[str, Any]) -> str:
    """Return the text of a schema's file."""
    return compact_json.text_of({"$schema": DRAFT, **schema}, WIDTH)
