"""Lets Docker judge the next containers of serving models, before anything is written or stopped."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..model.paths import paths_read

LIMIT_S = 600


def refused(
    models: Sequence[Mapping[str, Any]], supervisor: str, installed: Path, program: str = sys.executable
) -> dict[str, str]:
    """Return ``{model: why}`` of the models for which Docker makes no container, or one that lacks a file.

    The new supervisor makes them from copies of the planned files, so that a refusal leaves no trace on the host.

    Args:
        models: for each its name and its planned files (``{path: content}``); those on the host without any.
        supervisor: text of the supervisor program.
        installed: folder with the files of models on the host.
        program: the Python that runs the supervisor.
    """
    found = {}
    with tempfile.TemporaryDirectory(prefix="gaudi-serve-trial-") as made:
        folder = Path(made)
        tool = folder / "vllm-supervisor"
        tool.write_text(supervisor, encoding="utf-8")
        for model in models:
            place = _copied(model, folder, installed)
            try:
                command = json.loads(place.read_text(encoding="utf-8"))["command"]
                argv = [program, str(tool), "--trial", str(place), *paths_read(command)]
                tried = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, check=False)
            except subprocess.TimeoutExpired:
                found[str(model["name"])] = f"Docker has not answered for {LIMIT_S} s"
                continue
            except (OSError, ValueError, LookupError) as problem:
                found[str(model["name"])] = f"{place}: {problem}"
                continue
            if tried.returncode != 0:
                found[str(model["name"])] = " ".join(tried.stderr.split()) or f"status {tried.returncode}"
    return found


def _copied(model: Mapping[str, Any], folder: Path, installed: Path) -> Path:
    """Write copies of a model's files into a folder, and return its launch file."""
    name = model["name"]
    if not model.get("files"):
        return installed / f"{name}.json"
    copies = {path: folder / Path(path).name for path in model["files"]}
    for path, content in model["files"].items():
        copies[path].write_text(content, encoding="utf-8")
    secret = installed / f"{name}.secret"
    if secret.exists():
        shutil.copyfile(secret, folder / secret.name)
    place = folder / f"{name}.json"
    launch = json.loads(place.read_text(encoding="utf-8"))
    for mount in launch["mounts"]:
        mount["source"] = str(copies.get(mount["source"], mount["source"]))
    place.write_text(json.dumps(launch), encoding="utf-8")
    return place
