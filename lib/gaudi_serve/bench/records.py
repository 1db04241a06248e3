"""Creates the lines of saved results, for loads and for the short measurement that rollouts also use."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from hashlib import sha256
from typing import Any

from ..core.errors import InputError
from .loads import SHORT, SHORT_CASE, Load, digest
from .plan import Target
from .results import failed, figures

Known = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """The common values of all results of a run: its name, the host, and its origin (benchmark or rollout)."""

    name: str
    host: str
    facts: Known
    release: str = ""
    toolkit: str = ""
    by: str = "benchmark"

    @classmethod
    def of(cls, known: Known, begin: float, toolkit: str, by: str = "benchmark") -> Run:
        """Return the run for a host's variables.

        Args:
            known: uses ``inventory_hostname``, ``gaudi_host`` and ``accelerator_release``.
            begin: seconds since the epoch.
            toolkit: its version.
            by: benchmark or rollout.
        """
        stamp = datetime.fromtimestamp(begin, timezone.utc).strftime("%Y%m%dT%H%M%S.%fZ")
        release = str(known.get("accelerator_release") or "")
        return cls(stamp, str(known["inventory_hostname"]), known.get("gaudi_host") or {}, release, toolkit, by)

    def base(self, about: Known, now: float) -> dict[str, Any]:
        """Return the values of model, host and time for a line."""
        ids = list(about.get("module_ids") or [])
        kind = str(self.facts.get("device_name") or self.facts.get("accelerator") or "")
        named = ("model", "served", "launch", "launch_profile", "image", "image_id", "command")
        return {
            "run": self.name,
            "by": self.by,
            "date": datetime.fromtimestamp(now, timezone.utc).astimezone().isoformat(timespec="seconds"),
            "host": self.host,
            **{name: about.get(name) or ([] if name == "command" else "") for name in named},
            "env": list(about.get("env") or []),
            "cards": {"kind": kind, "number": len(ids), "module_ids": ids},
            "driver": str(self.facts.get("driver_version") or ""),
            "release": self.release,
            "toolkit": self.toolkit,
        }


def of_load(run: Run, target: Target, load: Load, step: Known, measured: Known) -> tuple[dict[str, Any], str]:
    """Return the line of one repetition, and its raw result.

    Args:
        run: the run of the repetition.
        target: the measured model.
        load: the load that was sent.
        step: ``repetition``, ``seed``, ``argv``.
        measured: the result of module vllm_bench.

    Raises:
        InputError: if no request succeeded.
    """
    raw = json.loads(measured["result"])
    lost = failed(raw, load.requests)
    if lost >= load.requests:
        why = f": {measured['error']}" if measured.get("error") else ""
        raise InputError(
            f"{run.host}: model {target.about['served']}: none of {load.requests} requests was answered{why}"
        )
    case = target.case(load)
    reasons = not_comparable(measured, lost)
    return {
        **run.base(target.about, float(measured["begin"])),
        **{"profile": load.profile, "load": case, "case": digest(case), "through": target.through},
        **{"concurrency": load.concurrency, "request_rate": load.request_rate, "requests": load.requests},
        **{"repetition": step["repetition"], "seed": step["seed"], "sweep": target.ask.sweep},
        "sweep_most": target.limit if target.ask.sweep else None,
        "tool": {"name": " ".join(target.tool.command[:3]), "version": target.tool.version, "argv": step["argv"]},
        **{"failed": lost, "duration_s": raw.get("duration"), "seconds": measured["seconds"]},
        "figures": figures(raw),
        **{"new_shapes": measured["compiled"], "of_others": measured["of_others"]},
        "host_state": {when: measured[when]["host"] for when in ("before", "after")},
        "not_comparable": reasons,
    }, str(measured["result"])


def not_comparable(measured: Known, lost: int) -> list[str]:
    """Return why a repetition cannot be compared with others; empty if it can."""
    found = []
    if measured["compiled"]:
        found.append(f"{measured['compiled']} shapes were compiled while it was measured")
    if measured["of_others"]:
        found.append(f"{measured['of_others']} requests of others were served meanwhile")
    busy = measured["before"].get("running") or 0
    found += ["the server had requests of others when it began"] if busy else []
    return [*found, f"{lost} requests failed"] if lost else found


def of_short(run: Run, about: Known, measured: Known, now: float, phase: str = "") -> dict[str, Any]:
    """Return the line of a short measurement.

    Args:
        run: the run of the measurement.
        about: the model's data from module vllm_benchmark.
        measured: ``first_token_s``, ``tokens_s``.
        now: seconds since the epoch.
        phase: before or after a rollout's change; otherwise empty.
    """
    times: dict[str, Any] = {
        name: {"median": None, "p99": None} for name in ("ttft_ms", "tpot_ms", "itl_ms", "e2el_ms")
    }
    times["ttft_ms"] = {"median": round(1000 * measured["first_token_s"], 3), "p99": None}
    rates = {"output_tokens_s": measured["tokens_s"], "total_tokens_s": None, "requests_s": None}
    return {
        **run.base(about, now),
        **{"profile": SHORT, "load": SHORT_CASE, "case": digest(SHORT_CASE), "through": SHORT_CASE["through"]},
        **{"concurrency": SHORT_CASE["concurrency"], "request_rate": None, "requests": SHORT_CASE["requests"]},
        **{"repetition": 1, "failed": 0, "figures": {**rates, **times}, "phase": phase, "not_comparable": []},
    }


def short_lines(run: Run, measured: Known, about: Known, now: float, phase: str = "") -> list[dict[str, Any]]:
    """Return the lines of all measured models of a host, by their names for clients."""
    return [
        of_short(run, about[name], figures_of, now, phase) for name, figures_of in measured.items() if name in about
    ]


def seeds(where: str, begin: float, count: int) -> Sequence[int]:
    """Return seeds of a model on a host that neither an earlier run nor another host of this one has used.

    Repeated prompts would hit the prefix cache, also that of another host's server behind a gateway.
    """
    first = int(sha256(f"{where} {begin}".encode()).hexdigest(), 16) % (2**31 - count)
    return range(first, first + count)
