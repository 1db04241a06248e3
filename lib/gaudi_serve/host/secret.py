"""Secrets of models, compared on the host that has them: neither a secret nor anything to guess it by leaves there.

The controller sends a keyed digest of what it would write, with a key of that one run; the host makes the same of its
file and answers yes or no. Standard library only: the module that reads a host imports this too.
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
    """Return the secret environment file of a model; empty where it has no secrets."""
    return "".join(f"{key}={value}\n" for key, value in sorted(variables.items()))


def given_secrets(value: Any) -> Any:
    """Return ``vllm_secrets`` as a mapping where it is the text of one, in YAML, as a credential of AWX gives it.

    What is no such text stays as it is, and is refused elsewhere in a sentence of its own.
    """
    if not isinstance(value, str):
        return value
    try:
        return load(value)
    # Besides its own errors the parser lets those of Python out: of a date that is none, a number that is too long.
    except Exception:
        return value


def vllm_secret_marks(secrets: Any) -> dict[str, str]:
    """Return ``{model: mark}`` by which a host tells whether its secrets are these, for module gaudi_facts.

    What is not a secret, or cannot be read, is left out: to say so is the plan's part.

    Args:
        secrets: ``vllm_secrets``; an empty mapping of a model stands for secrets that are withdrawn.
    """
    key = os.urandom(16).hex()
    marks: dict[str, str] = {}
    try:
        for model, variables in (given_secrets(secrets) or {}).items():
            marks[str(model)] = _mark(secret_text({**variables}).encode(), key)
    # Of Ansible's and of Jinja's many errors: an undefined variable, a vault that cannot be opened.
    except Exception:
        return {}
    return marks


def secret_differs(path: Path, mark: str | None) -> bool:
    """Tell whether a secret file of this host is another one than a mark was made of; without a mark it is not."""
    if not mark:
        return False
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    return not hmac.compare_digest(_mark(content, mark.partition(SIGN)[0]), mark)


def secret_changed(unit: Mapping[str, Any]) -> bool:
    """Tell whether a running container has other secrets than it is to have, by its unit in ``gaudi_services``."""
    container = unit.get("container") or {}
    mtime = unit.get("secret_mtime")
    stale = (container.get("secret_mtime") or "") != (str(mtime) if mtime else "")
    return bool(container.get("running")) and (stale or bool(unit.get("secret_differs")))


def own_api_key(path: Path) -> str | None:
    """Return the API key in a secret file of this host; None where it has none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return None
    return next((value for name, _, value in (line.partition("=") for line in lines) if name == "VLLM_API_KEY"), None)


def _mark(content: bytes, key: str) -> str:
    return f"{key}{SIGN}{hmac.new(key.encode(), content, hashlib.sha256).hexdigest()}"
