"""An image is pulled with a login that only the engine gets; stood in for by a server at a socket of its own."""

from __future__ import annotations

import base64
import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlparse

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.images import IS_MIRROR, IS_NAME, image_name
from gaudi_serve.host.pull import full_name, mirrored_name, pull, pull_mirrored, split_name
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.stages.image import registry_login

LOGIN = {"username": "robot", "password": "canary"}
NAME = "registry.example.net:5000/site/vllm:1"
PROGRESS = {"status": "Pulling fs layer", "id": "1"}


class Engine(BaseHTTPRequestHandler):
    """Answers as the engine does: its progress as JSON lines in chunks, an error amid them."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[str, dict[str, list[str]], dict[str, str]]]
    answer: tuple[int, list[Any]]
    # What it reports to everything that is not a pull.
    named: tuple[int, list[Any]] = (200, [])
    breaks_off = False

    def do_POST(self) -> None:
        """Note what is asked for, and give the answer."""
        address = urlparse(self.path)
        given = self.headers["X-Registry-Auth"]
        header = json.loads(base64.urlsafe_b64decode(given)) if given else {}
        self.asked.append((address.path, parse_qs(address.query), header))
        status, lines = self.answer if given else self.named
        self.send_response(status)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for line in lines:
            body = (json.dumps(line) + "\r\n").encode()
            self.wfile.write(f"{len(body):x}\r\n".encode() + body + b"\r\n")
        if self.breaks_off:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    do_DELETE = do_POST

    def address_string(self) -> str:
        """Return nothing: who asks at a socket has no address."""
        return ""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Any]:
    """An engine's class, of which a test sets the answer, and its socket."""
    handler = type("Handler", (Engine,), {"asked": [], "answer": (200, [PROGRESS]), "path_": str(tmp_path / "e")})
    with socketserver.UnixStreamServer(str(tmp_path / "e"), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield handler
        server.shutdown()
        thread.join()


def test_the_engine_gets_name_and_login(engine: Any) -> None:
    pull(NAME, LOGIN, engine.path_)
    pull("vllm", {}, engine.path_)
    assert engine.asked == [
        (
            "/images/create",
            {"fromImage": ["registry.example.net:5000/site/vllm"], "tag": ["1"]},
            {**LOGIN, "serveraddress": "registry.example.net:5000"},
        ),
        ("/images/create", {"fromImage": ["vllm"], "tag": ["latest"]}, {}),
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((404, [{"message": "no basic auth canary"}]), "no basic auth (hidden)"),
        ((200, [PROGRESS, {"error": "denied"}]), "denied"),
        ((500, []), "the engine refused it silently"),
    ],
)
def test_what_it_refuses_is_reported_without_the_password(answer: Any, said: str, engine: Any) -> None:
    engine.answer = answer
    with pytest.raises(InputError) as raised:
        pull(NAME, LOGIN, engine.path_)
    assert str(raised.value) == f"image {NAME}: could not be pulled as robot: {said}"


@pytest.mark.parametrize("lines", [[], [PROGRESS]])
def test_an_engine_that_ends_amid_its_answer_has_not_pulled(lines: list[Any], engine: Any) -> None:
    engine.answer, engine.breaks_off = (200, lines), True
    with pytest.raises(InputError, match=r"vllm: could not be pulled: the engine at .+ ended before the image"):
        pull("vllm", {}, engine.path_)


def test_an_engine_that_is_not_there_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="image vllm: could not be pulled: the engine does not answer at /"):
        pull("vllm", {}, str(tmp_path / "none"))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("vllm", ("vllm", "latest")),
        ("a.example:5000/b", ("a.example:5000/b", "latest")),
        ("a.example:5000/b:1", ("a.example:5000/b", "1")),
        (f"a/b:1@sha256:{'0' * 64}", ("a/b", f"sha256:{'0' * 64}")),
    ],
)
def test_a_name_is_a_repository_and_a_tag(name: str, parts: tuple[str, str]) -> None:
    assert split_name(name) == parts


