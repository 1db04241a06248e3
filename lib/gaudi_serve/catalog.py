"""The known models: one YAML file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import InputError, shown
from .spec import findings


def model_catalog(folders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the catalog: every ``<entry>.yml`` of the folders; of two with one name the later folder's wins.

    Raises:
        InputError: for folders that are not there, files that are no YAML mapping, and keys that no
            model has; a line each, with the file, the key and what is allowed.
    """
    if not isinstance(folders, list):
        raise InputError(f"vllm_catalog_dirs: {shown(folders)}: must be a list of folders")
    catalog: dict[str, dict[str, Any]] = {}
    problems: list[str] = []
    for folder in folders:
        if not isinstance(folder, str) or not Path(folder).is_dir():
            problems.append(
                f"vllm_catalog_dirs: {folder if isinstance(folder, str) else shown(folder)}: no such folder"
            )
            continue
        for path in sorted(Path(folder).glob("*.yml")):
            entry, found = _read(path)
            problems += [f"{path}: {text}" for text in found or _problems(entry)]
            catalog[path.stem] = entry
    if problems:
        raise InputError("\n".join(problems))
    return catalog


def _read(path: Path) -> tuple[Any, list[str]]:
    # Only the controller reads catalogs; modules that share this package have no yaml.
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")), []
    except OSError as problem:
        return None, [str(problem.strerror)]
    # A date that no calendar has, or a text that is not UTF-8, is a ValueError.
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        return None, [" ".join(str(problem).split())]


def _problems(entry: Any) -> list[str]:
    if not isinstance(entry, Mapping):
        return ["a catalog entry is a mapping with the keys of a model"]
    problems = ["name and model belong to the models that take the entry"] if {"name", "model"} & set(entry) else []
    own = {key: value for key, value in entry.items() if key not in ("name", "model")}
    for key, value, allowed in findings({"name": "catalog", **own}):
        problems.append(f"{key}: {allowed}" if value is None else f"{key} {shown(value)}: {allowed}")
    return problems
