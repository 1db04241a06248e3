"""The serving image of upstream vLLM and the plugin: its options, buckets, log lines, deaths and metrics."""

from __future__ import annotations

import gzip
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
SERVING = ROOT / "molecule/shared/standins/serving"
VECTORS = ROOT / "tests/unit/golden/buckets_plugin.jsonl.gz"
SMALL = {"num_attention_heads": 40, "num_key_value_heads": 8, "hidden_size": 5120, "num_hidden_layers": 4}
LIMITS = ["--max-model-len", "2048", "--max-num-seqs", "4", "--max-num-batched-tokens", "512"]
CONTIGUOUS = {"VLLM_CONTIGUOUS_PA": "true"}


class Upstream:
    """An image with upstream's vLLM, on a simulated host with one model."""

    def __init__(self, host: Any) -> None:
        self.host, self.weights = host, host.root / "weights"
        self.weights.mkdir()
        config = {**SMALL, "max_position_embeddings": 40960, "vocab_size": 1000, "intermediate_size": 1000}
        (self.weights / "config.json").write_text(json.dumps(config), encoding="ascii")
        (self.weights / "model.safetensors").touch()

    def environment(self, **env: str) -> dict[str, str]:
        """Return the environment of the image, with what its making copies into it."""
        found: dict[str, str] = self.host.environment(STANDIN_STACK="plugin", STANDIN_STEP_S="0", **env)
        return {**found, "PYTHONPATH": f"{found['PYTHONPATH']}:{ROOT / 'lib'}"}

    def argv(self, *words: str) -> list[str]:
        """Return a command of the server."""
        program = [sys.executable, str(SERVING / "bin/vllm"), "serve", str(self.weights)]
        return [*program, "--host", "127.0.0.1", "--port", "0", *words]

    def refused(self, *words: str, **env: str) -> tuple[int, str]:
        """Start a server that must not come up; return its status and all it says."""
        argv = self.argv(*words)
        done = subprocess.run(
            argv, stdout=-1, stderr=-2, text=True, env=self.environment(**env), timeout=30, check=False
        )
        return done.returncode, done.stdout

    def served(self, *words: str, ask: tuple[str, ...] = (), **env: str) -> tuple[str, str]:
        """Start a server, ask it, end it; return its log and its metrics."""
        argv, environment = self.argv(*words), self.environment(**env)
        lines: list[str] = []
        with subprocess.Popen(argv, stdout=-1, stderr=-2, env=environment) as process:
            for content in process.stdout or ():
                line = content.decode()  # with its carriage returns
                lines.append(line)
                if found := re.search(r"Uvicorn running on (\S+)", line):
                    for prompt in ask:
                        body = json.dumps({"prompt": prompt, "max_tokens": 8}).encode()
                        request = urllib.request.Request(f"{found[1]}/v1/completions", body)  # noqa: S310
                        urllib.request.urlopen(request, timeout=10).close()  # noqa: S310
                    with urllib.request.urlopen(f"{found[1]}/metrics", timeout=10) as answer:  # noqa: S310
                        metrics = answer.read().decode()
                    process.send_signal(signal.SIGTERM)
        assert process.returncode == 0, "".join(lines)
        return "".join(lines), metrics


@pytest.fixture
def upstream(host: Any) -> Upstream:
    """Give it."""
    return Upstream(host)


def test_what_the_fork_alone_knows_is_an_error(upstream: Upstream) -> None:
    words = "--device hpu --use-padding-aware-scheduling --use-v2-block-manager --max-seq-len-to-capture 1"
    words += " --disable-log-requests --weights-load-device cpu"
    status, text = upstream.refused(*words.split())
    assert status == 2
    assert f"vllm: error: unrecognized arguments: {words}" in text


