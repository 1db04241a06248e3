"""A gateway's files, and what of a user's request is refused before there are any."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.gateway.chat import BUFFER_KIB
from gaudi_serve.gateway.clients import ClientNames
from gaudi_serve.gateway.config import ANSWERS, gateway_files
from gaudi_serve.gateway.inputs import read_gateway
from gaudi_serve.gateway.objects import Backend, Server
from helpers.bad_values import GARBAGE
from hypothesis import given, settings
from hypothesis import strategies as st

KEY = "sk-canary-5f2a-0123456789"
BACKENDS = (
    Backend(
        "Qwen/QwQ-32B", (Server("g1.qwq", "10.0.0.1", 30001, 32), Server("g2.qwq", "10.0.0.2", 30001, 32)), "own-key"
    ),
    Backend("small", (Server("g1.small", "10.0.0.1", 30002, 8),)),
)
ALICE = {"alice": {"key": KEY}}


def files(**more: Any) -> dict[str, str]:
    """Return the texts of a gateway's files by their names."""
    found = gateway_files(read_gateway({"clients": ALICE, **more}, BACKENDS))
    assert {path for path, file in found.items() if file.secret} == {"/etc/gaudi-serve/gateway/servers.map"}
    assert all(file.mode == ("0600" if file.secret else "0644") for file in found.values())
    return {path.rpartition("/")[2]: file.text for path, file in found.items()}


def test_keys_are_in_no_file_but_as_digests() -> None:
    texts = files()
    digest = hashlib.sha256(KEY.encode()).hexdigest().upper()
    assert texts["clients.map"] == f"{digest} alice\n"
    assert not [name for name, text in texts.items() if KEY in text]
    assert [name for name, text in texts.items() if "own-key\n" in text] == ["servers.map"]


def test_what_a_client_may_use_is_in_the_maps() -> None:
    bob = {"sha256": "ab" * 32, "models": ["small"], "requests_per_minute": 60}
    texts = files(clients={**ALICE, "bob": bob})
    assert texts["allowed.map"].split() == [*("alice|Qwen/QwQ-32B", "all", "alice|small", "all", "bob|small", "all")]
    assert texts["rates.map"] == "bob 60\n"
    assert texts["known.map"] == "alice Qwen/QwQ-32B, small\nbob small\n"
    lists = dict(line.split(" ", 1) for line in texts["lists.map"].splitlines())
    assert [one["id"] for one in json.loads(lists["bob"])["data"]] == ["small"]
    assert texts["models.map"].splitlines()[1] == "small small"
    assert texts["models.map"].startswith("Qwen/QwQ-32B Qwen_QwQ-32B-")


def test_the_configuration_follows_the_request() -> None:
    text = files(address="0.0.0.0", port=443, certificate="/etc/ssl/private/site.pem", buffer_kib=512)["haproxy.cfg"]
    assert "    bind 0.0.0.0:443 ssl crt /etc/ssl/private/site.pem alpn h2,http/1.1\n" in text
    assert "    tune.bufsize 524288\n" in text
    assert "    server g2.qwq 10.0.0.2:30001 maxconn 32\n" in text
    assert len(re.findall("\nbackend (?!own:)", text)) == 2
    plain = files()["haproxy.cfg"]
    assert "    bind 127.0.0.1:8080\n" in plain
    assert "bind 127.0.0.1:8405" in plain