@pytest.mark.parametrize(
    ("image", "registry"),
    [
        ("vllm:1", "docker.io"),
        ("site/vllm:1", "docker.io"),
        ("docker.io/site/vllm:1", "docker.io"),
        (NAME, "registry.example.net:5000"),
        ("localhost/vllm", "localhost"),
        ("[::1]:5000/vllm", "[::1]:5000"),
        ("other.example.net/vllm", None),
    ],
)
def test_a_login_is_found_by_the_images_registry(image: str, registry: str | None) -> None:
    names = ("docker.io", "registry.example.net:5000", "localhost", "[::1]:5000")
    logins = {name: {"username": name, "password": "x"} for name in names}
    found = {"username": registry, "password": "x"} if registry else {}
    assert registry_login(logins, image) == found
    # As a credential of AWX gives it.
    assert registry_login(json.dumps(logins), image) == found
    assert registry_login({}, image) == registry_login("", image) == {}


@pytest.mark.parametrize(
    "wrong",
    [
        {"https://registry.example.net": LOGIN},
        {"registry.example.net/site": LOGIN},
        {"registry": LOGIN},
        {"registry.example.net": {"username": "robot", "password": "canary\n"}},
        {"registry.example.net": "canary"},
        {"registry.example.net": {"password": "canary"}},
        {"registry.example.net": {**LOGIN, "token": "canary"}},
        {"registry.example.net": {"username": "robot", "password": 1}},
        ["canary"],
        "canary",
        # The parser of YAML lets errors of Python out there.
        "{registry.example.net: {username: canary, password: 2026-13-01}}",
    ],
)
def test_what_is_no_login_is_refused_and_not_shown(wrong: Any) -> None:
    (found,) = inventory_refusal({"vllm_models": [], "vllm_image_registries": wrong}, "g")
    assert found.startswith("g: vllm_image_registries (hidden): must be a mapping of registries, such as registry.ex")
    assert "canary" not in found
    # Also where a role is used alone.
    with pytest.raises(InputError, match=r"vllm_image_registries \(hidden\): must be a mapping of registries"):
        registry_login(wrong, "vllm")
    right = {"registry.example.net:5000": LOGIN, "[::1]:5000": LOGIN, "docker.io": LOGIN}
    assert inventory_refusal({"vllm_models": [], "vllm_image_registries": right}, "g") == []
    assert inventory_refusal({"vllm_models": [], "vllm_image_registries": json.dumps(right)}, "g") == []


MIRROR = "mirror.site:8443"


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("debian:12", "docker.io/library/debian:12"),
        ("docker.io/debian", "docker.io/library/debian"),
        ("vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1"),
        ("docker.io/vllm/vllm-openai:v1", "docker.io/vllm/vllm-openai:v1"),
        ("vault.habana.ai/gaudi-docker/x:1", "vault.habana.ai/gaudi-docker/x:1"),
        ("localhost/x:1", "localhost/x:1"),
        ("Harbor/x:1", "Harbor/x:1"),
        (NAME, NAME),
    ],
)
def test_a_mirror_has_an_image_under_its_whole_name(name: str, whole: str) -> None:
    assert full_name(name) == whole


def test_a_port_and_capitals_are_no_part_of_a_repository() -> None:
    assert mirrored_name("Registry.example:5000/site/vllm:1") == "registry.example__5000/site/vllm:1"
    assert mirrored_name("docker.io/library/debian") == "docker.io/library/debian"
    assert mirrored_name("[2001:DB8::1]:5000/vllm:1") == "2001-db8-0-1__5000/vllm:1"
    assert mirrored_name("[::]/vllm:1") == "0-0-0/vllm:1"
    assert IS_NAME(f"{MIRROR}/{mirrored_name('[::1]:5000/vllm:1')}")


