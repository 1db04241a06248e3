"""Applies a settings file to an AWX, or reports the pending changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import shown
from ..core.words import counted
from .api import Api, AwxError, Object, Refused, Unfinished, login_refusal
from .changes import Changes, Role, Step, changes
from .live import Live, read
from .objects import KINDS, Objects, Ref, secrets, wanted
from .settings import awx_settings

Known = Mapping[str, Any]
# States of an inventory source that needs no update: it is up to date or being updated.
UP_TO_DATE = ("successful", "pending", "waiting", "running")


@dataclass(frozen=True)
class Result:
    """The changes of a run, and messages on unlisted objects that stay; with a ``refusal`` nothing was changed."""

    lines: list[str]
    notices: list[str]
    refusal: list[str]


def apply(
    api: Api,
    given: Known,
    parts: Known,
    *,
    check: bool = False,
    absent: bool = False,
    update_secrets: bool = False,
) -> Result:
    """Apply settings to an AWX and return the changes; with ``check``, only return them.

    Args:
        api: client of the AWX.
        given: ``fleet_awx``.
        parts: as for ``wanted``.
        check: change nothing.
        absent: remove the objects that earlier runs created with this prefix.
        update_secrets: send values again that AWX does not show.

    Raises:
        AwxError: if AWX cannot be reached or refuses a request.
        InputError: for invalid settings.
    """
    settings = awx_settings(given)
    reasons, me = login_refusal(api, settings["organization"])
    if reasons:
        return Result([], [], reasons)
    objects = Objects([], [], frozenset()) if absent else wanted(given, settings, parts)
    api.secrets += secrets(objects)
    live = read(api, settings["organization"], objects, me)
    live.trusted = _approver(api, given)
    unknown = [*_unknown_users(objects, live, settings), *_unknown_credentials(objects, live)]
    if reasons := [*unknown, *_other_vaults(objects, live)]:
        return Result([], [], reasons)
    found = changes(objects, live, settings["prefix"], settings["organization"], update_secrets)
    if reasons := _types(found, live):
        return Result([], [], reasons)
    if not check:
        _Work(api, objects, live, found).do()
    return Result(found.lines, [*found.notices, *_blind(objects, settings)], [])


def _blind(objects: Objects, settings: Known) -> list[str]:
    """Return that the jobs of a workflow cannot see its approvals."""
    waiting = any(item.approval is not None for item in objects.items)
    text = "fleet_awx.controller is not set: jobs cannot see approvals, so a rollout stops before its canary"
    return [text] if waiting and not settings["controller"] else []


def _approver(api: Api, given: Known) -> frozenset[str]:
    """Return the user of credential ``controller``, whom an operator made administrator of the workflow."""
    controller = given.get("controller") or {}
    if controller.get("token"):
        try:
            me = Api(api.login.with_token(str(controller["token"])), api.timeout_s, api.pause_s).list("me")
        except AwxError:
            return frozenset()
        return frozenset(str(one.get("username")) for one in me)
    return frozenset({str(controller["username"])} if controller.get("username") else ())


def _unknown_users(objects: Objects, live: Live, settings: Known) -> list[str]:
    named = {**{f"teams.{team}": users for team, users in settings["teams"].items()}}
    named["rollout_approvers"] = settings["rollout_approvers"]
    return [
        f"fleet_awx.{key}: {name} is not a user of this AWX that user {live.me.get('username')} may see"
        for key, users in named.items()
        for name in users
        if objects.items and live.find(Ref("users", name)) is None
    ]


def _unknown_credentials(objects: Objects, live: Live) -> list[str]:
    names = {ref.name for one in objects.items for ref in one.lists.get("galaxy_credentials", [])}
    return [
        f"fleet_awx.collections: {name} is not a credential of this AWX; [] leaves the organization without"
        for name in sorted(names)
        if live.find(Ref("credentials", name, "*")) is None
    ]


def _other_vaults(objects: Objects, live: Live) -> list[str]:
    """Return that the ID of a vault differs, which AWX changes in no credential."""
    reasons = []
    for item in objects.items:
        wanted, now = item.secret.get("inputs") or {}, (live.find(item.ref) or {}).get("inputs")
        if now is not None and wanted.get("vault_id", "") != now.get("vault_id", "") and "vault_password" in wanted:
            text = f"{shown(wanted.get('vault_id', ''))} is not {shown(now.get('vault_id', ''))}, which {item.ref} has"
            way = "AWX changes the ID of no vault; remove this credential in AWX, and run again"
            reasons.append(f"fleet_awx.vault.id: {text}, and {way}")
    return reasons


def _types(found: Changes, live: Live) -> list[str]:
    """Return why a user who is not a system administrator cannot make these changes."""
    if live.me.get("is_superuser") or not any(step.path[0] == "credential_types" for step in found.steps):
        return []
    return [
        f"user {live.me.get('username')} is not a system administrator of this AWX, and only such a user may make or "
        "change credential types, which vllm_secrets, model_weights_tokens, vllm_image_registries and "
        "fleet_gateway_secret need; use the token of one"
    ]


class _Work:
    """Sends the requests; updates projects and inventories in between, because templates need their playbooks."""

    def __init__(self, api: Api, objects: Objects, live: Live, found: Changes) -> None:
        self.api, self.objects, self.live, self.found = api, objects, live, found

    def do(self) -> None:
        """Send all requests."""
        updates, done = ["inventory_sources", "projects"], 0
        try:
            for step in self.found.steps:
                # Phases follow the order of the kinds.
                while updates and step.phase > 2 * KINDS.index(updates[-1]) + 1:
                    self.update(updates.pop())
                self.send(step)
                done += 1
            while updates:
                self.update(updates.pop())
        except AwxError as problem:
            if done == 0:
                raise
            count = f"done before this failed: {done} of {counted(len(self.found.steps), 'request')}"
            raise Unfinished(f"{problem}\n{count}; run it again to continue") from None

    def send(self, step: Step) -> None:
        """Send one request."""
        path = "/".join(str(self.number(part)) for part in step.path)
        try:
            answer = self.api.send(step.method, path, self.number(step.body))
        except Refused as problem:
            # AWX already removed an inventory source with its project, or nodes with their workflow.
            if step.method == "DELETE" and problem.status == 404:
                return
            raise Refused(problem.status, f"{step.text or '/'.join(map(str, step.path))}: {problem}") from None
        if step.makes:
            if not isinstance(answer, dict) or "id" not in answer:
                raise self.api.odd(step.method, path)
            self.live.objects[step.makes] = answer

    def number(self, part: Any) -> Any:
        """Return a part of a request with numbers in place of references."""
        match part:
            case Ref():
                return self.found_object(part)["id"]
            case Role():
                one = self.found_object(part.of)
                if not (one.get("summary_fields") or {}).get("object_roles"):
                    one = self.api.get(f"{part.of.kind}/{one['id']}")
                return one["summary_fields"]["object_roles"][f"{part.role}_role"]["id"]
            case Mapping():
                return {name: self.number(value) for name, value in part.items()}
            case list() | tuple():
                return [self.number(value) for value in part]
        return part

    def found_object(self, ref: Ref) -> Object:
        """Return an existing or newly created object."""
        found = self.live.find(ref)
        if found is None:
            raise AwxError(f"{ref}: is not there; run this again")
        return found

    def update(self, kind: str) -> None:
        """Update projects or inventories; those of a workflow only if its templates need it."""
        for item in self.objects.items:
            if item.ref.kind != kind or (self.is_pinned(item.ref) and not self.needs_update(item.ref)):
                continue
            one = self.found_object(item.ref)
            answer = self.api.send("POST", f"{kind}/{one['id']}/update", {})
            what = f"update of {item.ref}"
            if not isinstance(answer, dict) or not answer.get("url"):
                raise AwxError(f"{what}: AWX has not started it")
            self.api.finished(str(answer["url"]), what)

    def is_pinned(self, ref: Ref) -> bool:
        """Return whether only a workflow updates a project, or an inventory from such a project."""
        source = next((one.fields.get("source_project") for one in self.objects.items if one.ref == ref), None)
        return ref in self.objects.pinned or source in self.objects.pinned

    def needs_update(self, ref: Ref) -> bool:
        """Return whether a workflow's project was never updated, or may lack a playbook that a template needs."""
        one = self.found_object(ref)
        if ref.kind == "projects" and not one.get("scm_revision"):
            return True
        if ref.kind == "inventory_sources" and one.get("status") not in UP_TO_DATE:
            return True
        touched = {step.path[1] for step in self.found.steps if len(step.path) == 2 and step.path[0] == ref.kind}
        playbooks = [
            step.body
            for step in self.found.steps
            if step.path[0] == "job_templates" and isinstance(step.body, Mapping) and "playbook" in step.body
        ]
        return one["id"] in touched or any(body.get("project", ref) == ref for body in playbooks)
