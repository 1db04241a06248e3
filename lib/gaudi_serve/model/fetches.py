"""What a server fetches from the internet at its start, because no folder of its host has it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import Problem
from .adapters import hub_names
from .architecture import Architecture
from .draft import WITHOUT_WEIGHTS, Speculation
from .vocabulary import ENCODINGS, FILE, missing_folder

FOLDER = "give a folder of this host, which a mount provides"


def fetched(spec: Mapping[str, Any], architecture: Architecture) -> list[Problem]:
    """Return what the server of a model fetches: key, value, and what gives it without the internet."""
    draft = (Speculation.of(spec).config or {}).get("model")
    named = {"speculative_config": draft if draft not in WITHOUT_WEIGHTS else None, "tokenizer": spec.get("tokenizer")}
    found: list[Problem] = [
        (key, name, FOLDER) for key, name in named.items() if isinstance(name, str) and not name.startswith("/")
    ]
    found += [("lora_modules", name, "name it in adapters, with its source and a folder") for name in hub_names(spec)]
    if missing_folder(spec, [(str(spec.get("weights")), architecture)]):
        remedy = f"set it to a mounted folder with {FILE}, the vocabulary that gpt-oss's weights lack"
        found.append((f"env: {ENCODINGS}", None, remedy))
    return found


def offline_problems(spec: Mapping[str, Any], architecture: Architecture) -> list[Problem]:
    """Return the problems with a model whose server would fetch something on a host without internet."""
    why = "the server fetches it from the internet at its start, and gaudi_offline is true"
    return [(key, value, f"{remedy}; {why}") for key, value, remedy in fetched(spec, architecture)]


def fetch_warnings(spec: Mapping[str, Any], architecture: Architecture) -> list[str]:
    """Return warnings about what a server fetches at its start."""
    return [
        f"{key}{f' {value}' if value else ''}: the server fetches it from the internet at its start; {remedy}"
        for key, value, remedy in fetched(spec, architecture)
    ]
