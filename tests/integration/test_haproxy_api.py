"""Which requests a gateway's real HAProxy passes on, to which server, and what it answers by itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.monitoring import engine_metrics
from helpers.haproxies import CHAT, KEYS, USAGE, Front, Vllm, backend, client, servers

ORIGIN = "https://chat.example.net"
BOB = KEYS["bob"]


@pytest.fixture(scope="module")
def vllms() -> Iterator[list[Vllm]]:
    """Two servers of one model with an adapter, one of another model, and one of two models."""
    with servers(4) as found:
        yield found


@pytest.fixture(scope="module")
def front(tmp_path_factory: Any, vllms: list[Vllm]) -> Iterator[Front]:
    """A gateway of which bob may use an adapter alone."""
    backends = (backend("Qwen/QwQ-32B", vllms[:2], adapters=("sql-lora",)), backend("small", vllms[2:3]))
    backends += (backend("gte", vllms[3:]), backend("rerank", vllms[3:]))
    clients = (client("alice"), client("bob", ("sql-lora", "gte")))
    more: dict[str, Any] = {
        "clients": clients,
        "paths": ("/pooling",),
        "cors_origins": (ORIGIN,),
        "client_s": 2,
        "usage": True,
    }
    folder: Path = tmp_path_factory.mktemp("gateway")
    with Front(folder, backends, **more) as one:
        yield one


@pytest.fixture
def asked(vllms: list[Vllm]) -> list[list[dict[str, Any]]]:
    """Return what each server was asked, from now on."""
    for one in vllms:
        one.asked.clear()
    return [one.asked for one in vllms]


@pytest.mark.parametrize(
    "path",
    [
        *("/metrics", "/version", "/docs", "/openapi.json", "/scale_elastic_ep", "/v1/load_lora_adapter", "/sleep"),
        *("/%76ersion", "//metrics", "/v1/../metrics", "/v1/chat/completions/", "/V1/models", "/invocations"),
        *("/v1/responses/resp_1/x", "/v1/models/", "/models/small"),
    ],
)
@pytest.mark.parametrize("prefix", ["", "/models/small"])
def test_only_what_is_for_users_passes(front: Front, asked: list[list[Any]], path: str, prefix: str) -> None:
    for body in (None, {"model": "small"}):
        assert front.error(prefix + path, body)[::2] in ((404, "unknown_url"), (404, "model_not_found"))
    assert asked == [[], [], [], []]


def test_a_site_adds_paths(front: Front, asked: list[list[Any]]) -> None:
    assert front.ask("/pooling", {"model": "small"})[0] == 200
    assert asked[2][0]["path"] == "/pooling"


def test_one_model_is_shown_as_openai_does(front: Front) -> None:
    for path in ("/v1/models/Qwen/QwQ-32B", "/v1/models/Qwen%2FQwQ-32B"):
        status, text, _ = front.ask(path)
        assert (status, json.loads(text)["id"]) == (200, "Qwen/QwQ-32B")
    assert front.error("/v1/models/Qwen/QwQ-32B", key=BOB)[::2] == (404, "model_not_found")


def test_a_stored_response_is_read_where_it_is(front: Front, asked: list[list[Any]]) -> None:
    body = {"model": "Qwen/QwQ-32B", "input": "x"}
    homes = {}
    for number in range(4):
        text = front.ask("/v1/responses", {**body, "stream": number > 1})[1]
        homes[re.findall(r"resp_\w+", text)[0]] = int(bool(asked[1]))
        asked[0].clear(), asked[1].clear()
    assert set(homes.values()) == {0, 1}, "least connections let them take turns"
    # Workers of less than five seconds pass on nothing.
    front.wait(lambda: int(front.runtime.info()["Uptime_sec"]) > 5)
    front.reload()
    front.wait(lambda: "key=" in front.runtime.ask(f"show table {front.gateway.backends[0].name}"))
    for name, home in homes.items():
        assert front.ask(f"/v1/responses/{name}")[0] == 200
        assert front.ask(f"/v1/responses/{name}/cancel", {})[0] == 200
        assert front.ask("/v1/responses", {**body, "previous_response_id": name})[0] == 200
        assert (len(asked[home]), len(asked[1 - home])) == (3, 0)
        asked[home].clear()
    assert front.error("/v1/responses/resp_unknown")[::2] == (404, "response_not_found")


def test_a_stored_response_is_its_clients(front: Front, asked: list[list[Any]]) -> None:
    def store(model: str, key: str) -> str:
        return str(json.loads(front.ask("/v1/responses", {"model": model, "input": "x"}, key)[1])["id"])

    alice, own = KEYS["alice"], store("sql-lora", BOB)
    foreign = [(store(name, alice), BOB) for name in ("Qwen/QwQ-32B", "sql-lora")] + [(own, alice)]
    for path in ("", "/models/sql-lora", "/models/Qwen%2FQwQ-32B"):
        assert front.ask(f"{path}/v1/responses/{own}", key=BOB)[0] == 200
        assert front.ask(f"{path}/v1/responses/{own}/cancel", {}, key=BOB)[0] == 200
        for name, key in foreign:
            assert front.error(f"{path}/v1/responses/{name}", key=key)[::2] == (404, "response_not_found")
            assert front.error(f"{path}/v1/responses/{name}/cancel", {}, key=key)[::2] == (404, "response_not_found")
    for name, key in foreign:
        body = '{"model":"sql-lora","previous_response_id":"' + name + '"}'
        twice = '{"previous_response_id":"' + own + '",' + body[1:]
        for sent in (body, twice, body.replace("prev", "\\u0070rev"), body.replace("resp_", "\\u0072esp_")):
            assert front.error("/v1/responses", sent.encode(), key)[0] in (400, 404)
    assert sum(map(len, asked)) == 9
    for name in (own, None):
        assert front.ask("/v1/responses", {"model": "sql-lora", "previous_response_id": name}, BOB)[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "sql-lora", "request_id": "ID", "store": false}',
        b'{"model": "sql-lora", "request_id": "ID"}',
        b'{"request_id": null, "model": "sql-lora", "request_id": "ID"}',
        b'{"model": "sql-lora", "request\\u005fid": "ID", "store": false}',
        b'{"model": "sql-lora", "store": false, "store": true}',
        b'{"model": "sql-lora", "input": "' + b"x" * 300_000 + b'", "previous_response_id": "ID"}',
        b'{"model": "sql-lora", "input": "' + b"x" * 300_000 + b'", "request_id": "ID", "store": false}',
        b'\xef\xbb\xbf{"model": "sql-lora", "previous_response_id": "ID"}',
        '{"model": "sql-lora", "previous_response_id": "ID"}'.encode("utf-16"),
    ],
)
def test_no_body_takes_a_key_to_the_response_of_another(front: Front, asked: list[list[Any]], body: bytes) -> None:
    own = json.loads(front.ask("/v1/responses", {"model": "sql-lora", "input": "x"})[1])["id"]
    before = sum(map(len, asked))
    utf16 = body.startswith((b"\xff\xfe", b"\xfe\xff"))
    sent = body.decode("utf-16").replace("ID", own).encode("utf-16") if utf16 else body.replace(b"ID", own.encode())
    assert front.error("/models/sql-lora/v1/responses", sent, BOB)[0] in (400, 404)
    assert front.error(f"/v1/responses/{own}", key=BOB)[::2] == (404, "response_not_found")
    assert sum(map(len, asked)) == before


def test_only_what_is_stored_is_remembered(front: Front) -> None:
    for store, status in ((False, 404), (None, 404), (True, 200)):
        text = front.ask("/v1/responses", {"model": "small", "input": "x", "store": store})[1]
        assert front.ask(f"/v1/responses/{json.loads(text)['id']}")[0] == status, store


def test_the_model_of_a_form_is_its_field(front: Front, asked: list[list[Any]]) -> None:
    part = '--b\r\nContent-Disposition: form-data; name="{}"{}\r\n\r\n{}\r\n'
    form = (
        part.format("model", "", "small") + part.format("file", '; filename="a.wav"', "\0\1" * 9) + "--b--\r\n"
    ).encode()
    sent = {"content_type": "multipart/form-data; boundary=b"}
    path = "/v1/audio/transcriptions"
    assert front.ask(path, form, **sent)[0] == 200
    assert asked[2][0]["bytes"] == len(form)
    other = form.replace(b"small", b"none")
    assert front.error(path, other, **sent)[::2] == (404, "model_not_found")
    assert front.error(path, form.replace(b'"model"', b'"x"'), **sent)[::2] == (400, "model_missing")


@pytest.mark.parametrize(
    "headers",
    [
        'Content-Disposition: form-data; name="model"\r\nContent-Length: 5',
        "Content-Type: text/plain; charset=utf-8\r\ncontent-disposition:form-data;name=model",
        'Content-Disposition: form-data; name=model; x="y"',
    ],
)
def test_forms_of_all_clients_are_read(front: Front, headers: str) -> None:
    other = '--b\r\nContent-Disposition: form-data; name="file"; filename="a; name=model"\r\n\r\nnone\r\n'
    sent = {"content_type": "Multipart/form-data; boundary=b"}
    form = f"{other}--b\r\n{headers}\r\n\r\nsmall\r\n--b--\r\n".encode()
    assert front.ask("/v1/audio/translations", form, **sent)[0] == 200
    assert front.error("/v1/audio/translations", form, content_type="text/plain")[::2] == (400, "model_missing")


def test_a_websocket_goes_to_the_model_of_its_query(front: Front, asked: list[list[Any]]) -> None:
    head = f"GET /v1/realtime?model=small HTTP/1.1\nHost: x\nAuthorization: Bearer {KEYS['alice']}\n"
    connection = front.send(
        f"{head}Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\n\n"
    )
    assert connection.recv(4096).startswith(b"HTTP/1.1 101")
    connection.sendall(b"hello\n")
    assert connection.recv(4096) == b"HELLO\n"
    connection.close()
    assert len(asked[2]) == 1


def test_no_two_requests_have_one_identity_or_connection_at_a_server(front: Front, asked: list[list[Any]]) -> None:
    body = b'{"model": "small"}'
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEYS['alice']}\nX-Request-Id: trace-77c1\n"
    with front.send("") as connection:
        for _ in range(2):
            connection.sendall(f"{head}Content-Length: {len(body)}\n\n".replace("\n", "\r\n").encode() + body)
            answer = HTTPResponse(connection)
            answer.begin()
            assert answer.read() and answer.status == 200
    # An engine of vLLM can break when two have the same id, and its server closes an idle connection at any moment.
    assert len({one["headers"]["x-request-id"] for one in asked[2]}) == 2
    assert len({one["port"] for one in asked[2]}) == 2


def test_a_key_comes_in_either_header_and_goes_no_further(front: Front, asked: list[list[Any]]) -> None:
    assert front.ask("/v1/messages", {"model": "small"}, key=None, x_api_key=KEYS["alice"])[0] == 200
    assert front.error("/v1/messages", {"model": "small"}, key=None, x_api_key="none")[::2] == (401, "invalid_api_key")
    assert asked[2][0]["key"] == "Bearer server-key-of-small"
    assert "x-api-key" not in asked[2][0]["headers"]


def test_pages_of_known_sites_alone_may_ask(front: Front) -> None:
    asks = {"method": "OPTIONS", "access_control_request_method": "POST", "key": None}
    status, _, headers = front.ask(CHAT, origin=ORIGIN, **asks)
    assert (status, headers["access-control-allow-origin"], headers["vary"]) == (204, ORIGIN, "origin")
    assert "authorization" in headers["access-control-allow-headers"]
    wanted = "authorization,x-stainless-os,x-stainless-retry-count"
    headers = front.ask(CHAT, origin=ORIGIN, access_control_request_headers=wanted, **asks)[2]
    assert headers["access-control-allow-headers"] == wanted
    exposed = front.ask(CHAT, {"model": "small"}, origin=ORIGIN)[2]["access-control-expose-headers"]
    assert exposed == "x-request-id, retry-after"
    assert front.ask(CHAT, {"model": "small"}, origin=ORIGIN)[2]["access-control-allow-origin"] == ORIGIN
    # Also of an error, which the page could not read otherwise.
    assert front.ask(CHAT, {"model": "none"}, origin=ORIGIN)[2]["access-control-allow-origin"] == ORIGIN
    status, _, headers = front.ask(CHAT, origin="https://evil.example.net", **asks)
    assert (status, "access-control-allow-origin" in headers) == (401, False)
    headers = front.ask(CHAT, {"model": "small"}, origin="https://evil.example.net")[2]
    assert "access-control-allow-origin" not in headers


def test_an_adapter_is_a_model_of_its_own_for_keys(front: Front, asked: list[list[Any]]) -> None:
    assert front.ask(CHAT, {"model": "sql-lora", "messages": [{"model": "x", "y": '{"model": "z"}'}]}, BOB)[0] == 200
    assert front.ask(f"/models/sql-lora{CHAT}", {"model": "sql-lora"}, BOB)[0] == 200
    assert front.ask(CHAT, {"model": "Qwen/QwQ-32B"})[0] == 200
    assert front.ask(f"/models/Qwen%2FQwQ-32B{CHAT}", {"messages": []})[0] == 200
    assert front.error(CHAT, {"model": "Qwen/QwQ-32B"}, BOB)[::2] == (404, "model_not_found")
    assert [one["id"] for one in json.loads(front.ask("/v1/models", key=BOB)[1])["data"]] == ["gte", "sql-lora"]
    assert sum(map(len, asked)) == 4


@pytest.mark.parametrize("name", ["sql-lora", "gte", "rerank"])
def test_a_server_of_several_models_is_always_reported_which(front: Front, asked: list[list[Any]], name: str) -> None:
    # vLLM takes its first model where a body names none.
    for body in ({"messages": []}, {"model": ""}, {"model": None}, {"messages": "x" * 300_000}):
        assert front.error(f"/models/{name}{CHAT}", body)[::2] == (400, "model_missing")
        if name != "rerank":
            assert front.error(f"/models/{name}{CHAT}", body, BOB)[::2] == (400, "model_ambiguous")
    assert front.error(f"/models/{name}/v1/audio/translations", b"--b\r\n")[::2] == (400, "model_missing")
    assert front.error(f"/models/{name}/v1/realtime")[::2] == (400, "model_missing")
    assert asked == [[], [], [], []]
    assert front.ask(f"/models/{name}{CHAT}", {"model": name})[0] == 200
    form = f'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n{name}\r\n--b--\r\n'.encode()
    sent = {"content_type": "multipart/form-data; boundary=b"}
    assert front.ask(f"/models/{name}/v1/audio/translations", form, **sent)[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "sql-lora", "model": "Qwen/QwQ-32B"}',
        b'{"model": "sql-lora", "mod\\u0065l": "Qwen/QwQ-32B"}',
        b'{"model": "sql-lora", "x": {"model": "y"}, "model" : "Qwen/QwQ-32B"}',
        b'{"model": "sql-lora", "x": "' + b"y" * 230_000 + b'", "model": "Qwen/QwQ-32B"}',
        b'{"model": "sql-lora"} {"model": "Qwen/QwQ-32B"}',
        b'{"model": "sql-lora", "x": "\\" , \\\\", "model": "Qwen/QwQ-32B"}',
        b'\xef\xbb\xbf{"model": "Qwen/QwQ-32B"}',
        '{"model": "Qwen/QwQ-32B"}'.encode("utf-16"),
        '{"model": "Qwen/QwQ-32B"}'.encode("utf-16-be"),
        b'{"model": "Qwen\\u002fQwQ-32B"}',
        b'{"model": ["sql-lora"]}',
        b'[{"model": "Qwen/QwQ-32B"}]',
        b"",
        b"\0",
        b'{"messages": []}',
        b'{"model": ""}',
    ],
)
def test_no_body_takes_a_key_past_its_adapter(front: Front, asked: list[list[Any]], body: bytes) -> None:
    for path in (CHAT, f"/models/sql-lora{CHAT}"):
        status, text, _ = front.ask(path, body, BOB)
        assert status in (400, 404), text
    form = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\nsql-lora\r\n--b--\r\n'
    assert front.ask("/v1/audio/translations", form, BOB)[0] == 400
    assert asked == [[], [], [], []]


def test_models_that_share_a_server_are_asked_by_their_names_alone(front: Front, asked: list[list[Any]]) -> None:
    for name in ("gte", "rerank"):
        assert front.ask("/v1/embeddings", {"model": name, "input": "x"})[0] == 200
        assert front.error("/v1/update_models", {"model": name, "models": []})[::2] == (404, "unknown_url")
    assert front.ask("/v1/embeddings", {"model": "gte", "input": "x"}, BOB)[0] == 200
    assert front.error("/v1/embeddings", {"model": "rerank", "input": "x"}, BOB)[::2] == (404, "model_not_found")
    twice = b'{"model": "gte", "input": "x", "model": "rerank"}'
    assert front.error("/v1/embeddings", twice, BOB)[::2] == (400, "model_ambiguous")
    assert len(asked[3]) == 3


def test_an_escaped_slash_is_read_as_one(front: Front) -> None:
    assert front.ask(CHAT, b'{"model": "Qwen\\/QwQ-32B"}')[0] == 200


def test_errors_of_haproxy_itself_are_in_the_same_form(front: Front) -> None:
    # What is not HTTP at all gets HAProxy's fixed page; from then on answers are ours.
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEYS['alice']}\nContent-Length: 99\n\n"
    connection = front.send(head, b"{")
    text = b""
    while part := connection.recv(4096):
        text += part
    connection.close()
    head, _, body = text.decode().partition("\r\n\r\n")
    assert head.startswith("HTTP/1.1 408"), text
    assert json.loads(body)["error"]["code"] == "request_timeout"


@pytest.mark.parametrize(
    "lines", ["good-name-1, x client=bob", "x client=bob\nX-Request-Id: good-name-1", "good-name-1,"]
)
def test_no_header_writes_into_the_log(front: Front, asked: list[list[Any]], lines: str) -> None:
    body = b'{"model":"small"}'
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEYS['alice']}\nContent-Length: {len(body)}\n"
    connection = front.send(f"{head}X-Request-Id: {lines}\nConnection: close\n\n", body)
    answer = connection.recv(4096).decode()
    connection.close()
    name = re.findall(r"x-request-id: ([A-Za-z0-9._-]{8,64})\r\n", answer)[0]
    assert re.fullmatch(rf"{re.escape(name)}-[0-9a-f-]{{36}}", asked[2][0]["headers"]["x-request-id"])
    front.wait(lambda: f"request={name} method" in front.log.read_text())
    assert "x client" not in front.log.read_text()


@pytest.mark.parametrize("origin", [f"{ORIGIN}, https://evil.example.net", f"https://evil.example.net, {ORIGIN}"])
def test_an_origin_is_one(front: Front, origin: str) -> None:
    assert "access-control-allow-origin" not in front.ask(CHAT, {"model": "small"}, origin=origin)[2]


def totals(front: Front, kind: str, model: str = "small") -> int:
    """Return a counter of the page of usage for alice and a model."""
    found = re.search(rf'gaudi_gateway_{kind}_total{{client="alice",model="{model}"}} (\d+)', front.metrics("/usage"))
    return int(found[1]) if found else 0


KINDS = ("requests", "requests_without_usage", "input_tokens", "output_tokens", "output_events")


def test_the_page_of_usage_has_what_monitoring_reads(front: Front) -> None:
    found = re.findall(r'(?m)^(\w+)\{(\w+)="[^"]*",(\w+)="', front.metrics("/usage"))
    assert {name: tuple(labels) for name, *labels in found} == engine_metrics.USAGE


def test_a_request_that_no_server_began_is_not_counted(front: Front) -> None:
    before = totals(front, "requests")
    front.runtime.ask("set server small/h0.small state drain")
    try:
        assert front.ask(CHAT, {"model": "small"})[0] == 503
    finally:
        front.runtime.ask("set server small/h0.small state ready")
    front.wait(lambda: front.ask(CHAT, {"model": "small"})[0] == 200)
    front.wait(lambda: totals(front, "requests") > before)
    assert totals(front, "requests") == before + 1


def test_streams_that_clients_leave_are_counted(front: Front, vllms: list[Vllm]) -> None:
    before, one, leave = {kind: totals(front, kind) for kind in KINDS}, vllms[2], 12
    body = json.dumps({"model": "small", "stream": True}).encode()
    head = f"POST {CHAT} HTTP/1.1\nHost: x\nAuthorization: Bearer {KEYS['alice']}\nContent-Length: {len(body)}\n\n"
    # Long enough that no stream is over before its client, on a busy machine, leaves it.
    one.seconds, one.counts = 2, True
    one.generated.clear()
    try:
        for place in range(0, leave, 4):
            streams = [front.send(head, body) for _ in range(4)]
            for number, connection in enumerate(streams, place):
                text = b""
                while text.count(b"usage") < 1 + number % 5:
                    text += connection.recv(4096)
                connection.close()
            front.wait(lambda: one.working == 0)
        for stream in (True, False):
            assert front.ask(CHAT, {"model": "small", "stream": stream})[0] == 200
        # Without streaming, nobody knows what a client that leaves has cost.
        with front.send(head, body.replace(b"true", b"null")):
            front.wait(lambda: one.working == 1)
        front.wait(lambda: totals(front, "requests") - before["requests"] == leave + 3)
    finally:
        one.seconds, one.counts = 0, False
    grown = {kind: totals(front, kind) - before[kind] for kind in KINDS}
    assert (grown["input_tokens"], grown["requests_without_usage"]) == ((leave + 2) * USAGE["prompt_tokens"], 1)
    generated = sum(one.generated) + 10 + USAGE["completion_tokens"]
    # The event that is on its way when a client leaves is missing, and one more that the kernel takes from the server.
    assert len(one.generated) == leave and generated - 2 * leave <= grown["output_tokens"] <= generated, (
        grown,
        generated,
    )


@pytest.mark.parametrize(
    ("head", "status"),
    [("bad header", 400), ("Transfer-Encoding: chunked, chunked", 400), ("Transfer-Encoding: gzip, chunked", 422)],
)
def test_what_is_not_http_is_answered_by_haproxys_own_page(front: Front, head: str, status: int) -> None:
    with front.send(f"POST {CHAT} HTTP/1.1\nHost: x\n{head}\n\n", b"") as connection:
        text = connection.recv(65536).decode()
    assert text.startswith(f"HTTP/1.1 {status} ") and "Content-Type: text/html" in text


EVENTS = 20_000  # More than the gateway reads at once, so that some are cut in two.
STREAMS = {
    # path, first event, each event with text
    "chat": (
        CHAT,
        {"choices": [{"delta": {"role": "assistant", "content": ""}}]},
        {"choices": [{"delta": {"content": "x"}}]},
    ),
    "completions": ("/v1/completions", None, {"choices": [{"text": "x"}]}),
    "messages": (
        "/v1/messages",
        {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 5, "output_tokens": 0}}},
        {"type": "content_block_delta", "delta": {"type": "text_delta", "text": 'say \\n"delta":'}},
    ),
    "responses": (
        "/v1/responses",
        {"type": "response.created", "response": {"id": "resp_1", "text": {"format": {"type": "text"}}}},
        {"type": "response.output_text.delta", "delta": "x"},
    ),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_events_of_streams_without_token_counts_are_counted(front: Front, vllms: list[Vllm], kind: str) -> None:
    before = {kind: totals(front, kind) for kind in KINDS}
    path, first, event = STREAMS[kind]
    texts = [json.dumps(one, separators=(",", ":")) for one in [*([first] if first else []), *[event] * EVENTS]]
    vllms[2].text = "".join(f"data: {text}\n\n" for text in texts).encode()
    try:
        front.ask(path, {"model": "small", "input": "x"}, x_request_id=f"events-{kind}")
    finally:
        vllms[2].text = b""
    front.wait(lambda: totals(front, "requests") > before["requests"])
    input_tokens = 5 if kind == "messages" else 0
    grown = [totals(front, kind) - before[kind] for kind in KINDS]
    assert grown == [1, int(not input_tokens), input_tokens, 0, EVENTS]
    line = next(line for line in front.log.read_text().splitlines() if f"request=events-{kind}" in line)
    assert f" output_events={EVENTS} " in line


def test_token_counts_that_are_cut_off_are_not_used(front: Front, vllms: list[Vllm]) -> None:
    before = {kind: totals(front, kind) for kind in KINDS}
    vllms[2].text = b'{"usage": {"prompt_tokens": 7, "completion_tokens": 3}}\n{"usage": {"prompt_tokens": 7, "compl'
    try:
        assert front.ask(CHAT, {"model": "small"})[0] == 200
    finally:
        vllms[2].text = b""
    front.wait(lambda: totals(front, "requests") > before["requests"])
    assert [totals(front, kind) - before[kind] for kind in KINDS] == [1, 0, 7, 3, 0]


@pytest.mark.parametrize("streamed", [True, False])
def test_cached_tokens_of_messages_are_input(front: Front, vllms: list[Vllm], streamed: bool) -> None:
    before = {kind: totals(front, kind) for kind in KINDS}
    prompt = {"input_tokens": 5, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 3}
    start = {"type": "message_start", "message": {"usage": {**prompt, "output_tokens": 0}}}
    delta = {"type": "message_delta", "usage": {"output_tokens": 4}}
    events = f"data: {json.dumps(start)}\n\ndata: {json.dumps(delta)}\n\n"
    vllms[2].text = (events if streamed else json.dumps({"usage": {**prompt, "output_tokens": 4}})).encode()
    try:
        assert front.ask("/v1/messages", {"model": "small"})[0] == 200
    finally:
        vllms[2].text = b""
    front.wait(lambda: totals(front, "requests") > before["requests"])
    assert [totals(front, kind) - before[kind] for kind in KINDS] == [1, 0, 28, 4, 0]


def test_tokens_are_counted_wherever_an_answer_has_them(front: Front, vllms: list[Vllm]) -> None:
    text = json.dumps({"x": 'say "usage": {"prompt_tokens": 1}', "usage": USAGE, "prompt_logprobs": ["y" * 99] * 9999})
    try:
        for begin in ("", " " * 16_380):
            vllms[2].text = (begin + text).encode()
            front.ask(CHAT, {"model": "small"}, x_request_id=f"usage-in-front-{len(begin)}")
        front.wait(lambda: front.log.read_text().count("usage-in-front-") == 2)
    finally:
        vllms[2].text = b""
    lines = [line for line in front.log.read_text().splitlines() if "request=usage-in-front" in line]
    assert [re.findall(r"_tokens=(\S+)", line) for line in lines] == [["7", "9"]] * 2


def test_the_server_learns_who_asks_and_the_log_what_it_cost(front: Front, asked: list[list[Any]]) -> None:
    before = {kind: totals(front, kind) for kind in KINDS}
    status, _, headers = front.ask(CHAT, {"model": "small"}, x_request_id="trace-77c1", x_forwarded_for="9.9.9.9")
    assert (status, headers["x-request-id"]) == (200, "trace-77c1")
    assert asked[2][0]["headers"]["x-request-id"].startswith("trace-77c1-")
    assert asked[2][0]["headers"]["x-forwarded-for"] == "127.0.0.1"
    # A name that could be more than a name is replaced.
    assert re.fullmatch(r"[0-9a-f-]{36}", front.ask(CHAT, {"model": "small"}, x_request_id='a"b')[2]["x-request-id"])
    front.ask(CHAT, {"model": "small", "stream": True, "stream_options": {"include_usage": True}})
    front.ask(CHAT, {"model": "small", "stream": True})
    line = next(line for line in front.log.read_text().splitlines() if "request=trace-77c1" in line)
    assert re.search(r"client=alice model=small address=127.0.0.1 .* status=200 server=small/h0.small", line)
    assert f"input_tokens={USAGE['prompt_tokens']} output_tokens={USAGE['completion_tokens']}" in line
    grown = [totals(front, kind) - before[kind] for kind in KINDS[:3]]
    assert grown == [4, 1, 3 * USAGE["prompt_tokens"]]
    assert front.ask("/health", key=None)[0] == 200
    for secret in (*KEYS.values(), "server-key", "path=/health"):
        assert secret not in front.log.read_text() + front.metrics("/usage")
