"""The serving image's stand-in: what it refuses, how it starts, what it answers."""

from __future__ import annotations

import gzip
import json
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.standin_server import BUCKETS, SERVER, SMALL, Server, multimodal

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
VLLM = Path(__file__).resolve().parents[3] / "molecule/shared/standins/serving/bin/vllm"


@pytest.fixture
def weights(host: Any) -> Path:
    """Give a model's folder."""
    folder: Path = host.root / "weights"
    folder.mkdir()
    config = {**SMALL, "max_position_embeddings": 4096, "vocab_size": 1000, "intermediate_size": 1000}
    (folder / "config.json").write_text(json.dumps(config), encoding="ascii")
    (folder / "model.safetensors").touch()
    return folder


@pytest.fixture
def server(host: Any, weights: Path) -> Iterator[Server]:
    """Give a server that answers."""
    started = Server(host, weights, "--served-model-name", "small", "--api-key", "secret")
    yield started
    started.process.kill()
    started.process.wait()


def refused(host: Any, weights: Path, *words: str, **env: str) -> tuple[int, str]:
    """Start a server that must not come up; return its status and what it says last."""
    argv = [*SERVER, "--model", str(weights), "--host", "127.0.0.1", "--port", "0", *words]
    result = subprocess.run(
        argv, capture_output=True, text=True, env=host.environment(**{**BUCKETS, **env}), timeout=20, check=False
    )
    return result.returncode, result.stderr.strip().splitlines()[-1]


def question(**more: Any) -> dict[str, Any]:
    """Return the smoke test's request."""
    content = "List 3 countries and their capitals."
    return {"model": "small", "messages": [{"role": "user", "content": content}], **more}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nonsense", "1"], "api_server.py: error: unrecognized arguments: --nonsense 1"),
        (["--block-size", "100"], "argument --block-size: invalid choice: "),
        (["--max-num-seqs", "many"], "invalid int value: 'many'"),
        (["--dtype", "fp8"], "invalid choice: 'fp8'"),
    ],
)
def test_options_that_vllm_does_not_know(host: Any, weights: Path, words: list[str], message: str) -> None:
    status, last = refused(host, weights, *words)
    assert status == 2
    assert message in last


@pytest.mark.parametrize(
    ("words", "env", "message"),
    [
        (["-tp", "3"], {}, "Total number of attention heads (40) must be divisible by tensor parallel size (3)."),
        (["--max-model-len", "5000"], {}, "greater than the derived max_model_len (max_position_embeddings=4096"),
        (["--max-num-batched-tokens", "100"], {}, "is smaller than max_model_len (4096)"),
        ([], {"VLLM_PROMPT_SEQ_BUCKET_MIN": "9999"}, "AssertionError: Min. batch size cannot be greater"),
        ([], {"HLS_MODULE_ID": "9"}, "Device acquire failed"),
        (["-tp", "2"], {"HABANA_VISIBLE_MODULES": "0"}, "Device acquire failed"),
        ([], {"STANDIN_FAULT": "crash_at_start"}, "RuntimeError"),
        ([], {"STANDIN_FAULT": "crash_in_warmup"}, "Graph compile failed"),
    ],
)
def test_what_vllm_refuses(host: Any, weights: Path, words: list[str], env: dict[str, str], message: str) -> None:
    status, last = refused(host, weights, *words, **env)
    assert status == 1
    assert message in last


def test_weights_that_are_not_there(host: Any, weights: Path) -> None:
    assert "OSError: Incorrect path_or_model_id" in refused(host, weights / "nowhere")[1]
    (weights / "model.safetensors").unlink()
    assert "Cannot find any model weights" in refused(host, weights)[1]
    (weights / "config.json").unlink()
    assert "does not appear to have a file named config.json" in refused(host, weights)[1]


def test_cards_that_are_not_in_the_container(host: Any, weights: Path) -> None:
    host.keep_nodes(0)
    assert "Device acquire failed" in refused(host, weights, "-tp", "2")[1]
    assert "module_id 7 is not in this container" in refused(host, weights, HLS_MODULE_ID="7")[1]


