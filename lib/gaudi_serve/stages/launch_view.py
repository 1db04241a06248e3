"""A launch as flat texts, and the differences between the planned launch and the running one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..engines import ENGINES

View = dict[str, str]


def cards_text(module_ids: Sequence[int] | None) -> str:
    """Return the cards of a launch as text for users."""
    return ",".join(map(str, module_ids or [])) or "none"


def launch_view(launch: Mapping[str, Any], env: Mapping[str, str]) -> View:
    """Return a launch as flat texts that can be compared one by one."""
    view = {"image": str(launch.get("image", "")), "cards": cards_text(launch.get("module_ids"))}
    view.update({f"env {name}": str(value) for name, value in env.items()})
    view.update(_options([str(part) for part in launch.get("command", [])]))
    for mount in launch.get("mounts", []):
        view[f"mount {mount['target']}"] = f"{mount['source']} {'read-only' if mount['read_only'] else 'writable'}"
    if "read_only" in launch:
        view["root"] = "read-only" if launch["read_only"] else "writable"
    for key in ("runtime", "cap_add", "ulimits"):
        value = launch.get(key) or "none"
        view[key] = value if isinstance(value, str) else ", ".join(map(str, value))
    return view


def _options(command: Sequence[str]) -> View:
    view: View = {}
    parts = list(command)
    if parts and parts[0] == "numactl":
        # The server's own command begins after numactl's arguments.
        programs = {engine.command[0] for engine in ENGINES.values()}
        begin = next((index for index, part in enumerate(parts) if part in programs), 1)
        view["numactl"] = " ".join(parts[1:begin])
        parts = parts[begin:]
    # The values of each occurrence of an option: vLLM uses the last one.
    given: dict[str, list[list[str]]] = {"command": [[]]}
    option = "command"
    for part in parts:
        if not part.startswith("--"):
            given[option][-1].append(part)
            continue
        option, sign, value = part.partition("=")
        given.setdefault(option, []).append([value] if sign else [])
    for name, times in given.items():
        texts = [" ".join(values) for values in times]
        view[name] = (
            texts[0] if len(texts) == 1 else ", then ".join(text or "set" for text in texts) + " (the last counts)"
        )
    return view


def differences(live: View, planned: View) -> list[str]:
    lines = [f"- {key}: {live[key]}".rstrip(" :") for key in live if key not in planned]
    for key, value in planned.items():
        if key not in live:
            lines.append(f"+ {key}: {value}".rstrip(" :"))
        elif live[key] != value:
            lines.append(f"~ {key}: {live[key]} -> {value}")
    return lines
