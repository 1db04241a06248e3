"""Validates the options of a benchmark: it reports all mistakes before any load is sent."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.checks import is_address, is_flag_text, is_true, same
from ..core.errors import DIGITS, InputError, has_login, near, one_line, refusal, shown
from ..model.objectives import Objectives
from ..tune.trace_file import Columns, read_trace_file
from .loads import PROFILES, SHORT, Load, load_named, load_of_trace, site_profiles
from .results import FILE
from .sweep import KINDS, SWEEPS, read_limits

# The variables that a user may set with -e or in the inventory.
VARIABLES = (
    *("model", "profile", "trace", "trace_columns", "trace_time_unit", "repetitions", "warmup", "concurrency"),
    *("through", "compare", "compare_fails", "sweep", "sweep_most", "objectives"),
    *("benchmark_on_serving", "benchmark_profiles", "benchmark_dir", "benchmark_timeout", "benchmark_api_key"),
)
REPETITIONS = 5
TIMEOUT_S = 3600
MOST_TRACE = 20_000  # requests; they are copied to the host for each repetition
DIRECT, GATEWAY = "direct", "gateway"
# Variables that the short measurement does not accept.
OF_LOADS = (
    *("concurrency", "sweep", "sweep_most", "objectives", "through", "compare", "compare_fails"),
    *("repetitions", "warmup", "benchmark_on_serving"),
)
DEFAULTS: dict[str, tuple[Any, ...]] = {
    **{"through": (DIRECT,), "warmup": (True,), "compare_fails": (False,), "benchmark_on_serving": (False,)},
    "repetitions": (REPETITIONS,),
}
COMPARES = re.compile(r"[0-9a-f]{6,64}")


@dataclass(frozen=True)
class Ask:
    """The options of a benchmark.

    load: None for the short measurement. through: direct, gateway, or an address in front of the server. compare:
    last, the path of a file, or the beginning of a digest; empty for none. sweep: concurrency or request_rate;
    empty for none. most: the end of a sweep.
    """

    model: str
    load: Load | None
    repetitions: int = REPETITIONS
    warmup: bool = True
    through: str = DIRECT
    compare: str = ""
    compare_fails: bool = False
    sweep: str = ""
    most: float | None = None
    objectives: Objectives | None = None
    on_serving: bool = False
    timeout_s: int = TIMEOUT_S


def read_ask(asked: Mapping[str, Any]) -> tuple[Ask | None, list[str]]:
    """Return the options of a benchmark, and messages on mistakes; with mistakes, the options are None.

    Args:
        asked: values by the names of ``VARIABLES``; empty values count as not set.
    """
    wrong: list[str] = []
    wrong += [
        f"{one_line(str(name))} is not a variable of a benchmark{near(name, VARIABLES, 1)}"
        for name in asked.get("unknown") or ()
    ]
    load = _load(asked, wrong)
    numbers: dict[str, Any] = {
        "repetitions": _whole(asked, "repetitions", REPETITIONS, 1, 100, wrong),
        "timeout_s": _whole(asked, "benchmark_timeout", TIMEOUT_S, 10, 86_400, wrong),
    }
    flags: dict[str, Any] = {
        "warmup": _flag(asked, "warmup", True, wrong),
        "compare_fails": _flag(asked, "compare_fails", False, wrong),
        "on_serving": _flag(asked, "benchmark_on_serving", False, wrong),
    }
    texts: dict[str, Any] = {"through": _through(asked, wrong), "compare": _compare(asked, wrong)}
    swept = _sweep(asked, load, wrong)
    model = str(asked.get("model") or "")
    if load and not model:
        wrong.append(f"-e model=NAME is missing: profile {load.profile} is of one model")
    if not load:
        wrong += _short_alone(asked)
    wrong += _without_effect(asked)
    if wrong:
        return None, wrong
    return Ask(model, load, **numbers, **flags, **texts, **swept), []


def _says(asked: Mapping[str, Any], name: str) -> bool:
    """Return whether a variable is set to a value other than its default."""
    value = asked.get(name)
    return value not in (None, "") and not any(same(value, default) for default in DEFAULTS.get(name, ()))


def _without_effect(asked: Mapping[str, Any]) -> list[str]:
    """Return messages on variables that have no effect in this call."""
    needs = {"compare_fails": "compare", "sweep_most": "sweep", "objectives": "sweep"}
    wrong = [
        f"{name}: has no effect without {other}"
        for name, other in needs.items()
        if _says(asked, name) and not asked.get(other) and asked.get("profile") not in (None, "", SHORT)
    ]
    beside = [name for name in ("compare", "repetitions") if _says(asked, name) and asked.get("sweep")]
    return [*wrong, *(f"{name}: has no effect with sweep, which sends each load once" for name in beside)]


def _short_alone(asked: Mapping[str, Any]) -> list[str]:
    """Return messages on variables that the short measurement does not accept."""
    if asked.get("profile") not in (None, "", SHORT):
        return []
    given = [name for name in OF_LOADS if _says(asked, name)]
    names = ", ".join(PROFILES)
    return (
        [f"{', '.join(given)}: the short profile takes none of these; give a profile, such as {names}"] if given else []
    )


def _load(asked: Mapping[str, Any], wrong: list[str]) -> Load | None:
    site, problems = site_profiles(asked.get("benchmark_profiles"))
    wrong += [str(refusal("", *problem)) for problem in problems]
    name, trace = str(asked.get("profile") or ""), str(asked.get("trace") or "")
    if trace and name:
        wrong.append(f"profile {shown(name)} and trace {shown(trace)}: give one of them")
        return None
    load = _of_trace(asked, trace, wrong) if trace else None
    if name and name != SHORT:
        load, unknown = load_named(name, site)
        wrong += unknown
    slots = _whole(asked, "concurrency", 0, 1, 10_000, wrong)
    if slots and load and (load.trace or load.request_rate):
        wrong.append(f"concurrency {slots}: {load.profile} sends requests at times of its own; leave it out")
    elif slots and load:
        load = load.with_concurrency(slots)
    return load


def _of_trace(asked: Mapping[str, Any], path: str, wrong: list[str]) -> Load | None:
    try:
        columns = Columns.of(asked.get("trace_columns"), asked.get("trace_time_unit"))
        found = read_trace_file(path, columns)
    except InputError as problem:
        wrong.append(str(problem))
        return None
    if len(found) > MOST_TRACE:
        wrong.append(f"trace: {one_line(path)}: has {len(found):,} requests; give a part of at most {MOST_TRACE:,}")
        return None
    return load_of_trace(f"trace:{Path(path).name}", found)


def _whole(asked: Mapping[str, Any], name: str, default: int, low: int, high: int, wrong: list[str]) -> int:
    value = asked.get(name)
    if value in (None, ""):
        return default
    number = int(value) if isinstance(value, str) and DIGITS.fullmatch(value) else value
    if isinstance(number, int) and not isinstance(number, bool) and low <= number <= high:
        return number
    wrong.append(f"{name}: {shown(value)}: must be an integer from {low} to {high}")
    return default


def _flag(asked: Mapping[str, Any], name: str, default: bool, wrong: list[str]) -> bool:
    value = asked.get(name)
    if value in (None, ""):
        return default
    if not is_flag_text(value):
        wrong.append(f"{name}: {shown(value)}: must be true or false")
        return default
    return is_true(value)


def _through(asked: Mapping[str, Any], wrong: list[str]) -> str:
    value = str(asked.get("through") or DIRECT)
    if value in (DIRECT, GATEWAY):
        return value
    if not re.fullmatch(r"https?://[\w.:\[\]-]+", value) or not is_address(value) or has_login(value):
        wrong.append(
            f"through: {shown(value)}: must be {DIRECT}, {GATEWAY}, or the address of what stands before the server, "
            "such as https://models.example:8443, without a path and a login"
        )
    return value


def _compare(asked: Mapping[str, Any], wrong: list[str]) -> str:
    value = str(asked.get("compare") or "")
    if value in ("", "last") or COMPARES.fullmatch(value) or Path(value).is_file():
        return value
    wrong.append(
        f"compare: {shown(value)}: must be last, a file such as another {FILE}, or the first six digits at least of a "
        "launch's digest; there is no such file"
    )
    return ""


def _sweep(asked: Mapping[str, Any], load: Load | None, wrong: list[str]) -> dict[str, Any]:
    value, most = str(asked.get("sweep") or ""), asked.get("sweep_most")
    kind = {"rate": "request_rate"}.get(value, value)
    found: dict[str, Any] = {"sweep": kind, "objectives": None, "most": None}
    if asked.get("objectives") not in (None, ""):
        try:
            found["objectives"] = read_limits(asked["objectives"])
        except InputError as problem:
            wrong.append(str(problem))
    if not value:
        return found
    if kind not in KINDS:
        wrong.append(f"sweep: {shown(value)}: must be {' or '.join(SWEEPS)}")
    elif load is not None and load.trace:
        wrong.append("sweep: a trace has times of its own; give a profile in place of trace")
    if most not in (None, ""):
        try:
            found["most"] = float(most)
        except (TypeError, ValueError):
            found["most"] = math.nan
        if not 0 < found["most"] <= 10_000:
            wrong.append(f"sweep_most: {shown(most)}: must be a number from 0 to 10000, at which the sweep ends")
        elif kind == "concurrency" and found["most"] < 1:
            wrong.append(f"sweep_most: {shown(most)}: must be an integer of at least 1 for a sweep of concurrency")
    return found


__all__ = ["VARIABLES", "Ask", "read_ask"]
