"""The objects that an AWX should have for a settings file: by name, with AWX's own field names."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from ..core.yaml_text import load
from .settings import TYPES, awx_inputs

Known = Mapping[str, Any]
# In the order of creation; they are removed in reverse order.
KINDS = (
    *("organizations", "credential_types", "credentials", "execution_environments", "projects", "inventories"),
    *("inventory_sources", "hosts", "notification_templates", "job_templates", "workflow_job_templates"),
    *("workflow_job_template_nodes", "schedules", "teams"),
)
# The names of kinds in messages.
NAMES = {kind: kind.removesuffix("s").replace("_", " ") for kind in KINDS} | {
    **{"inventories": "inventory", "job_templates": "template", "workflow_job_templates": "workflow"},
    **{"workflow_job_template_nodes": "node", "notification_templates": "notification"},
}
EVENTS = ("started", "success", "error")
# Inputs of credentials and fields of notifications that are no secrets.
PUBLIC = (
    "username",
    "become_username",
    "become_method",
    "host",
    "url",
    "vault_id",
    "http_method",
    "sender",
    "hex_color",
)
MADE = "[made by awx.yml, prefix "
APPROVERS = "approver"
ROLLOUT = "rollout with approvals"
REPOSITORY = "inventory repository"
# The teams whose templates each team may start.
MAY = {"viewer": ("viewer",), "operator": ("viewer", "operator"), "admin": ("viewer", "operator", "admin")}


@dataclass(frozen=True)
class Ref:
    """A reference to an object: its kind, its name, and its parent's name if names repeat."""

    kind: str
    name: str
    parent: str = ""

    def __str__(self) -> str:
        kind = NAMES.get(self.kind, self.kind)
        if self.kind == "workflow_job_template_nodes":
            return f"{kind} {self.parent}: {self.name}"
        return f"{kind} {self.name} of {self.parent}" if self.kind == "hosts" else f"{kind} {self.name}"


@dataclass(frozen=True)
class Item:
    """One object. ``fields`` are compared; ``once`` are sent at creation only, and ``secret`` again on request.

    lists: associations with other objects, which are made exactly these. Fields and lists of its kind that it does not
    name are compared with AWX's defaults. survey: its questions; None for a kind without
    surveys. approval: name and timeout of an approval; an existing one keeps its text. marked: whether its description
    gets the mark of awx.yml, by which it can be removed later.
    """

    ref: Ref
    fields: Known
    once: Known = field(default_factory=dict)
    secret: Known = field(default_factory=dict)
    lists: Mapping[str, Sequence[Ref]] = field(default_factory=dict)
    survey: Sequence[Known] | None = None
    approval: Known | None = None
    marked: bool = True

    @property
    def compared(self) -> dict[str, Any]:
        """Return the values of all fields that are compared, with AWX's defaults."""
        return {**defaults()["fields"].get(self.ref.kind, {}), **self.fields}

    @property
    def joined(self) -> dict[str, Sequence[Ref]]:
        """Return all associations that are compared, with empty ones."""
        return {**dict.fromkeys(defaults()["lists"].get(self.ref.kind, ()), ()), **self.lists}


@cache
def defaults() -> dict[str, Any]:
    """Return AWX's own values, by kind: ``fields`` by name, and ``lists``, which are empty."""
    found: dict[str, Any] = load((Path(__file__).parent / "defaults.yml").read_text(encoding="utf-8"))
    return found


@dataclass(frozen=True)
class Grant:
    """A role of an object for a team, or, for role member, a user's membership in a team."""

    of: Ref
    role: str
    to: Ref


@dataclass(frozen=True)
class Objects:
    """All objects and roles; ``pinned`` are the projects that only their workflow updates."""

    items: list[Item]
    grants: list[Grant]
    pinned: frozenset[Ref]


def mark(prefix: str, ref: Ref | None = None) -> str:
    """Return the end of a description, by which awx.yml recognizes objects that it created with this prefix.

    The mark contains the object's name, because a user's copy keeps the description. Credential types have no name in
    the mark: AWX cannot copy them, and only system administrators may change them.
    """
    if ref is None or ref.kind == "credential_types":
        return f"{MADE}{prefix!r}]"
    name = f"{ref.name} of {ref.parent}" if ref.parent else ref.name
    return f"{MADE}{prefix!r}, name {name!r}]"


def is_marked(prefix: str, text: str) -> bool:
    """Return whether a description has a mark of this prefix, with any name or none."""
    return mark(prefix).removesuffix("]") in text


def is_ours(prefix: str, ref: Ref, text: str) -> bool:
    """Return whether awx.yml created an object. A mark with another name is a copy's."""
    return mark(prefix, ref) in text


