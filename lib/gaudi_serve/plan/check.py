"""What of a model's wish cannot be on this host: (key, value, what is allowed), before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any

from ..core.errors import Problem
from ..engines import ENGINES, Engine, engine_of
from ..memory.shape import config_problems, shape_problems
from ..platforms import PLATFORMS, Platform, platform_of
from ..spec.keys import OWN_KEYS
from ..spec.vllm_options import OPTION_NAMES

Spec = Mapping[str, Any]


def host_problems(spec: Spec, host: Mapping[str, Any], release: str, weights_come: bool) -> list[Problem]:
    """Return what is wrong with a model before its cards are known."""
    problems: list[Problem] = []
    # A stopped model's port may be somebody else's by now.
    own_ports = {
        str(service.get("port"))
        for service in host.get("services", {}).values()
        if service.get("active") or service.get("holds")
    }
    program = host.get("ports", {}).get(str(spec["port"]))
    if program and str(spec["port"]) not in own_ports:
        problems.append(("port", spec["port"], f"is taken on this host by {program}; end it or choose another port"))
    problems += _address_problems(spec, host)
    if not spec.get("image"):
        allowed = "is required: the serving image, here or as vllm_model_defaults.image"
        problems.append(("image", None, allowed))
    platform = platform_of(host)
    problems += platform.problems(spec) + _engine_problems(spec, engine_of(spec), platform, release)
    missing = _weights_problems(spec, host.get("weights") or {}, weights_come)
    config = model_config(spec, host)
    if missing:
        return problems + missing
    wrong = config_problems(config)
    if wrong:
        # A model cannot be checked against a description that is wrong itself.
        on_host = bool(((host.get("weights") or {}).get(spec["weights"]) or {}).get("config"))
        key, value = ("weights", spec["weights"]) if on_host else ("config", None)
        return [*problems, *((key, value, ("its config.json: " if on_host else "") + text) for text in wrong)]
    return problems + shape_problems(spec, config, even_heads=platform.even_heads)


def _address_problems(spec: Spec, host: Mapping[str, Any]) -> list[Problem]:
    """Return whether a server could not listen where it is told to: its old one would be stopped for nothing.

    Facts that were saved by an older version, or written by hand, have neither addresses nor names: then only the form
    is looked at.
    """
    name, addresses = str(spec.get("host", "127.0.0.1")), host.get("addresses")
    own = f"those of this host are 0.0.0.0, {', '.join(addresses)}" if addresses else "it must be one such as 127.0.0.1"
    if not re.fullmatch(r"[\d.]+|.*:.*", name):
        found = (host.get("names") or {}).get(name)
        if found is None or any(_is_own(address, addresses) for address in found):
            return []
        behind = f"is {', '.join(found)} here" if found else "is no name that this host can resolve"
        return [("host", name, f"{behind}; it must be an address of this host: {own}")]
    try:
        return [] if _is_own(name, addresses) else [("host", name, f"is no address of this host; {own}")]
    except ValueError:
        return [("host", name, f"is no address; {own}")]


def _is_own(text: str, addresses: Sequence[str] | None) -> bool:
    address = ip_address(text)
    if address.is_unspecified or address.is_loopback or not addresses:
        return True
    return address in {ip_address(one) for one in addresses}


def model_config(spec: Spec, host: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a model's config.json as it is on the host, else what the catalog says of it."""
    found = (host.get("weights") or {}).get(spec["weights"]) or {}
    config: Mapping[str, Any] = found.get("config") or spec.get("config") or {}
    return config


def weight_bytes(spec: Spec, host: Mapping[str, Any]) -> int:
    """Return the bytes of a model's weights on the host, else what the catalog says; 0 if neither knows."""
    said = int(spec.get("weight_bytes") or 0)
    here = bytes_here(spec, host)
    # What is not whole yet will be completed from its source.
    return max(here, said) if spec.get("source") else here or said


def bytes_here(spec: Spec, host: Mapping[str, Any]) -> int:
    """Return the bytes of a model's weights on the host; 0 where there are none."""
    found = (host.get("weights") or {}).get(spec["weights"]) or {}
    return int(found.get("bytes") or 0)


