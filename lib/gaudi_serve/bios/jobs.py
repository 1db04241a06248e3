"""The unfinished jobs, tasks and firmware updates of a BMC. A change of the BIOS or a reset waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .client import Answer, Redfish, messages_of

Known = Mapping[str, Any]
MOST_PAGES = 100  # of a collection
# States of jobs (Dell's included) and of tasks (Redfish's Task).
DONE = ("Completed", "RebootCompleted", "PendingActivation")
FAILED = (
    *("CompletedWithErrors", "Failed", "RebootFailed"),
    *("Exception", "Killed", "Cancelled", "Canceled", "CompletedWithWarnings"),
)
WAITING = ("Scheduled", "New", "Pending", "Suspended", "Starting")
BIOS_JOB = "BIOSConfiguration"
# Words of update services that are at work, such as UpdateService.Oem.Hpe.State.
UPDATING = ("preparing", "downloading", "uploading", "verifying", "flashing", "writing", "updating", "staging")
UPDATE_KEYS = ("State", "UpdateStatus")


@dataclass(frozen=True)
class Job:
    """A job or task of a BMC.

    kind: ``bios`` for one that changes BIOS settings, else what the BMC calls it. message: without secrets. waits:
    whether it has not begun. ended, failed: by its state.
    """

    id: str
    path: str
    kind: str
    state: str
    message: str
    waits: bool = False
    ended: bool = False
    failed: bool = False

    @classmethod
    def of(cls, client: Redfish, path: str, body: Known, settings: str = "") -> Job:
        """Return the job of a resource.

        Args:
            client: hides secrets in its message.
            path: of the resource.
            body: the resource.
            settings: path of the BIOS settings, by which a task of the BIOS is known.
        """
        state = str(body.get("JobState") or body.get("TaskState") or "")
        payload = body.get("Payload")
        target = str(payload.get("TargetUri") or "") if isinstance(payload, Mapping) else ""
        kind = str(body.get("JobType") or body.get("Name") or "")
        if kind == BIOS_JOB or (settings and target.rstrip("/").lower() == settings.rstrip("/").lower()):
            kind = "bios"
        texts = [str(body["Message"])] if body.get("Message") else messages_of(body.get("Messages"))
        status = str(body.get("TaskStatus") or body.get("JobStatus") or "").lower()
        return cls(
            id=str(body.get("Id") or path.rstrip("/").rpartition("/")[2]),
            path=path,
            kind=kind,
            state=state,
            message=client.told(" ".join(texts)),
            waits=state in WAITING,
            ended=state in (*DONE, *FAILED),
            failed=state in FAILED or (state in DONE and status == "critical"),
        )

    @classmethod
    def of_task(cls, client: Redfish, path: str, answer: Answer | None) -> Job | None:
        """Return the task of a response; None if it is gone or has ended without a trace, as a task's monitor does."""
        if answer is None or not (answer.body.get("TaskState") or answer.body.get("JobState")):
            running = answer is not None and answer.status == 202
            return cls(path.rpartition("/")[2], path, "", "Running", "") if running else None
        return cls.of(client, path, answer.body)


def of_paths(client: Redfish, path: str) -> list[str]:
    """Return the paths of a collection's members, from all its pages."""
    return [str(one["@odata.id"]) for one in members_of(client, path)]


def members_of(client: Redfish, path: str) -> list[Known]:
    """Return the members of a collection from all its pages."""
    found: list[Known] = []
    for _ in range(MOST_PAGES):
        page = client.get(path).body
        found += page.get("Members") or []
        path = str(page.get("Members@odata.nextLink") or "")
        if not path:
            break
    return found


def running(client: Redfish, root: Known, system: Known, settings: str) -> list[Job]:
    """Return the unfinished jobs and tasks of a BMC, and an update of its firmware.

    Args:
        client: an open session.
        root: the service root.
        system: the system, whose managers have the jobs of Dell's BMCs.
        settings: path of the BIOS settings.
    """
    if str(system.get("Manufacturer") or "").lower().startswith("dell"):
        # The tasks of these BMCs are their jobs again, with other states.
        return _dell(client, system, settings)
    found = []
    service = _linked(client, root, "Tasks")
    tasks = service.get("Tasks")
    path = str(tasks.get("@odata.id") or "") if isinstance(tasks, Mapping) else ""
    for one in members_of(client, path) if path else []:
        found += _unfinished(client, one, settings)
    return [*found, *_updates(client, root)]


def _dell(client: Redfish, system: Known, settings: str) -> list[Job]:
    found = []
    for manager in (system.get("Links") or {}).get("ManagedBy") or []:
        for folder in ("Jobs", "Oem/Dell/Jobs"):
            path = f"{manager['@odata.id']}/{folder}"
            if client.find(f"{path}?$expand=*($levels=1)"):
                for one in members_of(client, f"{path}?$expand=*($levels=1)"):
                    place = str(one.get("@odata.id") or f"{path}/{one.get('Id')}")
                    found += _unfinished(client, {**one, "@odata.id": place}, settings)
                break
    return found


def _unfinished(client: Redfish, one: Known, settings: str) -> list[Job]:
    """Return a job or task if it has not ended. Not every BMC expands the members; what has ended is read once."""
    path = str(one["@odata.id"])
    if path in client.ended:
        return []
    if "JobState" not in one and "TaskState" not in one:
        answer = client.find(path)
        if answer is None:
            # It ended while the list was read.
            return []
        one = answer.body
    job = Job.of(client, path, one, settings)
    if job.ended or not job.state:
        client.ended.add(path)
        return []
    return [job]


def _updates(client: Redfish, root: Known) -> list[Job]:
    """Return the update of the firmware that a BMC shows in its update service only, as those of HPE and AMI do."""
    oem = _linked(client, root, "UpdateService").get("Oem")
    return [
        Job("UpdateService", "", "update of firmware", client.told(state), "")
        for state in _states(oem)
        if any(word in state.lower() for word in UPDATING)
    ]


def _states(found: Any) -> list[str]:
    if not isinstance(found, Mapping):
        return []
    own = [value for key, value in found.items() if key in UPDATE_KEYS and isinstance(value, str)]
    return [*own, *(text for value in found.values() for text in _states(value))]


def _linked(client: Redfish, resource: Known, key: str) -> Known:
    """Return the resource of a link; empty if there is none."""
    link = resource.get(key)
    path = str(link.get("@odata.id") or "") if isinstance(link, Mapping) else ""
    answer = client.find(path) if path else None
    return answer.body if answer else {}
