"""The rules for the keys of a model, with one message per problem."""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import date
from typing import Any

from ..buckets.plugin_input import DIMENSIONS, PARTS
from ..buckets.plugin_input import STRATEGIES as PLUGIN_STRATEGIES
from ..core.checks import Wrong, is_flag, matching, must, one_of, whole, within
from ..core.errors import PLAIN_WORD, InputError, Problem, has_login, is_number, near, seen, shown
from ..core.images import IS_NAME, NAMED
from ..core.tiers import OF_A_HOST
from ..engines import ENGINES
from ..model.adapters import ADAPTERS, MODULES
from ..model.config_json import sound
from ..model.distributed import PORT, PORTS, part_problem
from ..model.objectives import read_objectives
from ..model.shared import OWN, SHARED, TAKEN, key_of, of_server, shared_problem, with_name
from ..model.vllm_options import AUTO_LENGTHS, OPTION_NAMES
from ..platforms import card_variables
from .source import adapter_source_problem, source_problem

NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
SECRET = re.compile(r"(API_KEY|TOKEN|PASSWORD|SECRET)$", re.IGNORECASE)
# Unknown keys with these names are refused without their value.
SECRET_KEY = re.compile(r"(api[_-]?key|token|passw(or)?d|passphrase|secret|credential)s?$", re.IGNORECASE)
# Options of vLLM whose value would be visible in a process list, and the variable to use instead.
SECRET_OPTIONS = {"api_key": "VLLM_API_KEY", "hf_token": "HF_TOKEN"}
TLS = "makes the server use TLS, and the supervisor probes it with plain HTTP; leave it out: a gateway provides TLS"
# Options with which a server has no HTTP endpoint at its host and port, so it cannot be probed.
NO_ENDPOINT = {
    "headless": "removes the HTTP server; write the model in vllm_distributed_models, which sets it on workers",
    "uds": "listens on a file instead of host and port, and there the server cannot be probed; leave it out",
    "ssl_certfile": TLS,
    "ssl_keyfile": TLS,
}
# Names of the toolkit's own files and folders, next to those of the models.
RESERVED = (
    *("docker-proxy", "found", "gateway", "images", "images-build", "metrics", "qualification", "rollout"),
    "weights",
)
BUCKET = re.compile(f"VLLM_({'|'.join(DIMENSIONS)})_BUCKET_({'|'.join(PARTS)})")
SHARES = ("VLLM_GPU_MEMORY_UTILIZATION", "VLLM_GRAPH_RESERVED_MEM", "VLLM_GRAPH_PROMPT_RATIO")
# The plugin's buckets are described in docs/guides/buckets.md.
STRATEGIES = (*PLUGIN_STRATEGIES, "file")
# PROMPT_SEQ is an old name that only environments use.
BUCKET_RANGES = tuple(name.lower() for name in DIMENSIONS if name != "PROMPT_SEQ")
BUCKET_PARTS = tuple(map(str.lower, PARTS))
BUCKETING = ("strategy", "file", *BUCKET_RANGES)
REDUCE = ("max_num_seqs", "max_seq_len")
MOUNT = ("source", "target", "read_only")
ADAPTER = ("name", "folder", "source")
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][\w./:@+-]{0,126}", re.ASCII)
LARGEST_FILE = 1_000_000  # characters
# The kinds of smoke requests (vllm_smoke).
SMOKE_KINDS = ("text", "any", "image", "audio", "video", "tools", "embedding", "rerank")


def _whole(low: int, high: int, unit: str = "") -> Wrong:
    return must(whole(low, high), f"must be an integer from {low} to {high}{unit and ' ' + unit}")


def _number(low: float, high: float, unit: str = "") -> Wrong:
    return must(within(low, high), f"must be a number from {low:g} to {high:g}{unit and ' ' + unit}")


def _choice(*allowed: str) -> Wrong:
    return must(one_of(*allowed), "must be one of " + ", ".join(allowed))


def _length(value: Any) -> str | None:
    return None if value in AUTO_LENGTHS else _whole(1, 10_000_000, "tokens")(value)


FLAG = "must be true or false, without quotes"


def _span(value: Any) -> str | None:
    number = _whole(1, 10_000_000)
    fits = isinstance(value, list) and len(value) == 2 and not any(number(item) for item in value)
    return None if fits and value[0] <= value[1] else "must be two integers [minimum, maximum] of tokens"


