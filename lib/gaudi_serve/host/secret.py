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
# With this key, the secrets of a model are added to those that its host stores; without it, they are all.
BESIDE = "@beside"


def secret_text(variables: Mapping[str, Any]) -> str:
    """Return the secret environment file of a model, without what its host stores; empty if it has no secrets."""
    return "".join(f"{key}={value}\n" for key, value in sorted(variables.items()) if key != BESIDE)


def with_stored_secrets(present: str, text: str) -> str:
    """Return a secret file's new text, with the variables of its present text that the new one does not set."""
    lines = text.splitlines()
    named = {line.partition("=")[0] for line in lines}
    stored = [line for line in present.splitlines() if line.partition("=")[0] not in named]
    return "".join(f"{line}\n" for line in sorted([*lines, *stored]))


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
            names = SIGN + ",".join(name for name in variables if name != BESIDE) if BESIDE in variables else ""
            marks[str(model)] = _mark(secret_text({**variables}).encode(), key) + names
    # Rendering raises many kinds of errors: an undefined variable, a vault that cannot be opened.
    except Exception:
        return {}
    return marks


def secret_differs(path: Path, mark: str | None) -> bool:
    """Return whether a secret file of this host differs from the one of a mark; False without a mark."""
    try:
        content = path.read_bytes()
    except OSError:
        content = b""
    return text_differs(content, mark)


def text_differs(content: bytes, mark: str | None) -> bool:
    """Return whether the content of a secret file differs from the one of a mark, in the variables that this names."""
    if not mark:
        return False
    key, _, rest = mark.partition(SIGN)
    digest, only, names = rest.partition(SIGN)
    if only:
        lines = content.splitlines(keepends=True)
        content = b"".join(line for line in lines if line.partition(b"=")[0] in names.encode().split(b","))
    return not hmac.compare_digest(_mark(content, key), f"{key}{SIGN}{digest}")


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
    found = (value for name, _, value in (line.partition("=") for line in _lines(path)) if name == "VLLM_API_KEY")
    return next(found, None)


def stored_names(path: Path) -> list[str]:
    """Return the names of the variables in a secret file of this host, without their values."""
    return [name for name, sign, _ in (line.partition("=") for line in _lines(path)) if sign]


def _lines(path: Path) -> list[str]:
    """Return the lines of a secret file of this host; none if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []


def _mark(content: bytes, key: str) -> str:
    return f"{key}{SIGN}{hmac.new(key.encode(), content, hashlib.sha256).hexdigest()}"