def test_a_port_in_use(host: Any, weights: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        status, last = refused(host, weights, "--port", str(other.getsockname()[1]))
    assert status == 1
    assert last == "OSError: [Errno 98] Address already in use"


def test_a_busy_card_serves_nobody_else(host: Any, weights: Path, server: Server) -> None:
    assert "acquired 1 HPU device(s), indices [0]" in "".join(server.log)
    assert "synStatus=8 [Device not found] Device acquire failed." in refused(host, weights, HLS_MODULE_ID="2")[1]


def test_every_option_of_the_vendors_scripts_is_known(host: Any, weights: Path) -> None:
    words: set[str] = set()
    for path in GOLDEN.glob("*.jsonl.gz"):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            expected = [json.loads(line).get("expect") for line in lines]
        for expect in expected:
            if isinstance(expect, dict):
                words |= {word.replace("_", "-") for word in expect.get("args", []) if str(word).startswith("--")}
    assert len(words) > 10
    script = "import sys; from vllm.standin.options import make_parser; print(*make_parser('x')._option_string_actions)"
    argv = [sys.executable, "-c", script]
    known = subprocess.run(argv, capture_output=True, text=True, env=host.environment(), check=True).stdout.split()
    assert words <= set(known)


def test_answers(server: Server) -> None:
    assert server.ask("/health")[0] == 200
    assert server.ask("/v1/models") == (401, '{"error": "Unauthorized"}')
    assert json.loads(server.ask("/v1/models", key="secret")[1])["data"][0]["id"] == "small"
    metrics = server.ask("/metrics")[1]
    assert "vllm:generation_tokens_total" in metrics
    assert 'vllm:request_prompt_tokens_bucket{le="2.0",model_name="small"} 0.0' in metrics
    choice = json.loads(server.ask("/v1/chat/completions", question(), "secret")[1])["choices"][0]
    assert choice["finish_reason"] == "stop"
    assert "France - Paris" in choice["message"]["content"]
    status, text = server.ask("/v1/chat/completions", question(stream=True), "secret")
    assert status == 200
    assert text.endswith("data: [DONE]\n\n")
    assert '"finish_reason": "stop"' in text
    short = json.loads(server.ask("/v1/completions", {"prompt": "one two three", "max_tokens": 2}, "secret")[1])
    assert short["choices"][0]["finish_reason"] == "length"


def test_bad_requests(server: Server) -> None:
    status, text = server.ask("/v1/chat/completions", question(model="other"), "secret")
    assert (status, json.loads(text)["message"]) == (404, "The model `other` does not exist.")
    assert server.ask("/v1/chat/completions", question(max_tokens=99999), "secret")[0] == 400
    assert server.ask("/v1/chat/completions", {"model": "small"}, "secret")[0] == 400


def test_stops_cleanly(server: Server) -> None:
    assert server.stop() == 0


def test_warm_up_follows_the_buckets_and_fills_the_cache(host: Any, weights: Path) -> None:
    folder = host.root / "cache"
    started = Server(host, weights, PT_HPU_RECIPE_CACHE_CONFIG=f"{folder},false,16384")
    text = "".join(started.log)
    started.stop()
    assert "[Warmup][Prompt][1/8] batch_size:2 seq_len:512" in text
    assert "[Warmup][Decode][4/4] batch_size:1 num_blocks:128" in text
    assert len(list(folder.glob("*.recipe"))) == 12


def test_nothing_answers_before_the_warm_up_is_done(host: Any, weights: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ["--model", str(weights), "--host", "127.0.0.1", "--port", str(port)]
    env = host.environment(**BUCKETS, STANDIN_FAULT="hang_in_warmup")
    with subprocess.Popen([*SERVER, *words], stdout=subprocess.PIPE, text=True, env=env) as process:
        for line in process.stdout or ():
            if "[Warmup]" in line:
                break
        with pytest.raises(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), timeout=1):
            pass
        process.terminate()
        assert process.wait(timeout=5) == 0


def test_faults_after_the_start(host: Any, weights: Path) -> None:
    empty = Server(host, weights, "--served-model-name", "small", STANDIN_FAULT="empty_answer")
    answer = json.loads(empty.ask("/v1/chat/completions", question())[1])
    empty.stop()
    assert answer["choices"][0]["message"]["content"] == ""
    hanging = Server(host, weights, STANDIN_FAULT="hang_after_ready")
    assert hanging.ask("/health")[0] == 200
    with pytest.raises(TimeoutError):
        hanging.ask("/v1/models", timeout=0.5)
    hanging.stop()


def test_the_vllm_command_takes_the_model_first(host: Any, weights: Path) -> None:
    argv = [sys.executable, str(VLLM), "serve", str(weights), "--tensor_parallel_size", "3", "--port", "0"]
    result = subprocess.run(argv, capture_output=True, text=True, env=host.environment(), timeout=20, check=False)
    assert "must be divisible by tensor parallel size (3)" in result.stderr
    result = subprocess.run([*argv, "--x"], capture_output=True, text=True, env=host.environment(), check=False)
    assert (result.returncode, result.stderr.splitlines()[-1]) == (2, "vllm: error: unrecognized arguments: --x")


def test_a_text_model_takes_no_media_and_calls_no_tools(server: Server) -> None:
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,"}}
    body = {"model": "small", "messages": [{"role": "user", "content": [picture]}]}
    status, text = server.ask("/v1/chat/completions", body, "secret")
    assert (status, json.loads(text)["message"]) == (400, "At most 0 image(s) may be provided in one request.")
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    status, text = server.ask("/v1/chat/completions", question(tools=[tool]), "secret")
    assert status == 400
    assert "requires --enable-auto-tool-choice and --tool-call-parser" in text
    for path, job in (("/v1/embeddings", "Embeddings"), ("/v1/rerank", "Rerank")):
        status, text = server.ask(path, {"model": "small", "input": "x"}, "secret")
        assert (status, json.loads(text)["message"]) == (400, f"The model does not support {job} API")


def test_media_must_be_whole_and_within_their_limits(host: Any, weights: Path) -> None:
    started = Server(host, multimodal(weights, "qwen2_vl"), "--limit-mm-per-prompt", '{"image":2}')

    def ask(*urls: str) -> tuple[int, str]:
        parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        body = {"messages": [{"role": "user", "content": parts}]}
        status, text = started.ask("/v1/chat/completions", body)
        return status, str(json.loads(text).get("message"))

    png = "data:image/png;base64,iVBORw0KGgo="
    try:
        assert ask(png, png, png) == (400, "At most 2 image(s) may be provided in one request.")
        for url, message in (
            ("http", "The URL must be"),
            ("data:image/png;base64,*", "Invalid base64"),
            ("data:image/png;base64,AAAA", "cannot identify image"),
            (png, "broken data stream"),
        ):
            status, text = ask(url)
            assert (status, message in text) == (400, True), text
    finally:
        started.process.kill()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--enable-auto-tool-choice"], "requires --tool-call-parser"),
        (["--enable-auto-tool-choice", "--tool-call-parser", "magic"], "invalid tool call parser: magic"),
    ],
)
def test_tool_options_that_vllm_refuses(host: Any, weights: Path, words: list[str], message: str) -> None:
    status, text = refused(host, weights, *words)
    assert status == 1
    assert message in text


