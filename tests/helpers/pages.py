"""Results of playbooks for a realistic fleet, for its page."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

from gaudi_serve.plan.fleet import vllm_fleet_plan
from helpers.plans import gaudi_host, known

CATALOG = str(Path(__file__).parents[2] / "roles/preflight/files/catalog")
ABOUT = {"playbook": "page", "date": "2026-11-27 09:30 UTC", "inventory": "inventory/mine", "toolkit": "1f0c2aa"}
DOWN = {"qwq-32b": 12, "llama-70b": 21, "qwen3-8b": 4, "embed": 3}


@cache
def planned_host() -> dict[str, Any]:
    """Return the plan of a host with four models on eight cards, and its warnings."""
    models = [
        {"name": "llama-70b", "model": "deepseek-r1-distill-llama-70b", "port": 30001, "tensor_parallel_size": 4},
        {"name": "qwq-32b", "model": "qwq-32b", "port": 30002},
        {"name": "qwen3-8b", "model": "qwen3-8b", "port": 30003, "tensor_parallel_size": 1},
        {"name": "embed", "model": "qwen2.5-7b-instruct", "port": 30004, "tensor_parallel_size": 1},
    ]
    image = "registry.example.net/vllm-gaudi:1.21.3"
    host = gaudi_host(driver_version="1.21.3-57")
    variables = known(vllm_models=models, vllm_model_defaults={"image": image}, gaudi_host=host)
    variables["gaudi_services"] = {"images": {image: "x"}}
    fleet = vllm_fleet_plan({"gaudi01": variables}, ["gaudi01"], [CATALOG])
    assert not fleet["errors"], fleet["errors"]
    return {"host": fleet["hosts"]["gaudi01"], "warnings": fleet["warnings"]}


def plan_of(names: list[str], *, restarts: list[str] | None = None) -> dict[str, Any]:
    """Return the plan of a fleet of such hosts, some of which restart all their models."""
    hosts = {}
    for name in names:
        host = copy.deepcopy(planned_host()["host"])
        host |= {"changes": [], "due": {}, "reboot": [], "down": [], "links": links(name)}
        for card in host["cards"]:
            card["model"] = next((one["name"] for one in host["models"] if card["card"] in one["module_ids"]), None)
        if name in (restarts or ()):
            host["due"] = {"images": ["registry.example.net/vllm-gaudi:1.21.3 is not on the host"]}
            host["changes"] = [line for model in host["models"] for line in _restart(model["name"])]
            host["down"] = [
                {"model": model, "stage": "models", "reason": "it restarts", "minutes": minutes, "others": []}
                for model, minutes in DOWN.items()
            ]
        hosts[name] = host
    text = planned_host()["warnings"]
    warnings = [f"{name}{one.removeprefix('gaudi01')}" for name in names for one in text]
    return {"hosts": hosts, "errors": [], "warnings": warnings}


def _restart(name: str) -> list[str]:
    return [f"~ {name}: restart", "    ~ --max-num-seqs: 32 -> 64", "    + env VLLM_DECODE_BS_BUCKET_MAX: 64"]


def status_of(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of a fleet that serves as planned."""
    hosts = {}
    for name, host in plan["hosts"].items():
        models = [
            {
                **{"name": model["name"], "wanted": "started", "state": "active", "status": "", "restarts": 0},
                **{"answers": True, "problem": "", "module_ids": model["module_ids"]},
                "url": f"http://{name}:{model['port']}/v1",
            }
            for model in host["models"]
        ]
        found = {"read": True, "problem": "", "drift": {}, "models": models, "notes": [], "gateway": None}
        hosts[name] = {**found, "monitoring": None, "cards": host["cards"], "links": host["links"]}
    return {"hosts": hosts, "drifted": [], "unread": []}


