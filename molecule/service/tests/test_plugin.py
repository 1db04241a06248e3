"""The vendor's plugin in place of the fork: on Gaudi3, on Gaudi2, there and back, and what ends it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.buckets.from_file import file_buckets
from runs import beyond_loopback

VARIABLES = yaml.safe_load(
    (Path(__file__).parents[1] / "inventory/host_vars/mol-service.yml").read_text(encoding="utf-8")
)
IMAGE = "gaudi-serve/vllm-standin:1.24.1"
# As few lines as cover all that these limits allow: two lengths of prompts, with and without context, and all decodes.
FILE = "# by hand\n(1, [512, 8192], [0, 64])\n([1, 8], 1, [64, 16384])\n"
PROMPTS = "[(1, 512, 0), (1, 512, 64), (1, 8192, 0), (1, 8192, 64)]"
WITH_FILE = {"bucketing": {"strategy": "file", "file": FILE}}


QUICK = {"STANDIN_STEP_S": "0"}
PLUGIN = {"launch_profile": "plugin", "image": IMAGE, "env": QUICK}


def wishes(first: dict[str, Any], second: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the scenario's models, each with other values."""
    return [{**one, **change} for one, change in zip(VARIABLES["vllm_models"], (first, second), strict=True)]


@pytest.fixture
def cards(host: Any) -> Iterator[Any]:
    """Give what makes the host one of other cards or of another driver; it gets its own ones back."""

    def become(device: str, release: str) -> None:
        host.check_output(f"testhost-init device {device} {release}-57e3f5d")

    yield become
    become("HL-225", "1.21.3")


def log_of(host: Any, model: str) -> str:
    """Return what a model's server has reported."""
    text: str = host.check_output(f"docker logs vllm-{model} 2>&1")
    return text


@pytest.mark.anyhow
def test_a_gaudi3_host_serves_with_the_plugin_until_its_server_dies(
    host: Any, playbook: Any, unit: Any, started: Any, cards: Any, tmp_path: Path
) -> None:
    cards("HL-325L", "1.24.1")
    # The release chooses the engine.
    of_release = {"image": IMAGE, "env": QUICK}
    said = {"accelerator_release": "1.24.1", "vllm_models": wishes(of_release, {**of_release, **WITH_FILE})}
    run = playbook("playbooks/models.yml", **said)
    assert run.status == 0, run.text
    by_rule, by_file = log_of(host, "qwq-32b"), log_of(host, "qwen2.5-7b")
    assert "vLLM API server version 0.26.0" in by_rule
    assert "Free device memory: 96.94 GiB" in by_rule  # of 128, less a half of the weights
    assert "Generated 23 prompt buckets" in by_rule
    assert f"Generated 4 prompt buckets [bs, query, num_blocks]: {PROMPTS}" in by_file
    assert "warmup processing" not in by_rule
    # What the report has asked the models was warmed up.
    assert "was not prepared" not in by_rule + by_file
    assert playbook("playbooks/models.yml", **said).changed_nothing
    status = playbook("playbooks/status.yml", **said).flat
    assert "qwq-32b 0,1 active yes" in status
    assert beyond_loopback(host, "qwq-32b") == beyond_loopback(host, "qwen2.5-7b") == []
    assert "model qw" not in status
    tuned(host, playbook, started, said, tmp_path)
    before = started("qwen2.5-7b")
    said["vllm_models"][0]["env"] = {**QUICK, "QUANT_CONFIG": "/nowhere/inc.json"}
    run = playbook("playbooks/models.yml", **said)
    assert run.status != 0
    assert "model qwq-32b does not serve: it failed 2 times" in run.flat
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/nowhere/inc.json'" in run.flat
    assert (unit("qwen2.5-7b", "ActiveState"), started("qwen2.5-7b")) == ("active", before)


# Clients of a model: eight at a time, with prompts of all lengths.
CLIENTS = """
import concurrent.futures, json, urllib.request

def ask(number):
    body = {"model": "qwq-32b", "prompt": "word " * 7 * number, "max_tokens": 16}
    headers = {"Content-Type": "application/json"}
    address = "http://127.0.0.1:30001/v1/completions"
    urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers), timeout=20).read()

with concurrent.futures.ThreadPoolExecutor(8) as pool:
    list(pool.map(ask, range(1, 151)))
"""