def _line(value: Any) -> str | None:
    fits = isinstance(value, str) and value.strip() == value and value and value.isprintable()
    return None if fits else "must be a text of one line, without blanks around it"


def _path(value: Any) -> str | None:
    fits = isinstance(value, str) and re.fullmatch(r"/[\w./@+-]+", value) and ".." not in value.split("/")
    return None if fits else "must be an absolute path of letters, digits and . _ - / @ +"


def _name(value: Any) -> str | None:
    if value in RESERVED:
        return f"must be another name: {', '.join(RESERVED)} are the toolkit's own"
    fits = isinstance(value, str) and NAME.fullmatch(value)
    allowed = "must be 1 to 63 lowercase letters, digits, dots, dashes and underscores, a letter or digit first"
    return None if fits else allowed


def _modules(value: Any) -> str | None:
    number = _whole(0, 63)
    fits = isinstance(value, list) and value and not any(number(item) for item in value)
    allowed = "must be a list of different integers from 0 to 63, such as [0, 1]"
    return None if fits and len(set(value)) == len(value) else allowed


def _reduce(value: Any) -> str | None:
    number = _whole(1, 10_000_000)
    fits = isinstance(value, Mapping) and set(value) == {*REDUCE} and not any(number(item) for item in value.values())
    return None if fits else "must be a mapping of max_num_seqs and max_seq_len, both integers from 1"


def _bucketing(value: Any) -> str | None:
    """Return the problem with a user's buckets for the plugin. The plan checks whether a server starts with them."""
    if not isinstance(value, Mapping):
        return f"must be a mapping of {', '.join(BUCKETING)}"
    for key, said in value.items():
        if key == "strategy":
            allowed = None if said in STRATEGIES else f"must have a strategy of {', '.join(STRATEGIES)}"
        elif key == "file":
            text = isinstance(said, str) and said.strip() and len(said) <= LARGEST_FILE
            allowed = None if text else "must have the text of a bucket file as file: \"{{ lookup('file', 'NAME') }}\""
        elif key in BUCKET_RANGES:
            allowed = _bucket_range(key, said)
        else:
            allowed = f"has {shown(key)}, which is not one of {', '.join(BUCKETING)}"
        if allowed:
            return allowed
    if ("file" in value) != (value.get("strategy") == "file"):
        return "must have file if strategy is file, and only then"
    return None


def _bucket_range(key: str, said: Any) -> str | None:
    number = _whole(0, 10_000_000)
    fits = isinstance(said, Mapping) and set(said) <= set(BUCKET_PARTS) and not any(map(number, said.values()))
    return None if fits else f"must have integers from 0 for {', '.join(BUCKET_PARTS)} in {key}"


def _environment(value: Any) -> str | None:
    if not isinstance(value, Mapping):
        return "must be a mapping of variables"
    return "; ".join(allowed for item in value.items() if (allowed := _variable(*item))) or None


def _variable(name: Any, content: Any) -> str | None:
    if not isinstance(name, str) or not VARIABLE.fullmatch(name):
        return f"must have names of letters, digits and underscores, but has {name!r}"
    if SECRET.search(name):
        return f"must have no secrets: {name} belongs in vllm_secrets, which other users cannot read"
    if isinstance(content, str) and has_login(content):
        return f"must have no secrets: {name} has an address with a user or password, and belongs in vllm_secrets"
    if not isinstance(content, (str, int, float)) or isinstance(content, bool):
        return f"must have quoted texts or numbers, but the value of {name} is neither (quote true, false, yes, no)"
    if not str(content).isprintable():
        return f"must have values of one line, but that of {name} has several"
    allowed = _counted(name, str(content))
    return f"must not set {name} to {str(content)[:40]!r}: {allowed}" if allowed else None


def _counted(name: str, text: str) -> str | None:
    """Return the problem with the value of a variable that the plan itself uses."""
    if name in card_variables():
        return "the plan chooses the cards; set module_ids"
    if BUCKET.fullmatch(name):
        least = 1 if name.endswith("STEP") else 0
        fits = re.fullmatch(r"[0-9]{1,9}", text) and int(text) >= least
        return None if fits else f"it must be an integer from {least}"
    if name in SHARES:
        fits = re.fullmatch(r"[0-9]*\.?[0-9]+", text) and float(text) <= 1
        return None if fits else "it must be a number from 0 to 1"
    return None