def test_an_image_of_a_mirror_gets_its_own_name_alone(engine: Any) -> None:
    pull_mirrored("debian", MIRROR, {}, engine.path_)
    there = f"{MIRROR}/docker.io/library/debian"
    assert engine.asked == [
        ("/images/create", {"fromImage": [there], "tag": ["latest"]}, {}),
        (f"/images/{there}:latest/tag", {"repo": ["debian"], "tag": ["latest"]}, {}),
        (f"/images/{there}:latest", {}, {}),
    ]


def test_a_mirror_in_a_folder_gets_its_login(engine: Any) -> None:
    login = {"username": "robot", "password": "word"}
    pull_mirrored("vault.example:5000/vllm:1", f"{MIRROR}/site/images", login, engine.path_)
    there = f"{MIRROR}/site/images/vault.example__5000/vllm"
    sent = {**login, "serveraddress": MIRROR}
    assert engine.asked[0] == ("/images/create", {"fromImage": [there], "tag": ["1"]}, sent)
    assert registry_login({MIRROR: login}, f"{MIRROR}/site/images/image") == login
    assert all(map(IS_MIRROR, (f"{MIRROR}/site/images", MIRROR)))
    assert not any(map(IS_MIRROR, (f"https://{MIRROR}", f"{MIRROR}/", f"{MIRROR}/Site", f"user:word@{MIRROR}")))
    # An engine would take these for folders of Docker Hub.
    assert not any(map(IS_MIRROR, ("harbor", "harbor/proxy", "harbor/proxy.site")))
    assert all(map(IS_MIRROR, ("harbor:80/proxy", "localhost/proxy", "Harbor/proxy", "[2001:db8::1]:5000/proxy")))


def test_a_login_of_docker_hub_names_it_as_engines_do(engine: Any) -> None:
    """An engine with containerd's store ignores a login of another name (moby 46743)."""
    pull("site/vllm:1", LOGIN, engine.path_)
    assert engine.asked[0][2] == {**LOGIN, "serveraddress": "https://index.docker.io/v1/"}


def test_an_image_of_the_mirror_itself_is_pulled_as_it_is_named(engine: Any) -> None:
    name = f"{MIRROR}/site/vllm@sha256:{'a' * 64}"
    pull_mirrored(name, f"{MIRROR}/site", LOGIN, engine.path_)
    sent = {**LOGIN, "serveraddress": MIRROR}
    digest = {"fromImage": [f"{MIRROR}/site/vllm"], "tag": [f"sha256:{'a' * 64}"]}
    assert engine.asked == [("/images/create", digest, sent)]


def test_the_old_name_of_docker_hub_is_docker_hub() -> None:
    """Engines list such an image without its registry, and logins of Docker have that key (docker-py 874)."""
    assert full_name("index.docker.io/vllm:1") == "docker.io/library/vllm:1"
    assert image_name("index.docker.io/site/vllm") == "site/vllm:latest"
    assert registry_login({"index.docker.io": LOGIN}, "site/vllm") == LOGIN
    assert registry_login({"docker.io": LOGIN}, "index.docker.io/site/vllm") == LOGIN


def test_a_login_may_be_a_key_file_of_several_lines() -> None:
    key = {"username": "_json_key", "password": '{\n  "type": "service_account"\n}'}
    assert registry_login({"gcr.io": key}, "gcr.io/site/vllm") == key


def test_what_a_mirror_cannot_give_is_reported(engine: Any) -> None:
    with pytest.raises(InputError, match="cannot come from a mirror by its digest"):
        pull_mirrored(f"vllm@sha256:{'a' * 64}", MIRROR, {}, engine.path_)
    assert engine.asked == []
    engine.named = (500, [{"message": "no space"}])
    with pytest.raises(InputError, match="image vllm:1: the engine does not give it its name: no space"):
        pull_mirrored("vllm:1", MIRROR, {}, engine.path_)
    engine.answer = (404, [{"message": "manifest unknown"}])
    with pytest.raises(InputError, match=f"image {MIRROR}/docker.io/library/vllm:1: could not be pulled: manifest"):
        pull_mirrored("vllm:1", MIRROR, {}, engine.path_)
