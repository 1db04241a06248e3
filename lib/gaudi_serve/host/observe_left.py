"""The things that the toolkit has left on a host, for a reset."""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..core.redact import redacted
from ..core.run import read_text, run
from ..platforms import runtimes
from .baseline import BACKUP, TRACES, package_states, redacted_records
from .weights_names import MANIFEST, leftovers

OWN = ("/etc/gaudi-serve", "/usr/local/lib/gaudi-serve", "/var/lib/gaudi-serve")
STATE = Path(OWN[2])
TOOK_OVER = "# gaudi-serve took this over: "
# Package sources are named after their packages: runtimes for devices, and the driver.
SOURCES = (*(one.name for one in runtimes()), "driver")
# Files with fixed names that roles write, in addition to those in their records.
FILES = (
    "/etc/gaudi-serve/docker-proxy.env",
    "/etc/apt/sources.list.d/docker.sources",
    "/etc/apt/keyrings/docker.asc",
    *(f"/etc/apt/keyrings/gaudi-serve-{name}.{kind}" for name in SOURCES for kind in ("asc", "gpg")),
    *(f"/etc/apt/auth.conf.d/gaudi-serve-{name}.conf" for name in (*SOURCES, "docker")),
)
MOST = 2000  # names of a folder to read at most
# Labels of the toolkit's containers: of models, of steps that make weights, of measurements of the links.
KINDS = ("model", "weights", "hccl")
COLUMNS = "[{{json .Name}},{{json .State.Status}},{{json .Config.Image}},{{json .Image}},{{json .Config.Labels}}]"
# Files of a model that are written by the supervisor, the smoke test, and docker as their client.
OF_MODELS = {"smoke.json", "failures.json", "failures.new", ".token_seed", ".token_seed.lock"}


def observe(ours: Sequence[str] | None = None) -> dict[str, Any]:
    """Return all values that the filters ``*_reset`` compare, except those of the roles' own subsets.

    Args:
        ours: packages that the toolkit has installed: also read from apt which packages a user has requested, and which
            are unneeded without these, which takes some seconds; None skips this.
    """
    known = redacted_records()
    return {
        "records": known,
        "traces": [path for path in TRACES if os.path.lexists(path)],
        "files": [path for path in FILES if os.path.lexists(path)],
        "own": {folder: names(Path(folder)) for folder in OWN},
        "states": [path.name for path in sorted(STATE.glob("*/")) if set(names(path) or []) <= OF_MODELS],
        "took_over": took_over(),
        "dropins": [str(path) for path in sorted(Path("/etc/systemd/system").glob("vllm-*.service.d"))],
        "daemon_backup": redacted(read_text(BACKUP)),
        "busy": busy(Path("/var/lib/gaudi-serve/weights")),
        "brought": {path: folder(Path(path)) for path in brought_paths(known)},
        "containers": containers(),
        **packages(ours),
    }


def names(folder: Path) -> list[str] | None:
    """Return the names in a folder, or None if it does not exist."""
    return sorted(path.name for path in folder.iterdir())[:MOST] if folder.is_dir() else None


def took_over(root: str = "/") -> list[str]:
    """Return the files with lines that host_tuning has commented out."""
    files = [Path(root, "etc/sysctl.conf"), *sorted(Path(root, "etc/sysctl.d").glob("*.conf"))]
    found = {path.resolve() for path in files if f"\n{TOOK_OVER}" in f"\n{read_text(path) or ''}"}
    return sorted(str(path) for path in found)


def busy(folder: Path) -> list[str]:
    """Return the models whose weights are being fetched or converted right now."""
    working = []
    for path in sorted(folder.glob("*/lock")):
        with path.open("rb") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                working.append(path.parent.name)
    return working


def brought_paths(known: dict[str, dict[str, Any]]) -> list[str]:
    """Return all paths that records list as installed."""
    kinds = [(record.get("brought") or {}).get(kind, {}) for record in known.values() for kind in PATHS]
    return sorted({path for kind in kinds for path in kind})


PATHS = ("paths", "weights", "venv", "caches")


def folder(path: Path) -> dict[str, Any]:
    """Return whether a path exists and, for weights: the kind of source in its record, and leftovers next to it."""
    try:
        source = json.loads((path / MANIFEST).read_text(encoding="utf-8"))["source"]["kind"]
    except (OSError, ValueError, RecursionError, LookupError, TypeError):
        source = None
    return {
        "exists": os.path.lexists(path),
        "empty": path.is_dir() and not any(path.iterdir()),
        "source": source,
        "beside": [str(one) for one in leftovers(path)],
    }


def containers() -> list[dict[str, Any]]:
    """Return all containers.

    Returns:
        Each with ``name``; ``running``; ``image``, the requested name, and ``image_id``, as the engine lists images;
        ``own``, whether it is the toolkit's, by its labels; ``kind``: model, weights, hccl, or "" for others.
    """
    ids = run(["docker", "ps", "-aq", "--no-trunc"]).out.split()
    # A container that is removed meanwhile does not affect the output for the others.
    told = run(["docker", "inspect", "--type", "container", "--format", COLUMNS, *ids]).out if ids else ""
    found = []
    for name, state, image, image_id, labels in map(json.loads, filter(None, told.splitlines())):
        kind = next((kind for kind in KINDS if (labels or {}).get(f"gaudi-serve.{kind}")), "")
        one = {"name": name.removeprefix("/"), "running": state == "running", "image": image, "image_id": image_id}
        found.append({**one, "own": bool(kind), "kind": kind})
    return found


def packages(ours: Sequence[str] | None) -> dict[str, Any]:
    """Return packages: ``installed``, ``asked_for`` by a user, ``held``, ``unneeded`` without the toolkit's."""
    # Packages that are unneeded for other reasons, such as an old kernel, are left to the user.
    gone = set(unneeded()) - set(unneeded(ours)) if ours else set()
    return {
        "installed": sorted(name for name, state in package_states().items() if state == "installed"),
        "asked_for": run(["apt-mark", "showmanual"]).out.split() if ours is not None else [],
        "held": run(["apt-mark", "showhold"]).out.split(),
        "unneeded": sorted(gone),
    }


def unneeded(kept: Sequence[str] = ()) -> list[str]:
    """Return the packages that apt would remove as unneeded if some packages were kept."""
    # A package that is only suggested by another one still counts as unneeded.
    options = ["APT::AutoRemove::SuggestsImportant=false", *(f"APT::NeverAutoRemove::=^{re.escape(n)}$" for n in kept)]
    words = [word for option in options for word in ("-o", option)]
    said = run(["apt-get", "--simulate", *words, "autoremove"], 60).out.splitlines()
    return [line.split()[1] for line in said if line.startswith(("Remv ", "Purg "))]
