"""Every model of the manual: its entry becomes a unit on the simulated host, starts, and answers by its kind."""

from __future__ import annotations

import json
from typing import Any

import pytest

# What fits on eight cards together, in turns. In make test: all kinds of input.
TURNS = [
    ["qwen2-vl-7b-instruct", "qwen2-audio-7b-instruct", "qwen2.5-vl-7b-instruct", "qwen2.5-omni-7b"],
]
TURNS_LONG = [
    ["deepseek-r1-0528"],
    ["qwen2-72b-instruct", "deepseek-r1-distill-llama-70b"],
    ["qwq-32b", "qwen3-8b", "deepseek-r1-distill-qwen-32b", "deepseek-r1-distill-llama-8b", "qwen2.5-7b-instruct"],
    ["qwq-32b-reduced-warmup"],
    ["deepseek-r1"],
    ["qwen3-coder-480b-a35b-instruct-fp8"],
]
# What those are asked about that see and hear; all others about text alone.
KINDS = {
    "qwen2-vl-7b-instruct": ["text", "image", "video"],
    "qwen2-audio-7b-instruct": ["text", "audio"],
    "qwen2.5-vl-7b-instruct": ["text", "image", "video"],
    "qwen2.5-omni-7b": ["text", "image", "video", "audio"],
}


def wishes(entries: list[str]) -> list[dict[str, Any]]:
    """Return models that take the entries, on ports of their own."""
    # No steps of the warm-up are slept through; raising memlock is not allowed where the test hosts run.
    shared = {"env": {"STANDIN_STEP_S": "0"}, "ulimits": []}
    return [{"name": entry, "model": entry, "port": 31000 + n, **shared} for n, entry in enumerate(entries)]


@pytest.mark.anyhow
@pytest.mark.parametrize(
    "entries",
    [*TURNS, *(pytest.param(entries, marks=pytest.mark.long) for entries in TURNS_LONG)],
    ids=lambda entries: entries[0],
)
def test_models_of_the_manual_start_and_answer(host: Any, playbook: Any, unit: Any, entries: list[str]) -> None:
    run = playbook("playbooks/models.yml", vllm_models=wishes(entries), vllm_secrets={})
    assert run.status == 0, run.text
    for entry in entries:
        assert unit(entry, "ActiveState") == "active"
        passed = json.loads(host.file(f"/var/lib/gaudi-serve/{entry}/smoke.json").content_string)
        launch = json.loads(host.file(f"/etc/gaudi-serve/{entry}.json").content_string)
        assert "France - Paris" in passed["text"]
        assert passed["kinds"] == KINDS.get(entry, ["text"])
        assert len(launch["module_ids"]) in (1, 2, 4, 8)
    taken = [
        module
        for entry in entries
        for module in json.loads(host.file(f"/etc/gaudi-serve/{entry}.json").content_string)["module_ids"]
    ]
    assert len(set(taken)) == len(taken)


@pytest.mark.long
@pytest.mark.anyhow
def test_a_garbled_answer_is_no_success(playbook: Any) -> None:
    wish = wishes(["qwen2.5-7b-instruct"])
    wish[0]["env"]["STANDIN_FAULT"] = "garbled_answer"
    run = playbook("playbooks/models.yml", vllm_models=wish, vllm_secrets={})
    assert run.status != 0
    assert "the answer names no country with its capital" in run.flat