class _Maker:
    """Builds the objects; each instance is used once."""

    def __init__(self, given: Known, settings: Known, parts: Known) -> None:
        self.given, self.settings, self.parts = given, settings, parts
        self.prefix = str(settings["prefix"])
        self.organization = Ref("organizations", settings["organization"])
        self.approvers: list[str] = settings["rollout_approvers"]
        self.items: list[Item] = []
        self.pinned: set[Ref] = set()
        self.environment = self.ref("execution_environments", "environment")
        self.templates = {str(one["name"]): one for one in parts["templates"]}
        # For each workflow, the templates that only it starts.
        self.within: dict[str, list[Ref]] = {}

    def ref(self, kind: str, name: str, parent: str = "") -> Ref:
        return Ref(kind, self.prefix + name, parent)

    def add(self, ref: Ref, text: str, fields: Known, **more: Any) -> Ref:
        own = {"organization": self.organization} if ref.kind not in ("credential_types", *BELONGS) else {}
        described = {"description": f"{text} {mark(self.prefix, ref)}".lstrip()}
        self.items.append(Item(ref, {**own, **described, **fields}, **more))
        return ref

    def credential(self, name: str) -> Ref | None:
        return Ref("credentials", name) if name else None

    def base(self) -> None:
        """Add the organization, credentials and the execution environment."""
        settings = self.settings
        galaxy = [Ref("credentials", name, "*") for name in settings["collections"]]
        text = {"description": mark(self.prefix, self.organization)}
        lists = {"galaxy_credentials": galaxy}
        self.items.append(Item(self.organization, {}, once=text, lists=lists, marked=False))
        for one in settings["types"]:
            fields = {"kind": "cloud", "inputs": one["inputs"], "injectors": one["injectors"]}
            self.add(Ref("credential_types", one["name"]), one["description"], fields)
        for one in settings["credentials"]:
            inputs = awx_inputs(self.given, one["key"])
            kind = Ref("credential_types", one["type"], "" if one["key"] in TYPES else "*")
            self.add(Ref("credentials", one["name"]), "", {"credential_type": kind}, secret={"inputs": inputs})
        environment = settings["execution_environment"]
        fields = {"image": environment["image"], "pull": environment["pull"]}
        fields["credential"] = self.credential(settings["registry"])
        self.add(self.environment, "", fields)

    def place(self, begin: str = "") -> tuple[Ref, Ref, list[Ref]]:
        """Add a project and an inventory; return them, and the objects that a workflow updates, in that order.

        begin: name of their workflow; empty for all other jobs. A workflow's project stays unchanged between its nodes,
        so that the approved state is the one that runs. AWX updates all others before each job.
        """
        settings, first = self.settings, f"{begin} " if begin else ""
        text = f"Only workflow {begin} updates it, once at its beginning." if begin else ""
        fresh = not begin

        def project(name: str, one: Known, credential: str, more: Known) -> Ref:
            fields = {
                **{"scm_type": "git", "scm_url": one["url"], "scm_branch": one["branch"], "scm_clean": True},
                **{"scm_update_on_launch": fresh, "credential": self.credential(credential), **more},
            }
            ref = self.add(self.ref("projects", first + name), text, fields)
            if begin:
                self.pinned.add(ref)
            return ref

        environment = {"default_environment": self.environment}
        toolkit = source = project("toolkit", settings["project"], settings["repository"], environment)
        updates = [toolkit]
        named = settings["inventory"]
        if named["project"] is not None:
            source = project(REPOSITORY, named["project"], settings["inventory_repository"], {})
            updates.append(source)
        # A source writes its own variables into the inventory, at each update.
        variables = {} if named["path"] else {"variables": ""}
        inventory = self.add(self.ref("inventories", f"{first}inventory"), text, {"kind": "", **variables})
        if named["path"]:
            fields = {
                **{"inventory": inventory, "source": "scm", "source_project": source, "source_path": named["path"]},
                **{"overwrite": True, "overwrite_vars": True, "update_on_launch": fresh},
                "execution_environment": self.environment,
            }
            ref = self.ref("inventory_sources", f"{first}inventory source", inventory.name)
            updates.append(self.add(ref, text, fields))
        self.hosts(inventory)
        return toolkit, inventory, updates

    def hosts(self, inventory: Ref) -> None:
        """Add the hosts that the settings list."""
        for one in self.settings["inventory"]["hosts"]:
            own = {"inventory": inventory, "variables": json.dumps(one["variables"], sort_keys=True)}
            self.add(Ref("hosts", one["name"], inventory.name), "", own)

    def notifications(self) -> None:
        messages = self.parts["messages"]
        for one in self.settings["notifications"]:
            configuration = self.given["notifications"][one["index"]]["configuration"]
            fields = {
                **{"notification_type": one["type"], "notification_configuration": dict(configuration)},
                "messages": messages.get(one["type"]) or messages["others"],
            }
            self.add(self.ref("notification_templates", one["name"]), "", fields)

    def notified(self, *events: str) -> list[Ref]:
        names = [name for event in events for name in self.settings["told"][event]]
        return [Ref("notification_templates", name) for name in dict.fromkeys(names)]

    def survey(self, one: Known) -> list[Known]:
        """Return the questions of a template; if rollouts need approval, without those that bypass it."""
        asked = [ask for ask in one.get("survey") or [] if not (ask.get("unapproved") and self.approvers)]
        return [{name: value for name, value in ask.items() if name != "unapproved"} for ask in asked]

    def template(self, name: str, one: Known, project: Ref, inventory: Ref, receivers: Mapping[str, list[Ref]]) -> Ref:
        settings, check, survey = self.settings, bool(one.get("check")), self.survey(one)
        approvals = [settings["controller"]] if one.get("controller") and settings["controller"] else []
        fields = {
            **{"project": project, "playbook": one["playbook"], "inventory": inventory},
            **{"execution_environment": self.environment, "forks": settings["forks"]},
            **{"timeout": one["timeout"], "extra_vars": json.dumps(one.get("extra_vars") or {}, sort_keys=True)},
            **{"survey_enabled": bool(survey), "allow_simultaneous": bool(one.get("allow_simultaneous"))},
            **{"ask_limit_on_launch": one.get("limit", True), "ask_job_type_on_launch": check},
            "ask_diff_mode_on_launch": check,
        }
        lists = {"credentials": [Ref("credentials", name) for name in [*settings["runs"], *approvals]]}
        lists |= {f"notification_templates_{event}": receivers.get(event, []) for event in EVENTS}
        ref = self.ref("job_templates", name)
        return self.add(ref, one["description"], fields, lists=lists, survey=survey)

    def workflow(self, one: Known) -> None:
        """Add a workflow with its own project, inventory, and a template for each playbook."""
        name, survey = str(one["name"]), one.get("survey") or []
        toolkit, inventory, updates = self.place(name)
        templates: dict[str, Ref] = {}
        for key in dict.fromkeys(node["template"] for node in one["nodes"] if "template" in node):
            found = self.templates[key]
            # A report job fails if nothing is left to approve, which is no error; its success sends the plan.
            receivers = {"success": self.notified("approval")} if found.get("controller") else self._notified()
            extra = {**(found.get("extra_vars") or {}), **(one.get("extra_vars") or {}).get(key, {})}
            text = f"Part of workflow {name}. {found['description']}"
            sees = bool(found.get("controller")) or key in one.get("sees_approvals", [])
            changed = {**found, "description": text, "extra_vars": extra, "controller": sees}
            templates[key] = self.template(f"{name}: {key}", changed, toolkit, inventory, receivers)
        self.within[name] = list(templates.values())
        fields = {
            **{"allow_simultaneous": False, "ask_limit_on_launch": bool(one["limit"])},
            "survey_enabled": bool(survey),
        }
        lists = {"notification_templates_error": self.notified("error")}
        lists["notification_templates_approvals"] = self.notified("approval")
        ref = self.ref("workflow_job_templates", name)
        self.add(ref, one["description"], fields, lists=lists, survey=survey)
        for node in nodes(one["nodes"], updates):
            self._node(ref, node, templates)

    def _node(self, workflow: Ref, node: Known, templates: Mapping[str, Ref]) -> None:
        fields: dict[str, Any] = {"workflow_job_template": workflow}
        approval = None
        if "approval" in node:
            timeout = self.settings["approval_timeout"]
            approval = {"name": node["identifier"], "description": node["approval"], "timeout": timeout}
        else:
            fields["unified_job_template"] = node["updates"] if "updates" in node else templates[node["template"]]
            fields["extra_data"] = dict(node.get("answers") or {})
            fields["job_type"] = "check" if node.get("check") else None

        def others(key: str) -> list[Ref]:
            return [Ref(NODES, name, workflow.name) for name in node[key]]

        lists = {f"{how}_nodes": others(how) for how in ("success", "failure", "always")}
        ref = Ref(NODES, node["identifier"], workflow.name)
        self.items.append(Item(ref, fields, lists=lists, approval=approval))

    def _notified(self) -> dict[str, list[Ref]]:
        return {event: self.notified(event) for event in EVENTS}

    def schedules(self) -> None:
        for one in self.parts["schedules"]:
            if one["rrule"]:
                template = self.ref("job_templates", one["template"])
                fields = {
                    **{"unified_job_template": template, "rrule": one["rrule"], "extra_data": one["answers"]},
                    "enabled": True,
                }
                self.add(self.ref("schedules", one["name"]), one["description"], fields)

    def teams(self, inventory: Ref, starts: Mapping[str, list[Ref]]) -> list[Grant]:
        """Add the teams; return the roles of the teams and their users."""
        users = {**self.settings["teams"], **({APPROVERS: self.approvers} if self.approvers else {})}
        rollout = self.ref("workflow_job_templates", ROLLOUT)
        grants = []
        for team, names in users.items():
            ref = self.add(self.ref("teams", team), "", {})
            grants += [Grant(ref, "member", Ref("users", name)) for name in names]
            grants.append(Grant(inventory, "read", ref))
            grants += [Grant(one, "execute", ref) for part in MAY.get(team, ()) for one in starts.get(part, [])]
            if team == APPROVERS or (not self.approvers and team in ("operator", "admin")):
                grants.append(Grant(rollout, "approval", ref))
            # Reading the output of a workflow's jobs requires a role of their templates.
            for one in self.parts["workflows"]:
                if one["team"] in MAY.get(team, ()) or (team == APPROVERS and one["name"] == ROLLOUT):
                    grants += [Grant(within, "read", ref) for within in self.within[one["name"]]]
        return grants


