"""Reads and changes BIOS settings through a BMC. It uses only the standard library, because it also runs on hosts."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from typing import Any

from .client import ROOT, Answer, BmcError, LostAnswer, Redfish, messages_of
from .jobs import Job, of_paths, running
from .registry import passwords

Known = Mapping[str, Any]
POLL_S = 5.0
TASK_S = 300.0  # until a task that stages settings must have ended
# Where BMCs of AMI and Gigabyte, and others of them, stage settings without announcing it in the BIOS resource.
UNANNOUNCED = ("SD", "Settings")


def observed(client: Redfish, *, registry: bool = False) -> dict[str, Any]:
    """Return the BIOS settings of the BMC's system.

    Args:
        client: an open session.
        registry: whether to read the attribute registry, which is large.

    Returns:
        ``system`` (maker, model, serial, sku, bios), ``current`` (values by attribute), ``pending`` (values by
        attribute after the next reset; None if this BMC does not show them), ``registry`` (``RegistryEntries`` of the
        attribute registry), ``jobs`` (unfinished jobs and tasks of the BMC: id, path, kind, state, message; the kind is
        ``bios`` for those of the BIOS), ``messages`` (what the BIOS reports on the last change that it did not apply
        completely), and ``settings`` (path) and ``etag`` of the resource to change.

    Raises:
        BmcError: if the BMC has no BIOS settings, or does not respond.
    """
    root = client.get(ROOT).body
    system, bios = _system(client, root)
    path = str(bios["@odata.id"])
    settings, staged = _settings(client, path, bios)
    current = dict(bios.get("Attributes") or {})
    entries = _registry(client, root, str(bios.get("AttributeRegistry") or "")) if registry else {}
    # A BIOS must not show its passwords, and some do.
    current |= {name: "" for name in passwords(entries) if name in current}
    own = settings.rstrip("/") != path.rstrip("/")
    changed = {key: value for key, value in (staged.body.get("Attributes") or {}).items() if current.get(key) != value}
    return {
        "system": {
            **{"maker": str(system.get("Manufacturer") or ""), "model": str(system.get("Model") or "").strip()},
            **{"serial": str(system.get("SerialNumber") or "").strip(), "sku": str(system.get("SKU") or "").strip()},
            "bios": str(system.get("BiosVersion") or ""),
        },
        "current": current,
        "pending": changed if own else None,
        "registry": entries,
        "jobs": [vars(one) for one in running(client, root, system, settings)],
        "messages": _reported(client, bios),
        **{"settings": settings, "etag": staged.etag},
    }


def _system(client: Redfish, root: Known) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the system with a BIOS, by its serial number if there are several, and its BIOS resource."""
    systems = [client.get(path).body for path in of_paths(client, _link(client, root, "Systems"))]
    found = [one for one in systems if one.get("Bios")]
    if len(found) > 1:
        serial = client.bmc.serial
        same = [one for one in found if serial and serial in _serials(one)]
        if len(same) != 1:
            about = "; ".join(f"{one.get('@odata.id')}: {' or '.join(_serials(one)) or 'none'}" for one in found)
            given = f"bios_bmc_serial {serial} is not one of them" if serial else "set bios_bmc_serial to one of them"
            raise client.error(f"it has several systems, with the serial numbers {client.told(about)}; {given}")
        found = same
    if not found:
        names = client.told(", ".join(str(one.get("@odata.id")) for one in systems)) or "none"
        raise client.error(
            f"one system with BIOS settings is needed, it has 0 of {len(systems)} systems ({names}); some makers "
            "require a licence for it"
        )
    path = _link(client, found[0], "Bios")
    bios = client.get(path).body
    if not isinstance(bios.get("Attributes"), Mapping) or not bios["Attributes"]:
        raise client.error(f"{path} shows no attributes; is a licence missing?")
    return found[0], {"@odata.id": path, **bios}


def _serials(system: Known) -> list[str]:
    """Return the numbers by which a user can choose a system."""
    values = (str(system.get(key) or "").strip() for key in ("SerialNumber", "SKU"))
    return list(dict.fromkeys(filter(None, values)))


def _settings(client: Redfish, path: str, bios: Known) -> tuple[str, Answer]:
    """Return the path and the content of the resource to change, which is the BIOS itself on older boards."""
    announced = bios.get("@Redfish.Settings")
    place = announced.get("SettingsObject") if isinstance(announced, Mapping) else None
    if isinstance(place, Mapping) and place.get("@odata.id"):
        return str(place["@odata.id"]), client.get(str(place["@odata.id"]))
    for name in UNANNOUNCED:
        below = f"{path.rstrip('/')}/{name}"
        # It has no attributes before the first change.
        if answer := client.find(below):
            return below, answer
    if "/self/" in path.lower():
        # BMCs of AMI: the resource exists only while something is pending, and a change makes it.
        return f"{path.rstrip('/')}/{UNANNOUNCED[0]}", Answer(404, {}, {"etag": "*"})
    return path, client.get(path)


