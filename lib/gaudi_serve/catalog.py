"""The known models: one YAML file each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import InputError
from .spec import findings


def model_catalog(folders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Read the catalog: every ``<entry>.yml`` of the folders; of two with one name the later folder's wins.

    Raises:
        InputError: for a folder that is not there, a file that is no YAML mapping, or a key that no
            model has; the message names the file, the key and what is allowed.
    """
    # Only the controller reads catalogs; modules that share this package have no yaml.
    import yaml

    catalog = {}
    for folder in folders:
        if not Path(folder).is_dir():
            raise InputError(f"vllm_catalog_dirs: {folder}: no such folder")
        for path in sorted(Path(folder).glob("*.yml")):
            try:
                entry = yaml.safe_load(path.read_text(encoding="utf-8"))
            except (OSError, yaml.YAMLError) as problem:
                raise InputError(f"{path}: {' '.join(str(problem).split())}") from problem
            _check(path, entry)
            catalog[path.stem] = entry
    return catalog


def _check(path: Path, entry: Any) -> None:
    if not isinstance(entry, Mapping):
        raise InputError(f"{path}: a catalog entry is a mapping with the keys of a model")
    if "name" in entry or "model" in entry:
        raise InputError(f"{path}: name and model belong to the models that take the entry")
    for key, value, allowed in findings({"name": "catalog", **entry}):
        raise InputError(f"{path}: {key} {value!r}: {allowed}")
