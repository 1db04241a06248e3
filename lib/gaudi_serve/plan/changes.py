"""What a run would change on a host: the plan against what its units were started with."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ..engines import ENGINES
from ..host.run import sha256_file
from ..stages.service import LOST, vllm_container

View = dict[str, str]


def vllm_plan_changes(
    models: Sequence[Mapping[str, Any]],
    services: Mapping[str, Any],
    but: Collection[str | None] = (),
    supervisor: str | None = None,
) -> list[str]:
    """Return the difference of the planned models and the live ones, as lines to read.

    Args:
        models: the models of a plan.
        services: ``gaudi_host.services`` of the host.
        but: models that are wished for though not planned, such as those that a plan's errors name;
            they are not to be removed.
        supervisor: SHA-256 of the supervisor that a run would bring; None for the toolkit's own.

    Returns:
        One line a model that would be started, restarted, stopped or removed, and below it one line a
        difference: ``~`` from live to planned, ``+`` new, ``-`` gone. Nothing where nothing differs.
    """
    lines: list[str] = []
    planned = {str(model["name"]): model for model in models}
    for name in sorted(set() if "?" in but else set(services) - set(planned) - set(but)):
        lines.append(f"- {name}: stop and remove (it held cards {_cards(services[name])})")
    for name, model in planned.items():
        lines += _of_model(name, model, services.get(name), supervisor or _own())
    return lines


def _of_model(name: str, model: Mapping[str, Any], live: Mapping[str, Any] | None, supervisor: str | None) -> list[str]:
    if model["state"] == "stopped":
        return [f"~ {name}: stop"] if live and live.get("active") else []
    if not live:
        return [f"+ {name}: start on {_place(model)}, port {model['port']}"]
    restart = f"~ {name}: restart{' (secret changed)' * bool(live.get('secret_changed'))}"
    if live.get("digest") != model["digest"]:
        return [restart, *[f"    {text}" for text in _changed(live, model)]]
    if not (live.get("active") or live.get("holds")):
        return [f"~ {name}: start on {_place(model)}, port {model['port']}"]
    if live.get("secret_changed"):
        return [restart]
    return [f"~ {name}: {text} (its server goes on)" for text in _beside(live, supervisor)]


def _beside(live: Mapping[str, Any], supervisor: str | None) -> list[str]:
    """Return what a run does around a server that goes on."""
    lost = [LOST[kind] for kind in live.get("lost") or [] if kind in LOST]
    lines = [f"write its {' and its '.join(lost)} anew"] if lost else []
    return lines + ["replace its supervisor"] * (live.get("supervisor") not in (None, supervisor))


@cache
def _own() -> str | None:
    return sha256_file(Path(__file__).resolve().parents[3] / "roles/vllm_service/files/vllm-supervisor")


def _changed(live: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    launch = live.get("launch") or {}
    planned = _planned_view(model)
    if "read_only" not in launch:
        # Facts that were saved before this was read.
        del planned["root"]
    return _differences(_view(launch, live.get("env") or {}), planned)


def _place(model: Mapping[str, Any]) -> str:
    return "cards " + _cards(model) if model["module_ids"] else "the CPU"


def _cards(model: Mapping[str, Any]) -> str:
    return ",".join(map(str, model.get("module_ids") or [])) or "none"


def _planned_view(model: Mapping[str, Any]) -> View:
    return _view(vllm_container(model), model["env"])


def _view(launch: Mapping[str, Any], env: Mapping[str, str]) -> View:
    """Return a launch as flat texts that can be compared one by one."""
    view = {"image": str(launch.get("image", "")), "cards": _cards(launch)}
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
        # The server's own command begins where numactl's arguments end.
        programs = {engine.command[0] for engine in ENGINES.values()}
        begin = next((index for index, part in enumerate(parts) if part in programs), 1)
        view["numactl"] = " ".join(parts[1:begin])
        parts = parts[begin:]
    option = "command"
    for part in parts:
        if part.startswith("--"):
            option, _, part = part.partition("=")  # noqa: PLW2901 - the value behind the sign is what is left
        view[option] = f"{view.get(option, '')} {part}".strip()
        if option != "command" and part.startswith("--"):
            view[option] = ""
    return view


def _differences(live: View, planned: View) -> list[str]:
    lines = [f"- {key}: {live[key]}".rstrip(" :") for key in live if key not in planned]
    for key, value in planned.items():
        if key not in live:
            lines.append(f"+ {key}: {value}".rstrip(" :"))
        elif live[key] != value:
            lines.append(f"~ {key}: {live[key]} -> {value}")
    return lines
