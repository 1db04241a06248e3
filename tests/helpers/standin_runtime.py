"""The runtime's stand-in, with a container to create."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def create(host: Any, bundle: Path, *environment: str) -> tuple[Any, dict[str, Any]]:
    """Run the runtime's create for a container with this environment; return result and edited specification."""
    spec = {"process": {"env": list(environment)}, "root": {"path": "rootfs"}, "linux": {"resources": {}}}
    (bundle / "config.json").write_text(json.dumps(spec), encoding="utf-8")
    path = f"{host.root}/bin:/usr/bin:/bin"
    result = host.run("habana-container-runtime", "create", "--bundle", str(bundle), "name", PATH=path)
    return result, json.loads((bundle / "config.json").read_text(encoding="utf-8"))


def behave_as(host: Any, version: str) -> None:
    """Set the version of the runtime and its hook."""
    host.state["container_runtime"] = version
    host.save()


def hooked(host: Any, bundle: Path) -> Any:
    """Run the hook for the runtime's bundle."""
    state = json.dumps({"bundle": str(bundle), "pid": 1})
    return host.run("habana-container-hook", "createRuntime", stdin=state)