@pytest.mark.parametrize("name", ANSWERS)
def test_answers_are_errors_as_openai_writes_them(name: str) -> None:
    error = json.loads(ANSWERS[name])["error"]
    assert list(error) == ["message", "type", "param", "code"] and error["message"]


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (None, "fleet_gateway: is required: a mapping with address, port, clients and so on"),
        ({"adress": "0.0.0.0"}, "fleet_gateway: adress: is not a known name; did you mean address"),
        (
            {"address": "gw.example.net"},
            "fleet_gateway.address: 'gw.example.net' is not an address of the gateway's host",
        ),
        ({"port": 0}, "fleet_gateway.port: 0 is not an integer from 1 to 65535"),
        ({"port": 8405}, "fleet_gateway.metrics_port: 8405 is the gateway's own port; choose another"),
        ({"certificate": "site.pem"}, "fleet_gateway.certificate: 'site.pem' is not a path on the gateway's host"),
        (
            {"virtual_address": "10.0.0.100"},
            "fleet_gateway.virtual_address: '10.0.0.100' is not an address of a host with",
        ),
        (
            {"virtual_address": "10.0.0.100/24"},
            "fleet_gateway.address: '127.0.0.1' must be 0.0.0.0 or :: with a virtual_address, which only one",
        ),
        # A zone may be any text, which would be HAProxy's and keepalived's configuration.
        ({"address": "::1%a b"}, "fleet_gateway.address: '::1%a b' is not an address of the gateway's host"),
        (
            {"address": "::", "plain_allowed": True, "virtual_address": "fd00::1%a b/64"},
            "fleet_gateway.virtual_address: 'fd00::1%a b/64' is not an address of a host with its prefix length",
        ),
        *(
            (
                {"address": "0.0.0.0", "open": True, "plain_allowed": True, "virtual_address": wrong},
                f"fleet_gateway.virtual_address: '{wrong}' is not an address of a host with its prefix length",
            )
            for wrong in (
                "0.0.0.0/0",
                "127.0.0.2/8",
                "224.0.0.9/24",
                "10.0.0.0/24",
                "10.0.0.255/24",
                "fe80::/64",
                "fd00::/120",
            )
        ),
        ({"virtual_interface": "a b"}, "fleet_gateway.virtual_interface: 'a b' is not a name of an interface"),
        ({"virtual_router_id": 256}, "fleet_gateway.virtual_router_id: 256 is not an integer from 1 to 255"),
        ({"paths": "/pooling"}, "fleet_gateway.paths: '/pooling' is not a list"),
        ({"paths": ["pooling"]}, "fleet_gateway.paths: 'pooling' is not a path such as /pooling"),
        ({"paths": ["/a b"]}, "fleet_gateway.paths: '/a b' is not a path such as /pooling"),
        *(
            ({"paths": [path]}, f"fleet_gateway.paths: '{path}' is answered by the gateway itself; leave it out")
            for path in ("/health", "/models/x", "/v1/models", "/v1/models/x")
        ),
        *(
            ({"paths": [path]}, f"fleet_gateway.paths: '{path}' is not a path such as /pooling")
            for path in ("/a/../b", "/a/.", "/..")
        ),
        *(
            ({"paths": ["/pooling", path]}, f"fleet_gateway.paths: '{path}' is for a server's operator: it shows or")
            for path in ("/v1/load_lora_adapter", "/metrics", "/sleep")
        ),
        (
            {"balance": {"sql": "prefix"}},
            "fleet_gateway.balance: 'sql' is an adapter; its requests go where those of its base model",
        ),
        ({"cors_origins": ["*"]}, "fleet_gateway.cors_origins: '*' is not an origin such as https://"),
        ({"balance": "prefix"}, "fleet_gateway.balance: 'prefix' is not a mapping of models to least, session, prefix"),
        (
            {"first_byte_s": {"small": 5}},
            "fleet_gateway.first_byte_s: 'small': 5 is not an integer from 10 to 3600",
        ),
        ({"balance": {"small": "most"}}, "fleet_gateway.balance: 'small': 'most' is none of least, session, prefix"),
        (
            {"balance": {"smal": "least"}},
            "fleet_gateway.balance: 'smal' is not a model of any host of this inventory; did you mean small?",
        ),
        ({"usage": 1}, "fleet_gateway.usage: 1 is not true or false"),
        ({"hard_stop_s": 5}, "fleet_gateway.hard_stop_s: 5 is not an integer from 60 to 86400"),
        (
            {"connections": 100, "connections_per_address": 200},
            "fleet_gateway.connections_per_address: 200 is more than connections (100)",
        ),
        ({"open": "yes"}, "fleet_gateway.open: 'yes' is not true or false"),
        (
            {"address": "0.0.0.0"},
            "fleet_gateway.address: '0.0.0.0' is not a loopback address, so keys and texts would be sent",
        ),
        (
            {"address": "10.0.0.9", "plain_allowed": True, "clients": None},
            "fleet_gateway.address: '10.0.0.9' is not a loopback address, so everyone who reaches it could send "
            "requests; set",
        ),
        ({"clients": [KEY]}, "fleet_gateway.clients: (hidden) is not a mapping of clients"),
        ({"clients": {"Al ice": {}}}, "fleet_gateway.clients: 'Al ice' is not a name of lowercase letters"),
        ({"clients": {"alice": KEY}}, "fleet_gateway.clients.alice: (hidden) is not a mapping with key or sha256"),
        ({"clients": {"alice": {}}}, "fleet_gateway.clients.alice: needs key, or sha256 of it in hexadecimal, and not"),
        (
            {"clients": {"alice": {"key": "short"}}},
            "fleet_gateway.clients.alice.key: (hidden) is not a text of at least",
        ),
        ({"clients": {"alice": {"sha256": KEY}}}, "fleet_gateway.clients.alice.sha256: (hidden) is not the SHA-256"),
        ({"clients": {**ALICE, "bob": {"key": KEY}}}, "fleet_gateway.clients.bob: has the key of alice; every client"),
        (
            {"clients": {"alice": {"key": KEY, "models": ["smal"]}}},
            "fleet_gateway.clients.alice.models: 'smal' is not a model of any host of this inventory; did you "
            "mean small?",
        ),
        (
            {"clients": {"alice": {"key": KEY, "models": []}}},
            "fleet_gateway.clients.alice.models: [] is not a list of served models; leave it out for all",
        ),
        (
            {"clients": {"alice": {"key": KEY, "requests_per_minute": 0}}},
            "fleet_gateway.clients.alice.requests_per_min",
        ),
    ],
)
def test_bad_input_gets_one_sentence(wish: Any, message: str) -> None:
    said = wish if wish is None else {"clients": ALICE, **wish}
    with pytest.raises(InputError) as raised:
        read_gateway(said, BACKENDS, ClientNames(frozenset(one.model for one in BACKENDS), frozenset(["sql"])))
    assert str(raised.value).startswith(message)
    assert KEY not in str(raised.value)


