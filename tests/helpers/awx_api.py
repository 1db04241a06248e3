"""A stand-in for AWX's API, which judges each request by what a real AWX 24.6.1 has (``awx_recorded``).

Addresses, methods, fields, types, choices, lengths and errors are the recorded ones. It is stricter in one point: AWX
ignores unknown fields, the stand-in refuses them. It also makes the checks of AWX that no description contains: allowed
answers of a survey, playbooks of a project, options of a node, inputs of a credential. Its data is in memory, and
responses never contain secrets.
"""

from __future__ import annotations

import itertools
import json
import re
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from helpers import awx_recorded as recorded

TOKEN = "token-of-the-stand-in"  # noqa: S105 - used nowhere else
HIDDEN = "$encrypted$"
REVISION = "0123456789"
FINISHED = {"status": "successful", "finished": "2026-01-01T00:00:00Z", "failed": False, "scm_revision": REVISION}


NOTIFICATION_TYPES = ("webhook", "email", "slack")
# A kind that is made through another one's address, so that AWX describes its fields nowhere.
APPROVAL: dict[str, dict[str, Any]] = {
    "name": {"type": "string", "required": True, "max_length": 512},
    "description": {"type": "string", "default": ""},
    "timeout": {"type": "integer", "default": 0, "min_value": 0, "max_value": 2147483647},
}
KINDS: dict[str, dict[str, dict[str, Any]]] = {
    **{kind: recorded.fields(kind) for kind in recorded.OPTIONS if "POST" in recorded.OPTIONS[kind]},
    "workflow_approval_templates": APPROVAL,
    "applications": {name: recorded.fields("teams")[name] for name in ("name", "description", "organization")},
}
# Fields that only AWX itself sets, but the tests too.
GIVEN = {"users": {"username", "is_superuser", "edits"}, "credential_types": {"managed", "kind"}}
UNIFIED = ("projects", "job_templates", "workflow_job_templates", "inventory_sources", "workflow_approval_templates")
TOLD = ("notification_templates_started", "notification_templates_success", "notification_templates_error")
# For each kind, the associations of an object and the kinds in them.
ASSOCIATED: dict[str, dict[str, str]] = {
    "organizations": {"galaxy_credentials": "credentials"},
    "inventories": {"instance_groups": "instance_groups", "labels": "labels"},
    "job_templates": {
        **{name: name for name in ("credentials", "instance_groups", "labels")},
        **dict.fromkeys(TOLD, "notification_templates"),
    },
    "workflow_job_templates": {
        **{"labels": "labels"},
        **dict.fromkeys((*TOLD, "notification_templates_approvals"), "notification_templates"),
    },
    "workflow_job_template_nodes": {
        **dict.fromkeys(("success_nodes", "failure_nodes", "always_nodes"), "workflow_job_template_nodes"),
        **{name: name for name in ("credentials", "instance_groups", "labels")},
    },
    "schedules": {name: name for name in ("credentials", "instance_groups", "labels")},
}
# The fields of a saved launch, each with the template's field that allows it.
PROMPTS = {
    **{"credentials": "ask_credential_on_launch", "diff_mode": "ask_diff_mode_on_launch"},
    **{"execution_environment": "ask_execution_environment_on_launch", "forks": "ask_forks_on_launch"},
    **{"instance_groups": "ask_instance_groups_on_launch", "inventory": "ask_inventory_on_launch"},
    **{"job_slice_count": "ask_job_slice_count_on_launch", "job_tags": "ask_tags_on_launch"},
    **{"job_type": "ask_job_type_on_launch", "labels": "ask_labels_on_launch", "limit": "ask_limit_on_launch"},
    **{"scm_branch": "ask_scm_branch_on_launch", "skip_tags": "ask_skip_tags_on_launch"},
    **{"timeout": "ask_timeout_on_launch", "verbosity": "ask_verbosity_on_launch"},
}
# A workflow keeps these together. AWX replaces all of them if a request gives one, and ignores null alone.
WORKFLOW_PROMPTS = ("limit", "scm_branch", "job_tags", "skip_tags")
# Lists of nodes in the object itself.
FOLLOWING = ("success_nodes", "failure_nodes", "always_nodes")
# What AWX calls a kind in an error.
MODEL_NAMES = {"inventories": "Inventory", "workflow_job_template_nodes": "WorkflowJobTemplateNode"}
# What AWX calls the kinds of templates in a node.
JOB_TYPES = {
    **{"projects": "project_update", "job_templates": "job", "inventory_sources": "inventory_update"},
    **{"workflow_job_templates": "workflow_job", "workflow_approval_templates": "workflow_approval"},
}
ROLES = {
    "teams": ("member", "admin", "read"),
    "job_templates": ("execute", "read", "admin"),
    "workflow_job_templates": ("execute", "approval", "read", "admin"),
    "inventories": ("read", "use", "adhoc", "update", "admin"),
    "organizations": ("member", "admin", "execute", "read"),
}
# The names of kinds in assignments.
MODELS = {
    **{"teams": ("shared.team", "Team"), "job_templates": ("awx.jobtemplate", "JobTemplate")},
    **{"workflow_job_templates": ("awx.workflowjobtemplate", "WorkflowJobTemplate")},
    **{"inventories": ("awx.inventory", "Inventory"), "organizations": ("shared.organization", "Organization")},
}
# Objects that are removed together with their parent.
CASCADES = {
    **{"workflow_job_templates": (("workflow_job_template_nodes", "workflow_job_template"),)},
    **{"inventories": (("inventory_sources", "inventory"), ("hosts", "inventory"))},
    **{"job_templates": (("schedules", "unified_job_template"),)},
}
# The fields of a notification's configuration by type, with defaults; None if the field is required.
NOTIFICATIONS: dict[str, dict[str, Any]] = {
    "webhook": {
        **{"url": None, "http_method": "POST", "headers": None, "disable_ssl_verification": False},
        **{"username": "", "password": ""},
    },
    "slack": {"token": None, "channels": None, "hex_color": ""},
    "email": {
        **{"host": None, "port": None, "username": None, "password": None, "use_tls": None, "use_ssl": None},
        **{"sender": None, "recipients": None, "timeout": 30},
    },
}
PASSWORDS = ("password", "token")
MESSAGES = ("started", "success", "error", "workflow_approval")
APPROVAL_EVENTS = ("running", "approved", "timed_out", "denied")
RRULE = re.compile(r"DTSTART(;TZID=\S+)?:\d{8}T\d{6}Z? RRULE:FREQ=(HOURLY|DAILY|WEEKLY|MONTHLY);INTERVAL=\d+\S*")
SURVEY_TYPES: dict[str, Any] = {
    **dict.fromkeys(("text", "textarea", "password", "multiplechoice"), str),
    **{"multiselect": (list, str), "integer": int, "float": (float, int)},
}


