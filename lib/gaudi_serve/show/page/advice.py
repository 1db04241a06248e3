"""Refusals, unreachable hosts, drift, reboots and warnings of a fleet, each with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Known = Mapping[str, Any]
# The kinds and their titles, the most urgent first.
KINDS = {
    "refusal": "Refused",
    "unreachable": "Not read",
    "drift": "Differs from the plan",
    "reboot": "Reboot due",
    "warning": "Warning",
    "note": "Note",
}
Message = tuple[str, str, str]  # kind, text and remedy
OF_MODEL = re.compile(r"model (?P<model>[^\s:]+): (?P<rest>.*)")
DRIFT = "Run site.yml on one host, or rollout.yml on several: both restore the planned state."
# Remedies for messages that contain none, by a pattern of the message.
REMEDIES = (
    (
        r"compile while serving|beyond input_range",
        "Set input_range to the lengths of your requests, or plan the buckets with tune.yml.",
    ),
    (r"listen on interface", "Add the firewall rule of docs/explanation/security.md."),
    (r"reboot", "Set host_tuning_reboot_allowed: true for the run that may reboot the host."),
    (r"does not answer", "Read its log with logs.yml -e model=NAME; restart.yml starts it again."),
    (r"cannot be reached|could not be read|Unreachable|No route", "Check ssh and the machine, then run this again."),
    (r"is used by", "End that program, or leave the card out of the plan."),
    (r"Links? .*measur|measuring is due|not measured", "Run validate.yml while the cards are idle."),
    (r"unused|is not used", "docs/explanation/serving.md explains what keeps a card from being used."),
)
DEFAULT = {
    "refusal": "Change the value in the inventory to one that is allowed, and plan again.",
    "unreachable": "Check ssh and the machine, then run this again.",
    "drift": DRIFT,
    "reboot": "Set host_tuning_reboot_allowed: true for the run that may reboot the host.",
}


def attention(plan: Known, status: Known, rollout: Known) -> list[dict[str, Any]]:
    """Return what needs attention, the most urgent first: ``kind``, ``title``, ``hosts``, ``text`` and ``remedy``.

    Hosts with the same message share an entry, and models of the same hosts too.
    """
    groups: dict[tuple[str, str, str], list[str]] = {}
    # The plan and the status both report an unreachable host; show it once.
    lost = {str(error["host"]) for error in plan.get("errors") or () if error["key"] == "facts"}
    found_live = [one for one in _of_status(status) if not (one[0] == "unreachable" and one[1] in lost)]
    for kind, host, sentence, remedy in [*_of_plan(plan), *found_live, *_of_rollout(rollout)]:
        text = " ".join(sentence.removeprefix(f"{host}: ").split())
        hosts = groups.setdefault((kind, text, remedy or _remedy(kind, text)), [])
        if host and host not in hosts:
            hosts.append(host)
    order = list(KINDS)
    found = [
        {"kind": kind, "title": KINDS[kind], "hosts": hosts, "text": text, "remedy": remedy}
        for (kind, text, remedy), hosts in _of_models(groups)
    ]
    return sorted(found, key=lambda one: order.index(str(one["kind"])))


def _of_models(groups: Mapping[Message, list[str]]) -> list[tuple[Message, list[str]]]:
    """Return messages with their hosts; those of several models that differ only in the model's name become one."""
    models: dict[tuple[str, str, str, tuple[str, ...]], list[str]] = {}
    for (kind, text, remedy), hosts in groups.items():
        found = OF_MODEL.fullmatch(text)
        key = (kind, found["rest"] if found else text, remedy, tuple(hosts))
        models.setdefault(key, []).extend([found["model"]] if found else [])
    told = []
    for (kind, rest, remedy, of_hosts), names in models.items():
        before = f"{'model' if len(names) == 1 else 'models'} {', '.join(names)}: " if names else ""
        told.append(((kind, before + rest, remedy), list(of_hosts)))
    return told


def _of_plan(plan: Known) -> Iterator[tuple[str, str, str, str]]:
    for error in plan.get("errors") or ():
        kind = "unreachable" if error["key"] == "facts" else "refusal"
        yield kind, str(error["host"]), str(error["message"]), ""
    for name, host in (plan.get("hosts") or {}).items():
        yield from (("reboot", name, str(text), "") for text in host.get("reboot") or ())
    for text in plan.get("warnings") or ():
        host, colon, rest = str(text).partition(": ")
        yield ("warning", host, rest, "") if colon and host in (plan.get("hosts") or {}) else ("warning", "", text, "")


def _of_status(status: Known) -> Iterator[tuple[str, str, str, str]]:
    for name, host in (status.get("hosts") or {}).items():
        if not host["read"]:
            yield "unreachable", name, str(host["problem"]), ""
        for part, lines in host["drift"].items():
            texts = [str(line).removeprefix(f"{name}: ") for line in lines]
            # A mistake of the inventory, which the plan reports with the same sentence.
            told = [("refusal", text) if part == "plan" else ("drift", f"{part}: {text}") for text in texts]
            yield from ((kind, name, text, "") for kind, text in told)
        yield from (("note", name, str(text), "") for text in host["notes"])


def _of_rollout(rollout: Known) -> Iterator[tuple[str, str, str, str]]:
    yield from (("refusal", "", str(text), "") for text in rollout.get("refusal") or ())
    for name, host in (rollout.get("hosts") or {}).items():
        if host.get("why"):
            remedy = "Fix the cause, and run rollout.yml again: it continues where it stopped."
            yield "refusal", name, str(host["text"]).partition("\n")[0], remedy


def _remedy(kind: str, text: str) -> str:
    found: Sequence[str] = [remedy for words, remedy in REMEDIES if re.search(words, text)]
    # The message of a refusal already lists the allowed values.
    return DEFAULT.get(kind, "") if kind in ("refusal", "drift", "reboot") or not found else found[0]