CAROL = {"carol": {"password": "canary-password"}}


@pytest.mark.parametrize(
    ("chat", "message"),
    [
        (True, "fleet_gateway.chat: (hidden) is not a mapping with address, port, plain_allowed, open, title, system_"),
        ({"adress": "::"}, "fleet_gateway.chat: adress: is not a known name; did you mean address?"),
        (
            {"address": "chat.example"},
            "fleet_gateway.chat.address: 'chat.example' is not an address of the gateway's host",
        ),
        ({"port": 8080}, "fleet_gateway.chat.port: 8080 is the gateway's own port; choose another"),
        ({"port": 8405}, "fleet_gateway.chat.port: 8405 is the gateway's own metrics_port; choose another"),
        ({"port": 0}, "fleet_gateway.chat.port: 0 is not an integer from 1 to 65535"),
        ({"title": "a\nb"}, "fleet_gateway.chat.title: 'a\\nb' is not a text of one line and at most 80 characters"),
        ({"system_prompt": 5}, "fleet_gateway.chat.system_prompt: 5 is not a text of at most 10,000 characters"),
        ({"open": "no"}, "fleet_gateway.chat.open: 'no' is not true or false"),
        (
            {"address": "0.0.0.0", "users": CAROL},
            "fleet_gateway.chat.address: '0.0.0.0' is not a loopback address, so passwo",
        ),
        (
            {"address": "::", "plain_allowed": True},
            "fleet_gateway.chat.address: '::' is not a loopback address, so everyone",
        ),
        ({"users": [KEY]}, "fleet_gateway.chat.users: (hidden) is not a mapping of users by their names"),
        ({"users": {}}, "fleet_gateway.chat.users: (hidden) is not a mapping of users by their names"),
        ({"users": {"Carol": {}}}, "fleet_gateway.chat.users: 'Carol' is not a name of lowercase letters, digits"),
        (
            {"users": {"carol": KEY}},
            "fleet_gateway.chat.users.carol: (hidden) is not a mapping with password or sha256",
        ),
        (
            {"users": {"carol": {}}},
            "fleet_gateway.chat.users.carol: needs password, or sha256 of carol:PASSWORD in hex",
        ),
        (
            {"users": {"carol": {"password": KEY, "sha256": "ab" * 32}}},
            "fleet_gateway.chat.users.carol: needs password, or sha256 of carol:PASSWORD in hexadecimal, and not both",
        ),
        (
            {"users": {"carol": {"password": "short"}}},
            "fleet_gateway.chat.users.carol.password: (hidden) is not a text",
        ),
        ({"users": {"carol": {"sha256": KEY}}}, "fleet_gateway.chat.users.carol.sha256: (hidden) is not the SHA-256"),
        (
            {"users": {"carol": {"sha256": "ab" * 32}, "dave": {"sha256": "ab" * 32}}},
            "fleet_gateway.chat.users.dave: has the digest of carol",
        ),
        ({"users": {"carol": {"key": KEY}}}, "fleet_gateway.chat.users.carol: key: is not a known name"),
        (
            {"users": {"carol": {"password": KEY, "models": ["smal"]}}},
            "fleet_gateway.chat.users.carol.models: 'smal' is not a model of any host of this inventory; did you mean",
        ),
    ],
)
def test_a_bad_page_gets_one_sentence(chat: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_gateway({"clients": ALICE, "chat": chat}, BACKENDS, ClientNames(frozenset(one.model for one in BACKENDS)))
    assert str(raised.value).startswith(message)
    assert KEY not in str(raised.value) and "short" not in str(raised.value)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            {"buffer_kib": 32, "chat": {}},
            "fleet_gateway.buffer_kib: 32 must be at least 64 for a gateway with a chat page",
        ),
        (
            {"clients": {"chat.carol": {"key": KEY}}, "chat": {"users": CAROL}},
            "fleet_gateway.clients: 'chat.carol' is also the gateway's name for a user of the chat page; choose "
            "another",
        ),
        (
            {"clients": {"chat": {"key": KEY}}, "chat": {}},
            "fleet_gateway.clients: 'chat' is also the gateway's name for a user",
        ),
    ],
)
def test_a_page_that_the_gateway_cannot_have_is_refused(more: Any, message: str) -> None:
    with pytest.raises(InputError) as raised:
        read_gateway(more, BACKENDS)
    assert str(raised.value).startswith(message)


