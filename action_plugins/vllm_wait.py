"""Waits until all given units of a host serve; one line of progress a minute, one look for all of them."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()
LINE = 300  # characters shown of a line of the journal


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible-core has no type information
    """``vllm_wait: {models: {name: limit in seconds}, interval: 3, journal_lines: 30, max_restarts: 2}``."""

    _VALID_ARGS = frozenset(("models", "interval", "journal_lines", "max_restarts", "report_every"))
    _supports_check_mode = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Look at the units until all are active; fail as soon as one cannot become so."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = self._task.args
        waiting = {str(name): int(limit) for name, limit in (arguments.get("models") or {}).items()}
        if not waiting or self._task.check_mode:
            return {**result, "changed": False, "skipped": True, "msg": "nothing to wait for"}
        host = str((task_vars or {}).get("inventory_hostname", "host"))
        begin = reported = time.monotonic()
        first: dict[str, int] = {}
        while True:
            facts = self._execute_module("gaudi_facts", {"gather": ["services"]}, task_vars=task_vars)
            if facts.get("failed"):
                return {**result, **facts}
            units = facts["ansible_facts"]["gaudi_services"]["units"]
            elapsed = time.monotonic() - begin
            for name in waiting:
                first.setdefault(name, int(units.get(name, {}).get("restarts", 0)))
            problems = [text for name in waiting if (text := self._problem(name, units, waiting, first, elapsed))]
            if problems:
                return {**result, "failed": True, "msg": "\n".join(self._explain(problems, host, task_vars))}
            left = [name for name in waiting if not units[name]["active"]]
            if not left:
                return {**result, "changed": False, "seconds": round(elapsed), **_facts(facts)}
            if time.monotonic() - reported >= float(arguments.get("report_every", 60)):
                reported = time.monotonic()
                display.display("\n".join(_line(host, name, units[name], elapsed) for name in left))
            time.sleep(float(arguments.get("interval", 3)))

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
            return name, f"it failed {restarts} times; last: {unit['status'] or 'see the journal'}"
        if unit["state"] in ("failed", "inactive") and elapsed > 5:
            return name, f"its unit is {unit['state']}; {unit['status']}"
        if elapsed > limits[name]:
            return name, f"it does not answer after {elapsed:.0f} s; {unit['status']}"
        return None

    def _explain(self, problems: list[tuple[str, str]], host: str, task_vars: dict[str, Any] | None) -> list[str]:
        lines = []
        for name, text in problems:
            count = str(self._task.args.get("journal_lines", 30))
            argv = ["journalctl", "-u", f"vllm-{name}", "-n", count, "-o", "cat", "--no-pager"]
            journal = self._execute_module("ansible.legacy.command", {"argv": argv}, task_vars=task_vars)
            said = journal.get("stdout") or journal.get("stderr") or journal.get("msg", "")
            lines.append(f"{host}: model {name} does not serve: {text}")
            lines.append(f"the last lines of journalctl -u vllm-{name}:")
            # vLLM prints all its arguments in one line.
            lines += [line if len(line) <= LINE else f"{line[:LINE]}…" for line in str(said).splitlines()]
        return lines


def _facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {"ansible_facts": facts["ansible_facts"]}


def _line(host: str, name: str, unit: dict[str, Any], elapsed: float) -> str:
    return f"{host}: {name}: {unit['status'] or unit['sub_state']} ({elapsed / 60:.0f} min)"
