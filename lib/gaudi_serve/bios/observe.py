"""Reads and changes BIOS settings through a BMC. It uses only the standard library, because it also runs on hosts."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from .client import ROOT, BmcError, Redfish

Known = Mapping[str, Any]
ENDED = ("Completed", "CompletedWithErrors", "Failed", "RebootCompleted", "RebootFailed", "PendingActivation")
BIOS_JOB = "BIOSConfiguration"
POLL_S = 5.0
MOST_PAGES = 100  # of a collection


def observed(client: Redfish, *, registry: bool = False) -> dict[str, Any]:
    """Return the BIOS settings of the BMC's system.

    Args:
        client: an open session.
        registry: whether to read the attribute registry, which is large.

    Returns:
        ``system`` (maker, model, serial, sku, bios), ``current`` (values by attribute), ``pending`` (values by
        attribute after the next reset; None if this BMC does not show them), ``registry`` (``RegistryEntries`` of the
        attribute registry), ``jobs`` (unfinished jobs of the BIOS: id, state, message), and ``settings`` (path) and
        ``etag`` of the resource to change.

    Raises:
        BmcError: if the BMC has no BIOS settings, or does not respond.
    """
    system, bios = _system(client)
    path = str(bios["@odata.id"])
    settings = str((((bios.get("@Redfish.Settings") or {}).get("SettingsObject")) or {}).get("@odata.id") or "")
    staged = client.get(settings or path)
    current = dict(bios.get("Attributes") or {})
    own = bool(settings) and settings.rstrip("/") != path.rstrip("/")
    changed = {key: value for key, value in (staged.body.get("Attributes") or {}).items() if current.get(key) != value}
    maker = str(system.get("Manufacturer") or "")
    return {
        "system": {
            **{"maker": maker, "model": str(system.get("Model") or "").strip()},
            **{"serial": str(system.get("SerialNumber") or "").strip(), "sku": str(system.get("SKU") or "").strip()},
            "bios": str(system.get("BiosVersion") or ""),
        },
        "current": current,
        "pending": changed if own else None,
        "registry": _registry(client, str(bios.get("AttributeRegistry") or "")) if registry else {},
        "jobs": _jobs(client, system),
        **{"settings": settings or path, "etag": staged.etag},
    }


def _system(client: Redfish) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the BMC's only system with a BIOS, and its BIOS resource."""
    root = client.get(ROOT).body
    systems = [client.get(str(one["@odata.id"])).body for one in members_of(client, _link(root, "Systems"))]
    found = [one for one in systems if one.get("Bios")]
    if len(found) != 1:
        names = ", ".join(str(one.get("@odata.id")) for one in found or systems) or "none"
        raise BmcError(
            f"BMC {client.bmc.address}: one system with BIOS settings is needed, it has {len(found)} of {len(systems)} "
            f"systems ({names}); some makers require a licence for it"
        )
    bios = client.get(_link(found[0], "Bios")).body
    if not isinstance(bios.get("Attributes"), Mapping) or not bios["Attributes"]:
        raise BmcError(
            f"BMC {client.bmc.address}: {_link(found[0], 'Bios')} shows no attributes; is a licence missing?"
        )
    return found[0], {"@odata.id": _link(found[0], "Bios"), **bios}


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


def _link(resource: Known, key: str) -> str:
    try:
        return str(resource[key]["@odata.id"])
    except (KeyError, TypeError):
        raise BmcError(f"Redfish: {resource.get('@odata.id', ROOT)} has no {key}") from None


def _registry(client: Redfish, name: str) -> dict[str, Any]:
    """Return the entries of the BIOS's attribute registry; empty if the BMC does not have it."""
    root = client.get(ROOT).body
    if not name or not root.get("Registries"):
        return {}
    members = [str(one["@odata.id"]) for one in members_of(client, _link(root, "Registries"))]
    # Some BMCs omit the version in the path.
    plain = name.partition(".v")[0].lower()
    near = sorted(members, key=lambda path: plain not in path.lower())
    for path in near:
        about = client.get(path).body
        names = [str(about.get(key) or "") for key in ("Registry", "Id")]
        if name not in names and plain not in [one.partition(".v")[0].lower() for one in names]:
            continue
        places = about.get("Location") or []
        english = [one for one in places if str(one.get("Language") or "").lower().startswith("en")]
        for place in [*english, *places]:
            if place.get("Uri"):
                return dict(client.get(str(place["Uri"])).body.get("RegistryEntries") or {})
    return {}


