"""The catalog of the repository, and its entries for one engine."""

from __future__ import annotations

from pathlib import Path

from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.engines import ENGINES

FOLDER = Path(__file__).parents[2] / "roles/preflight/files/catalog"
CATALOG = model_catalog([str(FOLDER)])


def only_plugin(name: str) -> bool:
    """Return whether an entry is in the plugin's own list of validated models."""
    return [engine for engine in ENGINES if engine in CATALOG[name]] == ["plugin"]
