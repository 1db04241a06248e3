"""Waits until all given units of a host serve, with one progress line a minute for all of them."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

LIB = str(Path(__file__).resolve().parents[1] / "lib")
if LIB not in sys.path:
    sys.path.insert(0, LIB)

from gaudi_serve.core.words import counted  # noqa: E402
from gaudi_serve.show.progress import report  # noqa: E402

display = Display()
LINE = 300  # characters shown of a line of the journal
LOOK_S = 30.0  # one check on the host
UNREACHABLE_S, PAUSE_S = 300.0, 5.0  # how long a host may be unreachable, and between two tries
# systemd's message at the end of a try
ENDED = "Failed with result"


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``vllm_wait: {models: {name: limit in seconds}, interval: 3, journal_lines: 30, max_restarts: 2}``.

    One module call on the host checks for half a minute, so an hour of waiting needs 120 calls. A lost connection is
    tried again, because the models start without it.
    """

    _VALID_ARGS = frozenset(("models", "interval", "journal_lines", "max_restarts", "report_every"))
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Watch the units until all are active. Fail as soon as one cannot become active."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        waiting = {str(name): int(limit) for name, limit in (arguments.get("models") or {}).items()}
        if not waiting or self._task.check_mode:
            return {**result, "changed": False, "skipped": True, "msg": "nothing to wait for"}
        host = str((task_vars or {}).get("inventory_hostname", "host"))
        if note := few_forks(task_vars or {}):
            # Ansible shows it once for all hosts with this message.
            display.warning(note)
        interval, every = float(arguments.get("interval", 3)), float(arguments.get("report_every", 60))
        begin = reported = time.monotonic()
        first: dict[str, int] = {}
        seen: dict[str, int] = {}
        left = list(waiting)
        while True:
            # The first check only reads the state: restarts are counted from it.
            look_s = min(LOOK_S, every) if seen else 0.0
            given = {"models": left, "restarts": dict(seen), "for_s": look_s, "interval": interval}
            answer = self._look(given, host, task_vars)
            if "units" not in answer:
                return {**result, **answer}
            units = answer["units"]
            elapsed = time.monotonic() - begin
            for name in left:
                first.setdefault(name, int(units.get(name, {}).get("restarts", 0)))
                seen[name] = int(units.get(name, {}).get("restarts", 0))
            problems = [text for name in left if (text := self._problem(name, units, waiting, first, elapsed))]
            if problems:
                return {**result, "failed": True, "msg": "\n".join(self._explain(problems, host, task_vars))}
            left = [name for name in left if not units[name]["active"]]
            if not left:
                return {**result, "changed": False, "seconds": round(elapsed)}
            if time.monotonic() - reported >= every:
                reported = time.monotonic()
                _progress("\n".join(_line(host, name, units[name], elapsed) for name in left))
            if any(units[name]["state"] in ("failed", "inactive") for name in left):
                # It has not started yet, and the check on the host would return at once, again and again.
                time.sleep(1)

    def _look(self, given: dict[str, Any], host: str, task_vars: dict[str, Any] | None) -> dict[str, Any]:
        """Run the module. If the connection is lost, try again for some time."""
        begin = time.monotonic()
        while True:
            try:
                answer: dict[str, Any] = self._execute_module("vllm_units", given, task_vars=task_vars)
            except AnsibleConnectionFailure as problem:
                if time.monotonic() - begin > UNREACHABLE_S:
                    raise
                display.warning(f"{host}: {problem}; the models start without it, trying again")
                time.sleep(PAUSE_S)
                continue
            return answer

    def _problem(
        self,
        name: str,
        units: dict[str, Any],
        limits: dict[str, int],
        first: dict[str, int],
        elapsed: float,
    ) -> tuple[str, str] | None:
        unit = units.get(name)
        if unit is None:
            return name, "its unit has vanished"
        if unit["active"]:
            return None
        restarts = unit["restarts"] - first[name]
        if restarts >= int(self._task.args.get("max_restarts", 2)):
            # The status of its unit is that of the pause before the next try.
            last = (unit.get("ended") or {}).get("text") or unit["status"] or "see the journal"
            return name, f"it failed {counted(restarts, 'time')}; last: {last}"
        if unit["state"] in ("failed", "inactive") and elapsed > 5:
            return name, f"its unit is {unit['state']}; {unit['status']}"
        if elapsed > limits[name]:
            return name, f"it does not answer after {elapsed:.0f} s; {unit['status']}"
        return None

    def _explain(self, problems: list[tuple[str, str]], host: str, task_vars: dict[str, Any] | None) -> list[str]:
        lines = []
        for name, text in problems:
            count = int(self._task.args.get("journal_lines", 30))
            argv = ["journalctl", "-u", f"vllm-{name}", "-n", str(count * 5), "-o", "cat", "--no-pager"]
            journal = self._execute_module("ansible.legacy.command", {"argv": argv}, task_vars=task_vars)
            said = journal.get("stdout") or journal.get("stderr") or journal.get("msg", "")
            lines.append(f"{host}: model {name} does not serve: {text}")
            lines.append(f"the last lines of journalctl -u vllm-{name}:")
            # vLLM prints all its arguments in one line.
            lines += [line if len(line) <= LINE else f"{line[:LINE]}…" for line in last_words(str(said), count)]
        return lines


def few_forks(variables: dict[str, Any]) -> str:
    """Return the consequence of fewer forks than hosts to wait for; empty if there are enough."""
    # All waves of a rollout are one play, of which one wave runs.
    together = variables.get("__playbook_wave") or variables.get("ansible_play_batch") or []
    hosts, forks = len(together), int(variables.get("ansible_forks") or 0)
    if not 0 < forks < hosts:
        return ""
    return (
        f"{hosts} hosts start models, and this run has {counted(forks, 'fork')}: it waits for "
        f"{counted(forks, 'host')} at a time, and shows the others when their turn comes. Their models start "
        f"meanwhile. --forks {hosts} (in AWX the forks of the job template) waits for all at once"
    )


def last_words(journal: str, count: int) -> list[str]:
    """Return the last lines up to the end of the last try: later lines of the next try are not the reason."""
    lines = journal.splitlines()
    ends = [number for number, line in enumerate(lines, 1) if ENDED in line]
    return lines[: ends[-1] if ends else len(lines)][-count:]


def _progress(text: str) -> None:
    """Report the progress of the models, or print it if nothing shows reports."""
    if not report(text):
        display.display(text)


def _line(host: str, name: str, unit: dict[str, Any], elapsed: float) -> str:
    return f"{host}: {name}: {unit['status'] or unit['sub_state']} ({elapsed / 60:.0f} min)"