def tuned(host: Any, playbook: Any, started: Any, said: dict[str, Any], folder: Path) -> None:
    """Let clients ask a model, plan its buckets from what its server has had, and serve with them."""

    def tune() -> Any:
        return playbook("playbooks/tune.yml", model="qwq-32b", tune_dir=str(folder), **said)

    few = tune()
    assert few.status != 0
    assert " since they started" in few.flat
    before = started("qwq-32b")
    host.check_output("python3 -c %s", CLIENTS)
    run = tune()
    assert run.status == 0, run.text
    text = (folder / "qwq-32b.buckets").read_text(encoding="utf-8")
    assert (folder / "qwq-32b.svg").read_text(encoding="utf-8").startswith("<svg")
    assert started("qwq-32b") == before
    wish = {**said["vllm_models"][0], "bucketing": {"strategy": "file", "file": text}}
    models = playbook("playbooks/models.yml", **{**said, "vllm_models": [wish, said["vllm_models"][1]]})
    assert models.status == 0, models.text
    host.check_output("python3 -c %s", CLIENTS)
    prompts, decodes = map(len, file_buckets(text))
    assert f"Generated {prompts} prompt buckets" in log_of(host, "qwq-32b")
    assert f"Generated {decodes} decode buckets" in log_of(host, "qwq-32b")
    assert prompts + decodes < 61, "half of the 121 that the default strategy has here"
    assert "was not prepared" not in log_of(host, "qwq-32b")


@pytest.mark.long
@pytest.mark.anyhow
def test_one_model_of_a_gaudi2_host_moves_to_the_plugin_and_back(
    host: Any, playbook: Any, started: Any, cards: Any
) -> None:
    cards("HL-225", "1.22.2")

    def run(*words: str, other: dict[str, Any] | None = None, **first: Any) -> Any:
        models = wishes(first, other or {})
        found = playbook("playbooks/models.yml", *words, accelerator_release="1.22.2", vllm_models=models)
        assert found.status == 0, found.text
        return found

    # From here on the other model names no engine, and keeps its own, which this release has beside its first one.
    fork = {"launch_profile": "aice_1_21"}
    run(**fork, other=fork)
    before = started("qwq-32b"), started("qwen2.5-7b")
    # The plugin of this release has vLLM 0.11.2, which stops at VLLM_BUCKETING_STRATEGY and has other buckets.
    old = {**PLUGIN, "env": {**QUICK, "STANDIN_VLLM": "0.11.2"}}
    announced = run("--check", **old).flat
    assert "~ command: python3 -m vllm.entrypoints.openai.api_server -> vllm serve /data/hf_models/QwQ-32B" in announced
    assert re.search(r"! qwq-32b is down from stage models on for about \d+ min: it restarts", announced)
    assert "~ qwen2.5-7b" not in announced
    assert (started("qwq-32b"), started("qwen2.5-7b")) == before
    run(**old)
    assert "Free device memory: 64.94 GiB" in log_of(host, "qwq-32b")
    assert "Generated 78 prompt buckets" in log_of(host, "qwq-32b")
    assert run(**old).changed_nothing
    run(**old, **WITH_FILE)
    kept = "[(1, 512, 0), (1, 8192, 0)]"  # with their tokens the others are above max_model_len
    assert f"Generated 2 prompt buckets [bs, query, num_blocks]: {kept}" in log_of(host, "qwq-32b")
    back = run(**fork).flat
    assert "~ command: vllm serve /data/hf_models/QwQ-32B -> python3 -m vllm.entrypoints.openai.api_server" in back
    assert "vLLM API server version 0.9.0.1+gaudi1213" in log_of(host, "qwq-32b")
    assert not host.file("/etc/gaudi-serve/qwq-32b.buckets").exists
    assert started("qwen2.5-7b") == before[1]


@pytest.mark.long
def test_a_slow_warm_up_is_reported_while_it_goes_on(playbook: Any, unit: Any, cards: Any) -> None:
    cards("HL-325L", "1.24.1")
    slow = wishes({"image": IMAGE, "env": {"STANDIN_STEP_S": "0.3"}, "recipe_cache_path": None}, {"state": "stopped"})
    said = {"accelerator_release": "1.24.1", "vllm_models": slow}
    warming = "warming up: decode graph "
    playbook("playbooks/models.yml", until=lambda: unit("qwq-32b", "StatusText").startswith(warming), **said)
    assert unit("qwq-32b", "StatusText").startswith(warming)


@pytest.mark.long
@pytest.mark.anyhow
@pytest.mark.parametrize(
    "entries",
    [
        ["deepseek-r1-0528"],
        ["qwen2-72b-instruct", "qwen2.5-vl-7b-instruct", "qwen2-audio-7b-instruct"],
    ],
    ids=lambda entries: entries[0],
)
def test_models_of_the_manual_serve_on_gaudi3(
    host: Any, playbook: Any, unit: Any, cards: Any, entries: list[str]
) -> None:
    cards("HL-325L", "1.24.1")
    shared = {"image": IMAGE, "env": QUICK, "ulimits": []}
    models = [{"name": entry, "model": entry, "port": 31000 + n, **shared} for n, entry in enumerate(entries)]
    run = playbook("playbooks/models.yml", accelerator_release="1.24.1", vllm_models=models, vllm_secrets={})
    assert run.status == 0, run.text
    for entry in entries:
        assert unit(entry, "ActiveState") == "active"
        said = log_of(host, entry)
        assert "vLLM API server version 0.26.0" in said
        assert "was not prepared" not in said