def links(name: str) -> dict[str, Any]:
    """Return a measurement of links."""
    figure = 250 + len(name) + int(name[-1], 36) / 3
    good = {"nw_gb_s": figure, "threshold": 240, "last_good": figure + 1, "passed": True, "problem": None}
    return {"time": 1_795_500_000, "passed": True, "runs": [{"name": "all", "cards": 8, **good}], "last_good": {}}


def result(date: str, **more: Any) -> dict[str, Any]:
    """Return a saved benchmark."""
    figures = {
        "output_tokens_s": 1500.0,
        "ttft_ms": {"median": 90.0, "p99": 210.0},
        "tpot_ms": {"median": 21.5, "p99": 30},
    }
    base: dict[str, Any] = {
        "date": date,
        "host": "gaudi01",
        "model": "qwq-32b",
        "profile": "short",
        "launch": "13dbdae16e0d64f0",
    }
    return {
        **base,
        "case": "short",
        "requests": 12,
        "failed": 0,
        "concurrency": 16,
        "request_rate": None,
        "repetition": 1,
        "figures": figures,
        **more,
    }


def keep_results(folder: Path) -> Path:
    """Write benchmarks of six weeks on three hosts, and a sweep; return the folder."""
    folder.mkdir(exist_ok=True)
    begin = datetime(2026, 10, 12, 3, tzinfo=timezone.utc)
    lines = []
    for day in range(0, 45, 3):
        for number in range(3):
            speed = (
                1480 + 30 * number + 40 * ((day * 7 + number * 3) % 5) / 5 - (180 if day > 30 and number == 1 else 0)
            )
            first = 92 - 4 * number + (day * 5 + number) % 7
            figures = {"output_tokens_s": speed, "ttft_ms": {"median": first, "p99": 2.3 * first}}
            figures["tpot_ms"] = {"median": 16_000 / speed * 2, "p99": 40}
            date = (begin + timedelta(days=day, minutes=number)).isoformat()
            lines.append(result(date, host=f"gaudi0{number + 1}", figures=figures))
    for load in (1, 2, 4, 8, 16, 32, 64):
        speed = 2400 * load / (load + 14)
        figures = {
            "output_tokens_s": speed,
            "ttft_ms": {"median": 60 + 2.5 * load, "p99": 400},
            "tpot_ms": {"median": 20},
        }
        lines.append(
            result(
                (begin + timedelta(days=44, hours=load)).isoformat(), profile="sweep", concurrency=load, figures=figures
            )
        )
    (folder / "results.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return folder


def fleet_parts() -> dict[str, Any]:
    """Return plan, status and waves of a fleet of six hosts that shows all cases."""
    names = [f"gaudi0{number}" for number in range(1, 7)]
    plan = plan_of(names, restarts=names[:4])
    status = status_of(plan)
    plan["hosts"]["gaudi05"]["reboot"] = ["intel_idle.max_cstate=0 is not an argument of the running kernel"]
    plan["hosts"]["gaudi05"]["cards"][6] |= {"held_by": "python3 (4711)", "model": None}
    status["hosts"]["gaudi05"]["drift"] = {"host": ["kernel.numa_balancing is 1, planned 0"]}
    status["hosts"]["gaudi06"] |= {"read": False, "problem": "cannot be reached", "models": []}
    del plan["hosts"]["gaudi06"]
    plan["warnings"] = [one for one in plan["warnings"] if not one.startswith("gaudi06")]
    text = "gaudi06: cannot be reached: No route to host"
    plan["errors"] = [
        {"host": "gaudi06", "key": "facts", "message": text, "model": None, "value": None, "allowed": None}
    ]
    status["drifted"], status["unread"] = ["gaudi05"], ["gaudi06"]
    gateway = {"state": "active", "url": "https://gaudi01:8443/v1", "servers": 20, "up": 20}
    status["hosts"]["gaudi01"]["gateway"] = gateway
    rollout = {"waves": [["gaudi01"], ["gaudi02", "gaudi03"], ["gaudi04"]], "steps": [], "refusal": [], "hosts": {}}
    return {"plan": plan, "status": status, "rollout": rollout}
