"""A stand-in for AWX's API: stricter than the real one, of which the sentences are those of release 24.6.1.

The real one passes over fields that it does not know; here they are refused, and so is every value of another type.
What it checks, this checks too: which answers a survey takes, which playbooks a project has, what a node may be told,
which inputs a credential has. It keeps what it is given in memory; secrets are never given back.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

TOKEN = "token-of-the-stand-in"  # noqa: S105 - of nothing else
HIDDEN = "$encrypted$"
REVISION = "0123456789"
FINISHED = {"status": "successful", "finished": "2026-01-01T00:00:00Z", "failed": False, "scm_revision": REVISION}


class Field(NamedTuple):
    """A field of an object: its type, or the kind that it refers to; whether it must be given; what it may be."""

    type: type = str
    default: Any = ""
    required: bool = False
    of: str = ""
    choices: tuple[Any, ...] = ()


TEXT, MUST = Field(), Field(required=True)
YES, NO, ZERO = Field(bool, True), Field(bool, False), Field(int, 0)
MAPPING = Field(dict, {})


def to(kind: str, *, required: bool = False) -> Field:
    """Return a field that refers to another object."""
    return Field(int, None, required, kind)


COMMON = {"name": MUST, "description": TEXT}
ASKED = {
    f"ask_{name}_on_launch": NO for name in ("limit", "job_type", "diff_mode", "variables", "tags", "job_slice_count")
}
PLAYBOOK = Field(required=True)
KINDS: dict[str, dict[str, Field]] = {
    "organizations": COMMON,
    "users": {"username": MUST},
    "teams": {**COMMON, "organization": to("organizations", required=True)},
    "credential_types": {
        **COMMON,
        **{"kind": Field(choices=("cloud", "net", "ssh", "vault", "scm", "registry", "galaxy"), required=True)},
        **{"inputs": MAPPING, "injectors": MAPPING, "managed": NO},
    },
    "credentials": {
        **COMMON,
        **{"organization": to("organizations"), "credential_type": to("credential_types", required=True)},
        "inputs": MAPPING,
    },
    "execution_environments": {
        **COMMON,
        **{"organization": to("organizations"), "image": MUST, "credential": to("credentials")},
        "pull": Field(choices=("always", "missing", "never")),
    },
    "projects": {
        **COMMON,
        **{"organization": to("organizations"), "scm_type": Field(choices=("", "git")), "scm_url": TEXT},
        **{"scm_branch": TEXT, "credential": to("credentials"), "scm_clean": NO, "scm_update_on_launch": NO},
        **{"default_environment": to("execution_environments"), "allow_override": NO, "timeout": ZERO},
    },
    "inventories": {
        **COMMON,
        **{"organization": to("organizations", required=True), "variables": TEXT},
        **{"kind": Field(str, None), "host_filter": Field(str, None)},
    },
    "hosts": {**COMMON, "inventory": to("inventories", required=True), "variables": TEXT, "enabled": YES},
    "inventory_sources": {
        **COMMON,
        **{"inventory": to("inventories", required=True), "source": Field(choices=("scm",)), "source_path": TEXT},
        **{"source_project": to("projects"), "overwrite": NO, "overwrite_vars": NO, "update_on_launch": NO},
        "execution_environment": to("execution_environments"),
    },
    "notification_templates": {
        **COMMON,
        **{
            "organization": to("organizations", required=True),
            "notification_type": Field(choices=("webhook", "email")),
        },
        **{"notification_configuration": MAPPING, "messages": Field(dict, None)},
    },
    "job_templates": {
        **COMMON,
        **{"organization": to("organizations"), "project": to("projects", required=True), "playbook": PLAYBOOK},
        **{"inventory": to("inventories"), "execution_environment": to("execution_environments")},
        **{"job_type": Field(choices=("run", "check")), "forks": ZERO, "verbosity": ZERO, "timeout": ZERO},
        **{"extra_vars": TEXT, "survey_enabled": NO, "allow_simultaneous": NO, "job_slice_count": Field(int, 1)},
        **ASKED,
    },
    "workflow_job_templates": {
        **COMMON,
        **{"organization": to("organizations"), "inventory": to("inventories"), "allow_simultaneous": NO},
        **{"ask_limit_on_launch": NO, "survey_enabled": NO, "extra_vars": TEXT},
    },
    "workflow_approval_templates": {**COMMON, "timeout": ZERO},
    "workflow_job_template_nodes": {
        **{"identifier": MUST, "workflow_job_template": to("workflow_job_templates", required=True)},
        **{"unified_job_template": to("unified_job_templates"), "extra_data": MAPPING},
        "job_type": Field(choices=("run", "check")),
        # The modules send it with each node.
        "type": TEXT,
    },
    "schedules": {
        **COMMON,
        **{"unified_job_template": to("unified_job_templates", required=True), "rrule": MUST, "extra_data": MAPPING},
        "enabled": YES,
    },
}
UNIFIED = ("projects", "job_templates", "workflow_job_templates", "inventory_sources", "workflow_approval_templates")
TOLD = ("notification_templates_started", "notification_templates_success", "notification_templates_error")
# By kind the lists of others that an object has: what is in them.
ASSOCIATED: dict[str, dict[str, str]] = {
    "organizations": {"galaxy_credentials": "credentials"},
    "job_templates": {"credentials": "credentials", **dict.fromkeys(TOLD, "notification_templates")},
    "workflow_job_templates": dict.fromkeys((*TOLD, "notification_templates_approvals"), "notification_templates"),
    "workflow_job_template_nodes": dict.fromkeys(
        ("success_nodes", "failure_nodes", "always_nodes"), "workflow_job_template_nodes"
    ),
}
ROLES = {
    "teams": ("member",),
    "job_templates": ("execute", "read"),
    "workflow_job_templates": ("execute", "approval"),
    "inventories": ("read", "use"),
}
RRULE = re.compile(r"DTSTART(;TZID=\S+)?:\d{8}T\d{6}Z? RRULE:FREQ=(HOURLY|DAILY|WEEKLY|MONTHLY);INTERVAL=\d+\S*")
SURVEY_TYPES: dict[str, Any] = {
    **dict.fromkeys(("text", "textarea", "password", "multiplechoice"), str),
    **{"multiselect": (list, str), "integer": int, "float": (float, int)},
}


AUTOMATION = "Red Hat Ansible Automation Platform"
GALAXY = "Ansible Galaxy/Automation Hub API Token"
# Types of credentials that an AWX has from its begin: name, kind, fields, and those that are required.
MANAGED = (
    ("Machine", "ssh", "username password ssh_key_data ssh_key_unlock become_username become_password", ""),
    ("Vault", "vault", "vault_password vault_id", "vault_password"),
    ("Source Control", "scm", "username password ssh_key_data ssh_key_unlock", ""),
    ("Container Registry", "registry", "host username password verify_ssl", "host"),
    (AUTOMATION, "cloud", "host username password oauth_token verify_ssl", "host"),
    (GALAXY, "galaxy", "url", "url"),
)


class Refused(Exception):
    """An answer that is no success: its status, and what is said."""

    def __init__(self, status: int, said: Any) -> None:
        super().__init__(str(said))
        self.status, self.said = status, said


@dataclass
class Awx:
    """What an AWX has.

    playbooks: those that a project finds once it has been updated. writes: requests that have changed something.
    """

    playbooks: tuple[str, ...] = ()
    objects: dict[str, dict[int, dict[str, Any]]] = field(default_factory=lambda: {kind: {} for kind in KINDS})
    lists: dict[str, list[int]] = field(default_factory=dict)
    surveys: dict[str, Any] = field(default_factory=dict)
    roles: dict[str, int] = field(default_factory=dict)
    updated: set[int] = field(default_factory=set)
    writes: list[str] = field(default_factory=list)
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
        self.keep("users", {"username": "anna"})

    def named(self, kind: str, name: str) -> dict[str, Any]:
        """Return an object by its name."""
        return next(one for one in self.objects[kind].values() if one.get("name", one.get("username")) == name)

    def of(self, path: str) -> list[dict[str, Any]]:
        """Return the objects of a list, such as ``job_templates/3/credentials``."""
        kind, _, name = path.split("/")
        return [self.objects[ASSOCIATED[kind][name]][number] for number in self.lists.get(path, [])]

    def kind_of(self, number: Any) -> str:
        """Return the kind of a template of any kind."""
        return next((kind for kind in UNIFIED if number in self.objects[kind]), "")

    def keep(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """Make an object."""
        number = next(self.numbers)
        fields = {name: one.default for name, one in KINDS[kind].items()}
        self.objects[kind][number] = {"id": number, **fields, **given}
        return self.objects[kind][number]

    # What comes and goes.

    def get(self, path: list[str], query: dict[str, str]) -> Any:  # noqa: PLR0911 - one for each address
        """Answer a GET."""
        match path:
            case ["ping"]:
                return {"version": "24.6.1"}
            case ["roles", number, "users" | "teams" as kind]:
                found = [self.objects[kind][one] for one in self.lists.get(f"roles/{number}/{kind}", [])]
                return listed([self.shown(kind, one) for one in found])
            case [("project_updates" | "inventory_updates"), number]:
                return {"id": int(number), **FINISHED, "url": f"/api/v2/{path[0]}/{number}/"}
            case [kind]:
                return listed([self.shown(*one) for one in self.all(kind) if self.fits(one, query)])
            case [kind, number]:
                return self.shown(kind, self.one(kind, number))
            case [kind, number, "survey_spec"]:
                return self.surveys.get(f"{kind}/{number}", {})
            case [kind, number, "update"]:
                return {"can_update": True}
            case [kind, number, name] if name in ASSOCIATED.get(kind, {}):
                self.one(kind, number)
                return listed([self.shown(ASSOCIATED[kind][name], one) for one in self.of("/".join(path))])
        raise Refused(404, {"detail": "Not found."})

    def post(self, path: list[str], given: Any) -> tuple[int, Any]:
        """Answer a POST."""
        self.writes.append(f"POST {'/'.join(path)}")
        match path:
            case ["roles", number, ("users" | "teams") as kind]:
                if int(number) not in self.roles.values():
                    raise Refused(404, {"detail": "Not found."})
                return self.associate("/".join(path), kind, given)
            case ["projects" | "inventory_sources" as kind, number, "update"]:
                self.writes.pop()  # it is no change of what is to be
                self.one(kind, number)
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
        """Answer a PATCH."""
        self.writes.append(f"PATCH {'/'.join(path)}")
        kind, number = path
        one = self.one(kind, number)
        used = [found for found in self.objects["credentials"].values() if found["credential_type"] == one["id"]]
        if kind == "credential_types" and used and given.keys() & {"inputs", "injectors"}:
            raise Refused(403, {"detail": "Modifications to inputs are not allowed for credential types in use"})
        one.update(self.checked(kind, given, one))
        return 200, self.shown(kind, one)

    def delete(self, path: list[str]) -> tuple[int, Any]:
        """Answer a DELETE."""
        self.writes.append(f"DELETE {'/'.join(path)}")
        if path[2:] == ["survey_spec"]:
            self.surveys.pop("/".join(path[:2]), None)
            return 200, {}
        self.one(*path)
        del self.objects[path[0]][int(path[1])]
        return 204, None

    def associate(self, path: str, kind: str, given: Any) -> tuple[int, Any]:
        """Put an object into a list of others, or take it out."""
        if set(given) - {"id", "associate", "disassociate"} or given.get("id") not in self.objects[kind]:
            raise Refused(400, {"msg": f"{given} is none of {kind}"})
        there = self.lists.setdefault(path, [])
        if given.get("disassociate"):
            there.remove(given["id"])
        elif given["id"] not in there:
            there.append(given["id"])
        return 204, None

    def all(self, kind: str) -> list[tuple[str, dict[str, Any]]]:
        """Return all objects of a kind, or of the kinds that a template may be."""
        if kind != "unified_job_templates" and kind not in KINDS:
            raise Refused(404, {"detail": "Not found."})
        kinds = UNIFIED if kind == "unified_job_templates" else (kind,)
        return [(name, one) for name in kinds for one in self.objects[name].values()]

    def one(self, kind: str, number: str) -> dict[str, Any]:
        """Return one object."""
        found = self.objects.get(kind, {}).get(int(number)) if number.isdigit() else None
        if found is None:
            raise Refused(404, {"detail": "Not found."})
        return found

    def fits(self, found: tuple[str, dict[str, Any]], query: Mapping[str, str]) -> bool:
        """Tell whether an object is among those that a query asks for, such as ``organization__name=x``."""
        kind, one = found
        for path, wanted in query.items():
            if path in ("page_size", "page", "order_by"):
                continue
            value: Any = one
            at = kind
            for word in path.split("__"):
                if word == "organization" and word not in KINDS[at]:
                    # A template of any kind has one, in the end.
                    value = self.objects["inventories"].get(value.get("inventory"), {}).get("organization")
                    continue
                if word != "id" and word not in KINDS[at]:
                    raise Refused(400, {"detail": f"{at} has no field named '{word}'"})
                value = value[word] if value else None
                other = "" if word == "id" else KINDS[at][word].of
                if other:
                    at = self.kind_of(value) if other == "unified_job_templates" else other
                    if "__" in path:
                        value = self.objects[at].get(value)
            value = value["id"] if isinstance(value, dict) else value
            if str(value) != wanted:
                return False
        return True

    def shown(self, kind: str, one: Mapping[str, Any]) -> dict[str, Any]:
        """Return an object as the API shows it: with its addresses, without its secrets."""
        number, url = one["id"], f"/api/v2/{kind}/{one['id']}/"
        related = {name: f"{url}{name}/" for name in ASSOCIATED.get(kind, {})}
        if kind in ("job_templates", "workflow_job_templates"):
            related["survey_spec"] = f"{url}survey_spec/"
        if kind in ("projects", "inventory_sources"):
            related["update"] = f"{url}update/"
        if kind == "workflow_job_template_nodes" and one["unified_job_template"]:
            related["unified_job_template"] = (
                f"/api/v2/{self.kind_of(one['unified_job_template'])}/{one['unified_job_template']}/"
            )
        roles = {}
        for role in ROLES.get(kind, ()):
            key = f"{kind}/{number}/{role}"
            self.roles.setdefault(key, next(self.numbers))
            roles[f"{role}_role"] = {"id": self.roles[key], "name": role}
        shown = dict(one)
        if kind == "credentials":
            secret = {name for name, said in self.inputs(one["credential_type"]).items() if said.get("secret")}
            shown["inputs"] = {name: HIDDEN if name in secret else value for name, value in one["inputs"].items()}
        if kind == "projects":
            shown["scm_revision"] = REVISION if number in self.updated else ""
        if kind == "notification_templates":
            shown["notification_configuration"] = {
                name: HIDDEN if name == "password" else value
                for name, value in one["notification_configuration"].items()
            }
        return {
            **shown,
            **{"type": kind.removesuffix("s"), "url": url, "related": related},
            "summary_fields": {"object_roles": roles},
        }

    # What is checked.

    def checked(self, kind: str, given: Any, before: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return what was given for an object, refused where it is not to be."""
        fields, wrong = KINDS[kind], {}
        for name, value in given.items():
            if name not in fields:
                wrong[name] = ["is no field of it"]
            elif problem := self.problem(fields[name], value):
                wrong[name] = [problem]
        if before is None:
            wrong |= {
                name: ["This field is required."]
                for name, one in fields.items()
                if one.required and not given.get(name)
            }
        if wrong:
            raise Refused(400, wrong)
        whole = {**{name: one.default for name, one in fields.items()}, **(before or {}), **given}
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

    def problem(self, rule: Field, value: Any) -> str:
        """Return what is wrong with the value of a field."""
        if rule.of:
            kinds = UNIFIED if rule.of == "unified_job_templates" else (rule.of,)
            known = value is None or (type(value) is int and any(value in self.objects[kind] for kind in kinds))
            return "" if known else f'Invalid pk "{value}" - object does not exist.'
        if type(value) is not rule.type and not (value is None and rule.default is None):
            return f"Not a valid {rule.type.__name__}: {value!r}"
        if rule.choices and value not in (*rule.choices, rule.default):
            return f'"{value}" is not a valid choice.'
        return ""

    def inputs(self, number: int) -> dict[str, Any]:
        """Return the fields of a credential type."""
        return {one["id"]: one for one in self.objects["credential_types"][number]["inputs"].get("fields", [])}

    def check_credential_types(self, one: Mapping[str, Any]) -> None:
        """Refuse injectors whose names no variable may have, and those that name no input."""
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
        """Refuse inputs that the type does not have, and a type without what it requires."""
        fields = self.inputs(one["credential_type"])
        for name, value in one["inputs"].items():
            wanted = bool if fields.get(name, {}).get("type") == "boolean" else str
            if name not in fields or not isinstance(value, wanted):
                raise Refused(400, {"inputs": {name: [f"({name}, {type(value).__name__}) is not allowed"]}})
        required = self.objects["credential_types"][one["credential_type"]]["inputs"].get("required", [])
        if missing := set(required) - set(one["inputs"]):
            raise Refused(400, {"inputs": {name: ["required"] for name in missing}})

    def check_job_templates(self, one: Mapping[str, Any]) -> None:
        """Refuse a playbook that the project has not."""
        if one["project"] not in self.updated or one["playbook"] not in self.playbooks:
            raise Refused(400, {"playbook": ["Playbook not found for project."]})
        if one["extra_vars"] and not isinstance(json.loads(one["extra_vars"]), dict):
            raise Refused(400, {"extra_vars": ["is no mapping"]})

    def check_workflow_job_template_nodes(self, one: Mapping[str, Any]) -> None:
        """Refuse answers that the template's survey does not take, and a check where nobody is asked."""
        self.check_answers(one["unified_job_template"], one["extra_data"])
        template = self.objects["job_templates"].get(one["unified_job_template"], {})
        if one["job_type"] and not template.get("ask_job_type_on_launch"):
            raise Refused(400, {"job_type": ["Field is not configured to prompt on launch."]})

    def check_schedules(self, one: Mapping[str, Any]) -> None:
        """Refuse a rule that is none, and answers as those of a node."""
        if not RRULE.fullmatch(one["rrule"]):
            raise Refused(400, {"rrule": ["Valid DTSTART required in rrule."]})
        self.check_answers(one["unified_job_template"], one["extra_data"])

    def check_answers(self, number: Any, answers: Mapping[str, Any]) -> None:
        """Refuse answers that are none of a survey."""
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
        """Refuse messages that fill in what AWX does not give, and a webhook that is no JSON of a job without data."""
        from jinja2 import StrictUndefined
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        job = {"name": "n", "status": "failed", "artifacts": {}}
        for event, texts in (one["messages"] or {}).items():
            if event not in ("started", "success", "error", "workflow_approval"):
                raise Refused(400, {"messages": [f"Unexpected key {event}"]})
            for key, text in texts.items():
                template = ImmutableSandboxedEnvironment(undefined=StrictUndefined).from_string(text)
                try:
                    said = template.render(job=job, job_friendly_name="Job", url="u", job_metadata="{}")
                    if one["notification_type"] == "webhook" and key == "body":
                        json.loads(said)
                except Exception as problem:
                    raise Refused(400, {"messages": [f"{event}.{key}: {problem}"]}) from None