def _reported(client: Redfish, bios: Known) -> list[str]:
    """Return the messages of the BIOS on its last change, without those of success."""
    announced = bios.get("@Redfish.Settings")
    found = announced.get("Messages") if isinstance(announced, Mapping) else None
    found = found if isinstance(found, list) else [found]
    bad = [one for one in found if isinstance(one, Mapping) and not _is_success(one)]
    return [client.told(text) for text in messages_of(bad)]


def _is_success(message: Known) -> bool:
    severity = str(message.get("MessageSeverity") or message.get("Severity") or "").lower()
    name = re.split(r"[.:]", str(message.get("MessageId") or ""))[-1]
    return severity == "ok" or (not severity and name in ("Success", "SettingsApplied", "NoOperation"))


def _link(client: Redfish, resource: Known, key: str) -> str:
    try:
        return str(resource[key]["@odata.id"])
    except (KeyError, TypeError):
        raise client.error(f"{resource.get('@odata.id', ROOT)} has no {key}") from None


def _registry(client: Redfish, root: Known, name: str) -> dict[str, Any]:
    """Return the entries of the BIOS's attribute registry; empty if the BMC does not have it.

    Some BMCs omit the version in the path, and some name another registry in the list than in the file itself.
    """
    if not name or not root.get("Registries"):
        return {}
    plain = _plain(name)
    near = sorted(of_paths(client, _link(client, root, "Registries")), key=lambda path: plain not in path.lower())
    others: list[Known] = []
    for path in near:
        about = client.find(path)
        if about is None:
            continue
        names = [str(about.body.get(key) or "") for key in ("Registry", "Id")]
        if name in names or plain in map(_plain, names):
            if entries := _entries(client, about.body):
                return dict(entries.get("RegistryEntries") or {})
        elif any("attributeregistry" in one.lower() for one in names):
            others.append(about.body)
    for about_other in others:
        entries = _entries(client, about_other)
        if _plain(str(entries.get("Id") or "")) == plain:
            return dict(entries.get("RegistryEntries") or {})
    return {}


def _plain(name: str) -> str:
    return name.partition(".v")[0].lower()


def _entries(client: Redfish, about: Known) -> Known:
    """Return the file of a registry, in English if there are several languages; empty if there is none."""
    places = about.get("Location") or []
    english = [one for one in places if str(one.get("Language") or "").lower().startswith("en")]
    for place in [*english, *places]:
        if place.get("Uri") and (found := client.find(str(place["Uri"]))):
            return found.body
    return {}


def stage(client: Redfish, settings: Known, job: str = "") -> dict[str, Any]:
    """Send settings to the BMC in one request; they take effect at the next reset.

    Args:
        client: an open session.
        settings: registry values by attribute.
        job: identifier of this toolkit's earlier job, which the settings replace.

    Returns:
        ``job``: the identifier of the BMC's job; empty if it has none.

    Raises:
        BmcError: if another job runs, or the BMC refuses or drops a value.
    """
    seen = observed(client)
    _free(client, seen["jobs"], job)
    lost = ""
    try:
        task = _followed(client, _patched(client, seen, settings), settings)
    except LostAnswer as problem:
        # The BMC may have made the change before its answer was lost, so what it shows decides.
        lost, task = f"{problem}; ", ""
    after = observed(client)
    if lost and after["pending"] is None:
        raise BmcError(f"{lost}it does not show pending settings, so a run cannot know whether it has them")
    if dropped := _dropped(after, settings):
        text = ", ".join(f"{name} = {settings[name]}" for name in dropped)
        reported = "".join(f"; it reports: {one}" for one in after["messages"])
        kept = f"{lost}it does not have" if lost else str(client.error("it accepted the request, but did not keep"))
        raise BmcError(f"{kept} {client.told(text)}{reported}")
    return {"job": task or next((one["id"] for one in after["jobs"] if one["kind"] == "bios"), "")}


def _patched(client: Redfish, seen: Known, settings: Known) -> Answer:
    """Return the response to the change, which is sent to what was seen.

    Raises:
        BmcError: if another client changes the settings, or the BMC refuses.
    """
    body: dict[str, Any] = {"Attributes": dict(settings)}
    if seen["system"]["maker"].lower().startswith("dell"):
        # Without it the values are stored, but no reset applies them.
        body["@Redfish.SettingsApplyTime"] = {"ApplyTime": "OnReset"}
    answer = client.patch(seen["settings"], body, seen["etag"])
    if answer.status == 412:
        again = observed(client)
        if again["pending"] != seen["pending"] or again["current"] != seen["current"]:
            raise client.error("another client changes its BIOS settings now; run again later")
        answer = client.patch(again["settings"], body, again["etag"])
        if answer.status == 412:
            reason = client.told(answer.reason)
            raise client.error(f"its ETag changes with every request (status 412): {reason}")
    return answer


