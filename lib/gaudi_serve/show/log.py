"""The journal of a model for playbooks/logs.yml."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ..core.words import counted

# What vLLM, Python and the supervisor write when an error occurs.
ERROR = re.compile(
    r"\b(?:ERROR|CRITICAL|FATAL)\b|Traceback|\b[A-Z]\w*(?:Error|Exception)\b: |synStatus=|"
    r"gaudi-serve: (?:the server (?:ended|runs, but|answers /health and)|the warm-up stands|the container does not)"
)
MOST_ERRORS = 20


def log_view(lines: Sequence[str]) -> list[str]:
    """Return a model's journal: first the lines with errors, then all lines.

    Args:
        lines: the output lines of journalctl.
    """
    errors = [line for line in lines if ERROR.search(line)]
    if not errors:
        return list(lines)
    shown = errors[-MOST_ERRORS:]
    count = f"the last {len(shown)} of {len(errors)}" if len(shown) < len(errors) else str(len(errors))
    return [f"lines with errors ({count}):", *shown, f"all {counted(len(lines), 'line')}:", *lines]
