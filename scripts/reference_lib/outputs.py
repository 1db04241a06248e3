"""JSON Schemas of what playbooks write for programs, and the page about them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from .schemas import FOLDER, text_of

VERSION = 1
TEXT: dict[str, Any] = {"type": "string"}
LINES: dict[str, Any] = {"type": "array", "items": TEXT}
MAYBE_TEXT: dict[str, Any] = {"type": ["string", "null"]}
NUMBER: dict[str, Any] = {"type": ["number", "null"]}


def record(required: dict[str, Any], more: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the schema of an object: keys that are always there, and keys that may be."""
    return {"type": "object", "properties": {**required, **(more or {})}, "required": sorted(required)}


def by_name(value: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an object by names, such as those of hosts."""
    return {"type": "object", "additionalProperties": value}


CARD = record(
    {
        "card": {"type": ["integer", "null"], "description": "module_id; null where it is not known"},
        "name": TEXT,
        "numa_node": {"type": ["integer", "null"]},
        "memory_gib": NUMBER,
        "model": {**MAYBE_TEXT, "description": "model of the toolkit that uses the card"},
        "held_by": {**MAYBE_TEXT, "description": "another program that uses the card"},
        "problem": MAYBE_TEXT,
    }
)
LINKS = {
    "anyOf": [
        {"type": "null"},
        record({"time": {}, "passed": {"type": "boolean"}, "runs": {"type": "array"}, "last_good": {"type": "object"}}),
    ]
}
DOWN = record(
    {"model": TEXT, "stage": TEXT, "reason": TEXT, "minutes": {**NUMBER, "description": "null: it stays down"}}
)
PLANNED = record(
    {
        "name": TEXT,
        "launch_profile": {**TEXT, "description": "engine"},
        "image": TEXT,
        "port": {"type": "integer"},
        "module_ids": {"type": "array", "items": {"type": "integer"}},
        "placements": {
            "type": "array",
            "items": record({"host": TEXT, "module_ids": {"type": "array"}, "rank": {"type": "integer"}}),
        },
        "env": {"type": "object"},
        "args": LINES,
        "digest": {**TEXT, "description": "checksum of the launch; the model restarts when it changes"},
        "graphs": {"type": ["integer", "null"]},
        "warmup_s": NUMBER,
        "warmup_cached_s": NUMBER,
        "warnings": LINES,
    },
    {"memory": {"type": ["object", "null"]}, "max_model_len": {"type": ["integer", "null"]}},
)
FINDING = record(
    {"host": TEXT, "model": MAYBE_TEXT, "key": TEXT, "value": {}, "allowed": MAYBE_TEXT, "message": TEXT},
)
PLAN = record(
    {
        "schema_version": {"const": VERSION},
        "hosts": by_name(
            record(
                {
                    "facts": {**TEXT, "description": "the host in one line"},
                    "cards": {"type": "array", "items": CARD},
                    "models": {"type": "array", "items": PLANNED},
                    "changes": LINES,
                },
                {
                    "links": LINKS,
                    "due": {**by_name(LINES), "description": "pending changes by stage"},
                    "reboot": {**LINES, "type": ["array", "string", "null"]},
                    "down": {"type": "array", "items": DOWN},
                },
            )
        ),
        "errors": {"type": "array", "items": FINDING},
        "warnings": LINES,
    }
)
MODEL = record(
    {
        "name": TEXT,
        "wanted": {"enum": ["started", "stopped"]},
        "state": {**TEXT, "description": "state of the unit"},
        "status": TEXT,
        "restarts": {"type": "integer"},
        "answers": {"type": ["boolean", "null"], "description": "null: not probed"},
        "problem": TEXT,
        "module_ids": {"type": "array"},
        "url": MAYBE_TEXT,
    },
    {"hosts": LINES, "served": {"type": "array"}, "adapters": LINES},
)
STATUS = record(
    {
        "schema_version": {"const": VERSION},
        "hosts": by_name(
            record(
                {
                    "read": {"type": "boolean"},
                    "problem": TEXT,
                    "drift": {**by_name(LINES), "description": "differences from the plan, by stage"},
                    "models": {"type": "array", "items": MODEL},
                    "notes": LINES,
                    "gateway": {"type": ["object", "null"]},
                    "monitoring": {"type": ["object", "null"]},
                    "cards": {"type": "array", "items": CARD},
                    "links": LINKS,
                }
            )
        ),
        "drifted": LINES,
        "unread": LINES,
    },
    {"text": TEXT},
)
ROLLOUT = record(
    {
        "schema_version": {"const": VERSION},
        "waves": {"type": "array", "items": LINES},
        "due": {**by_name(LINES), "description": "pending changes by host"},
        "refusal": LINES,
        "text": TEXT,
    },
    {
        "page": TEXT,
        "steps": LINES,
        "hosts": by_name(
            record(
                {"outcome": {"enum": ["verified", "rolled_back", "left_drained"]}, "text": TEXT},
                {"before": {"type": "object"}, "after": {"type": "object"}, "why": TEXT},
            )
        ),
    },
)
ALL = {
    "plan": ("playbooks/plan.yml -e plan_file=FILE", PLAN),
    "status": ("playbooks/status.yml -e status_file=FILE; artifact `gaudi_status` in AWX", STATUS),
    "rollout": ("artifact `gaudi_rollout` of playbooks/rollout.yml", ROLLOUT),
}
HEAD = """# JSON

Playbooks write JSON for programs. Each document has `schema_version`. A new version of the toolkit may add
keys. If a key is removed or changes its meaning, `schema_version` grows, and the changelog names it.
`scripts/reference` writes this page and the schemas.

"""


def rows(schema: dict[str, Any], path: str = "") -> list[str]:
    """Return a row for each key of a schema."""
    found = []
    for key, value in schema.get("properties", {}).items():
        kind = value.get("type") or ("any" if "const" not in value else f"always {value['const']}")
        kind = " or ".join(kind) if isinstance(kind, list) else kind
        always = "yes" if key in schema.get("required", ()) else "no"
        found.append(f"| `{path}{key}` | {kind} | {always} | {value.get('description', '')} |")
        if isinstance(value.get("additionalProperties"), dict):
            found += rows(value["additionalProperties"], f"{path}{key}.NAME.")
        elif isinstance(value.get("items"), dict):
            found += rows(value["items"], f"{path}{key}[].")
        else:
            found += rows(value, f"{path}{key}.")
    return found


def pages(root: Path) -> dict[Path, str]:
    """Return the files that this part writes, by their paths."""
    folder, text, texts = root / "docs/reference", HEAD, {}
    for name, (origin, schema) in ALL.items():
        title = f"{name.capitalize()} of gaudi-serve, version {VERSION}"
        whole = {"title": title, **schema}
        texts[root / FOLDER / f"{name}.schema.json"] = text_of(whole)
        table = "\n".join(rows(schema))
        text += f"## {name.capitalize()}\n\nFrom {origin}. Schema: `docs/reference/schemas/{name}.schema.json`.\n\n"
        text += f"| key | type | always | meaning |\n|---|---|---|---|\n{table}\n\n"
    texts[folder / "json.md"] = text.rstrip("\n") + "\n"
    return texts
