"""The current state of an AWX: the objects of one organization, their associations, and role assignments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .api import Api, Object
from .objects import KINDS, MADE, NODES, Item, Objects, Ref

# The query for the objects of an organization, for kinds without a field organization__name.
WITHIN = {
    "organizations": "name",
    "inventory_sources": "inventory__organization__name",
    "hosts": "inventory__organization__name",
    NODES: "workflow_job_template__organization__name",
    "schedules": "unified_job_template__organization__name",
}
# The kinds of objects with roles, by their names in assignments.
OF_ROLES = {
    **{"jobtemplate": "job_templates", "workflowjobtemplate": "workflow_job_templates", "team": "teams"},
    **{"inventory": "inventories", "project": "projects", "credential": "credentials"},
    **{"organization": "organizations", "executionenvironment": "execution_environments"},
    "notificationtemplate": "notification_templates",
}
# Roles by their permitted actions. AWX accepts any definition with the same permissions, so its name is irrelevant.
ACTIONS = {
    **{frozenset({"view"}): "read", frozenset({"view", "execute"}): "execute"},
    **{frozenset({"view", "approve"}): "approval", frozenset({"view", "member"}): "member"},
}
# Other objects that are deleted together with an organization; awx.yml creates none of these.
OTHERS = {"applications": "application", "labels": "label"}
SURVEYED = ("job_templates", "workflow_job_templates")


@dataclass(frozen=True)
class Assignment:
    """A role assignment. ``path`` deletes it; ``to`` is a team or a user, ``actor_id`` its number."""

    path: str
    of: str
    object_id: str
    role: str
    to: Ref
    actor_id: int


@dataclass
class Live:
    """The current state of an AWX.

    others: names of the organization's other objects. me: the user of the login. trusted: other users whose roles are
    not checked.
    """

    objects: dict[Ref, Object] = field(default_factory=dict)
    shared: dict[Ref, Object] = field(default_factory=dict)
    lists: dict[tuple[Ref, str], list[Object]] = field(default_factory=dict)
    surveys: dict[Ref, list[Any]] = field(default_factory=dict)
    approvals: dict[Ref, Object] = field(default_factory=dict)
    assignments: list[Assignment] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    me: Object = field(default_factory=dict)
    trusted: frozenset[str] = frozenset()

    def find(self, ref: Ref) -> Object | None:
        """Return an object, including those without an organization; None if there is none."""
        return self.shared.get(ref) if ref.parent == "*" or ref.kind == "users" else self.objects.get(ref)

    def by_id(self, kind: str, number: Any) -> Ref | None:
        """Return the reference of an object of this organization; None if there is none."""
        wanted = str(number)
        return next((ref for ref, one in self.objects.items() if ref.kind == kind and str(one["id"]) == wanted), None)


def read(api: Api, organization: str, objects: Objects, me: Mapping[str, Any]) -> Live:
    """Return the current state of an AWX.

    Args:
        api: client of the AWX.
        organization: name of the organization.
        objects: the objects that it should have; their associations are read too.
        me: the user of the login.
    """
    live = Live(me=dict(me))
    for kind in KINDS:
        for one in api.list(kind, **within(kind, organization)):
            managed = kind == "credential_types" and one.get("managed")
            table, ref = (live.shared if managed else live.objects), ref_of(kind, one, live, "*" if managed else "")
            # Schedules of several templates, and credentials of several types, may have the same name.
            if ref not in table or MADE in str(one.get("description")):
                table[ref] = one
    if not objects.items:  # a run that removes everything
        names = {kind: api.list(kind, organization__name=organization) for kind in OTHERS}
        live.others = [f"{OTHERS[kind]} {one.get('name')}" for kind, found in names.items() for one in found]
    _shared(api, live, objects)
    _joined(api, live, objects, organization)
    roles = {one["id"]: role_of(one) for one in api.list("role_definitions")}
    for path, kind in (("role_user_assignments", "users"), ("role_team_assignments", "teams")):
        live.assignments += [found for one in api.list(path) if (found := assignment(path, kind, one, live, roles))]
    return live


def ref_of(kind: str, one: Object, live: Live, parent: str = "") -> Ref:
    """Return the reference of an object; child objects include the name of their parent."""
    owner = {"inventory_sources": "inventories", "hosts": "inventories", NODES: "workflow_job_templates"}.get(kind)
    if owner:
        of = live.by_id(owner, one["inventory" if owner == "inventories" else "workflow_job_template"])
        parent = of.name if of else ""
    return Ref(kind, str(one["identifier"] if kind == NODES else one["name"]), parent)


def _shared(api: Api, live: Live, objects: Objects) -> None:
    """Read users, and credentials without an organization, that the settings name."""
    refs = {ref for one in objects.items for refs in one.lists.values() for ref in refs}
    users = {grant.to for grant in objects.grants if grant.to.kind == "users"}
    for ref in sorted({ref for ref in refs if ref.parent == "*"} | users, key=str):
        name = "username" if ref.kind == "users" else "name"
        found = api.list(ref.kind, **{name: ref.name})
        if found:
            live.shared[ref] = found[0]


def within(kind: str, organization: str) -> dict[str, str]:
    """Return the query for the objects of a kind that belong to an organization."""
    return {} if kind == "credential_types" else {WITHIN.get(kind, "organization__name"): organization}


def _joined(api: Api, live: Live, objects: Objects, organization: str) -> None:
    """Read the associations of the objects to compare: lists, surveys, and the approvals of nodes."""
    there = [one for one in objects.items if one.ref in live.objects]
    paths: dict[str, tuple[Ref, str]] = {}
    asked: dict[tuple[str, str], list[Item]] = {}
    for item in there:
        one = live.objects[item.ref]
        summary = one.get("summary_fields") or {}
        for name in item.joined:
            if name in one:  # a node lists the nodes after it
                live.lists[item.ref, name] = [{"id": number} for number in one[name]]
            elif name == "credentials" and name in summary:  # a template has all of them
                live.lists[item.ref, name] = list(summary[name])
            else:
                asked.setdefault((item.ref.kind, name), []).append(item)
        if item.ref.kind in SURVEYED and "survey" in summary:
            paths[f"{item.ref.kind}/{one['id']}/survey_spec/"] = (item.ref, "survey")
        kind = (summary.get("unified_job_template") or {}).get("unified_job_type")
        if item.approval is not None and kind == "workflow_approval":
            paths[f"workflow_approval_templates/{one['unified_job_template']}/"] = (item.ref, "approval")
    told = [one for ref, one in live.objects.items() if ref.kind == "notification_templates"]
    for (kind, name), items in asked.items():
        known = sorted(told, key=lambda one: int(one["id"])) if name.startswith("notification_templates") else []
        paths |= _members(api, live, within(kind, organization), kind, name, items, known)
    for path, found in api.many(paths).items():
        ref, name = paths[path]
        if name == "survey":
            live.surveys[ref] = list(found.get("spec") or [])
        elif name == "approval":
            live.approvals[ref] = found
        else:
            live.lists[ref, name] = api.results(found, path)


def _members(
    api: Api, live: Live, own: Mapping[str, str], kind: str, name: str, items: list[Item], known: list[Object]
) -> dict[str, tuple[Ref, str]]:
    """Read an association of many objects in few requests: one for each known member, and for each gap between these.

    An object with a member in a gap, which nobody expected, is read itself: its path is returned.
    """
    mine = {live.objects[item.ref]["id"]: item.ref for item in items}
    found: dict[Ref, list[Object]] = {ref: [] for ref in mine.values()}
    for member in known:
        for one in api.list(kind, **own, **{f"{name}__id": member["id"]}):
            if one["id"] in mine:
                found[mine[one["id"]]].append(member)
    numbers = [0, *(int(member["id"]) for member in known)]
    paths = {}
    for number, following in zip(numbers, [*numbers[1:], 0], strict=True):
        gap = {f"{name}__id__gt": number, **({f"{name}__id__lt": following} if following else {})}
        for one in api.list(kind, **own, **gap):
            if one["id"] in mine:
                paths[f"{kind}/{one['id']}/{name}/?page_size=200"] = (mine[one["id"]], name)
    live.lists |= {(ref, name): members for ref, members in found.items()}
    return paths


def assignment(path: str, kind: str, one: Object, live: Live, roles: Mapping[int, str]) -> Assignment | None:
    """Return a role assignment; None for a role that is not about an object."""
    if not one.get("object_id"):
        return None
    of = OF_ROLES.get(str(one.get("content_type") or "").rpartition(".")[2], "")
    if kind == "teams":
        # Teams of other organizations may have the same name.
        to = live.by_id("teams", one["team"]) or Ref(kind, f"{one['team']} of another organization", "elsewhere")
    else:
        user = (one.get("summary_fields") or {}).get("user") or {}
        to = Ref(kind, str(user.get("username") or one["user"]))
    role = roles.get(one["role_definition"], "unknown")
    actor = int(one["team" if kind == "teams" else "user"])
    return Assignment(f"{path}/{one['id']}", of, str(one["object_id"]), role, to, actor)


def role_of(definition: Object) -> str:
    """Return the role of a definition: from its permissions, or else from its name."""
    allowed = {str(one).rpartition(".")[2].partition("_")[0] for one in definition.get("permissions") or []}
    # "JobTemplate Admin" and "JobTemplate Admin Compat" become "admin"; user-defined roles keep their names.
    words = str(definition["name"]).removesuffix(" Compat").split(" ")
    return ACTIONS.get(frozenset(allowed)) or (words[1].lower() if len(words) == 2 else str(definition["name"]))
