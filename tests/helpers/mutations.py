"""Valid models, and variants with hostile values."""

from __future__ import annotations

import copy
import datetime
import json
import random
import re
from pathlib import Path
from typing import Any

from gaudi_serve.stages.service import vllm_service_files

ROOT = Path(__file__).parents[2]
SEED = 20
TEMPLATE = (ROOT / "roles/vllm_service/templates/vllm.service.j2").read_text(encoding="utf-8")
HOSTILE: list[Any] = [
    *(None, True, False, 0, -1, 1, 8, 2**31, 2**63, 10**40, 1e308, float("inf"), float("nan"), 0.5, -0.0),
    *("", " ", "no", "08", "0x1f", "1_000", "12:30:45", "~", "null", ".inf", "1e3", "ß", "日本", "\u202eevil", "\x00"),
    *("a\nb", "a\r\nExecStartPre=/bin/false", "$(reboot)", "`id`", "; rm -rf /", "&& true", "| sh", "${HOME}", "%n%h"),
    *("{{ 7 * 7 }}", "{% raw %}", "../../etc/passwd", "/data/../../etc", "-v /:/host", "--privileged", "x,target=/"),
    *("HF_TOKEN=hf_canary", "x" * 10_000, "'", '"', "\\", "/", "//", "/data/a b", "/data/ä", "name=evil"),
    *(
        [],
        {},
        [[]],
        [None],
        [1, 2, 3],
        [2, 1],
        ["x"],
        {"a": {"b": []}},
        {"": ""},
        {1: 2},
        {"a\nb": "c"},
        {"PATH": "x\ny"},
    ),
    *(datetime.date(2026, 11, 20), b"bytes", {"kind": "hub", "repo": "../x"}, {"max_num_seqs": 0}, [{"source": "/"}]),
]
KEYS = [
    *("name", "model", "weights", "image", "state", "launch_profile", "host", "port", "tensor_parallel_size"),
    *("module_ids", "input_range", "output_range", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "dtype"),
    *("recipe_cache_path", "reduce_warmup", "skip_warmup", "env", "mounts", "ulimits", "smoke", "config", "source"),
    *("weight_bytes", "warmup_budget_minutes", "start_timeout_s", "served_model_name", "seed", "tool_call_parser"),
    *("hang_timeout_s", "cap_add", "read_only"),
    *("chat_template", "limit_mm_per_prompt", "gpu_memory_utilization", "block_size", "api_key", "no such key", "é"),
]


def wishes() -> list[dict[str, Any]]:
    """Return three valid models."""
    lengths = {"input_range": [800, 4096], "output_range": [800, 2048], "max_model_len": 8192}
    own = {"weights": "/data/QwQ-32B", "image": "vllm:1", "max_num_batched_tokens": 8192, **lengths}
    return [
        {"name": "qwq", "port": 30001, "tensor_parallel_size": 2, **own},
        {"name": "small", "model": "qwen2.5-7b-instruct", "image": "vllm:1", "port": 30002, "env": {"A": "1"}},
        {"name": "plain", "launch_profile": "vllm", "port": 30003, "weights": "/data/QwQ-32B", "image": "vllm:1"},
    ]


def mutated(chance: random.Random) -> Any:
    """Return the models above with one to three mutations."""
    models: Any = copy.deepcopy(wishes())
    for _ in range(chance.randint(1, 3)):
        kind = chance.random()
        target = chance.choice(models) if models else {}
        if kind < 0.03:
            return chance.choice(HOSTILE)
        if kind < 0.08:
            models[chance.randrange(len(models))] = chance.choice(HOSTILE)
        elif not isinstance(target, dict):
            continue
        elif kind < 0.15 and target:
            del target[chance.choice(sorted(target, key=str))]
        elif kind < 0.25:
            target["env"] = {chance.choice(["A", "B C", "X\nY", "VLLM_PROMPT_BS_BUCKET_MAX"]): chance.choice(HOSTILE)}
        elif kind < 0.3:
            target[chance.choice(["input_range", "module_ids"])] = [chance.choice(HOSTILE), chance.choice(HOSTILE)]
        else:
            target[chance.choice(KEYS)] = copy.deepcopy(chance.choice(HOSTILE))
    return models


def nothing_injected(models: list[dict[str, Any]]) -> None:
    """Read the files of a plan as systemd, the engine and the supervisor do, and assert that nothing was injected."""
    lines = TEMPLATE.count("\n")
    for path, file in vllm_service_files(models, TEMPLATE).items():
        text = file["content"]
        assert text.isprintable() or all(line.isprintable() for line in text.split("\n")), path
        if path.endswith(".service"):
            assert text.count("\n") == lines
            assert re.fullmatch(r"/etc/systemd/system/vllm-[a-z0-9._-]+\.service", path)
            settings = [line for line in text.splitlines() if not line.startswith("#")]
            assert not re.search(r"[$%`\\\"';|&<>]", "".join(settings)), settings
        elif path.endswith(".env"):
            assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*=[^\r\n]*", line) for line in text.splitlines())
        else:
            assert all(isinstance(word, str) for word in json.loads(text)["command"])