def test_the_page_has_what_its_settings_report_and_no_password() -> None:
    backends = (*BACKENDS, Backend("sees", (), kinds=("text", "image")), Backend("embeds", (), kinds=()))
    more = {"models": ["small"], "requests_per_minute": 6}
    said = {"title": "Talk", "system_prompt": 'Be "brief".\n', "users": {"carol": {**CAROL["carol"], **more}}}
    found = gateway_files(read_gateway({"clients": ALICE, "chat": said}, backends))
    texts = {path.rpartition("/")[2]: file.text for path, file in found.items()}
    assert json.loads(texts["chat-settings.json"]) == {**{"title": "Talk", "system_prompt": 'Be "brief".\n'}}
    lists = dict(line.split(" ", 1) for line in texts["lists.map"].splitlines())
    # What a user may not use is named nowhere; other clients get what vLLM would answer.
    assert [(one["id"], one["kinds"]) for one in json.loads(lists["chat.carol"])["data"]] == [("small", ["text"])]
    assert all("kinds" not in one for one in json.loads(lists["alice"])["data"])
    digest = hashlib.sha256(b"carol:canary-password").hexdigest().upper()
    assert texts["users.map"] == f"{digest} chat.carol\n"
    assert [path for path, file in found.items() if digest in file.text and not file.secret] == []
    assert [name for name, text in texts.items() if "canary-password" in text] == []
    assert "chat.carol|small all\n" in texts["allowed.map"] and "chat.carol|sees" not in texts["allowed.map"]
    assert texts["rates.map"] == "chat.carol 6\n" and "carol" not in texts["clients.map"]
    # Without a page nothing of it is there.
    assert [name for name in files() if "chat" in name or "users" in name] == []
    assert "own:chat" not in files()["haproxy.cfg"] and "chat.sock" not in files()["haproxy.cfg"]


def test_every_file_of_the_page_fits_the_smallest_buffer() -> None:
    found = gateway_files(read_gateway({"chat": {}, "buffer_kib": BUFFER_KIB}, BACKENDS))
    # HAProxy adds headers, and keeps a kilobyte for itself.
    assert max(len(file.text.encode()) for path, file in found.items() if "/chat-" in path) < BUFFER_KIB * 1024 - 4096


def test_a_name_that_no_map_holds_is_refused() -> None:
    with pytest.raises(InputError, match="served_model_name: 'my model' must have only letters"):
        read_gateway({}, (Backend("my model", ()),))


def test_adapters_are_names_of_their_own() -> None:
    backends = (Backend("base", (Server("g1.base", "10.0.0.1", 1, 2),), adapters=("sql",)), *BACKENDS)
    bob = {"sha256": "ab" * 32, "models": ["sql"]}
    found = gateway_files(read_gateway({"clients": {**ALICE, "bob": bob}}, backends))
    texts = {path.rpartition("/")[2]: file.text for path, file in found.items()}
    assert "sql base\n" in texts["models.map"]
    # A server that knows more names than a key may use is asked with care.
    with pytest.raises(InputError, match="balance: 'sql' is an adapter"):
        read_gateway({"balance": {"sql": "prefix"}}, backends)
    assert read_gateway({"balance": {"base": "prefix"}, "paths": ["/a/..b", "/v1/x.y"]}, backends).paths
    assert "bob|sql strict\n" in texts["allowed.map"] and "alice|sql named\n" in texts["allowed.map"]
    with pytest.raises(InputError, match="adapter: 'small' is served by small and by base; give one another name"):
        read_gateway({}, (*BACKENDS, Backend("base", (), adapters=("small",))))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.sampled_from(
        ["address", "port", "certificate", "clients", "open", "waiting", "balance", "paths", "chat", "nonsense"]
    ),
    GARBAGE,
)
def test_a_gateway_of_anything(key: str, value: Any) -> None:
    try:
        gateway = read_gateway({key: value}, BACKENDS)
    except InputError as problem:
        assert str(problem).startswith("fleet_gateway"), problem
        return
    assert gateway_files(gateway)
