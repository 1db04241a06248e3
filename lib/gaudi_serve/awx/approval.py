"""The approvals of a workflow: their texts, and whether they were granted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.errors import InputError
from .api import Api, AwxError, Login, Object

NODES = "workflow_job_nodes"
EDGES = ("success_nodes", "failure_nodes", "always_nodes")
GRANTED = "successful"  # the status of an approval that a user has approved


@dataclass(frozen=True)
class Approvals:
    """The approvals of the workflow that has started a job, as AWX has them now.

    before: those on the way to the job, by name, each with its status. after: all others. A status is empty before the
    approval has begun.
    """

    before: Mapping[str, str]
    after: Mapping[str, str]

    @property
    def reasons(self) -> list[str]:
        """Return why the job may change nothing, as sentences; empty if a user has approved what it does."""
        if not self.before:
            return [
                "no approval stands before this job in its workflow; run awx.yml again, and launch the workflow again"
            ]
        return [
            f"approval {name} is not granted: its status in AWX is {status or 'not begun'}"
            for name, status in self.before.items()
            if status != GRANTED
        ]

    @property
    def all_granted(self) -> bool:
        """Return whether no approval of the workflow is left."""
        return not self.reasons and all(status == GRANTED for status in self.after.values())


def approvals(api: Api, job: str, in_workflow: bool) -> Approvals | None:
    """Return the approvals of the workflow that has started a job; None if no workflow with approvals has.

    AWX's own record of the workflow decides. A variable could come from anywhere: the variables of a workflow override
    those of its templates.

    Args:
        api: client of the AWX, for a user who may read the workflow.
        job: number of the job, as AWX sets it in environment variable JOB_ID.
        in_workflow: whether a workflow has started the job.

    Raises:
        AwxError: if AWX cannot be reached, refuses a request, or does not show the workflow.
    """
    own = api.list(NODES, job=job)
    if not own:
        if in_workflow:
            raise AwxError("the user of fleet_awx.controller may not read the workflow that has started it")
        return None
    nodes = {int(one["id"]): one for one in api.list(NODES, workflow_job=own[0]["workflow_job"])}
    asked = {number: one for number, one in nodes.items() if _kind(one) == "workflow_approval"}
    if not asked:
        return None
    before = _ancestors(nodes, int(own[0]["id"]))
    known = {number: (str(one.get("identifier")), str(_job(one).get("status") or "")) for number, one in asked.items()}
    return Approvals(
        dict(told for number, told in known.items() if number in before),
        dict(told for number, told in known.items() if number not in before),
    )


def seen_approvals(
    environment: Mapping[str, str], required: bool, in_workflow: bool = False
) -> tuple[Approvals | None, list[str]]:
    """Return the approvals of the workflow that has started this job of AWX, and why they cannot be seen, as sentences.

    Outside of AWX, and for a job that no workflow with approvals has started, both are empty. A workflow that the login
    may not read may have approvals.

    Args:
        environment: the environment of the job, with the login of credential ``controller``.
        required: whether the job may run only after an approval.
        in_workflow: whether a workflow has started the job. AWX's own variable of that overrides those of templates.
    """
    job = environment.get("JOB_ID", "")
    if not job.isdigit():
        return None, []
    if not environment.get("CONTROLLER_HOST"):
        text = "this job cannot see whether its plan was approved: set fleet_awx.controller, and run awx.yml again"
        return None, [text] if required else []
    try:
        found = approvals(Api(Login.of(environment)), job, in_workflow)
    except (AwxError, InputError) as problem:
        return None, [f"this job cannot see whether its plan was approved: {problem}"]
    return found, [] if found or not required else [
        "AWX shows no workflow with approvals that has started this job. If the job was launched again by itself, "
        "launch the workflow instead; else the user of fleet_awx.controller must be an administrator of the workflow "
        "(docs/guides/awx.md)"
    ]


def _job(node: Object) -> Mapping[str, object]:
    return (node.get("summary_fields") or {}).get("job") or {}


def _kind(node: Object) -> str:
    template = (node.get("summary_fields") or {}).get("unified_job_template") or {}
    return str(template.get("unified_job_type") or _job(node).get("type") or "")


def _ancestors(nodes: Mapping[int, Object], number: int) -> set[int]:
    """Return the nodes from which a node is reached."""
    found: set[int] = set()
    waiting = [number]
    while waiting:
        target = waiting.pop()
        parents = {one for one, node in nodes.items() if target in _followers(node)}
        waiting += parents - found
        found |= parents
    return found


def _followers(node: Object) -> Sequence[int]:
    return [int(one) for edge in EDGES for one in node.get(edge) or []]


def approval_text(api: Api, organization: str, workflow: str, node: str, text: str) -> bool:
    """Change the text of an approval; return whether it changed.

    Raises:
        AwxError: if AWX cannot be reached, has no such approval, or refuses the change.
    """
    names = {"workflow_job_template__organization__name": organization, "workflow_job_template__name": workflow}
    found = api.list("workflow_job_template_nodes", identifier=node, **names)
    if not found or not found[0].get("unified_job_template"):
        raise AwxError(f"workflow {workflow} has no approval {node} that this user may see")
    path = f"workflow_approval_templates/{found[0]['unified_job_template']}"
    if api.get(path).get("description") == text:
        return False
    api.send("PATCH", path, {"description": text})
    return True