def survey(given: Any) -> Any:
    """Return a survey, refused as AWX refuses it."""
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


def listed(found: list[Any]) -> dict[str, Any]:
    """Return a page of a list."""
    return {"count": len(found), "next": None, "previous": None, "results": found}


class Handler(BaseHTTPRequestHandler):
    """Answers one request; a class of its own for each AWX."""

    awx: Awx

    def answer(self) -> None:
        """Answer it, if it brings the token."""
        parts = urlsplit(self.path)
        path = parts.path.removeprefix("/api/v2/").strip("/").split("/")
        given = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        try:
            if path != ["ping"] and self.headers.get("Authorization") != f"Bearer {TOKEN}":
                raise Refused(401, {"detail": "Authentication credentials were not provided."})
            status, said = self.done(path, given, dict(parse_qsl(parts.query)))
        except Refused as problem:
            status, said = problem.status, problem.said
        body = b"" if said is None else json.dumps(said).encode()
        self.send_response(status)
        self.send_header("X-API-Product-Name", "AWX")
        self.send_header("X-API-Product-Version", "24.6.1")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def done(self, path: list[str], given: Any, query: dict[str, str]) -> tuple[int, Any]:
        """Do what is asked for."""
        match self.command:
            case "GET":
                return 200, self.awx.get(path, query)
            case "POST":
                return self.awx.post(path, given)
            case "PATCH":
                return self.awx.patch(path, given)
        return self.awx.delete(path)

    do_GET = do_POST = do_PATCH = do_DELETE = answer

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@contextmanager
def serve(awx: Awx) -> Iterator[str]:
    """Serve an AWX on loopback; give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (Handler,), {"awx": awx}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
