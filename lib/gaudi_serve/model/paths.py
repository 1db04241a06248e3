"""Files and folders that a server reads in addition to its weights, in its container and on its host."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

# vLLM's options whose value is, or contains, a path that must exist when the server starts.
READ = (
    *("allowed_local_media_path", "chat_template", "default_mm_loras", "generation_config", "hf_config_path"),
    *("lora_modules", "reasoning_parser_plugin", "speculative_config", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile"),
    *("tokenizer", "tool_parser_plugin"),
)

SHORT = re.compile("-[A-Za-z]")  # such as -O3 or -tp


def paths_of(value: Any) -> Iterator[str]:
    """Yield the absolute paths in an option's value: a path, name=path, JSON or YAML with paths, or a list of them."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from paths_of(one) if isinstance(one, str) else ()
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from paths_of(one)
    elif isinstance(value, str) and value.startswith("{"):
        try:
            known = json.loads(value)
        except (ValueError, RecursionError):
            return  # such as a template
        yield from paths_of(known) if isinstance(known, dict) else ()
    elif isinstance(value, str):
        text = value if value.startswith("/") else value.partition("=")[2]
        if text.startswith("/") and text.isprintable():
            yield posixpath.normpath(text)


def options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield ``(option, value)`` of the options in READ among the words of a command."""
    option = ""
    for word in words:
        if word.startswith("--"):
            name, sign, value = word[2:].partition("=")
            option = name.replace("-", "_")
            if sign and option in READ:
                yield option, value
        elif SHORT.match(word):
            option = ""
        elif option in READ:
            yield option, word


def paths_read(command: Sequence[str]) -> list[str]:
    """Return the paths that a server's command names, as the server sees them in its container."""
    return list(dict.fromkeys(path for _, value in options_of(command) for path in paths_of(value)))


def spec_paths(spec: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return ``(key, path)`` of the paths that a model's options name, as the server sees them."""
    extra = spec.get("extra_args")
    words = [word for word in extra if isinstance(word, str)] if isinstance(extra, list) else []
    named = [(key, spec.get(key)) for key in READ] + [("extra_args", value) for _, value in options_of(words)]
    return [(key, path) for key, value in named for path in paths_of(value)]


def on_host(path: str, mounts: Any) -> str | None:
    """Return where a path of a container is on its host; None if no mount provides it."""
    sound = [one for one in mounts if _sound(one)] if isinstance(mounts, list) else []
    for mount in sorted(sound, key=lambda one: -len(one["target"])):
        target = posixpath.normpath(mount["target"])
        if path == target or path.startswith(f"{target}/"):
            return posixpath.normpath(str(mount["source"]) + path[len(target) :])
    return None


def host_paths(spec: Mapping[str, Any]) -> Iterator[str]:
    """Yield the paths on a model's host that must exist before its server starts. Docker creates writable folders."""
    mounts = spec.get("mounts")
    for mount in mounts if isinstance(mounts, list) else []:
        if _sound(mount) and mount.get("read_only", True):
            yield mount["source"]
    for _, path in spec_paths(spec):
        if here := on_host(path, mounts):
            yield here


def _sound(mount: Any) -> bool:
    return isinstance(mount, Mapping) and all(
        isinstance(mount.get(key), str) and mount[key].startswith("/") for key in ("source", "target")
    )