def test_a_start_reports_its_buckets_and_draws_bars_for_all_but_developers(upstream: Upstream) -> None:
    text, _ = upstream.served(*LIMITS, **CONTIGUOUS)
    assert "vLLM API server version 0.26.0" in text
    assert re.search(r"\(EngineCore pid=\d+\) WARNING .*\] Using Contiguous PA, disabling prefix caching", text)
    assert re.search(r"\(EngineCore pid=\d+\) INFO .*\[common.py:253\] Generated \d+ prompt buckets \[bs, query,", text)
    count = re.search(r"Generated (\d+) decode buckets \[bs, query, num_blocks\]: \[\(1, 1, ", text)
    assert count is not None
    assert "[Warmup]" not in text
    (bars,) = [line for line in text.split("\n") if "Decode warmup processing: " in line]
    assert f"\rDecode warmup processing: 100%|██████████| {count[1]}/{count[1]} [00:00<?, ?item/s" in bars
    assert f"Graph/Decode captured:{count[1]} used_mem:" in text
    assert "Warmup finished in 0 secs, allocated" in text
    text, _ = upstream.served(*LIMITS, **CONTIGUOUS, VLLM_DEVELOPER_MODE="true", PYTHONUNBUFFERED="1")
    lines = re.findall(r"\[Warmup\]\[Decode\]\[(\d+)/\d+\] batch_size:\d+ query_len:1 num_blocks:\d+ free_mem:", text)
    assert lines == [str(number) for number in range(1, int(count[1]) + 1)]
    assert "warmup processing" in text
    assert "warmup processing" not in upstream.served(*LIMITS, **CONTIGUOUS, TQDM_DISABLE="1")[0]


def test_the_defaults_are_those_of_small_devices(upstream: Upstream) -> None:
    text, _ = upstream.served("--max-model-len", "4096", "--dtype", "float16", VLLM_SKIP_WARMUP="true", **CONTIGUOUS)
    assert "does not support torch.float16. Using bfloat16 instead." in text
    assert "(1, 2048, 0)" in text
    assert "(1, 4096, 0)" not in text
    assert "(256, 1, " in text
    assert "(257, 1, " not in text
    assert "Skipping warmup..." in text


@pytest.mark.parametrize(
    ("words", "env", "said"),
    [
        ([], {"VLLM_DECODE_BS_BUCKET_MAX": "8k"}, "RuntimeError: VLLM_DECODE_BS_BUCKET_MAX: failed to process"),
        ([], {"VLLM_BUCKETING_STRATEGY": "exponential"}, "exponential is not in allowed options: [exp, lin, pad]!"),
        (
            [],
            {"VLLM_BUCKETING_STRATEGY": "exp", "STANDIN_VLLM": "0.19.1"},
            "bucketing_strategy: exp is not in allowed options: [exponential_bucketing, linear_bucketing]!",
        ),
        ([], {"VLLM_BUCKETING_FROM_FILE": "/nowhere/b"}, "FileNotFoundError: [Errno 2] No such file or directory: '/n"),
        (["--max-num-batched-tokens", "8", "--max-num-seqs", "16"], {}, "(8) must be greater than or equal to max_num"),
        (["--max-num-batched-tokens", "512", "--no-enable-chunked-prefill"], {}, "is smaller than max_model_len"),
        (["--max-num-seqs", "4000"], {}, "must be greater than or equal to max_num_seqs (4000)"),
        (["--max-num-seqs", "2048"], {}, "Allocation failed for size"),
        ([], {"STANDIN_FAULT": "crash_in_warmup"}, "Graph compile failed"),
        (["--max-model-len", "40960", "--gpu-memory-utilization", "0.0001"], {}, "KV cache is needed, which is larger"),
    ],
)
def test_what_ends_a_start(upstream: Upstream, words: list[str], env: dict[str, str], said: str) -> None:
    status, text = upstream.refused(*words, **env)
    assert status == 1
    assert said in text
    assert "Traceback (most recent call last):" in text


def test_measurements_of_the_other_generation_end_a_start(upstream: Upstream) -> None:
    config = upstream.host.root / "inc.json"
    config.write_text(json.dumps({"dump_stats_path": "/m/g3/inc"}), encoding="ascii")
    assert "were not made on this device, which is gaudi2" in upstream.refused(QUANT_CONFIG=str(config))[1]
    upstream.host.state["device_name"] = "HL-325L"
    upstream.host.save()
    assert upstream.served(*LIMITS, QUANT_CONFIG=str(config))[0]
    assert "FileNotFoundError" in upstream.refused(QUANT_CONFIG=f"{config}.not")[1]


