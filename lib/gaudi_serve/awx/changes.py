"""The differences between an AWX and its settings: requests, each with a line for the user."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import one_line
from .api import Object
from .live import Assignment, Live
from .objects import KINDS, NAMES, NODES, Grant, Item, Objects, Ref, is_marked, is_ours

HIDDEN = "$encrypted$"
# Fields whose values may be secret or long.
UNSEEN = (
    "host_config_key",
    "source_vars",
    "inputs",
    "injectors",
    "notification_configuration",
    "messages",
    "variables",
    "extra_vars",
    "extra_data",
)
AS_JSON = ("variables", "extra_vars")
# What AWX adds to the configuration of a notification, where that is not an empty text or false.
ADDED = {"http_method": "POST", "timeout": 30}
# Fields of a kind that AWX lets go only after objects of another kind no longer need them.
AFTER = {("projects", "allow_override"): "job_templates"}
MANY = 4  # lines of the same change, which become one
LONGEST = 60  # characters of a value
HARMLESS = ("member", "read", "audit", "auditor")  # roles of an organization that cannot start jobs
REVOKE, GRANT, REMOVE = 96, 97, 100


@dataclass(frozen=True)
class Role:
    """A placeholder for the number of a role of an object."""

    of: Ref
    role: str


@dataclass(frozen=True)
class Step:
    """One request. A Ref or Role in ``path`` and ``body`` is a placeholder for a number from AWX.

    text: the change; empty for a part of a new object. makes: the object that the request creates. alike: the change
    without the object's name, of which there may be many.
    """

    phase: int
    text: str
    method: str
    path: tuple[str | int | Ref | Role, ...]
    body: Any = None
    makes: Ref | None = None
    alike: str = ""


@dataclass(frozen=True)
class Changes:
    """The requests in order, and messages on unlisted objects and roles that stay."""

    steps: list[Step]
    notices: list[str]

    @property
    def lines(self) -> list[str]:
        """Return the changes, one line each; the same change of many objects is one line."""
        count = Counter(step.alike for step in self.steps if step.text and step.alike)
        lines: dict[str, None] = {}
        for step in self.steps:
            many = count[step.alike] >= MANY
            lines[f"~ {count[step.alike]} {step.alike}" if many else step.text] = None
        return [line for line in lines if line]


def changes(objects: Objects, live: Live, prefix: str, organization: str, update_secrets: bool = False) -> Changes:
    """Return the changes of a run.

    Args:
        objects: the objects that the AWX should have; empty to remove all.
        live: the objects that it has.
        prefix: prefix of the names.
        organization: name of the organization.
        update_secrets: whether to send values again that AWX does not show.
    """
    steps: list[Step] = []
    for item in objects.items:
        phase = 2 * KINDS.index(item.ref.kind)
        one = live.find(item.ref)
        # Lists lose members first: AWX refuses changes of a node that has labels for which its template does not ask.
        steps += _joined(item, one, live, phase)
        steps += _made(item, phase) if one is None else _altered(item, one, live, phase, update_secrets)
        steps += _surveyed(item, one, live, phase)
    granted, given = _granted(objects.grants, live)
    steps += granted
    revoked, notices = _revoked(objects, live, given, prefix)
    removed, left = _removed(objects, live, prefix, Ref("organizations", organization))
    # With an object, AWX removes it from all lists.
    gone = {step.path[1] for step in removed if step.path[0] == "notification_templates"}
    steps = [step for step in steps if not (_leaves(step) and step.body["id"] in gone)]
    steps = sorted([*steps, *revoked, *removed], key=lambda step: step.phase)
    return Changes(steps, [*notices, *left])


def _leaves(step: Step) -> bool:
    """Return whether a step takes a notification out of a list."""
    listed = len(step.path) == 3 and str(step.path[2]).startswith("notification_templates")
    return listed and bool(step.body.get("disassociate"))


def _made(item: Item, phase: int) -> Iterator[Step]:
    ref = item.ref
    key = "identifier" if ref.kind == NODES else "name"
    body = {key: ref.name, **item.fields, **item.once, **item.secret}
    yield Step(phase, f"+ {ref}", "POST", (ref.kind,), {k: v for k, v in body.items() if v is not None}, ref)
    if item.approval is not None:
        yield Step(phase, "", "POST", (ref.kind, ref, "create_approval_template"), dict(item.approval))


def _altered(item: Item, one: Object, live: Live, phase: int, update_secrets: bool) -> Iterator[Step]:
    body: dict[str, Any] = {}
    lines: list[str] = []
    for name, setting in item.compared.items():
        if name not in item.fields and name not in one:
            continue  # an AWX that does not have this field
        now = one.get(name)
        value = _emptied(setting, now) if name == "messages" else setting
        wanted = _number(value, live)
        secret = name == "notification_configuration" and update_secrets and HIDDEN in (now or {}).values()
        if _equal(name, wanted, now) and not secret:
            continue
        if later := AFTER.get((item.ref.kind, name)):
            text = f"~ {item.ref}: {_line(name, value, now, live)}"
            yield Step(2 * KINDS.index(later) + 1, text, "PATCH", (item.ref.kind, one["id"]), {name: value})
            continue
        body[name] = value
        lines.append(_line(name, value, now, live))
    for name, inputs in item.secret.items():
        now = one.get(name) or {}
        if any(now.get(key) not in (value, HIDDEN) for key, value in inputs.items()) or set(now) - set(inputs):
            body[name] = inputs
            lines.append(f"{name} differ")
        elif update_secrets:
            body[name] = inputs
            lines.append("its secrets are written again")
    if body:
        yield Step(phase, f"~ {item.ref}: {', '.join(lines)}", "PATCH", (item.ref.kind, one["id"]), body)
    if item.approval is not None:
        yield from _approved(item, one, live, phase)


def _approved(item: Item, one: Object, live: Live, phase: int) -> Iterator[Step]:
    approval, now = dict(item.approval or {}), live.approvals.get(item.ref)
    if now is None:
        path = (item.ref.kind, one["id"], "create_approval_template")
        yield Step(phase, f"~ {item.ref}: becomes an approval", "POST", path, approval)
        return
    # The description stays, because it may contain the report of the last rollout.
    body = {name: value for name, value in approval.items() if name != "description" and now.get(name) != value}
    if body:
        lines = ", ".join(f"{name} {now.get(name)} becomes {value}" for name, value in body.items())
        yield Step(phase, f"~ {item.ref}: {lines}", "PATCH", ("workflow_approval_templates", now["id"]), body)


def _surveyed(item: Item, one: Object | None, live: Live, phase: int) -> Iterator[Step]:
    if item.survey is None:
        return
    path = (item.ref.kind, item.ref if one is None else one["id"], "survey_spec")
    now = [] if one is None else live.surveys.get(item.ref, [])
    if list(item.survey) == now:
        return
    text = ""
    if one is not None:
        names = [str(each["variable"]) for each in item.survey if each not in now]
        gone = {str(each.get("variable")) for each in now} - {str(each["variable"]) for each in item.survey}
        parts = [f"asks again for {', '.join(names)}"] if names else []
        parts += [f"no longer asks for {', '.join(sorted(gone))}"] if gone else []
        text = f"~ {item.ref}: {'; '.join(parts) or 'asks in another order'}"
    if item.survey:
        body = {"name": "", "description": "", "spec": list(item.survey)}
        yield Step(phase + 1, text, "POST", path, body)
    else:
        yield Step(phase + 1, text, "DELETE", path)


def _joined(item: Item, one: Object | None, live: Live, phase: int) -> Iterator[Step]:
    for name, refs in item.joined.items():
        path = (item.ref.kind, item.ref if one is None else one["id"], name)
        now = [] if one is None else live.lists.get((item.ref, name), [])
        numbers = [_number(ref, live) for ref in refs]
        for each in now:
            if each["id"] not in numbers:
                what = each.get("name") or _name(live, item.ref.kind, each["id"])
                text = f"{name} without {what}"
                yield _step(item, text, phase, path, {"id": each["id"], "disassociate": True})
        there = [each["id"] for each in now]
        for ref, number in zip(refs, numbers, strict=True):
            if number not in there:
                text = "" if one is None else f"{name} with {ref.name}"
                yield _step(item, text, phase + 1, path, {"id": ref})


def _step(item: Item, text: str, phase: int, path: tuple[str | int | Ref | Role, ...], body: Any) -> Step:
    """Return a change of an association, which many objects may have alike."""
    many = f"{NAMES[item.ref.kind]}s".replace("ys", "ies")
    return Step(phase, text and f"~ {item.ref}: {text}", "POST", path, body, alike=text and f"{many}: {text}")


def _name(live: Live, kind: str, number: Any) -> str:
    ref = live.by_id(kind, number)
    return ref.name if ref else str(number)


def _granted(grants: list[Grant], live: Live) -> tuple[list[Step], set[str]]:
    """Return the steps that grant missing roles, and the paths of the assignments that are already correct."""
    steps, given = [], set()
    for grant in grants:
        one, to = live.find(grant.of), live.find(grant.to)
        have = [
            each.path
            for each in live.assignments
            if one and to and (each.of, each.object_id, each.role) == (grant.of.kind, str(one["id"]), grant.role)
            if each.to == grant.to
        ]
        given |= set(have)
        if have:
            continue
        kind = "users" if grant.to.kind == "users" else "teams"
        role = f"a member of {grant.of}" if kind == "users" else f"has role {grant.role} of {grant.of}"
        text = f"+ user {grant.to.name}: {role}" if kind == "users" else f"+ {grant.to}: {role}"
        steps.append(
            Step(
                GRANT,
                "" if kind == "teams" and to is None else text,
                "POST",
                ("roles", Role(grant.of, grant.role), kind),
                {"id": grant.to},
            )
        )
    return steps, given


def _revoked(objects: Objects, live: Live, given: set[str], prefix: str) -> tuple[list[Step], list[str]]:
    """Return the steps that revoke roles, and messages on other roles with more permissions.

    Revoked are roles of the toolkit's objects that its teams have, or users who are or were in these teams.
    """
    ours = {item.ref for item in objects.items}
    teams = {ref for ref in ours if ref.kind == "teams"}
    ids = {(ref.kind, str(one["id"])): ref for ref in ours if (one := live.objects.get(ref))}
    people = {grant.to for grant in objects.grants if grant.to.kind == "users"} | {
        each.to for each in live.assignments if ids.get((each.of, each.object_id)) in teams and each.to.kind == "users"
    }
    trusted = {str(live.me.get("username") or ""), *live.trusted}
    steps, notices, made = [], [], Counter[str]()
    for each in live.assignments:
        if each.path in given or (each.to.kind == "users" and each.to.name in trusted):
            continue
        of = ids.get((each.of, each.object_id))
        member = each.to in teams or each.to in people
        who = f"{'user' if each.to.kind == 'users' else 'team'} {each.to.name}"
        if of is not None and of.kind != "organizations" and (member or of.kind == "teams"):
            lost = f"no longer a member of {of}" if each.role == "member" else f"loses role {each.role} of {of}"
            steps += _taken(each, of, f"- {who}: {lost}", live)
        elif of is not None and _made_by(each, live.objects[of]):
            made[each.to.name] += 1
        elif of is not None and of.kind != "organizations":
            notices.append(f"{who} has role {each.role} of {of}, given by hand")
        elif (member or each.of == "organizations") and (text := _elsewhere(each, live)):
            notices.append(f"{who} {text}, given by hand")
    notices += [
        f"user {name} has made {number} of these objects, and so AWX lets this user administer them"
        for name, number in sorted(made.items())
    ]
    for ref in sorted(people, key=str):
        if (live.find(ref) or {}).get("is_superuser"):
            notices.append(f"user {ref.name} is a system administrator of this AWX, whom no team limits")
    return steps, notices


def _made_by(each: Assignment, one: Object) -> bool:
    """Return whether a user has a role because AWX made the creator of an object its administrator."""
    creator = (one.get("summary_fields") or {}).get("created_by") or {}
    return each.to.kind == "users" and each.role in ("admin", "creator") and creator.get("id") == each.actor_id


def _taken(each: Assignment, of: Ref, text: str, live: Live) -> list[Step]:
    """Return the steps that revoke a role.

    AWX stores each role twice. If the assignment is deleted first, the older entry stays, and AWX would not grant the
    role again; so the older entry is removed first. User-defined roles have an assignment only.
    """
    roles = ((live.objects[of].get("summary_fields") or {}).get("object_roles")) or {}
    delete = Step(REVOKE, text, "DELETE", tuple(each.path.split("/")))
    if f"{each.role}_role" not in roles:
        return [delete]
    kind = "users" if each.to.kind == "users" else "teams"
    body = {"id": each.actor_id, "disassociate": True}
    return [Step(REVOKE, text, "POST", ("roles", Role(of, each.role), kind), body), replace(delete, text="")]


def _elsewhere(each: Assignment, live: Live) -> str:
    """Return a role of an object that the toolkit did not create; empty if the role is harmless."""
    if each.of == "organizations":
        of = live.by_id("organizations", each.object_id)
        return f"has role {each.role} of {of}" if of and each.role not in HARMLESS else ""
    of = live.by_id(each.of, each.object_id)
    return f"has role {each.role} of {of}" if of else ""


def _removed(objects: Objects, live: Live, prefix: str, organization: Ref) -> tuple[list[Step], list[str]]:
    """Return the steps that remove unlisted objects, and messages on similar objects without the toolkit's mark."""
    ours = {item.ref for item in objects.items}
    workflows = {ref.name for ref in ours if ref.kind == "workflow_job_templates"}
    steps, notices, stays = [], [], [*live.others]
    for ref, one in live.objects.items():
        if ref in ours or ref == organization:
            continue
        text = str(one.get("description") or "")
        phase = REMOVE + len(KINDS) - KINDS.index(ref.kind)
        if is_ours(prefix, ref, text) or (ref.kind == NODES and ref.parent in workflows):
            steps.append(Step(phase, f"- {ref}", "DELETE", (ref.kind, one["id"])))
        elif ref.kind not in (NODES, "hosts", "credential_types"):
            starts = _started(one, live) if ref.kind == "schedules" else None
            if starts and starts not in ours and is_ours(prefix, starts, str(live.objects[starts].get("description"))):
                text = "another user made it, and AWX removes it with what it starts"
                notices.append(f"{ref} starts {starts}: {text}")
                continue
            stays.append(str(ref))
            if is_marked(prefix, text):
                text = "since it is a copy or was renamed; remove it if it is not needed"
                notices.append(f"{ref} has the mark of awx.yml for another name, {text}")
            elif starts in ours:
                notices.append(f"{ref} starts {starts}: another user made it; remove it if it is not needed")
            elif prefix and ref.name.startswith(prefix) and "[made by awx.yml, prefix " not in text:
                text = "another user made it; remove it if it is not needed"
                notices.append(f"{ref} has the prefix of this file, but not the mark of awx.yml: {text}")
    own = live.objects.get(organization)
    if not ours and own:
        if not is_marked(prefix, str(own.get("description") or "")):
            notices.append(f"{organization} was not made with the prefix of this file")
        elif stays:
            notices.append(f"{organization} also has {', '.join(sorted(stays))}")
        else:
            steps.append(Step(REMOVE + len(KINDS) + 1, f"- {organization}", "DELETE", ("organizations", own["id"])))
    return steps, notices