SEVERAL = [sys.executable, "-m", "vllm.entrypoints.openai.mm_api_server"]


@pytest.fixture
def models(weights: Path) -> Path:
    """Give a folder of an embedding model ``gte`` and a reranker ``rerank``."""
    config = json.loads((weights / "config.json").read_text(encoding="ascii"))
    for name, kind in (("gte", "BertModel"), ("rerank", "BertForSequenceClassification")):
        (weights / name).mkdir()
        (weights / name / "config.json").write_text(json.dumps({**config, "architectures": [kind]}), encoding="ascii")
        (weights / name / "model.safetensors").touch()
    return weights


def of_several(host: Any, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Start the server of several models in their folder."""
    given = ["--models", "gte", "rerank", "--host", "127.0.0.1", "--port", "0", "--device", "hpu"]
    given += ["--dtype", "bfloat16", "--gpu-memory-utilization", "0.3", "--use-v2-block-manager"]
    env = host.environment(**BUCKETS, VLLM_API_KEY="secret", HLS_MODULE_ID="2")
    argv = ["env", "-C", str(folder), *SEVERAL, *given, *words]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def test_several_models_are_asked_by_their_folders_names(host: Any, models: Path) -> None:
    process = of_several(host, models, "--max-model-len", "512", "--served-model-name", "ignored")
    server = Server.__new__(Server)
    log = []
    for line in process.stdout or ():
        log.append(line)
        if found := re.search(r"Uvicorn running on (\S+)", line):
            server.url = found[1]
            break
    try:
        assert "".join(log).count("[Warmup][Prompt][1/8]") == 2
        assert "[Warmup][Decode]" not in "".join(log)
        listed = json.loads(server.ask("/v1/models", key="secret")[1])["data"]
        assert [one["id"] for one in listed] == ["gte", "rerank"]
        asked = {"query": "a", "documents": ["a"]}
        assert server.ask("/v1/embeddings", {"model": "gte", "input": "a"}, "secret")[0] == 200
        assert server.ask("/v1/rerank", {"model": "rerank", **asked}, "secret")[0] == 200
        assert server.ask("/v1/rerank", {"model": "gte", **asked}, "secret")[0] == 400
        assert server.ask("/v1/embeddings", {"model": "other", "input": "a"}, "secret")[0] == 404
        assert server.ask("/v1/embeddings", {"input": "a"}, "secret")[0] == 400
        assert server.ask("/v1/chat/completions", question(model="gte"), "secret")[0] == 400
        # A second process finds the card taken.
        second = of_several(host, models, "--max-model-len", "512")
        assert "Device acquire failed" in second.communicate(timeout=20)[1]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nonsense"], "mm_api_server.py: error: unrecognized arguments: --nonsense"),
        (["--models", "gte", "absent"], "Incorrect path_or_model_id: 'absent'"),
        (["--model-param", "rerank:max_model_len=9999"], "greater than the derived max_model_len"),
        (["--model-param", "rerank:gpu_memory_utilization=0"], "No available memory for the cache blocks"),
    ],
)
def test_what_the_server_of_several_models_refuses(host: Any, models: Path, words: list[str], message: str) -> None:
    process = of_several(host, models, *words)
    assert message in process.communicate(timeout=20)[1]
    assert process.returncode != 0
