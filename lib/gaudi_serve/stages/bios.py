"""The desired BIOS settings of a host, the requests to its BMC, and whether the host must reboot."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from ..bios.client import Bmc
from ..bios.compare import Comparison, Row, compared, shown_value
from ..bios.observe import busy
from ..bios.profiles import first_settings, optional_settings, profile_settings, unknown_profile
from ..bios.registry import base_name
from ..core.checks import is_true
from ..core.words import counted, some_names
from ..host.observe_bios import RECORD
from .base import Given, Pending, Stage

Known = Mapping[str, Any]
MINUTES = 15  # to boot with other BIOS settings: 5 to 15 are usual for servers of this size
NEEDED = ("bios_bmc_address", "bios_bmc_user", "bios_bmc_password")
ALLOW = "host_tuning_reboot_allowed: true"


def _asked(known: Known) -> bool:
    """Return whether any BIOS setting is desired."""
    return bool(known.get("bios_profile") or known.get("bios_settings"))


def _incomplete(given: Given) -> list[str]:
    """Return which variables the access to the BMC lacks."""
    known = given.known
    missing = [name for name in NEEDED if not known.get(name)]
    reasons = [unknown_profile(str(known.get("bios_profile") or ""), known.get("bios_profiles") or {})]
    if missing:
        what = "bios_profile" if known.get("bios_profile") else "bios_settings"
        reasons.append(
            f"{what} is set, so {', '.join(missing)} must be set too: the toolkit sends settings to the host's BMC"
        )
    return [f"{given.host}: {text}" for text in [*reasons, _shared(given)] if text]


def _shared(given: Given) -> str:
    """Return an error if another host has the same BMC and system: it would get the settings of both hosts."""
    address, hosts = str(given.known.get("bios_bmc_address") or ""), given.known.get("hostvars") or {}
    serial = str(given.known.get("bios_bmc_serial") or "")
    others = [
        name
        for name in hosts
        if name != given.host
        and _place(_of(hosts[name], "bios_bmc_address")) == _place(address)
        and not (serial and (other := _of(hosts[name], "bios_bmc_serial")) and other != serial)
    ]
    if not address or not others:
        return ""
    return (
        f"bios_bmc_address {address}: is also the address of the BMC of {some_names(others)}; each host has its own "
        "BMC, or with several systems on one BMC its own bios_bmc_serial"
    )


def _place(address: str) -> tuple[str, int]:
    """Return host and port of a BMC, which are equal for different spellings of one address."""
    host, port = Bmc(address, "", "").place
    return host.lower(), port


def _of(variables: Known, name: str) -> str:
    """Return a variable of another host; empty if it cannot be rendered, which that host itself reports."""
    try:
        return str(variables.get(name) or "")
    # Rendering raises many kinds of errors, from Ansible and from Jinja.
    except Exception:
        return ""


def _look(given: Given) -> tuple[str, dict[str, Any]] | None:
    return ("bios_settings", {"state": "read"}) if _asked(given.known) and not _incomplete(given) else None


def _pending(given: Given) -> Pending:
    if not _asked(given.known):
        # None leaves the notes unchanged, as for a host without desired BIOS settings.
        return Pending(changes=_changes(Comparison(), {}), notes=_sent_notes(_sent(given.known)) or None)
    seen = given.seen.get("bios") or {}
    refusal = _incomplete(given) or [f"{given.host}: {text}" for text in _problems(given, seen)]
    if refusal:
        return Pending(changes=_changes(Comparison(), seen), left=refusal, refusal=refusal, drift=refusal)
    name, own = str(given.known.get("bios_profile") or ""), given.known.get("bios_profiles") or {}
    profile, wrong = profile_settings(name, own, seen["system"])
    settings, sent = given.known.get("bios_settings") or {}, _sent(given.known, str(seen["system"]["bios"]))
    if seen["pending"] is None and sent.get("accepted"):
        # A BMC without a settings object does not show pending settings.
        seen = {**seen, "pending": dict(sent["settings"])}
    optional = optional_settings(name, own, seen["system"])
    found = Comparison(refusals=[wrong]) if wrong else compared(settings, seen, profile, optional)
    return _compared(given, seen, found, first_settings(own, seen["system"]))


def _problems(given: Given, seen: Known) -> list[str]:
    """Return why the settings of a BMC cannot be compared."""
    if problem := given.seen.get("problem"):
        return [str(problem)]
    system, serial = seen["system"], str(given.known.get("bios_bmc_serial") or "")
    if serial and serial not in (system["serial"], system["sku"]):
        told = " or ".join(dict.fromkeys(filter(None, (system["serial"], system["sku"])))) or "none"
        address = given.known["bios_bmc_address"]
        return [
            f"bios_bmc_serial {serial}: BMC {address} belongs to a system with serial number {told}; is it "
            "another host's?"
        ]
    return []


def _compared(given: Given, seen: Known, found: Comparison, first: set[str]) -> Pending:
    known, host = given.known, given.host
    before = _sent(known, str(seen["system"]["bios"]))
    found = replace(found, patch=_complete(found, seen, before))
    refusals = [f"{host}: BIOS: {text}" for text in found.refusals]
    refusals += [] if refusals else [f"{host}: {text}" for text in _refused(known, seen, found)]
    waiting = [row for row in found.rows if row.current != row.desired]
    allowed = is_true(known.get("host_tuning_reboot_allowed"))
    refusals += [] if refusals or not (allowed and waiting) else _dangerous(known, host, seen, before)
    reboots = allowed and bool(waiting) and not refusals
    lines = [f"{row.line}{' (after the first of two resets)' * (row.name in found.later)}" for row in found.differing]
    sent = [row.line for row in found.rows if row.name in found.patch]
    second = _second_boot(found, waiting, first)
    reboot = [f"reboot for {counted(len(waiting), 'BIOS setting')}", *second]
    due = [*lines, *reboot] if reboots else sent
    changes = _changes(found, seen, before, known) | {"reboots": reboots and not refusals}
    changes["lines"] = [*found.lines, *second]
    boots = 2 if found.later or second else 1
    minutes = int(known.get("bios_boot_minutes") or MINUTES) * boots
    return Pending(
        changes=changes,
        due=[] if refusals else due,
        left=_left(host, seen, found.rows, found.patch, waiting if allowed else []),
        refusal=refusals,
        drift=refusals or lines,
        notes=[
            *_notes(found, waiting, allowed, before.get("settings") or {}),
            *_reported(seen, found),
            *_left_out(known, found),
        ],
        facts={
            **{"reboots": reboots, "reboot_required": bool(waiting), "down_minutes": minutes},
            "reboot_reasons": [f"BIOS: {row.line}" for row in waiting],
        },
    )


def _second_boot(found: Comparison, waiting: list[Row], first: set[str]) -> list[str]:
    """Return the sentence for settings that may need a second boot, since another setting must change first."""
    names = {base_name(name) for name in first}
    openers = [row.name for row in waiting if base_name(row.name) in names]
    others = [row.name for row in waiting if row.name not in (*openers, *found.later)]
    if not openers or not others:
        return []
    return [f"two boots may be needed: {', '.join(others)} may stick only after {', '.join(openers)}"]


def _refused(known: Known, seen: Known, found: Comparison) -> list[str]:
    """Return why valid settings must not be sent now."""
    system, failed = seen["system"], (known.get("gaudi_bios") or {}).get("failed") or {}
    reasons = []
    sent = _sent(known, str(system["bios"]))
    others = [one for one in seen["jobs"] if not _is_own(one, seen, sent)]
    if found.patch and others:
        reasons.append(f"BMC {known['bios_bmc_address']}: {busy(others)}")
    if failed.get("bios") == system["bios"] and not is_true(known.get("bios_retry")):
        tried = failed.get("settings") or {}
        reasons += [
            f"BIOS: {row.name}: {shown_value(row.desired)} did not stick before, and the value is "
            f"{shown_value(row.current)}; the run does not try it again with BIOS {system['bios']}: set another "
            "value, update the BIOS, or try again with -e bios_retry=true"
            for row in found.rows
            if row.current != row.desired and tried.get(row.name) == row.desired
        ]
    return reasons


def _dangerous(known: Known, host: str, seen: Known, sent: Known) -> list[str]:
    """Return why the host must not reboot now: a reset would interrupt an update of firmware, or begin one."""
    others = [one for one in seen["jobs"] if one["kind"] != "bios" and not _is_own(one, seen, sent)]
    return [f"{host}: BMC {known['bios_bmc_address']}: {busy(others)}"] if others else []


def _reported(seen: Known, found: Comparison) -> list[str]:
    """Return what the BIOS reports on its last change, while settings differ."""
    return [f"BIOS: it reports on its last change: {text}" for text in seen["messages"] if found.differing]


def _left_out(known: Known, found: Comparison) -> list[str]:
    """Return which optional settings of the profile do not apply."""
    if not found.left_out:
        return []
    return [f"BIOS: profile {known['bios_profile']} leaves out what this BIOS lacks: {', '.join(found.left_out)}"]


def _left(host: str, seen: Known, rows: Any, patch: Known, waiting: list[Row]) -> list[str]:
    """Return the settings that a run has not applied, by name."""
    unsent = [row for row in rows if row.name in patch and row not in waiting]
    version = seen["system"]["bios"]
    return [f"{host}: BIOS: not sent to the BMC: {row.line}" for row in unsent] + [
        f"{host}: BIOS: {row.name}: {shown_value(row.desired)} did not stick, it is {shown_value(row.current)} after "
        f"the reboot (BIOS {version})"
        for row in waiting
    ]


def _notes(found: Comparison, waiting: list[Row], allowed: bool, sent: Known) -> list[str]:
    staged = [row.name for row in waiting if row.is_staged]
    notes = []
    if staged and not allowed:
        names = ", ".join(staged)
        notes.append(f"BIOS: {names} {'is' if len(staged) == 1 else 'are'} pending until a reboot ({ALLOW})")
    own = {name: value for name, value in found.others.items() if name in sent and sent[name] == value}
    if own:
        were = "was" if len(own) == 1 else "were"
        takes = "takes" if len(own) == 1 else "take"
        notes.append(f"BIOS: {_listed(own)} {were} sent by an earlier run, and {takes} effect at the next reboot")
    if others := {name: value for name, value in found.others.items() if name not in own}:
        notes.append(f"BIOS: the next reboot also applies settings of others: {_listed(others)}")
    return notes


def _listed(settings: Known) -> str:
    return ", ".join(f"{name} = {shown_value(value)}" for name, value in settings.items())


def _changes(found: Comparison, seen: Known, sent: Known | None = None, known: Known | None = None) -> dict[str, Any]:
    """Return the values for the tasks.

    ``record``: the file of settings that have not been applied, if it is written now. ``sent``: the record that is
    saved before settings are sent. ``job``: the toolkit's own job, which is replaced, or a foreign job that the run
    waits for.
    """
    waiting = {row.name: row.desired for row in found.rows if row.current != row.desired}
    bios = (seen.get("system") or {}).get("bios", "")
    own = next((one["id"] for one in seen.get("jobs") or [] if _is_own(one, seen, sent or {})), "")
    patch = dict(found.patch)
    settings = {**((sent or {}).get("settings") or {}), **patch}
    now = {"bios": bios, "settings": settings, "boot": (known or {}).get("gaudi_boot_id")}
    now |= {"job": "", "accepted": False}
    failed = ((known or {}).get("gaudi_bios") or {}).get("failed") or {}
    record = json.dumps({"failed": {"bios": bios, "settings": waiting}}, sort_keys=True) + "\n" if waiting else ""
    return {
        **{"lines": found.lines, "patch": patch, "reboots": False, "desired": waiting},
        "system": {key: (seen.get("system") or {}).get(key, "") for key in ("serial", "model", "bios")},
        "before": {row.name: row.current for row in found.rows if row.name in patch},
        "job": own or next((one["id"] for one in seen.get("jobs") or [] if not patch and one["kind"] == "bios"), ""),
        # Only the toolkit's own text, since it passes through a shell.
        "reboot": counted(len(waiting), "BIOS setting"),
        "record": {"path": RECORD, "content": record},
        "sent": {"failed": failed, "sent": now},
    }


def _sent(known: Known, bios: str = "") -> dict[str, Any]:
    """Return the settings that an earlier run sent to this BIOS since the host's last boot; empty if none."""
    sent = dict((known.get("gaudi_bios") or {}).get("sent") or {})
    same = sent.get("boot") == known.get("gaudi_boot_id") and (not bios or sent.get("bios") == bios)
    return sent if sent and same else {}