def _started(schedule: Object, live: Live) -> Ref | None:
    """Return the template, workflow, project or inventory source that a schedule starts."""
    kinds = ("job_templates", "workflow_job_templates", "projects", "inventory_sources")
    found = (live.by_id(kind, schedule["unified_job_template"]) for kind in kinds)
    return next((ref for ref in found if ref), None)


def _number(value: Any, live: Live) -> Any:
    """Return a value with a number in place of a name; an unknown name stays, and so counts as different."""
    if isinstance(value, Ref):
        one = live.find(value)
        return value if one is None else one["id"]
    return value


def _equal(name: str, wanted: Any, now: Any) -> bool:
    if name in AS_JSON:
        return bool(_json(wanted) == _json(now))
    if name == "notification_configuration":
        found = now or {}
        named = all(found.get(key) in (value, HIDDEN) for key, value in wanted.items())
        return named and all(value in (ADDED.get(key), "", False) for key, value in found.items() if key not in wanted)
    if name == "messages":
        return _covers(wanted, now)
    return bool(wanted == now) or (wanted in (None, "", {}) and now in (None, "", {}))


def _json(text: Any) -> Any:
    try:
        return json.loads(text) if text not in ("", "---", None) else {}
    except ValueError:
        return text


def _emptied(wanted: Any, now: Any) -> Any:
    """Return messages, with an empty text for each other text that AWX has: it keeps texts that a request omits."""
    if not isinstance(now, Mapping):
        return wanted if wanted is not None or not now else ""
    names = {**now, **(wanted or {})}
    found = {name: _emptied((wanted or {}).get(name), now.get(name)) for name in names}
    return {name: value for name, value in found.items() if value not in (None, {})}


def _covers(wanted: Any, now: Any) -> bool:
    """Return whether AWX has these messages; for events without messages AWX returns null."""
    if not isinstance(wanted, Mapping):
        return bool((wanted or "") == (now or ""))
    return all(_covers(value, (now or {}).get(key)) for key, value in wanted.items())


def _line(name: str, value: Any, now: Any, live: Live) -> str:
    if name in UNSEEN:
        return f"{name} differs"
    old = _name(live, value.kind, now) if isinstance(value, Ref) and now else now
    return f"{name} {_shown(old)} becomes {_shown(value.name if isinstance(value, Ref) else value)}"


def _shown(value: Any) -> str:
    if value in (None, ""):
        return "nothing"
    text = one_line(str(value).lower() if isinstance(value, bool) else str(value))
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