def _arguments(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(item, str) and item and item.isprintable() for item in value):
        return "must be a list of arguments of vLLM's server, each a text, such as [--seed, '7']"
    for item in value:
        name = item.removeprefix("--").partition("=")[0].replace("-", "_")
        if item.startswith("--") and name in SECRET_OPTIONS:
            return f"must have no secrets: {name} belongs in vllm_secrets as {SECRET_OPTIONS[name]}"
    return None


def _doubled(names: Sequence[str], key: str, kind: str) -> str | None:
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return f"has two {key} with the {kind} {', '.join(twice)}; leave one of them out" if twice else None


# The limits of getrlimit(2) that Docker knows.
ULIMITS = (
    *("core", "cpu", "data", "fsize", "locks", "memlock", "msgqueue", "nice", "nofile", "nproc", "rss", "rtprio"),
    *("rttime", "sigpending", "stack"),
)
MOST_LIMIT = 2**63 - 1


def _ulimits(value: Any) -> str | None:
    number = r"(-1|[0-9]{1,20})"
    items = value if isinstance(value, list) else [None]
    for item in items:
        fits = isinstance(item, str) and re.fullmatch(rf"([a-z]+)={number}(?::{number})?", item)
        if not fits:
            return "must be a list of Docker's ulimits, such as memlock=-1:-1"
        name, soft, hard = fits.groups()
        if name not in ULIMITS:
            return f"has {name}, which is none of Docker's ulimits: {', '.join(ULIMITS)}"
        if max(int(soft), int(hard or 0)) > MOST_LIMIT:
            return f"has {item}: Docker takes at most {MOST_LIMIT}; -1 sets no limit"
        if hard not in (None, "-1") and (soft == "-1" or int(soft) > int(hard)):
            return f"has {item}: the soft limit, before the colon, is above the hard one"
    return _doubled([str(item).partition("=")[0] for item in items], "ulimits", "limit")


def _capabilities(value: Any) -> str | None:
    good = isinstance(value, list) and all(
        isinstance(item, str) and re.fullmatch("[A-Z][A-Z_]+", item) and item != "ALL" and not item.startswith("CAP_")
        for item in value
    )
    return None if good else "must be a list of capabilities without CAP_, such as [IPC_LOCK]; ALL is not allowed"


def _smoke(value: Any) -> str | None:
    good = isinstance(value, list) and value and all(kind in SMOKE_KINDS for kind in value)
    return None if good else "must be a list of " + ", ".join(SMOKE_KINDS)


def _config(value: Any) -> str | None:
    fits = isinstance(value, Mapping) and sound(value)
    return None if fits else "must be a mapping with keys of the model's config.json, and numbers below 10^15"


def _mounts(value: Any) -> str | None:
    good = isinstance(value, list) and all(
        isinstance(item, Mapping)
        and {"source", "target"} <= set(item) <= {*MOUNT}
        and not _path(item["source"])
        and not _path(item["target"])
        and isinstance(item.get("read_only", True), bool)
        for item in value
    )
    if good:
        return _doubled([posixpath.normpath(item["target"]) for item in value], "mounts", "target")
    whole = (
        [mount for mount in value if isinstance(mount, Mapping) and "/" in mount.values()]
        if isinstance(value, list)
        else []
    )
    if whole:
        return "mounts /: mount folders below it; the root of a container is that of its image"
    return "must be a list of {source: /path, target: /path, read_only: true}"


def _adapters(value: Any) -> str | None:
    entries: list[Any] = value if isinstance(value, list) and value else [None]
    for item in entries:
        if not isinstance(item, Mapping) or not {"name", "folder"} <= set(item) <= {*ADAPTER}:
            return "must be a list of {name: sql, folder: /data/adapters/sql, source: {...}}; source may be left out"
        if not isinstance(item["name"], str) or not ADAPTER_NAME.fullmatch(item["name"]):
            return "must have names of letters, digits and ./:@+_-, a letter or digit first"
        if (told := _path(item["folder"])) or item["folder"].strip("/") in ("", "."):
            return f"must have a folder for {item['name']}, which {told or 'must not be the root'}"
        if item.get("source") is not None and (told := adapter_source_problem(item["source"])):
            return f"must have a source for {item['name']} {told}"
    folders = [posixpath.normpath(item["folder"]) for item in entries]
    return _doubled([item["name"] for item in entries], ADAPTERS, "name") or _doubled(folders, ADAPTERS, "folder")


