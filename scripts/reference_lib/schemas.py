"""JSON Schemas of what a user writes, for editors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from gaudi_serve.core.aliases import ALIASES
from gaudi_serve.inventory.variables import HANDED, INPUTS, KNOWN, PREFIXES
from gaudi_serve.model.vllm_options import OPTION_NAMES

from . import mappings, models, variables
from .entries import Entry

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEMPLATE = {"type": "string", "pattern": r"\{\{"}
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
    if kind == "mapping of str":
        return {"type": "object", "additionalProperties": of_kind("str", choices)}
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
    """Return the schema of a mapping by the path of its value; its keys may be in a mapping by name, or in a list."""
    known = {one.name: of(one, mappings.of_key(path, one.name)) for one in mappings.entries(path)}
    found = {"type": "object", "properties": known, "additionalProperties": False, **required_keys(path)}
    for part in reversed(re.findall(r"\.[A-Z]+|\[\]", path[len(BELOW.sub("", path)) :])):
        inner = {"anyOf": [found, TEMPLATE]}
        found = {"type": "array", "items": inner} if part == "[]" else {"type": "object", "additionalProperties": inner}
    return found


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
    kind = of_mapping(path) if path else of_kind(entry.kind, entry.choices)
    if kind == {"type": "string"}:
        kind = {"type": ["string", "number"]}  # YAML reads some texts as numbers; a run reports where quotes are needed
    # Null takes a default away.
    return {"description": LINK.sub(r"\1", entry.help), "anyOf": [kind, TEMPLATE, {"type": "null"}]}


def model() -> dict[str, Any]:
    """Return the schema of an entry of vllm_models."""
    known: dict[str, Any] = {one.name: of(one, mappings.value_of(one.name)) for one in models.entries()}
    options = {name: {"description": "Option of vLLM's server."} for name in sorted(OPTION_NAMES) if name not in known}
    return {"type": "object", "properties": {**known, **options}, "additionalProperties": False}


def inventory_variables() -> dict[str, Any]:
    """Return the schema of variables of hosts and groups."""
    entries = variables.own() + [one for found in variables.of_roles().values() for one in found]
    properties = {one.name: of(one, mappings.value_of(one.name)) for one in entries}
    for name in properties.keys() & INPUTS.keys():
        kind = properties[name]["anyOf"][0]
        if "required" in kind and INPUTS[name].good({}):  # an empty mapping means none
            properties[name]["anyOf"].append({"type": "object", "maxProperties": 0})
    models_of = {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/model"}}, TEMPLATE, {"type": "null"}]}
    for name in ("vllm_models", "vllm_distributed_models"):
        properties[name] = {"description": properties[name]["description"], **models_of}
    defaults = properties["vllm_model_defaults"]["description"]
    properties["vllm_model_defaults"] = {"description": defaults, "anyOf": [{"$ref": "#/$defs/model"}, TEMPLATE]}
    for old, new in ALIASES.items():
        if new in properties:
            properties[old] = {**properties[new], "deprecated": True, "description": f"Old name of {new}."}
    # The toolkit's prefixes leave no room for names that it does not know.
    names = "|".join(map(re.escape, sorted({*KNOWN, *HANDED, *properties})))
    unknown = f"^(?!(?:{names})$)(?:{'|'.join(map(re.escape, PREFIXES))})"
    return {"type": "object", "properties": properties, "propertyNames": {"not": {"pattern": unknown}}}


def group() -> dict[str, Any]:
    """Return the schema of a group of an inventory in YAML."""
    variables_of = {"anyOf": [{"$ref": "#/$defs/variables"}, {"type": "null"}]}
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
    shared = {"model": model(), "variables": inventory_variables()}
    texts = {
        "variables": {
            "$schema": DRAFT,
            "title": "Variables of a gaudi-serve inventory",
            "$ref": "#/$defs/variables",
            "$defs": shared,
        },
        "inventory": {
            "$schema": DRAFT,
            "title": "An inventory of gaudi-serve",
            "type": "object",
            "additionalProperties": {"$ref": "#/$defs/group"},
            "$defs": {**shared, "group": group()},
        },
    }
    folder = root / "docs/reference/schemas"
    return {
        folder / f"{name}.schema.json": json.dumps(schema, indent=1, sort_keys=True) + "\n"
        for name, schema in texts.items()
    }