def _is_own(job: Known, seen: Known, sent: Known) -> bool:
    """Return whether a job belongs to an earlier run.

    A run that was interrupted while it sent settings has no job name. Then the job is the run's own if the run sent all
    of the pending settings.
    """
    if name := sent.get("job"):
        return bool(name == job["id"])
    pending = seen["pending"] or {}
    return job["kind"] == "bios" and bool(pending) and pending.items() <= (sent.get("settings") or {}).items()


def _complete(found: Comparison, seen: Known, sent: Known) -> dict[str, Any]:
    """Return all settings to send: replacing a job discards the settings of that job.

    On a BMC of Dell, settings that are pending without a job are sent too: no reboot applies them.
    """
    jobs = seen["jobs"]
    replaces = bool(found.patch) and any(_is_own(one, seen, sent) for one in jobs)
    lost = not jobs and seen["system"]["maker"].lower().startswith("dell")
    waiting = [row for row in found.rows if row.current != row.desired and row.name not in found.later]
    return {**({row.name: row.desired for row in waiting} if replaces or lost else {}), **found.patch}


def _sent_notes(sent: Known) -> list[str]:
    """Return notes on settings that an earlier run sent and that are no longer desired."""
    if not sent:
        return []
    # If the run was interrupted or the BMC did not answer, the settings may have been accepted or not.
    applies = "applies" if sent.get("accepted") else "may apply"
    settings = f"{applies} what an earlier run sent: {_listed(sent.get('settings') or {})}"
    return [f"BIOS: the next reboot {settings}; set others, or change them in the BMC"]