AUTOMATION = "Red Hat Ansible Automation Platform"
GALAXY = "Ansible Galaxy/Automation Hub API Token"
# AWX's own credential types: name, kind, fields, and required fields.
MANAGED = (
    ("Machine", "ssh", "username password ssh_key_data ssh_key_unlock become_username become_password", ""),
    ("Vault", "vault", "vault_password vault_id", "vault_password"),
    ("Source Control", "scm", "username password ssh_key_data ssh_key_unlock", ""),
    ("Container Registry", "registry", "host username password verify_ssl", "host"),
    (AUTOMATION, "cloud", "host username password oauth_token verify_ssl", "host"),
    (GALAXY, "galaxy", "url", "url"),
)


class Refused(Exception):
    """An error response: its status and its text."""

    def __init__(self, status: int, said: Any) -> None:
        super().__init__(str(said))
        self.status, self.said = status, said


@dataclass
class Awx:
    """The state of an AWX.

    playbooks: the playbooks of a project after its update. writes: requests that have changed something. syncs: updates
    of projects and inventories. failing: output of failing updates, by the name of the source. busy: number of
    responses with 502 before the next normal one. redirect: target of redirects for all requests. odd: replacement
    responses, by the beginning of a request. heard: headers with tokens of all requests. me: the token's user; scope:
    of the token. asked: addresses of GET requests. job_nodes: nodes of running workflows, as recorded.
    """

    playbooks: tuple[str, ...] = ()
    objects: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    lists: dict[str, list[int]] = field(default_factory=dict)
    surveys: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    # Older roles whose assignment was deleted: no user has them, and they cannot be granted again.
    ghosts: set[tuple[str, int]] = field(default_factory=set)
    updated: set[int] = field(default_factory=set)
    syncs: list[str] = field(default_factory=list)
    failing: dict[str, str] = field(default_factory=dict)
    busy: int = 0
    redirect: str = ""
    odd: dict[str, bytes] = field(default_factory=dict)
    heard: set[str] = field(default_factory=set)
    echoes: bool = False
    slow_s: float = 0.0
    me: str = "admin"
    scope: str = "write"
    version: str = "24.6.1"
    writes: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    job_nodes: list[dict[str, Any]] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def __post_init__(self) -> None:
        plain = ("username", "become_username", "host", "url", "vault_id", "verify_ssl")
        for name, kind, fields, required in MANAGED:
            inputs = {
                "fields": [
                    {"id": one, "type": "boolean" if one == "verify_ssl" else "string", "secret": one not in plain}
                    for one in fields.split()
                ],
                "required": required.split(),
            }
            self.keep("credential_types", {"name": name, "kind": kind, "inputs": inputs, "managed": True})
        galaxy = self.named("credential_types", GALAXY)["id"]
        self.keep("credentials", {"name": "Ansible Galaxy", "credential_type": galaxy, "inputs": {}})
        self.keep("users", {"username": "admin", "is_superuser": True})
        for name in ("anna", "bert", "carl", "dora"):
            self.keep("users", {"username": name})

    def named(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object by its name."""
        return next(one for one in self.objects[kind].values() if one.get("name", one.get("username")) == name)

    def of(self, path: str) -> list[dict[str, Any]]:
        """Return the objects of a list, such as ``job_templates/3/credentials``."""
        kind, _, name = path.split("/")
        return [self.objects[ASSOCIATED[kind][name]][number] for number in self.lists.get(path, [])]

    def kind_of(self, number: Any) -> str:
        """Return the kind of a job or workflow template by its number."""
        return next((kind for kind in UNIFIED if number in self.objects[kind]), "")

    def keep(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Create an object."""
        number = next(self.numbers)
        fields = {name: recorded.default(rule) for name, rule in KINDS[kind].items()}
        self.objects[kind][number] = {"id": number, **fields, **self.settled(kind, dict(given), None)}
        return self.objects[kind][number]

    # Requests.

    def get(self, path: list[str], query: dict[str, str]) -> Any:  # noqa: PLR0911 - one for each address
        """Respond to a GET request."""
        match path:
            case ["ping"]:
                return {"version": self.version}
            case ["me"]:
                return listed([self.named("users", self.me)], query)
            case ["role_user_assignments" | "role_team_assignments"]:
                return listed([one for one in self.assignments() if one["at"] == path[0]], query)
            case ["workflow_job_nodes"]:
                found = [
                    one
                    for one in self.job_nodes
                    if all(str(one[k]) == query[k] for k in ("job", "workflow_job") if k in query)
                ]
                return listed(found, query)
            case ["role_definitions"]:
                return listed(list(self.definitions().values()), query)
            case [("project_updates" | "inventory_updates") as job, number]:
                kind = "projects" if job == "project_updates" else "inventory_sources"
                failed = self.one(kind, number)["name"] in self.failing
                status = {"status": "failed", "failed": True, "job_explanation": ""} if failed else {}
                return {"id": int(number), **FINISHED, **status, "url": f"/api/v2/{job}/{number}/"}
            case [("project_updates" | "inventory_updates") as job, number, "stdout"]:
                kind = "projects" if job == "project_updates" else "inventory_sources"
                return {"range": {}, "content": self.failing[self.one(kind, number)["name"]]}
            case [kind]:
                found = [self.shown(*one) for one in self.all(kind) if self.fits(one, query)]
                return listed(found, query)
            case [kind, number]:
                return self.shown(kind, self.one(kind, number))
            case [kind, number, "survey_spec"]:
                self.one(kind, number)
                return self.surveys.get(f"{kind}/{number}", {})
            case [kind, number, name] if name in ASSOCIATED.get(kind, {}):
                self.one(kind, number)
                return listed([self.shown(ASSOCIATED[kind][name], one) for one in self.of("/".join(path))], query)
        raise Refused(404, {"detail": "Not found."})

    def post(self, path: list[str], given: Any) -> tuple[int, Any]:
        """Respond to a POST request."""
        if self.scope != "write":
            raise Refused(403, {"detail": "You do not have permission to perform this action."})
        if path == ["labels"] and not given:
            raise Refused(400, {"name": ["This field is required."], "organization": ["This field is required."]})
        self.writes.append(f"POST {'/'.join(path)}")
        match path:
            case ["roles", number, ("users" | "teams") as kind]:
                if int(number) not in self.roles.values():
                    raise Refused(404, {"detail": "Not found."})
                return self.associate("/".join(path), kind, given)
            case ["projects" | "inventory_sources" as kind, number, "update"]:
                self.writes.pop()  # the request does not change the desired state
                self.syncs.append(self.one(kind, number)["name"])
                self.updated.add(int(number))
                job = {"projects": "project_updates", "inventory_sources": "inventory_updates"}[kind]
                return 202, {"id": int(number), **FINISHED, "url": f"/api/v2/{job}/{number}/"}
            case ["workflow_job_template_nodes", number, "create_approval_template"]:
                made = self.keep("workflow_approval_templates", self.checked("workflow_approval_templates", given))
                self.one("workflow_job_template_nodes", number)["unified_job_template"] = made["id"]
                return 201, self.shown("workflow_approval_templates", made)
            case [kind, number, "survey_spec"]:
                self.one(kind, number)
                self.surveys[f"{kind}/{number}"] = survey(given)
                return 200, {}
            case [kind, number, name] if name in ASSOCIATED.get(kind, {}):
                self.one(kind, number)
                return self.associate("/".join(path), ASSOCIATED[kind][name], given)
            case [kind] if kind in KINDS:
                made = self.keep(kind, self.checked(kind, given))
                return 201, self.shown(kind, made)
        raise Refused(404, {"detail": "Not found."})

    def patch(self, path: list[str], given: Any) -> tuple[int, Any]:
        """Respond to a PATCH request."""
        self.writes.append(f"PATCH {'/'.join(path)}")
        kind, number = path
        one = self.one(kind, number)
        used = [found for found in self.objects["credentials"].values() if found["credential_type"] == one["id"]]
        if kind == "credential_types" and used and given.get("inputs", one["inputs"]) != one["inputs"]:
            raise Refused(403, {"detail": "Modifications to inputs are not allowed for credential types in use"})
        if kind in ("workflow_job_template_nodes", "schedules") and given.keys() & {*PROMPTS, "extra_data"}:
            self.check_prompts(kind, {**one, **given})
        if kind == "projects":
            self.check_override(one, given)
        given = self.checked(kind, given, one)
        if kind == "workflow_job_templates":
            prompts = {name: given.pop(name) for name in WORKFLOW_PROMPTS if name in given}
            if any(value is not None for value in prompts.values()):
                given |= {**dict.fromkeys(WORKFLOW_PROMPTS), **prompts}
        if kind == "credentials" and "inputs" in given:
            vault = self.objects["credential_types"][one["credential_type"]]["kind"] == "vault"
            if vault and given["inputs"].get("vault_id") not in (None, one["inputs"].get("vault_id")):
                raise Refused(400, {"inputs": ["Vault IDs cannot be changed once they have been created."]})
            given["inputs"] = {
                name: one["inputs"].get(name) if value == HIDDEN else value for name, value in given["inputs"].items()
            }
        one.update(self.settled(kind, given, one))
        return 200, self.shown(kind, one)

    def delete(self, path: list[str]) -> tuple[int, Any]:
        """Respond to a DELETE request."""
        self.writes.append(f"DELETE {'/'.join(path)}")
        if path[2:] == ["survey_spec"]:
            self.surveys.pop("/".join(path[:2]), None)
            return 200, {}
        if path[0] in ("role_user_assignments", "role_team_assignments"):
            found = next((one for one in self.assignments() if f"{one['at']}/{one['id']}" == "/".join(path)), None)
            if found is None:
                raise Refused(404, {"detail": "Not found."})
            self.ghosts.add((found["list"], found["actor"]))
            return 204, None
        self.one(*path)
        self.drop(path[0], int(path[1]))
        return 204, None

    def drop(self, kind: str, number: int) -> None:
        """Remove an object, and its dependent objects."""
        for other, name in CASCADES.get(kind, ()):
            for key in [key for key, one in self.objects[other].items() if one[name] == number]:
                self.drop(other, key)
        del self.objects[kind][number]
        self.roles = {place: role for place, role in self.roles.items() if not place.startswith(f"{kind}/{number}/")}
        for path, there in self.lists.items():
            owner, _, name = path.split("/")
            if (ASSOCIATED.get(owner, {}).get(name) or name) == kind and number in there:
                there.remove(number)

    @staticmethod
    def definitions() -> dict[tuple[str, str], dict[str, Any]]:
        """Return the definitions of roles by kind and role; AWX accepts any name with the same permissions."""
        words = {"execute": ["execute"], "approval": ["approve"], "member": ["member"], "read": []}
        found: dict[tuple[str, str], dict[str, Any]] = {}
        for kind, roles in ROLES.items():
            content, model = MODELS[kind]
            place, _, name = content.partition(".")
            for role in roles:
                actions = [*words.get(role, ["change", "delete"]), "view"]
                shown = "People who may start" if role == "execute" else f"{model} {role.title()} Compat"
                permissions = [f"{place}.{action}_{name}" for action in actions]
                found[kind, role] = {"id": len(found) + 1, "name": shown, "permissions": permissions}
        return found

    def assignments(self) -> list[dict[str, Any]]:
        """Return role assignments; AWX also lists those made through its older addresses."""
        found = []
        for place, role in self.roles.items():
            kind, number, name = place.split("/")
            if int(number) not in self.objects[kind]:
                continue
            content = MODELS[kind][0]
            for actors in ("users", "teams"):
                for actor in self.lists.get(f"roles/{role}/{actors}", []):
                    if (f"roles/{role}/{actors}", actor) in self.ghosts:
                        continue
                    word = actors.removesuffix("s")
                    key = "username" if actors == "users" else "name"
                    found.append(
                        {
                            **{"id": 1000 * role + actor, "content_type": content, "object_id": number, word: actor},
                            "role_definition": self.definitions()[kind, name]["id"],
                            "summary_fields": {word: {"id": actor, key: self.objects[actors][actor][key]}},
                            **{"at": f"role_{word}_assignments", "list": f"roles/{role}/{actors}", "actor": actor},
                        }
                    )
        return found

    def give(self, role: str, kind: str, name: str, to: str, who: str) -> None:
        """Grant a role, as an operator does on AWX's page."""
        place = f"{kind}/{self.named(kind, name)['id']}/{role}"
        number = self.roles.setdefault(place, next(self.numbers))
        self.lists.setdefault(f"roles/{number}/{to}", []).append(self.named(to, who)["id"])

    def settled(self, kind: str, given: dict[str, Any], before: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an object as AWX stores it: with defaults of a notification, and null for missing messages."""
        if kind != "notification_templates":
            return given
        found = dict(given)
        if "notification_configuration" in given:
            type_of = str(given.get("notification_type") or (before or {}).get("notification_type"))
            defaults = {name: value for name, value in NOTIFICATIONS[type_of].items() if value is not None}
            found["notification_configuration"] = {**defaults, **given["notification_configuration"]}
        if given.get("messages") is not None:
            found["messages"] = merged(given["messages"], (before or {}).get("messages") or {})
        return found

    def associate(self, path: str, kind: str, given: Any) -> tuple[int, Any]:
        """Add an object to an association, or remove it."""
        if set(given) - {"id", "associate", "disassociate"} or given.get("id") not in self.objects[kind]:
            raise Refused(400, {"msg": f"{given} is none of {kind}"})
        there = self.lists.setdefault(path, [])
        if kind == "workflow_job_template_nodes" and not given.get("disassociate"):
            self.check_edge(path, given["id"])
        if given.get("disassociate"):
            there[:] = [one for one in there if one != given["id"]]
            self.ghosts.discard((path, given["id"]))
        elif given["id"] not in there:
            there.append(given["id"])
        return 204, None

    def all(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Return all objects of a kind, or of all kinds of templates."""
        if kind != "unified_job_templates" and kind not in KINDS:
            raise Refused(404, {"detail": "Not found."})
        kinds = UNIFIED if kind == "unified_job_templates" else (kind,)
        return [(name, one) for name in kinds for one in self.objects[name].values()]

    def one(self, kind: str, number: str) -> dict[str, Any]:
        """Return one object."""
        found = self.objects.get(kind, {}).get(int(number)) if number.isdigit() else None
        if found is None:
            name = MODEL_NAMES.get(kind) or "".join(word.title() for word in kind.removesuffix("s").split("_"))
            raise Refused(404, {"detail": f"No {name} matches the given query."})
        return found

    def fits(self, found: tuple[str, dict[str, Any]], query: Mapping[str, str]) -> bool:
        """Return whether an object matches a query such as ``organization__name=x``."""
        kind, one = found
        if not self.joined(kind, one, query):
            return False
        for path, wanted in query.items():
            if path in ("page_size", "page", "order_by", "address"):
                continue
            joined, *lookups = path.split("__")
            if joined in ASSOCIATED.get(kind, {}) and lookups[:1] == ["id"]:
                continue
            value: Any = one
            at = kind
            for word in path.split("__"):
                if word == "organization" and word not in KINDS[at]:
                    # The organization of a template is that of its project or inventory.
                    place, of = ("projects", "project") if "project" in value else ("inventories", "inventory")
                    value = self.objects[place].get(value.get(of), {}).get("organization")
                    at = "organizations"
                    value = self.objects[at].get(value)
                    continue
                if word != "id" and word not in KINDS[at]:
                    raise Refused(400, {"detail": f"{at} has no field named '{word}'"})
                value = value[word] if value else None
                other = "" if word == "id" or KINDS[at][word]["type"] != "id" else recorded.REFERS[word]
                if other:
                    at = self.kind_of(value) if other == "unified_job_templates" else other
                    if "__" in path:
                        value = self.objects[at].get(value)
            value = value["id"] if isinstance(value, dict) else value
            if str(value) != wanted:
                return False
        return True

    def joined(self, kind: str, one: Mapping[str, Any], query: Mapping[str, str]) -> bool:
        """Return whether one member of an association matches all conditions of a query, as in AWX's database."""
        tests: dict[str, list[tuple[str, int]]] = {}
        for path, wanted in query.items():
            name, *lookups = path.split("__")
            if name in ASSOCIATED.get(kind, {}) and lookups[:1] == ["id"]:
                tests.setdefault(name, []).append(("".join(lookups[1:]), int(wanted)))
        return all(
            any(
                all({"gt": member > limit, "lt": member < limit, "": member == limit}[how] for how, limit in each)
                for member in self.lists.get(f"{kind}/{one['id']}/{name}", [])
            )
            for name, each in tests.items()
        )

    def shown(self, kind: str, one: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object in the API's format: with its addresses, without its secrets."""
        number, url = one["id"], f"/api/v2/{kind}/{one['id']}/"
        related = {name: f"{url}{name}/" for name in ASSOCIATED.get(kind, {})}
        summary: dict[str, Any] = {}
        roles = {
            f"{role}_role": {"id": self.roles.setdefault(f"{kind}/{number}/{role}", next(self.numbers)), "name": role}
            for role in ROLES.get(kind, ())
        }
        # What a real one has beside these, as nobody has used it yet.
        example = next(iter(recorded.objects(kind)), {})
        shown = {**{name: None for name in example if name != "summary_fields"}, **one}
        if kind == "workflow_job_template_nodes":
            shown |= {name: self.lists.get(f"{kind}/{number}/{name}", []) for name in FOLLOWING}
            template = self.kind_of(one["unified_job_template"])
            if template:
                summary["unified_job_template"] = {"unified_job_type": JOB_TYPES[template]}
        if kind in ("job_templates", "workflow_job_templates"):
            summary |= self.summed(kind, number)
        if kind == "credentials":
            secret = {name for name, said in self.inputs(one["credential_type"]).items() if said.get("secret")}
            shown["inputs"] = {name: HIDDEN if name in secret else value for name, value in one["inputs"].items()}
        if kind == "projects":
            shown["scm_revision"] = REVISION if number in self.updated else ""
        if kind == "notification_templates":
            shown["notification_configuration"] = {
                name: HIDDEN if name in PASSWORDS and value else value
                for name, value in one["notification_configuration"].items()
            }
        if kind == "inventory_sources":
            shown["status"] = "successful" if number in self.updated else "never updated"
        if "made_by" in one:
            summary["created_by"] = {"id": one["made_by"]}
        me = self.named("users", self.me)
        may = bool(me["is_superuser"] or me.get("edits"))
        return {
            **shown,
            **{"type": kind.removesuffix("s"), "url": url, "related": related},
            "summary_fields": {"object_roles": roles, "user_capabilities": {"edit": may}, **summary},
        }

    def summed(self, kind: str, number: int) -> dict[str, Any]:
        """Return the summary of a template's lists."""
        labels = self.of(f"{kind}/{number}/labels")
        found: dict[str, Any] = {"labels": {"count": len(labels), "results": [briefly(each) for each in labels[:10]]}}
        if f"{kind}/{number}" in self.surveys:
            found["survey"] = {"title": "", "description": ""}
        if kind == "job_templates":
            found["credentials"] = [briefly(each) for each in self.of(f"{kind}/{number}/credentials")]
        return found

    # Checks.

    def checked(self, kind: str, given: Any, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return the values for an object; invalid ones are refused."""
        fields, wrong = KINDS[kind], {}
        for name, value in given.items():
            if name not in fields:
                wrong[name] = ["is not a field of it"]
            elif problem := self.problem(name, fields[name], value):
                wrong[name] = [problem]
        if before is None:
            wrong |= {
                name: ["This field is required."]
                for name, rule in fields.items()
                if rule.get("required") and name not in given
            }
        if wrong:
            raise Refused(400, wrong)
        whole = {**{name: recorded.default(rule) for name, rule in fields.items()}, **(before or {}), **given}
        twins = [
            one
            for one in self.objects[kind].values()
            if one is not before
            and all(
                one.get(name) == whole.get(name)
                for name in ("name", "identifier", "username", "organization", "inventory", "workflow_job_template")
                if name in fields
            )
        ]
        if twins and kind != "workflow_approval_templates":
            raise Refused(400, {"__all__": ["Object with this Name and Organization already exists."]})
        getattr(self, f"check_{kind}", lambda _: None)(whole)
        return dict(given)

    def problem(self, name: str, rule: dict[str, Any], value: Any) -> str:  # noqa: PLR0911, PLR0912 - one for each error
        """Return what is wrong with the value of a field, in AWX's words."""
        if value is None:
            allowed = rule["type"] == "id" and not rule.get("required")
            return "" if allowed or ("default" in rule and rule["default"] is None) else "This field may not be null."
        choices = [choice[0] for choice in rule.get("choices", [])]
        match rule["type"]:
            case "id":
                if type(value) is not int:
                    return f"Incorrect type. Expected pk value, received {type(value).__name__}."
                of = recorded.REFERS[name]
                known = any(
                    value in self.objects[kind] for kind in (UNIFIED if of == "unified_job_templates" else (of,))
                )
                return "" if known else f'Invalid pk "{value}" - object does not exist.'
            case "boolean":
                return "" if type(value) is bool else "Must be a valid boolean."
            case "integer":
                if type(value) is not int:
                    return "A valid integer is required."
                low, high = rule.get("min_value", value), rule.get("max_value", value)
                if not low <= value <= high:
                    which = f"greater than or equal to {low}" if value < low else f"less than or equal to {high}"
                    return f"Ensure this value is {which}."
            case "choice" if value not in choices:
                return f'"{value}" is not a valid choice.'
            case "string":
                if not isinstance(value, str):
                    return "Not a valid string."
                if not value and rule.get("required"):
                    return "This field may not be blank."
                if len(value) > rule.get("max_length", len(value)):
                    return f"Ensure this field has no more than {rule['max_length']} characters."
            case "json" if not isinstance(value, str if rule.get("default") == "" else dict):
                return "Value must be valid JSON."
        return ""

    def inputs(self, number: int) -> dict[str, Any]:
        """Return the fields of a credential type."""
        return {one["id"]: one for one in self.objects["credential_types"][number]["inputs"].get("fields", [])}

    def check_users(self, one: Mapping[str, Any]) -> None:
        """Refuse a user without a password."""
        if not one.get("password"):
            raise Refused(400, {"password": ["Password required for new User."]})

    def check_credential_types(self, one: Mapping[str, Any]) -> None:
        """Refuse injectors with names that are no valid variables, or that use unknown inputs."""
        fields = {said["id"] for said in one["inputs"].get("fields", [])}

        def walk(part: Any) -> None:
            for name, value in part.items():
                if not re.fullmatch(r"[a-zA-Z_{}]+[a-zA-Z0-9_{}]*", name):
                    raise Refused(400, {"injectors": [f"'{name}' does not match"]})
                if isinstance(value, dict):
                    walk(value)
                elif used := set(re.findall(r"\{\{ *(\w+)", value)) - fields:
                    raise Refused(400, {"injectors": [f"{name} uses an undefined field ({used})"]})

        walk(one["injectors"].get("extra_vars", {}))

    def check_credentials(self, one: Mapping[str, Any]) -> None:
        """Refuse inputs that the type does not have, and missing required inputs."""
        fields = self.inputs(one["credential_type"])
        if self.echoes and "ssh_key_data" in one["inputs"]:
            text = f"Invalid certificate or key: {one['inputs']['ssh_key_data'][:100]}..."
            raise Refused(400, {"inputs": {"ssh_key_data": [text]}})
        for name, value in one["inputs"].items():
            if name not in fields:
                raise Refused(400, {"inputs": [f"Additional properties are not allowed ('{name}' was unexpected)"]})
            wanted = bool if fields.get(name, {}).get("type") == "boolean" else str
            if not isinstance(value, wanted):
                raise Refused(400, {"inputs": {name: [f"({name}, {type(value).__name__}) is not allowed"]}})
        required = self.objects["credential_types"][one["credential_type"]]["inputs"].get("required", [])
        if missing := set(required) - set(one["inputs"]):
            raise Refused(400, {"inputs": {name: ["required"] for name in missing}})

    def check_job_templates(self, one: Mapping[str, Any]) -> None:
        """Refuse a playbook that the project does not have."""
        if one["project"] not in self.updated or one["playbook"] not in self.playbooks:
            raise Refused(400, {"playbook": ["Playbook not found for project."]})
        if one["extra_vars"] and not isinstance(json.loads(one["extra_vars"]), dict):
            raise Refused(400, {"extra_vars": ["is not a mapping"]})

    def check_workflow_job_template_nodes(self, one: Mapping[str, Any]) -> None:
        """Refuse answers that the template's survey does not accept, and check mode if the template does not prompt."""
        self.check_answers(one["unified_job_template"], one["extra_data"])
        template = self.objects["job_templates"].get(one["unified_job_template"], {})
        if one["job_type"] and not template.get("ask_job_type_on_launch"):
            raise Refused(400, {"job_type": ["Field is not configured to prompt on launch."]})

    def check_edge(self, path: str, number: int) -> None:
        """Refuse a second edge between two nodes of a workflow, and a circle."""
        kind, parent, relation = path.split("/")

        def after(node: int, names: tuple[str, ...]) -> set[int]:
            return {one for name in names for one in self.lists.get(f"{kind}/{node}/{name}", [])}

        if number in after(int(parent), tuple(name for name in FOLLOWING if name != relation)):
            raise Refused(400, {"Error": "Relationship not allowed."})
        reached, waiting = {number}, [number]
        while waiting:
            more = after(waiting.pop(), FOLLOWING) - reached
            reached |= more
            waiting += more
        if int(parent) in reached:
            raise Refused(400, {"Error": "Cycle detected."})

    def check_prompts(self, kind: str, one: Mapping[str, Any]) -> None:
        """Refuse a change of a saved launch that has, also from before, what its template does not ask for."""
        template = self.objects["job_templates"].get(one["unified_job_template"])
        if template is None:
            return
        lists = {name for name in PROMPTS if self.lists.get(f"{kind}/{one['id']}/{name}")}
        wrong = [
            name
            for name, asks in PROMPTS.items()
            if not template.get(asks)
            and (name in lists or (one.get(name) is not None and one[name] != template.get(name)))
        ]
        if wrong:
            raise Refused(400, {name: ["Field is not configured to prompt on launch."] for name in wrong})

    def check_override(self, one: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Refuse to take a project's branches away while a template uses another one."""
        using = [
            str(template["id"])
            for template in self.objects["job_templates"].values()
            if template["project"] == one["id"] and (template["ask_scm_branch_on_launch"] or template["scm_branch"])
        ]
        if one["allow_override"] and given.get("allow_override") is False and using:
            ids = " ".join(using)
            text = f"One or more job templates depend on branch override behavior for this project (ids: {ids})."
            raise Refused(400, {"allow_override": [text]})

    def check_schedules(self, one: Mapping[str, Any]) -> None:
        """Refuse an invalid rule, and invalid answers."""
        if not RRULE.fullmatch(one["rrule"]):
            rule = one["rrule"].partition(" R")[2]
            without = (
                f"INTERVAL required in rrule: {rule}" if "INTERVAL=" not in rule else "Valid DTSTART required in rrule."
            )
            raise Refused(400, {"rrule": [without]})
        self.check_answers(one["unified_job_template"], one["extra_data"])

    def check_answers(self, number: Any, answers: Mapping[str, Any]) -> None:
        """Refuse answers that a survey does not accept."""
        kind = self.kind_of(number)
        spec = self.surveys.get(f"{kind}/{number}", {}).get("spec", [])
        asked = {one["variable"]: one for one in spec if self.objects[kind][number].get("survey_enabled")}
        if answers and not asked:
            raise Refused(400, {"extra_data": ["Field is not allowed on launch."]})
        for name, value in answers.items():
            if name not in asked:
                raise Refused(400, {"extra_data": [f"Variables {name} are not allowed on launch."]})
            one = asked[name]
            fits = isinstance(value, SURVEY_TYPES[one["type"]])
            if not fits or (one["type"] == "multiplechoice" and value not in one["choices"]):
                raise Refused(
                    400, {"variables_needed_to_start": [f"Value {value} for '{name}' expected to be another."]}
                )

    def check_notification_templates(self, one: Mapping[str, Any]) -> None:
        """Refuse messages with variables that AWX does not provide, and a webhook message that gives no JSON."""
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        fields = NOTIFICATIONS[one["notification_type"]]
        if unknown := set(one["notification_configuration"]) - set(fields):
            raise Refused(400, {"notification_configuration": [f"unknown {unknown}"]})
        must = [name for name, value in fields.items() if value is None]
        if missing := [name for name in must if name not in one["notification_configuration"]]:
            raise Refused(400, {"__all__": [f"Missing required fields for Notification Configuration: {missing}."]})
        job = {"name": "n", "status": "failed", "artifacts": {}}
        # The only variables that AWX provides for a message about an approval.
        approval = {"approval_status": "running", "approval_node_name": "n", "workflow_url": "u", "job_metadata": "{}"}
        every: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        for event, texts in (one["messages"] or {}).items():
            if event not in MESSAGES:
                raise Refused(400, {"messages": [f"Event '{event}' invalid"]})
            if event == "workflow_approval":
                every += [(name, said or {}, approval) for name, said in (texts or {}).items()]
            else:
                given = {"job": job, "job_friendly_name": "Job", "url": "u", "job_metadata": "{}"}
                every.append((event, texts or {}, given))
        for event, texts, given in every:
            for key, text in texts.items():
                if key == "message" and "\n" in text:
                    raise Refused(400, {"messages": [f"Messages cannot contain newlines ({event})"]})
                template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(text)
                try:
                    said = template.render(**given)
                    if one["notification_type"] == "webhook" and key == "body" and text:
                        json.loads(said)
                except Exception as problem:
                    raise Refused(400, {"messages": [f"{event}.{key}: {problem}"]}) from None


def survey(given: Any) -> Any:
    """Return a survey; invalid ones are refused as in AWX."""
    if not isinstance(given.get("name"), str) or not isinstance(given.get("description"), str) or not given.get("spec"):
        raise Refused(400, {"error": "name, description or spec"})
    seen: set[str] = set()
    for one in given["spec"]:
        for name in ("type", "question_name", "variable", "required"):
            if not isinstance(one.get(name), bool if name == "required" else str):
                raise Refused(400, {"error": f"'{name}' in survey question {one}"})
        allowed = {"question_description", "min", "max", "default", "choices"}
        if unknown := set(one) - allowed - {"type", "question_name", "variable", "required"}:
            raise Refused(400, {"error": f"unknown {unknown}"})
        if one["variable"] in seen or one["type"] not in SURVEY_TYPES:
            raise Refused(400, {"error": f"'variable' or 'type' of {one}"})
        seen.add(one["variable"])
        if one.get("default", "") != "" and not isinstance(one["default"], SURVEY_TYPES[one["type"]]):
            raise Refused(400, {"error": f"Default value of {one}"})
        if any(one.get(key) is not None and type(one[key]) is not int for key in ("min", "max")):
            raise Refused(400, {"error": f"The limit in survey question {one} expected to be integer."})
        if one["type"] == "multiplechoice":
            choices = one.get("choices")
            if not isinstance(choices, list) or not all(isinstance(choice, str) for choice in choices):
                raise Refused(400, {"error": f"must specify choices: {one}"})
            if one.get("default") and one["default"] not in choices:
                raise Refused(400, {"error": "Default choice must be answered from the choices listed."})
    return given


def merged(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """Return messages as AWX stores them: a text that a request does not name stays, and can only be emptied."""

    def parts(mine: Any, theirs: Any, names: tuple[str, ...]) -> dict[str, Any] | None:
        if not mine:
            return theirs or None
        theirs = theirs or {}
        kept = {name: theirs[name] for name in names if theirs.get(name)}
        return {**kept, **mine}

    found: dict[str, Any] = {name: parts(new.get(name), old.get(name), ("message", "body")) for name in MESSAGES[:-1]}
    approval, before = new.get("workflow_approval") or {}, old.get("workflow_approval") or {}
    events = {name: parts(approval.get(name), before.get(name), ("message", "body")) for name in APPROVAL_EVENTS}
    found["workflow_approval"] = {name: one for name, one in events.items() if one} or None
    return found


def briefly(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return an object as it stands in the summary of another one."""
    return {"id": one["id"], "name": one.get("name")}


def listed(found: list[Any], query: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a list; pages are small, so that every run reads several."""
    page, size = int(query.get("page", 1)), min(int(query.get("page_size", 25)), 30)
    more = {**query, "page": page + 1}
    following = f"{query['address']}?{urlencode({k: v for k, v in more.items() if k != 'address'})}"
    rest = found[page * size :]
    return {
        **{"count": len(found), "next": following if rest else None, "previous": None},
        "results": found[(page - 1) * size : page * size],
    }


class Handler(BaseHTTPRequestHandler):
    """Handles one request; each AWX has its own subclass."""

    awx: Awx

    def answer(self) -> None:
        """Respond to a request with the right token."""
        parts = urlsplit(self.path)
        place = parts.path.removeprefix("/api/v2/")
        path = place.strip("/").split("/")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        slash = not place.endswith("/") and recorded.is_address(f"{place}/")
        try:
            self.admit(parts.path, place, path, slash)
            given = json.loads(body or "{}")
            time.sleep(self.awx.slow_s)
            if self.awx.busy:
                self.awx.busy -= 1
                raise Refused(502, "<html>Bad Gateway</html>")
            status, said = self.done(path, given, {**dict(parse_qsl(parts.query)), "address": parts.path})
        except Refused as problem:
            status, said = problem.status, problem.said
        html = isinstance(said, str) and said.startswith("<")
        body = b"" if said is None else str(said).encode() if html else json.dumps(said).encode()
        odd = [answer for begin, answer in self.awx.odd.items() if f"{self.command} {'/'.join(path)}".startswith(begin)]
        body = odd[0] if odd else body
        self.send_response(status)
        if self.awx.redirect or slash:
            target = f"{self.awx.redirect}{self.path}" if self.awx.redirect else f"{parts.path}/"
            self.send_header("Location", target + (f"?{parts.query}" if slash and parts.query else ""))
        self.send_header("X-API-Product-Name", "AWX")
        self.send_header("X-API-Product-Version", "24.6.1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def admit(self, whole: str, place: str, path: list[str], slash: bool) -> None:
        """Refuse a wrong address, login or method."""
        self.awx.heard.add(self.headers.get("Authorization") or "")
        if self.awx.redirect:
            raise Refused(302, None)
        if slash:
            raise Refused(301, None)
        if not whole.startswith("/api/v2/") or not recorded.is_address(place):
            raise Refused(404, {"detail": "The requested resource could not be found."})
        if path != ["ping"] and self.headers.get("Authorization") != f"Bearer {TOKEN}":
            raise Refused(401, recorded.ERRORS["GET me/ as None"]["body"])
        if self.command not in recorded.methods(path):
            raise Refused(405, {"detail": f'Method "{self.command}" not allowed.'})

    def done(self, path: list[str], given: Any, query: dict[str, str]) -> tuple[int, Any]:
        """Carry out a request."""
        match self.command:
            case "GET":
                self.awx.asked.append(
                    f"{'/'.join(path)} {urlencode({k: v for k, v in query.items() if k != 'address'})}"
                )
                return 200, self.awx.get(path, query)
            case "POST":
                return self.awx.post(path, given)
            case "PATCH":
                return self.awx.patch(path, given)
        return self.awx.delete(path)

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing."""


@contextmanager
def serve(awx: Awx, context: ssl.SSLContext | None = None) -> Iterator[str]:
    """Serve an AWX on loopback, with TLS if a context is given; yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Handler,), {"awx": awx}))
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        scheme, host = ("http", "127.0.0.1") if context is None else ("https", "localhost")
        yield f"{scheme}://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
