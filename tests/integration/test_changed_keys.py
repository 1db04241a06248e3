"""Every key of a serving model, changed alone, on every engine: planned, announced, carried out, and in the launch."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import pytest
from gaudi_serve.catalog.keys import CHECKS
from gaudi_serve.engines import ENGINES
from gaudi_serve.model.vllm_options import OPTION_NAMES
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.stages import service
from helpers.plans import live_of
from helpers.services import SUPERVISOR, TEMPLATE, live
from helpers.serving_models import SERVING, planned

# What a user may write in place of what is there, of the keys that the toolkit knows. All other options take a text.
CHANGED: dict[str, Any] = {
    "weights": "/data/other",
    "image": "vllm:2",
    "host": "127.0.0.2",
    "port": 30099,
    "dtype": "auto",
    "tensor_parallel_size": 4,
    "module_ids": [4, 5],
    "input_range": [900, 1024],
    "output_range": [100, 600],
    "max_num_batched_tokens": 24576,
    "max_model_len": 4096,
    "max_num_seqs": 8,
    "num_scheduler_steps": 4,
    "reduce_warmup": {"max_num_seqs": 4, "max_seq_len": 1024},
    "recipe_cache_path": "/data/elsewhere",
    "skip_warmup": True,
    "profile": True,
    "max_padding_ratio": 0.5,
    "quant_config": "/data/inc.json",
    "extra_args": ["--seed", "4"],
    "zero_padding": False,
    "fused_sdpa": False,
    "served_model_name": "another",
    "ulimits": ["nofile=1024"],
    "cap_add": ["IPC_LOCK", "SYS_TIME"],
    "read_only": False,
    "env": {"B": "2"},
    "bucketing": {"strategy": "lin"},
    "mounts": [{"source": "/data/more", "target": "/more"}],
    "gpu_memory_utilization": 0.7,
    "shares_card_with": [{"name": "bge", "weights": "/data/elsewhere", "task": "score"}],
    "swap_space": 3,
    "cpu_offload_gb": 3,
    "seed": 4,
    "num_gpu_blocks_override": 4000,
    "max_num_prefill_seqs": 4,
    "kv_cache_dtype": "auto",
    "enable_prefix_caching": True,
    "enable_auto_tool_choice": False,
    "speculative_config": {"method": "ngram", "num_speculative_tokens": 2},
    "quantization": "fp8",
}
# What decides how a server is planned, watched and asked, and is not part of its launch.
BESIDE = {
    *("name", "model", "launch_profile", "state", "smoke", "min_available", "slo", "start_timeout_s", "hang_timeout_s"),
    *("warmup_budget_minutes", "config", "weight_bytes", "source", "least_vllm", "recipe_cache_exact"),
}
LAUNCH = ("args", "env", "numactl", "mounts", "image", "cap_add", "ulimits", "read_only", "module_ids")
KEYS = sorted((set(CHECKS) | OPTION_NAMES) - BESIDE)
# So many keys of an engine must be looked at: what is refused, or has no effect there, is none.
AT_LEAST = {"aice_1_21": 100, "aice_1_22": 15, "aice_1_22_shared": 60, "deepseek_r1": 100, "plugin": 150, "vllm": 150}


def value_of(key: str) -> Any:
    """Return another value of a key."""
    return CHANGED.get(key, True if key.startswith(("enable_", "disable_")) else "7")


@pytest.mark.parametrize("engine", ENGINES)
def test_every_key_changed_alone_is_carried_out(engine: str) -> None:
    requested = SERVING[engine][2]
    first = planned(engine, requested)
    assert first["errors"] == []
    (before,) = first["models"]
    services = live_of(first)
    units = live([before])["units"]
    units[before["name"]]["container"]["command"] = service.vllm_container(before)["command"]
    state = {"units": units, "supervisor_sha256": live([before])["supervisor_sha256"]}
    looked_at = 0
    for key in KEYS:
        after_plan = planned(engine, {**requested, key: value_of(key)}, services=services)
        if after_plan["errors"]:
            continue
        (after,) = after_plan["models"]
        files = service.vllm_service_files([after], TEMPLATE)
        left = service.vllm_service_changes([after], state, files, SUPERVISOR)
        lines = vllm_plan_changes([after], services)
        if all(after[part] == before[part] for part in LAUNCH):
            # Nothing of it reaches the server, and the plan reports it; or the launch or vLLM has this value anyway.
            anew = planned(engine, {**requested, key: value_of(key)})["models"][0]["args"]
            repeated = after["args"] != anew and re.search(rf"--(no-)?{key.replace('_', '-')} ", " ".join(anew))
            assert repeated or any(key in warning for warning in after["warnings"]), key
            assert (lines, left["restart"]) == ([], []), key
            continue
        # Of what an engine ignores, a folder alone is mounted.
        assert key not in ENGINES[engine].ignored or key == "recipe_cache_path", key
        looked_at += 1
        name = before["name"]
        assert left["restart"] == [name], key
        assert re.fullmatch(rf"~ {name}( \(with \w+\))?: restart", lines[0]), key
        assert len(lines) > 1, key
        launch = json.loads(files[f"/etc/gaudi-serve/{name}.json"]["content"])
        for option in ("host", "port"):
            (told,) = [now for word, now in itertools.pairwise(launch["command"]) if word == f"--{option}"]
            assert told == str(launch[option]) == str(after[option]), key
        # Carried out, it is what runs; the run after it has nothing to do.
        again = planned(engine, {**requested, key: value_of(key)}, services=live_of(after_plan))["models"]
        assert vllm_plan_changes(again, live_of(after_plan)) == [], key
    assert looked_at >= AT_LEAST[engine]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_launch_in_another_order_restarts_nothing(engine: str) -> None:
    requested = SERVING[engine][2]
    first = planned(engine, requested)
    backwards = dict(reversed(requested.items()))
    (after,) = planned(engine, backwards, services=live_of(first))["models"]
    assert after["args"] == first["models"][0]["args"]
    assert vllm_plan_changes([after], live_of(first)) == []


def test_an_objective_restarts_nothing() -> None:
    before, after = (planned("vllm", {**SERVING["vllm"][2], **slo}) for slo in ({}, {"slo": {"ttft_s": 2.5}}))
    assert after["models"][0]["slo"] == {"ttft_s": 2.5} and before["models"][0]["slo"] is None
    assert after["models"][0]["digest"] == before["models"][0]["digest"]
