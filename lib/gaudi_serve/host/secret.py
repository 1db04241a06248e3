"""Secrets of models, compared on their host, from which neither a secret nor data for guessing it is sent.

The controller sends a keyed digest of the desired file, with a key for that one run; the host computes the same digest
of its file and returns whether they match. Standard library only: the module that reads a host imports this too.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.yaml_text import load

SIGN = "$"


def secret_text(variables: Mapping[str, Any]) -> str:
    """Return the secret environment file of a model; empty if it has no secrets."""
    return "".join(f"{key}={value}\n" for key, value in sorted(variables.items()))


def given_secrets(value: Any) -> Any:
    """Return ``vllm_secrets`` as a mapping if it is YAML text of one, as a credential of AWX provides it.

    Any other value stays as it is, and is refused elsewhere with a message of its own.
    """
    if not isinstance(value, str):
        return value
    try:
        return load(value)
    # The parser also raises Python's errors: for an invalid date or a number that is too long.
    except Exception:
        return value


def vllm_secret_marks(secrets: Any) -> dict[str, str]:
    """Return ``{model: mark}`` by which a host can compare its secrets, for module gaudi_facts.

    Invalid or unreadable values are omitted, since the plan reports them.

    Args:
        secrets: ``vllm_secrets``; an empty mapping of a model means that its secrets are withdrawn.
    """
    key = os.urandom(16).hex()
    marks: dict[str, str] = {}
    try:
        for model, variables in (given_secrets(secrets) or {}).items():
            marks[str(model)] = _mark(secret_text({**variables}).encode(), key)
    # Rendering raises many kinds of errors: an undefined variable, a vault that cannot be opened.
    except Exception:
        return {}
    return marks


def secret_differs(path: Path, mark: str | None) -> bool:
    """Return whether a secret file of this host differs from the one of a mark; False without a mark."""
    if not mark:
        return False
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    return not hmac.compare_digest(_mark(content, mark.partition(SIGN)[0]), mark)


def secret_changed(unit: Mapping[str, Any]) -> bool:
    """Return whether a running container's secrets differ from the desired ones, by its unit in ``gaudi_services``."""
    container, stale = unit.get("container") or {}, unit.get("secret_stale")
    if stale is None:
        # Containers of older versions have only the time of the file.
        mtime = unit.get("secret_mtime")
        stale = (container.get("secret_mtime") or "") != (str(mtime) if mtime else "")
    return bool(container.get("running")) and (bool(stale) or bool(unit.get("secret_differs")))


def secret_stale(path: Path, label: str | None, key: Path) -> bool | None:
    """Return whether a secret file has other content than at the start of a container; None if unknown.

    Args:
        path: the secret file, which may be missing.
        label: the digest that the supervisor has put on the container; empty without secrets.
        key: the file with the key of that digest.
    """
    if label is None:
        return None
    try:
        content = path.read_bytes() if path.exists() else b""
        mine = hmac.new(key.read_bytes(), content, hashlib.sha256).hexdigest() if content else ""
    except OSError:
        return None
    return not hmac.compare_digest(label, mine)


def own_api_key(path: Path) -> str | None:
    """Return the API key in a secret file of this host; None if it has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((value for name, _, value in (line.partition("=") for line in lines) if name == "VLLM_API_KEY"), None)


def stored_names(path: Path) -> list[str]:
    """Return the names of the variables in a secret file of this host, without their values."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
    return [name for name, sign, _ in (line.partition("=") for line in lines) if sign]


def _mark(content: bytes, key: str) -> str:
    return f"{key}{SIGN}{hmac.new(key.encode(), content, hashlib.sha256).hexdigest()}"