def _reset(given: Given) -> dict[str, Any]:
    """Return what a reset changes: the record, and on request the BIOS values from before the toolkit's changes.

    ``__bios_kept`` is the result of module bios_settings for the earlier values.
    """
    folder = PurePosixPath(RECORD)
    record = folder.name in (given.known["gaudi_left"]["own"].get(str(folder.parent)) or [])
    kept = given.known.get("__bios_kept") or {}
    patch, lines = kept.get("patch") or {}, kept.get("lines") or []
    did = [f"send the earlier BIOS values: {', '.join(lines)}"] if patch else []
    did += ["forget which BIOS settings did not stick"] if record else []
    return {
        **{"due": bool(did), "left": _stays(given, kept), "packages": [], "did": did},
        **{"absent": [RECORD] if record else [], "patch": patch, "before": kept.get("before") or {}},
    }


def _stays(given: Given, kept: Known) -> list[str]:
    """Return what a reset leaves of the BIOS settings."""
    values = kept.get("values") or {}
    if kept.get("sends"):
        pending = [f"BIOS: {line} takes effect at the next reboot" for line in kept.get("lines") or []]
        return [*(f"BIOS: {text}" for text in kept.get("left") or []), *pending]
    if values:
        return [
            f"BIOS settings stay as they are; {counted(len(values), 'earlier value')} in {kept['path']} on the control "
            "node: -e reset_bios=true sends them"
        ]
    if _asked(given.known):
        return ["BIOS settings stay as they are; change them with bios_settings, or in the BMC"]
    return []


STAGE = Stage(
    role="bios",
    tag="bios",
    reads=("system", "runtime", "services", "host", "bios"),
    down=(MINUTES, "the host reboots for its BIOS settings"),
    ends_all="reboots",
    reports=("reboot_reasons", "reboot_required", "down_minutes"),
    noted=("report", "status"),
    look=_look,
    pending=_pending,
    reset=_reset,
    taken=("reset_bios",),
)