def _dropped(seen: Known, settings: Known) -> list[str]:
    """Return the settings that are neither pending nor current; none if the BMC does not show pending ones."""
    if seen["pending"] is None:
        return []
    effective = {**seen["current"], **seen["pending"]}
    return [name for name, value in settings.items() if not _same(effective.get(name), value)]


def _same(one: Any, other: Any) -> bool:
    """Return whether two values are equal; some BIOSes show numbers and booleans as texts."""
    return bool(one == other or str(one).lower() == str(other).lower())


def _followed(client: Redfish, answer: Answer, settings: Known) -> str:
    """Follow the task of a response until it has ended, or waits for the next reset; return its identifier.

    Raises:
        BmcError: if the task failed, or takes too long.
    """
    place = _task(answer)
    if not place:
        return ""
    name = place.rstrip("/").rpartition("/")[2]
    begin, limit = time.monotonic(), min(client.bmc.wait_s, TASK_S)
    while True:
        task = Job.of_task(client, place, client.find(place))
        if task is None or task.ended:
            break
        pending = observed(client)
        # It waits for a reset, not for itself, if the settings are there; a job of Dell shows it.
        if any(one["id"] == name and one["state"] == "Scheduled" for one in pending["jobs"]):
            return name
        waits = task.waits or time.monotonic() - begin > limit
        if waits and not _dropped(pending, settings):
            return name
        if time.monotonic() - begin > limit:
            raise client.error(f"task {name} is still {task.state} after {limit:g} s: {task.message or 'no message'}")
        time.sleep(min(POLL_S, client.bmc.pause_s))
    if task and task.failed:
        raise client.error(f"task {name} of the change is {task.state}: {task.message or 'no message'}")
    return ""


def _task(answer: Answer) -> str:
    """Return the path of the task that carries out an accepted request; empty if the BMC has none."""
    if answer.status != 202:
        return ""
    location = answer.headers.get("location") or ""
    own = str(answer.body.get("@odata.id") or "")
    # The task itself has more than its monitor, which may be gone when the task ends.
    return own if "/tasks/" in own.lower() else _path_of(location) or own


def _path_of(location: str) -> str:
    return location if location.startswith("/") else "/" + location.partition("://")[2].partition("/")[2]


def _free(client: Redfish, jobs: list[dict[str, Any]], job: str) -> None:
    """Remove this toolkit's job if it waits for the next reset.

    Raises:
        BmcError: if the job has begun, or there is another job.
    """
    if others := [one for one in jobs if one["id"] != job]:
        raise client.error(busy(others))
    for own in jobs:
        if not own["waits"]:
            raise client.error(f"job {own['id']} is {own['state']}; run again after its end")
        # Only Dell's BMCs refuse a change while a job waits for the reset; others add to it.
        if "/Jobs/" in own["path"]:
            client.delete(own["path"])


def busy(jobs: list[dict[str, Any]]) -> str:
    """Return the message on unfinished jobs of others."""
    text = ", ".join(f"{one['id']} ({one['kind'] or 'task'}, {one['state']})" for one in jobs)
    return f"a job of another client is not finished: {text}; wait for its end, or delete it there, and run again"


def settle(client: Redfish, settings: Known, job: str, wait_s: float, settle_s: float) -> dict[str, Any]:
    """Wait after a reset until the BIOS has applied settings.

    Args:
        client: an open session.
        settings: registry values by attribute that must become current.
        job: identifier of the job; empty if there is none.
        wait_s: seconds until the jobs of the BIOS must end.
        settle_s: further seconds to wait for the values; the caller must check them.

    Returns:
        ``job``: identifier, final state and message of the job; empty without one. ``messages``: what the BIOS reports
        on settings that it did not apply.
    """
    begin = last = time.monotonic()
    while True:
        seen, now = observed(client), time.monotonic()
        works = [one for one in seen["jobs"] if one["kind"] == "bios" or one["id"] == job]
        done = all(_same(seen["current"].get(name), value) for name, value in settings.items())
        if works and now - begin < wait_s:
            last = now
        # A job of Dell's BMCs must have ended, because it refuses the next change.
        if (done and not any("/Jobs/" in one["path"] for one in works)) or now - last >= settle_s:
            break
        time.sleep(min(POLL_S, client.bmc.pause_s))
    return {"job": _ended(client, job), "messages": seen["messages"]}


def _ended(client: Redfish, job: str) -> dict[str, Any]:
    if not job:
        return {}
    root = client.get(ROOT).body
    managers = of_paths(client, _link(client, root, "Managers")) if root.get("Managers") else []
    places = [f"{one}/{folder}/{job}" for one in managers for folder in ("Jobs", "Oem/Dell/Jobs")]
    for place in [*places, f"/redfish/v1/TaskService/Tasks/{job}"]:
        if answer := client.find(place):
            found = Job.of_task(client, place, answer)
            return vars(found) if found else {}
    return {}