def _jobs(client: Redfish, system: Known) -> list[dict[str, str]]:
    """Return the unfinished jobs of the BIOS; only Dell's BMCs have a job queue."""
    if not str(system.get("Manufacturer") or "").lower().startswith("dell"):
        return []
    managers = (system.get("Links") or {}).get("ManagedBy") or []
    found = []
    for manager in managers:
        listed = members_of(client, f"{manager['@odata.id']}/Jobs?$expand=*($levels=1)")
        # Not every BMC expands the members.
        jobs = [one if "JobState" in one else client.get(str(one["@odata.id"])).body for one in listed]
        jobs = [{"@odata.id": f"{manager['@odata.id']}/Jobs/{one.get('Id')}", **one} for one in jobs]
        found += [_job(one) for one in jobs if one.get("JobType") == BIOS_JOB and one.get("JobState") not in ENDED]
    return found


def _job(job: Known) -> dict[str, str]:
    return {
        **{"id": str(job.get("Id") or ""), "path": str(job.get("@odata.id") or "")},
        "state": str(job.get("JobState") or ""),
        "message": str(job.get("Message") or ""),
    }


def stage(client: Redfish, settings: Known, job: str = "") -> dict[str, Any]:
    """Send settings to the BMC in one request; they take effect at the next reset.

    Args:
        client: an open session.
        settings: registry values by attribute.
        job: identifier of this toolkit's earlier job, which the settings replace.

    Returns:
        ``job``: the identifier of the BMC's job; empty if it has none.

    Raises:
        BmcError: if another job changes the BIOS, or the BMC refuses or drops a value.
    """
    seen = observed(client)
    _free(client, seen["jobs"], job)
    body: dict[str, Any] = {"Attributes": dict(settings)}
    if seen["system"]["maker"].lower().startswith("dell"):
        # Without it the values are stored, but no reset applies them.
        body["@Redfish.SettingsApplyTime"] = {"ApplyTime": "OnReset"}
    answer = client.patch(seen["settings"], body, seen["etag"])
    if answer.status == 412:
        again = observed(client)
        if again["pending"] != seen["pending"] or again["current"] != seen["current"]:
            raise BmcError(f"BMC {client.bmc.address}: another client changes its BIOS settings now; run again later")
        answer = client.patch(again["settings"], body, again["etag"])
        if answer.status == 412:
            raise BmcError(
                f"BMC {client.bmc.address}: its ETag changes with every request (status 412): {answer.reason}"
            )
    after = observed(client)
    effective = {**after["current"], **(after["pending"] or {})}
    dropped = [
        name for name, value in settings.items() if after["pending"] is not None and effective.get(name) != value
    ]
    if dropped:
        text = ", ".join(f"{name} = {settings[name]}" for name in dropped)
        raise BmcError(f"BMC {client.bmc.address}: it accepted the request, but did not keep {text}")
    location = answer.headers.get("location", "").rstrip("/").rpartition("/")[2]
    return {"job": location or next((one["id"] for one in after["jobs"]), "")}


def _free(client: Redfish, jobs: list[dict[str, str]], job: str) -> None:
    """Remove this toolkit's job if it waits for the next reset.

    Raises:
        BmcError: if the job has begun, or there is another job.
    """
    if others := [one for one in jobs if one["id"] != job]:
        raise BmcError(busy(client.bmc.address, others))
    for own in jobs:
        if own["state"] != "Scheduled":
            raise BmcError(f"BMC {client.bmc.address}: job {own['id']} is {own['state']}; run again after its end")
        client.delete(own["path"])


def busy(address: str, jobs: list[dict[str, str]]) -> str:
    """Return the message on other jobs of the BIOS."""
    text = ", ".join(f"{one['id']} ({one['state']})" for one in jobs)
    return (
        f"BMC {address}: a job of another client changes the BIOS: {text}; wait for its end, or delete it "
        "there, and run again"
    )


def settle(client: Redfish, settings: Known, job: str, wait_s: float, settle_s: float) -> dict[str, Any]:
    """Wait after a reset until the BIOS has applied settings.

    Args:
        client: an open session.
        settings: registry values by attribute that must become current.
        job: identifier of the job; empty if there is none.
        wait_s: seconds until the jobs of the BIOS must end.
        settle_s: further seconds to wait for the values; the caller must check them.

    Returns:
        ``job``: identifier, final state and message of the job; empty without one.
    """
    begin = time.monotonic()
    pause = min(POLL_S, client.bmc.pause_s)
    while observed(client)["jobs"] and time.monotonic() - begin < wait_s:
        time.sleep(pause)
    begin = time.monotonic()
    while time.monotonic() - begin < settle_s:
        current = observed(client)["current"]
        if all(current.get(name) == value for name, value in settings.items()):
            break
        time.sleep(pause)
    return {"job": _ended(client, job)}


def _ended(client: Redfish, job: str) -> dict[str, str]:
    if not job:
        return {}
    root = client.get(ROOT).body
    for one in members_of(client, _link(root, "Managers")):
        try:
            return _job(client.get(f"{one['@odata.id']}/Jobs/{job}").body)
        except BmcError:
            continue
    return {}
