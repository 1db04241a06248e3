"""The settings of the collector of metrics on a host: what it is to read there, and what was planned."""

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

# Certificates of a host, each with a pattern where its file names it. That of a gateway is the user's.
CERTIFICATES = {
    "gateway": ("/etc/gaudi-serve/gateway/current/haproxy.cfg", r"(?m)^ +bind .* ssl crt (\S+) "),
    "monitoring": (str(HOST), ""),
    "monitoring client": (str(CLIENT), ""),
}


def collector_settings(
    plan: Mapping[str, Any], host: Mapping[str, Any], folder: str = str(COLLECTED)
) -> dict[str, Any]:
    """Return the settings of ``gaudi-metrics``, whose docstring says what each is, as a mapping for JSON.

    Args:
        plan: of the host, as filter vllm_plan returns it.
        host: ``gaudi_host`` of the host.
        folder: where node exporter reads files.
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
    """Return how the models are watched that a plan leaves as they are, by the files that they were started with."""
    return {str(model["name"]): _model(model) for model in left_models(plan, host.get("services") or {})}


def _cards(host: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return how a host's cards are read; None where there are none."""
    metrics = platform_of(host.get("accelerator")).metrics
    # Those on the bus: parts of a divided card are not cards, and one that its tool does not show is missing.
    modules = {module.get("bus_id") or module["module_id"] for module in host.get("modules") or ()}
    expected = int(host.get("pci_cards") or len(modules))
    return {"expected": expected, "read": asdict(metrics)} if metrics and expected else None


def _model(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the collector must know of a planned model."""
    memory = model.get("memory") or {}
    blocks, tokens = memory.get("num_hpu_blocks"), memory.get("kv_tokens")
    return {
        "expected": model["state"] == "started",
        "endpoint": answers(model),
        "planned": {"seconds": model.get("warmup_s"), "graphs": model.get("graphs"), "blocks": blocks},
        "block": tokens // blocks if tokens and blocks else None,
        "journal": asdict(engine_of(model).journal),
    }