VLLM_VERSION, IS_VERSION = r"\d{1,4}\.\d{1,4}\.\d{1,4}", "must be a quoted version of vLLM, such as '0.26.0'"


def _objectives(value: Any) -> str | None:
    try:
        read_objectives("", value)
    except InputError as problem:
        return str(problem)
    return None


def _engine(value: Any) -> str | None:
    return _choice(*ENGINES)(value)


SWITCHES = ("recipe_cache_exact", "skip_warmup", "profile", "zero_padding", "fused_sdpa", "read_only")
CHECKS: dict[str, Wrong] = {
    **dict.fromkeys(SWITCHES, must(is_flag, FLAG)),
    "name": _name,
    "model": _line,
    "weights": _path,
    "launch_profile": _engine,
    "image": must(IS_NAME, NAMED),
    "state": _choice("started", "stopped"),
    "host": must(matching(r"[\w.:-]+"), "must be an address or a name, such as 127.0.0.1"),
    "port": _whole(1, 65535),
    "dtype": _choice("auto", "bfloat16", "float16", "float32", "fp8", "awq", "gptq"),
    "tensor_parallel_size": _whole(1, 64, "cards"),
    "module_ids": _modules,
    "input_range": _span,
    "output_range": _span,
    "max_num_batched_tokens": _whole(1, 10_000_000, "tokens"),
    "max_model_len": _length,
    "max_num_seqs": _whole(1, 65536, "sequences"),
    "num_scheduler_steps": _whole(1, 1024),
    "reduce_warmup": _reduce,
    "recipe_cache_path": _path,
    "max_padding_ratio": _number(0, 0.5),
    "quant_config": _path,
    "extra_args": _arguments,
    "served_model_name": _line,
    "smoke": _smoke,
    "ulimits": _ulimits,
    "cap_add": _capabilities,
    "env": _environment,
    "bucketing": _bucketing,
    "mounts": _mounts,
    ADAPTERS: _adapters,
    "start_timeout_s": _whole(1, 604800, "seconds"),
    "hang_timeout_s": _whole(0, 604800, "seconds"),
    "warmup_budget_minutes": _whole(1, 100_000, "minutes"),
    "slo": _objectives,
    "min_available": _whole(0, 10_000, "servers"),
    "config": _config,
    "hosts": part_problem,
    PORT: _whole(1024, 65536 - PORTS),
    "member_timeout_s": _whole(5, 3600, "seconds"),
    "distributed_experimental": must(is_flag, FLAG),
    "source": source_problem,
    SHARED: shared_problem,
    "weight_bytes": _whole(10**6, 10**14, "bytes"),
    "least_vllm": must(matching(VLLM_VERSION), IS_VERSION),
    "vllm_version": must(matching(VLLM_VERSION), IS_VERSION),
}
OWN_KEYS = frozenset(CHECKS)
# Options of vLLM that the plan uses, or that users often get wrong. The server checks all others.
OPTION_CHECKS: dict[str, Wrong] = {
    "gpu_memory_utilization": _number(0.01, 1),
    "cpu_offload_gb": _number(0, 100_000, "GB"),
    "swap_space": _number(0, 100_000, "GB"),
    "seed": _whole(0, 2**63),
    "block_size": _whole(1, 1024, "tokens"),
    "max_num_prefill_seqs": _whole(1, 65536, "sequences"),
    "kv_cache_memory_bytes": _whole(1, 10**14, "bytes"),
    "num_gpu_blocks_override": _whole(1, 1_000_000_000, "blocks"),
    "pipeline_parallel_size": _whole(1, 64),
    "data_parallel_size": _whole(1, 64),
    "kv_cache_dtype": must(
        matching(r"auto|bfloat16|float16|fp8\w*"), "must be auto, bfloat16, float16, or a kind of fp8"
    ),
    "quantization": must(matching(r"[a-z][a-z0-9_-]*"), "must be the name of a quantization of vLLM, such as inc"),
}
REQUIRED = ("name", "weights")


