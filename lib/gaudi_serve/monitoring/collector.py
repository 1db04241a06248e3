"""The settings of the metrics collector on a host: what it reads there, and what was planned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ..engines import engine_of
from ..host.baseline import DROPIN, SYSCTL
from ..host.observe_metrics import CLIENT, COLLECTED, HOST
from ..model.distributed import answers, left_models
from ..platforms import platform_of
from .metrics import METRICS, REASONS, STATES

# Certificates of a host: a file, and a pattern for the path if the file only names it. The user owns the gateway's.
CERTIFICATES = {
    "gateway": ("/etc/gaudi-serve/gateway/current/haproxy.cfg", r"(?m)^ +bind .* ssl crt (\S+) "),
    "monitoring": (str(HOST), ""),
    "monitoring client": (str(CLIENT), ""),
}


def collector_settings(
    plan: Mapping[str, Any], host: Mapping[str, Any], folder: str = str(COLLECTED)
) -> dict[str, Any]:
    """Return the settings of ``gaudi-metrics``, described in its docstring, as a mapping for JSON.

    Args:
        plan: the host's plan, as filter vllm_plan returns it.
        host: ``gaudi_host`` of the host.
        folder: the folder from which node exporter reads files.
    """
    metrics = {one.name: {"type": one.kind, "help": one.help, "labels": list(one.labels)} for one in METRICS}
    return {
        "folder": folder,
        "metrics": metrics,
        "states": list(STATES),
        "reasons": list(REASONS),
        "cards": _cards(host),
        "models": {str(model["name"]): _model(model) for model in plan["models"]} | _left(plan, host),
        "certificates": {name: list(found) for name, found in CERTIFICATES.items()},
        "host": {"sysctl": SYSCTL, "grub": DROPIN},
    }


def _left(plan: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings for models that a plan leaves unchanged, from the files that started them."""
    return {str(model["name"]): _model(model) for model in left_models(plan, host.get("services") or {})}


def _cards(host: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a host's cards are read; None without cards."""
    metrics = platform_of(host.get("accelerator")).metrics
    # Count cards on the bus: a part of a divided card is no card, and a card that its tool does not show is missing.
    modules = {module.get("bus_id") or module["module_id"] for module in host.get("modules") or ()}
    expected = int(host.get("pci_cards") or len(modules))
    return {"expected": expected, "read": asdict(metrics)} if metrics and expected else None


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the collector's settings for a planned model."""
    memory = model.get("memory") or {}
    blocks, tokens = memory.get("num_hpu_blocks"), memory.get("kv_tokens")
    return {
        "expected": model["state"] == "started",
        "endpoint": answers(model),
        "planned": {"seconds": model.get("warmup_s"), "graphs": model.get("graphs"), "blocks": blocks},
        "block": tokens // blocks if tokens and blocks else None,
        "journal": asdict(engine_of(model).journal),
    }
