"""What a real AWX 24.6.1 accepts and answers: its addresses, fields and objects, as recorded on 2026-11-29."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parents[1] / "unit/golden/awx.json.gz"
RECORDED: dict[str, Any] = json.loads(gzip.decompress(FILE.read_bytes()))
OPTIONS: dict[str, dict[str, Any]] = RECORDED["options"]
RESPONSES: dict[str, dict[str, Any]] = RECORDED["responses"]
ERRORS: dict[str, dict[str, Any]] = RECORDED["errors"]
# The kind that a field refers to, where it has another name.
REFERS = {
    **{"credential": "credentials", "credential_type": "credential_types", "inventory": "inventories"},
    **{"organization": "organizations", "project": "projects", "source_project": "projects", "team": "teams"},
    **{"default_environment": "execution_environments", "execution_environment": "execution_environments"},
    **{"signature_validation_credential": "credentials", "webhook_credential": "credentials", "user": "users"},
    **{"unified_job_template": "unified_job_templates", "workflow_job_template": "workflow_job_templates"},
}
# Addresses of a part of AWX that other packages provide; they were not among the recorded ones.
ROLES = ("role_definitions/", "role_user_assignments/", "role_team_assignments/")


def _patterns() -> list[re.Pattern[str]]:
    """Return the addresses below /api/v2/, of which each ends with a slash."""
    files: dict[str, list[str]] = {}
    for file, pattern in RECORDED["urls"]:
        files.setdefault(file, []).append(pattern.removeprefix("^"))
    found = [*ROLES, *(f"{name}(?P<pk>[0-9]+)/" for name in ROLES)]
    for own in files["urls"]:
        if own.endswith("$"):
            found.append(own)
            continue
        name = own.removesuffix("/")
        file = next((file for file in (name, name[:-1], f"{name[:-3]}y") if file in files), "")
        found += [own + pattern for pattern in files.get(file, [])]
    # Links of real objects, of which some stand in several lines of AWX's source and so not among the patterns.
    links = [link for answer in RESPONSES.values() for link in _links(answer["body"])]
    found += {re.sub(r"\d+", "[0-9]+", link.removeprefix("/api/v2/")) for link in links}
    return [re.compile(pattern.removesuffix("$")) for pattern in found]


def _links(answer: Any) -> list[str]:
    """Return the links of the objects of an answer."""
    if not isinstance(answer, dict):
        return []
    objects = [one for one in [answer, *(answer.get("results") or [])] if isinstance(one, dict)]
    return [str(link) for one in objects for link in (one.get("related") or {}).values() if "/api/v2/" in link]


PATTERNS = _patterns()


def is_address(path: str) -> bool:
    """Return whether AWX has an address below /api/v2/."""
    return any(pattern.fullmatch(path) for pattern in PATTERNS)


def fields(kind: str) -> dict[str, dict[str, Any]]:
    """Return the fields of a kind that can be written, as AWX describes them."""
    found: dict[str, dict[str, Any]] = OPTIONS[kind]["POST"]
    return found


def default(rule: dict[str, Any]) -> Any:
    """Return the value of a field that nobody has set."""
    empty = None if rule["type"] == "id" else ""
    return rule.get("default", empty)


def objects(kind: str) -> list[dict[str, Any]]:
    """Return real objects of a kind; an empty list if none was recorded."""
    answer = RESPONSES.get(f"GET {kind}/?page_size=2") or {"body": {}}
    found: list[dict[str, Any]] = answer["body"].get("results") or []
    return found


def methods(path: list[str]) -> tuple[str, ...]:
    """Return the methods of an address: of a list as recorded, of others as AWX's manual has them."""
    read, write = ("GET",), ("GET", "POST")
    match path:
        case [kind]:
            assignments = kind in ("role_user_assignments", "role_team_assignments")
            return write if assignments else tuple(OPTIONS.get(kind, {}).get("methods") or read)
        case [kind, _]:
            writable = kind == "workflow_approval_templates" or "POST" in OPTIONS.get(kind, {"POST": {}})
            changed = ("GET", "PUT", "PATCH", "DELETE") if writable else read
            return ("GET", "DELETE") if kind.startswith("role_") else changed
        case [_, _, name]:
            special = {"survey_spec": (*write, "DELETE"), "stdout": read, "create_approval_template": ("POST",)}
            return special.get(name, write)
    return read