def test_blocks_come_from_the_memory_of_the_cards(upstream: Upstream) -> None:
    def blocks() -> int:
        text, _ = upstream.served(*LIMITS, VLLM_SKIP_WARMUP="true")
        found = re.search(r"Usable num_blocks: (\d+), actual allocated num_blocks \(max across layers\): ", text)
        return int(found[1]) if found else 0

    before = blocks()
    for card in upstream.host.state["cards"]:
        card["memory_mib"] = 131072
    upstream.host.save()
    assert 1.3 < blocks() / before < 1.4


def test_a_file_is_warmed_up_and_what_it_lacks_is_reported_while_serving(upstream: Upstream) -> None:
    buckets = upstream.host.root / "buckets"
    buckets.write_text("(1, 128, 0)\n(2, 512, 0)\n(1, 1, [8, 64])\n", encoding="ascii")
    env = {**CONTIGUOUS, "VLLM_BUCKETING_FROM_FILE": str(buckets)}
    text, _ = upstream.served(*LIMITS, ask=("few words", "many " * 300, "many " * 300), **env)
    omitted = "The following prompt buckets from custom bucketing file (VLLM_BUCKETING_FROM_FILE) were omitted during"
    assert text.count("were omitted") == text.count(omitted) == text.count("]   (2, 512, 0)") == 1
    assert "Generated 1 prompt buckets [bs, query, num_blocks]: [(1, 128, 0)]" in text
    assert "Generated 2 decode buckets [bs, query, num_blocks]: [(1, 1, 8), (1, 1, 64)]" in text
    wanted = "Prompt bucket for (1, 300, 0) was not prepared. Adding new bucket: (1, 448, 0)"
    assert text.count(wanted) == 1
    assert text.count("Configuration: ('prompt', 1, 448, 0) was not warmed-up!") == 1
    assert text.count("was not prepared") == text.count("was not warmed-up!") == 1


def test_metrics_have_the_traffic(upstream: Upstream) -> None:
    _, text = upstream.served(*LIMITS, ask=("few words", "many " * 300), **CONTIGUOUS)
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    label = 'engine="0",model_name="' + str(upstream.weights) + '"'
    assert found[f"vllm:num_requests_running{{{label}}}"] == found[f"vllm:num_requests_waiting{{{label}}}"] == "0.0"
    edges = re.findall(r'vllm:request_prompt_tokens_bucket\{engine="0",le="([^"]+)"', text)
    assert edges == ["1.0", "2.0", "5.0", "10.0", "20.0", "50.0", "100.0", "200.0", "500.0", "1000.0", "2000.0", "+Inf"]
    assert found[f"vllm:request_prompt_tokens_sum{{{label}}}"] == "302.00"
    assert found[f"vllm:request_prompt_tokens_count{{{label}}}"] == "2.0"
    assert found[f"vllm:request_generation_tokens_count{{{label}}}"] == "2.0"
    finished = label.replace(",", ',finished_reason="length",')
    assert f"vllm:request_success_total{{{finished}}}" in found
    assert float(found["process_start_time_seconds"]) > 1e9


def test_every_death_of_the_golden_vectors_is_of_the_vendors_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(SERVING)
    monkeypatch.setenv("STANDIN_STACK", "plugin")
    for name in [name for name in sys.modules if name.partition(".")[0] == "vllm"]:
        monkeypatch.delitem(sys.modules, name)
    from gaudi_serve.buckets.plugin import plugin_buckets
    from gaudi_serve.buckets.plugin_input import PluginInput
    from gaudi_serve.core.errors import InputError
    from vllm.standin import plugin  # type: ignore[import-not-found]

    with gzip.open(VECTORS, "rt", encoding="utf-8") as lines:
        dying = [one for one in map(json.loads, lines) if "expect_error" in one]
    assert len(dying) == 36
    for one in dying:
        error = one.pop("expect_error")
        one.pop("expect")
        if error["stage"] == "config":
            for name, value in one["env"].items():
                monkeypatch.setenv(name, value)
            with pytest.raises(RuntimeError):
                plugin.settings_of()
            for name in one["env"]:
                monkeypatch.delenv(name)
            continue
        with pytest.raises(InputError) as refused:
            plugin_buckets(PluginInput.read(one))
        death = plugin.as_the_server_dies(refused.value)
        assert type(death).__name__ == error["type"], (error, refused.value)