NODES = "workflow_job_template_nodes"
# Kinds that belong to the organization of their parent; a template's parent is its project.
BELONGS = ("hosts", "inventory_sources", "schedules", "job_templates")


def wanted(given: Known, settings: Known, parts: Known) -> Objects:
    """Return the objects that the AWX should have.

    Args:
        given: ``fleet_awx``, for the values of its credentials.
        settings: the complete settings, as ``awx_settings`` returns them.
        parts: ``templates``, ``workflows``, ``schedules`` and ``messages`` of playbooks/vars/awx.yml.
    """
    maker = _Maker(given, settings, parts)
    maker.base()
    toolkit, inventory, _ = maker.place()
    maker.notifications()
    starts: dict[str, list[Ref]] = {}
    for name, one in maker.templates.items():
        # If rollouts need approval, there is no template that runs without approval.
        if one.get("in_workflows_only") or (one.get("unapproved") and maker.approvers):
            continue
        ref = maker.template(name, one, toolkit, inventory, maker._notified())
        starts.setdefault(one["team"], []).append(ref)
    for one in parts["workflows"]:
        maker.workflow(one)
        starts.setdefault(one["team"], []).append(maker.ref("workflow_job_templates", one["name"]))
    maker.schedules()
    grants = maker.teams(inventory, starts)
    items = sorted(maker.items, key=lambda one: KINDS.index(one.ref.kind))
    return Objects(items, grants, frozenset(maker.pinned))


