"""The work of module bios_settings. It uses only the standard library, because it also runs on hosts."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from .client import Bmc, BmcError, Redfish
from .observe import observed, settle, stage

READ_S = 60.0  # wait for a BMC that starts, while a run is planned


def carried_out(given: Mapping[str, Any], *, check: bool) -> dict[str, Any]:
    """Return the result of the module for its arguments; a failure is ``failed`` with ``msg``.

    An unreadable BMC is ``problem`` and no failure, so that a status still shows the rest of the host.
    """
    bmc, state = Bmc.of(given["bmc"]), given["state"]
    if state == "read":
        return _read(Bmc.of({**given["bmc"], "wait_s": min(bmc.wait_s, READ_S)}))
    changed = state == "staged" and bool(given["settings"])
    diff = {"diff": difference(given["before"], given["settings"])} if changed else {}
    if check:
        return {"changed": changed, "job": "" if state == "staged" else {}, **diff}
    try:
        with _session(bmc) as client:
            if state == "staged":
                return {"changed": changed, **stage(client, given["settings"], given["job"]), **diff}
            found = settle(client, given["settings"], given["job"], bmc.wait_s, float(given["settle_s"]))
    except BmcError as problem:
        return {"failed": True, "msg": str(problem)}
    return {"changed": False, **found, **_warned(bmc, found["job"], found["messages"])}


@contextlib.contextmanager
def _session(bmc: Bmc) -> Iterator[Redfish]:
    """Yield a session with a BMC, whose responses may have any format.

    Raises:
        BmcError: if a response is not valid Redfish.
    """
    with Redfish(bmc) as client:
        try:
            yield client
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as problem:
            text = client.told(f"{type(problem).__name__}: {problem}")
            raise client.error(f"{client.path} answers in a form that is not Redfish's ({text})") from problem


def _read(bmc: Bmc) -> dict[str, Any]:
    try:
        with _session(bmc) as client:
            return {"changed": False, "bios": observed(client, registry=True)}
    except BmcError as problem:
        return {"changed": False, "problem": str(problem)}


def _warned(bmc: Bmc, job: Mapping[str, Any], messages: Sequence[str]) -> dict[str, Any]:
    warnings = [f"BMC {bmc.address}: the BIOS reports: {text}" for text in messages]
    if job and job["state"] != "Completed":
        warnings.append(f"BMC {bmc.address}: job {job['id']} of the BIOS is {job['state']}: {job['message']}")
    return {"warnings": warnings} if warnings else {}


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, str]:
    """Return the difference between sent and current values in Ansible's format."""
    texts = ("".join(f"{name}: {values.get(name)}\n" for name in after) for values in (before, after))
    return {**dict(zip(("before", "after"), texts, strict=True)), "before_header": "BIOS", "after_header": "BIOS"}
