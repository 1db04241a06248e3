"""Measures the models of a host with a load, or saves the results of a short measurement, each result at once."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.bench.ask import read_ask  # noqa: E402
from gaudi_serve.bench.loads import Load, trace_text  # noqa: E402
from gaudi_serve.bench.plan import Target, targets_of  # noqa: E402
from gaudi_serve.bench.records import Run, of_load, seeds, short_lines  # noqa: E402
from gaudi_serve.bench.results import append  # noqa: E402
from gaudi_serve.bench.sweep import MOST_POINTS, Point, broken, next_value  # noqa: E402
from gaudi_serve.bench.tool import TRACE  # noqa: E402
from gaudi_serve.core.errors import InputError  # noqa: E402
from gaudi_serve.core.version import toolkit_version  # noqa: E402
from gaudi_serve.show.progress import report  # noqa: E402

display = Display()
OPTIONS: dict[str, dict[str, Any]] = {
    # Of a load: the options of the user, and the result of module vllm_bench.
    "asked": {"type": "dict"},
    "probed": {"type": "dict"},
    # Of a short measurement: the result of module vllm_benchmark, and the part of the rollout.
    "short": {"type": "dict"},
    "phase": {"type": "str", "default": "", "choices": ["", "before", "after"]},
    # Of the saved results.
    "folder": {"type": "str", "required": True},
    # Whether a folder that cannot be written is an error. Otherwise a warning reports that the result is not saved.
    "strict": {"type": "bool", "default": True},
}


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``gaudi_benchmark: {asked: ..., probed: ..., folder: ...}``, or ``{short: ..., folder: ...}``."""

    _supports_check_mode = True
    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the saved lines as ``records``. In check mode nothing is measured or saved."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        one_of = [("asked", "short")]
        _, given = self.validate_argument_spec(
            argument_spec=OPTIONS,
            required_one_of=one_of,
            mutually_exclusive=one_of,
            required_together=[("asked", "probed")],
        )
        variables, records = task_vars or {}, list[dict[str, Any]]()
        if self._task.check_mode:
            return {**result, "changed": False, "records": records}
        begin = time.time()
        run = Run.of(variables, begin, toolkit_version(), "rollout" if given["phase"] else "benchmark")
        try:
            if given["short"] is not None:
                found = given["short"]
                lines = short_lines(run, found.get("measured") or {}, found.get("about") or {}, begin, given["phase"])
                records += [append(given["folder"], one) for one in lines]
            else:
                for target in self._targets(given, variables):
                    self._measure(target, run, given["folder"], records, variables)
        except InputError as problem:
            if given["strict"]:
                return {**result, "failed": True, "msg": str(problem), "records": records}
            display.warning(f"{run.host}: {problem}")
        return {**result, "changed": False, "records": records}

    def _targets(self, given: dict[str, Any], variables: dict[str, Any]) -> list[Target]:
        ask, wrong = read_ask(given["asked"])
        if ask is None:
            raise InputError("; ".join(wrong))
        host = str(variables["inventory_hostname"])
        targets, refused = targets_of(host, ask, given["probed"], variables["hostvars"])
        if refused:
            raise InputError("; ".join(refused))
        return targets

    def _measure(
        self, target: Target, run: Run, folder: str, records: list[dict[str, Any]], variables: dict[str, Any]
    ) -> None:
        """Send every load of a model, and save each result at once."""
        where, most = f"{run.host} {target.about['served']}", 2 * max(target.ask.repetitions, MOST_POINTS) + 2
        numbers = iter(seeds(where, time.time(), most))
        points: list[Point] = []
        for repetition, load, warms_up in steps(target, points):
            seed = next(numbers)
            argv = target.argv(load, seed)
            step = {"repetition": repetition, "seed": seed, "argv": argv}
            what = "warm-up" if warms_up else f"repetition {repetition}"
            _progress(f"{run.host}: {target.about['served']}: {load.profile}: {load.text}: {what}")
            measured = self._sent(target, load, argv, variables)
            record, raw = of_load(run, target, load, step, measured)
            if warms_up:
                continue
            if target.ask.sweep and target.objectives:
                record["breaks"] = broken(record, target.objectives)
                points.append(Point(float(record[target.ask.sweep]), not record["breaks"]))
            records.append(append(folder, record, raw))

    def _sent(self, target: Target, load: Load, argv: list[str], variables: dict[str, Any]) -> dict[str, Any]:
        """Return the measurement of one run of the tool."""
        files = {TRACE: trace_text(load.trace)} if load.trace else {}
        given = {"state": "measured", "name": target.about["model"], "argv": argv, "files": files}
        # Only the server itself gets its key.
        more = {"key": target.key, "own_key": target.through == "direct", "timeout": target.ask.timeout_s}
        answer = self._execute_module("vllm_bench", {**given, **more}, task_vars=variables)
        if answer.get("failed") or "measured" not in answer:
            raise InputError(f"{target.host}: {answer.get('msg') or 'the benchmark was interrupted'}")
        found: dict[str, Any] = answer["measured"]
        return found


def steps(target: Target, points: list[Point]) -> Iterator[tuple[int, Load, bool]]:
    """Yield the loads in order: number of the repetition, load, and whether it is a warm-up.

    points: of a sweep; the sender of a load appends its result.
    """
    if not target.ask.sweep:
        if target.ask.warmup:
            yield 0, target.load, True
        yield from ((number, target.load, False) for number in range(1, target.ask.repetitions + 1))
        return
    kind, number = target.ask.sweep, 0
    while (value := next_value(kind, points, target.limit)) is not None:
        load = target.load.with_concurrency(int(value)) if kind == "concurrency" else target.load.with_rate(value)
        # Each load has its own shapes.
        if target.ask.warmup:
            yield 0, load, True
        number += 1
        yield number, load, False


def _progress(text: str) -> None:
    """Report the progress, or print it if nothing shows reports."""
    if not report(text):
        display.display(text)


__all__ = ["ActionModule", "steps"]