def secrets(objects: Objects) -> list[str]:
    """Return all secrets that the objects give to AWX. No message may contain one."""
    given = [value for item in objects.items for value in item.secret.values()]
    given += [item.fields.get("notification_configuration") for item in objects.items]
    return [text for one in given for text in _texts(one)]


def _texts(value: Any) -> list[str]:
    if isinstance(value, Mapping):
        return [text for name, one in value.items() if name not in PUBLIC for text in _texts(one)]
    return [value] if isinstance(value, str) else []


def nodes(given: Sequence[Known], updates: Sequence[Ref]) -> list[dict[str, Any]]:
    """Return the nodes of a workflow, each with the nodes after its success, after its failure, and after both.

    Args:
        given: nodes with ``identifier``; ``after`` and ``after_failed`` name the previous nodes. Nodes without them
            begin after all ``updates``.
        updates: projects and inventory sources that the workflow updates first, one after the other.
    """
    kinds = {"projects": "update", "inventory_sources": "read the inventory"}
    first: list[dict[str, Any]] = []
    for number, ref in enumerate(updates):
        name = "update the inventory" if number and ref.kind == "projects" else kinds[ref.kind]
        first.append({"identifier": name, "updates": ref, "after": [first[-1]["identifier"]] if first else []})
    last = [first[-1]["identifier"]]
    every = [*first, *({**node, "after": node.get("after") or last} for node in given)]
    return [{**node, **_followers(str(node["identifier"]), every)} for node in every]


def _followers(node: str, every: Sequence[Known]) -> dict[str, list[str]]:
    """Return the nodes after a node. AWX allows one edge between two nodes, so one for both results is "always"."""
    found: dict[str, list[str]] = {"success": [], "failure": [], "always": []}
    for other in every:
        succeeded, failed = node in other["after"], node in other.get("after_failed", [])
        if succeeded or failed:
            how = "always" if succeeded and failed else "success" if succeeded else "failure"
            found[how].append(str(other["identifier"]))
    return found
