"""Observed units and files of models, and their pending changes."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path
from typing import Any

from gaudi_serve.stages import service

TEMPLATE = (Path(__file__).parents[2] / "roles/vllm_service/templates/vllm.service.j2").read_text(encoding="utf-8")
SUPERVISOR = "#!/usr/bin/python3\n"


def digest(text: str) -> str:
    """Return the digest by which files are compared."""
    return sha256(text.encode()).hexdigest()


def live(models: list[dict[str, Any]], **changed: Any) -> dict[str, Any]:
    """Return a host on which everything is as planned; ``changed`` alters the first model's unit."""
    files = service.vllm_service_files(models, TEMPLATE)
    units = {}
    for item in models:
        name = item["name"]
        units[name] = {
            "unit_sha256": digest(files[f"/etc/systemd/system/vllm-{name}.service"]["content"]),
            "env_sha256": digest(files[f"/etc/gaudi-serve/{name}.env"]["content"]),
            "launch_sha256": digest(files[f"/etc/gaudi-serve/{name}.json"]["content"]),
            "state": "active",
            "enabled": True,
            "secret_mtime": None,
            "digest": item["digest"],
            "container": {"running": True, "digest": item["digest"], "secret_mtime": ""},
            "smoke": {"first_token_s": 0.1, "kinds": item["smoke"]},
        }
    units[models[0]["name"]].update(changed)
    return {"units": units, "supervisor_sha256": digest(SUPERVISOR)}


def changes(models: list[dict[str, Any]], state: dict[str, Any]) -> dict[str, Any]:
    """Return the pending changes."""
    files = service.vllm_service_files(models, TEMPLATE)
    return service.vllm_service_changes(models, state, files, SUPERVISOR)