def date_problem(value: Any) -> str | None:
    """Return the remedy for a value that YAML read as a date, or None."""
    return "is a date in YAML; quote it to make it a text" if isinstance(value, date) else None


def findings(spec: Any) -> list[Problem]:
    """Return the problems with one model by itself, as (key, value, what is allowed)."""
    if not isinstance(spec, Mapping):
        return [
            (
                "vllm_models",
                spec,
                "must be a list of mappings, one a model, such as {name: qwq-32b, weights: /data/QwQ-32B}",
            )
        ]
    found: list[Problem] = [
        (key, None, f"is required; {CHECKS[key](None)}") for key in REQUIRED if spec.get(key) is None
    ]
    for key, value in spec.items():
        if key in OWN_KEYS:
            allowed = date_problem(value) or (CHECKS[key](value) if value is not None else None)
            if allowed and not any(key == other for other, _, _ in found):
                found.append((key, _shown(key, value), allowed))
            if key == SHARED and not allowed:
                found += _members(value or [])
        elif key in SECRET_OPTIONS:
            found.append((key, "(hidden)", f"not here: a secret belongs in vllm_secrets as {SECRET_OPTIONS[key]}"))
        elif key in NO_ENDPOINT:
            if value not in (None, False):
                found.append((key, value, NO_ENDPOINT[key]))
        elif key in OPTION_NAMES:
            if allowed := _option(key, value):
                found.append((key, value, allowed))
        else:
            found.append(_unknown(key, value))
    return found + (_beside_adapters(spec) if spec.get(ADAPTERS) else [])


def _beside_adapters(spec: Mapping[str, Any]) -> list[Problem]:
    """Return the problems with options of vLLM that the key ``adapters`` sets."""
    found: list[Problem] = []
    if spec.get("enable_lora") is False:
        found.append(("enable_lora", False, "contradicts adapters, which needs it; leave it out"))
    if spec.get(MODULES) is not None:
        found.append((MODULES, spec[MODULES], "is set by adapters; write each of them there, with its folder"))
    return found


def _unknown(key: Any, value: Any) -> Problem:
    """Return the problem with a key that no model has."""
    if key == "accelerator" or str(key).startswith(OF_A_HOST):
        # Some of these variables have secrets.
        return str(key), None, "is a variable of a host, not a key of a model; put it beside vllm_models"
    hint = near(key, OWN_KEYS | OPTION_NAMES)
    hidden = SECRET_KEY.search(str(key)) and not is_number(value, -math.inf, math.inf)
    allowed = f"is neither a key of this toolkit nor an option of vLLM{hint}"
    return str(key), seen(value) if hidden else value, allowed


def _shown(key: str, value: Any) -> Any:
    """Return a refused value for a message. Some keys are hidden because they may contain a secret."""
    if key not in ("env", "source", "extra_args", ADAPTERS, SHARED) or is_number(value, -math.inf, math.inf):
        return value
    return seen(value, PLAIN_WORD)


def _members(models: Sequence[Mapping[str, Any]]) -> Iterator[Problem]:
    """Yield the problems with the models that share the card of an entry."""
    for place, model in enumerate(models, start=1):
        known = OWN_KEYS | OPTION_NAMES
        server = [key for key in model if key in known and key not in (*OWN, *TAKEN, *SECRET_OPTIONS)]
        yield from ((key_of(place, key), _shown(key, model[key]), of_server(key)) for key in server)
        own = with_name({key: value for key, value in model.items() if key not in server})
        yield from ((key_of(place, key), value, allowed) for key, value, allowed in findings(own))


def _option(key: str, value: Any) -> str | None:
    """Return the problem with the value of a vLLM option that the toolkit passes to the server."""
    if key in OPTION_CHECKS:
        return None if value is None else OPTION_CHECKS[key](value)
    flag = key.startswith(("enable_", "disable_")) and key != "disable_access_log_for_endpoints"
    if flag and not isinstance(value, bool) and value is not None:
        return FLAG
    if isinstance(value, str):
        if value.lower() in ("true", "false", "yes", "no"):
            return FLAG
        return None if value.isprintable() else "must be a text of one line"
    try:
        json.dumps(value, allow_nan=False, sort_keys=True)  # As it will be written. Keys of two types cannot be sorted.
    except (TypeError, ValueError, RecursionError):
        return "must be texts, numbers, true or false, and lists and mappings of them (quote dates)"
    return None
