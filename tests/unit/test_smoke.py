"""The questions of the smoke tests, asked of the serving stand-in, and the answers that fail."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest
from gaudi_serve.catalog.keys import SMOKE_KINDS
from gaudi_serve.host.smoke import KINDS, Unhealthy, ask, health, right_capitals
from gaudi_serve.host.smoke import Server as Client
from helpers.standin_host import Host
from helpers.standin_server import SMALL, Server, multimodal

TOOLS = ("--enable-auto-tool-choice", "--tool-call-parser", "hermes")


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return a function that starts a server of a kind and gives what vllm_smoke needs of it."""
    started: list[Server] = []

    def begin(*words: str, kind: str = "qwen2_5_omni", **env: str) -> dict[str, Any]:
        host = Host(tmp_path_factory.mktemp("h"))
        weights = host.root / "weights"
        weights.mkdir()
        shape = {**SMALL, "max_position_embeddings": 4096, "vocab_size": 1000, "intermediate_size": 1000}
        (weights / "config.json").write_text(json.dumps(shape), encoding="ascii")
        (weights / "model.safetensors").touch()
        server = Server(host, multimodal(weights, kind), "--served-model-name", "small", *words, **env)
        started.append(server)
        port = urllib.parse.urlparse(server.url).port
        return {"name": "small", "served_model_name": "small", "host": "127.0.0.1", "port": port}

    yield begin
    for server in started:
        server.process.kill()
        server.process.wait()


def test_every_kind_has_its_question() -> None:
    assert tuple(KINDS) == SMOKE_KINDS


def test_a_healthy_model_passes_every_kind_it_has(start: Any) -> None:
    model = start(*TOOLS, "--api-key", "k")
    kinds = ["text", "any", "image", "audio", "video", "tools"]
    answer = ask(model, kinds, 20, "k")
    assert answer["kinds"] == kinds
    assert answer["text"].startswith("1. France - Paris")
    assert answer["finish_reason"] == "stop"
    assert 0 < answer["first_token_s"] <= answer["total_s"] < 20
    with pytest.raises(Unhealthy, match="GET /v1/models answered status 401"):
        ask(model, ["text"], 20)


@pytest.mark.parametrize("planned", [256, None])
def test_a_short_context_gets_no_more_than_fits(start: Any, planned: int | None) -> None:
    model = start(*TOOLS, "--max-model-len", "256")
    assert ask({**model, "max_model_len": planned}, ["text", "tools"], 20)["text"].startswith("1. France - Paris")


@pytest.mark.parametrize(("task", "kind"), [("embed", "embedding"), ("score", "rerank")])
def test_models_without_text_are_asked_for_what_they_do(start: Any, task: str, kind: str) -> None:
    model = start("--task", task)
    assert ask(model, [kind], 20) == {"kinds": [kind]}
    with pytest.raises(Unhealthy, match="The model does not support Chat Completions API"):
        ask(model, ["text"], 20)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("empty_answer", "any", "the chat completion returned no text"),
        ("empty_answer", "audio", "the question about a sound returned no text"),
        ("garbled_answer", "text", "the answer names no country with its capital: 'the the of of"),
        ("garbled_answer", "image", "asked for the colour of a red picture, it answered 'the the of"),
    ],
)
def test_bad_answers_are_reported(start: Any, fault: str, kind: str, message: str) -> None:
    with pytest.raises(Unhealthy) as raised:
        ask(start(STANDIN_FAULT=fault), [kind], 20)
    assert message in str(raised.value)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("tools", "POST /v1/chat/completions answered status 400"),
        ("video", "At most 0 video"),
        ("embedding", "does not support Embeddings"),
        ("rerank", "does not support Rerank"),
    ],
)
def test_kinds_that_a_model_does_not_have_fail_with_its_words(start: Any, kind: str, message: str) -> None:
    with pytest.raises(Unhealthy, match=message):
        ask(start(kind="qwen2"), [kind], 20)


def test_a_hanging_server_is_given_up(start: Any) -> None:
    model = start(STANDIN_FAULT="hang_after_ready")
    with pytest.raises(Unhealthy, match="timed out"):
        ask(model, ["any"], 1)


@pytest.mark.parametrize("task", ["generate", "embed", "score"])
def test_a_model_that_works_is_healthy(start: Any, task: str) -> None:
    smoke = {"generate": ["text"], "embed": ["embedding"], "score": ["rerank"]}[task]
    assert health({**start("--task", task), "smoke": smoke}, 10) == ""
    # A model that takes no such request, as one of speech, is judged by /health.
    assert health({**start("--task", task), "smoke": ["rerank" if task != "score" else "embedding"]}, 10) == ""


@pytest.mark.parametrize(
    ("tokens", "said"),
    [([7, 7], "it does no work: POST /v1/completions on port"), ([7, 8], ""), ([None, 8], "it does no work")],
)
def test_a_server_whose_engine_has_stopped_is_not_healthy_and_one_with_a_long_queue_is(
    start: Any, monkeypatch: pytest.MonkeyPatch, tokens: list[float | None], said: str
) -> None:
    lines = Client.lines

    def answers(self: Client, method: str, path: str, body: Any = None) -> Iterator[bytes]:
        if path == "/metrics":
            made = tokens.pop(0)
            text = [] if made is None else [b"# HELP\n", b'vllm:generation_tokens_total{engine="0"} %d\n' % made]
            return iter(text)
        if path == "/v1/completions":
            raise Unhealthy("POST /v1/completions on port 1: timed out")
        return lines(self, method, path, body)

    monkeypatch.setattr(Client, "lines", answers)
    found = health({**start(), "smoke": ["text"]}, 10)
    assert found.startswith(said) and bool(found) == bool(said)


def test_another_model_and_no_server_are_named(start: Any) -> None:
    model = start()
    with pytest.raises(Unhealthy, match=r"/v1/models lists \['small'\], not large"):
        ask({**model, "served_model_name": "large"}, ["any"], 5)
    with pytest.raises(Unhealthy, match=r"GET /v1/models on port 1: .*refused"):
        ask({**model, "port": 1}, ["any"], 5)


def test_capitals_need_their_country() -> None:
    assert right_capitals("France: Paris; Brazil: Brasília") == ["brazil", "france"]
    assert right_capitals("Paris, Tokyo, Cairo") == []
    assert right_capitals("France - London") == []