def _engine_problems(spec: Spec, engine: Engine, platform: Platform, release: str) -> list[Problem]:
    if platform.name in engine.platforms:
        return engine.problems(spec) + _option_problems(spec, platform, release)
    wanted = PLATFORMS[engine.platforms[0]]
    others = ", ".join(one.name for one in ENGINES.values() if platform.name in one.platforms)
    allowed = f"needs {wanted.devices or f'a {wanted.title} host'}; a {platform.title} host takes {others}"
    return [("launch_profile", engine.name, allowed)]


def _option_problems(spec: Spec, platform: Platform, release: str) -> list[Problem]:
    known = platform.options(release) | OWN_KEYS
    return [
        (key, value, f"is no option of {platform.software(release)}")
        for key, value in spec.items()
        if key in OPTION_NAMES and key not in known
    ]


def _weights_problems(spec: Spec, weights: Mapping[str, Any], come: bool) -> list[Problem]:
    path = spec["weights"]
    # What has a source is brought before it is served, and completed where it is not whole.
    if path not in weights or (spec.get("source") and come):
        return []
    if weights[path] is None:
        bring = "playbooks/weights.yml brings it from its source"
        remedy = bring if spec.get("source") else "put the model there first"
        return [("weights", path, f"holds no readable config.json on this host; {remedy}")]
    if not weights[path]["bytes"]:
        return [("weights", path, "holds no *.safetensors files on this host; is the download complete?")]
    return []


def launch_problems(spec: Spec, model: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with a planned model: its memory, and its warm-up against the budget."""
    problems: list[Problem] = []
    memory = model["memory"]
    if memory and not memory["fits"]:
        problems.append(_memory_problem(spec, memory))
    problems += _weights_alone(spec, model)
    problems += engine_of(spec).late_problems(spec)
    minutes, budget = (model["warmup_s"] or 0) / 60, spec["warmup_budget_minutes"]
    if minutes > budget:
        about = "about " if model["buckets"]["approximate"] else ""
        allowed = (
            f"is below the estimated warm-up of {minutes:.0f} minutes ({about}{model['graphs']} graphs); narrow "
            "input_range, output_range or max_num_seqs, use reduce_warmup, or allow more minutes"
        )
        problems.append(("warmup_budget_minutes", budget, allowed))
    return problems


def _weights_alone(spec: Spec, model: Mapping[str, Any]) -> list[Problem]:
    """Return whether weights of an unknown architecture are by themselves more than the cards hold."""
    share, device = model["weights_gib"], model["device_gib"]
    if model["memory"] or not device or share < device:
        return []
    allowed = f"gives each card {share} GiB of weights, of {device} GiB"
    return [("tensor_parallel_size", spec["tensor_parallel_size"], allowed)]


def _memory_problem(spec: Spec, memory: Mapping[str, Any]) -> Problem:
    ways = " or ".join(
        " with ".join(f"{key} {value}" for key, value in change.items()) for change in memory["suggestions"]
    )
    more = "tensor_parallel_size" in ways and spec.get("module_ids")
    remedy = f"what fits: {ways}{' (and as many module_ids)' if more else ''}"
    remedy = remedy if ways else "nothing that this host has left fits"
    cards = spec["tensor_parallel_size"]
    if memory["kv_cache_gib"] <= 0 or "max_model_len" not in spec:
        allowed = (
            f"gives each card {memory['weights_gib']} GiB of weights, of {memory['device_gib']} GiB; "
            f"{memory['short_by_gib']} GiB a card are missing; {remedy}"
        )
        return "tensor_parallel_size", cards, allowed
    allowed = (
        f"needs more KV cache than the {memory['kv_cache_gib']} GiB a card ({memory['kv_tokens']} tokens) that "
        f"{memory['weights_gib']} GiB of weights leave; {memory['short_by_gib']} GiB a card are missing; {remedy}"
    )
    return "max_model_len", spec["max_model_len"], allowed
