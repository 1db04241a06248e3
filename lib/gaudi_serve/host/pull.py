"""Pulls an image with a registry's login that only the engine gets: it is in no file and no process list.

The engine's API takes the login in a header of the one request; ``docker login`` would leave it on the disk.
"""

from __future__ import annotations

import base64
import http.client
import json
import socket
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlencode

from ..core.errors import InputError, one_line
from ..core.hide import hidden
from ..core.images import HUB, split_registry

ENGINE = "/var/run/docker.sock"
HUB_LOGIN = "https://index.docker.io/v1/"  # how engines name docker.io in a login
# Time limit without output of the engine: while it downloads and extracts layers, it reports progress for each.
QUIET_S = 600.0
MOST = 500  # characters of its message
NO_DIGESTS = (
    "cannot come from a mirror by its digest, since an engine gives such a name only to what it pulls from its own "
    "registry; name it by its tag, which the bundle pins to a digest"
)


class _Engine(http.client.HTTPConnection):
    """The engine of this host, at its socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=QUIET_S)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def pull(name: str, login: Mapping[str, str], path: str = ENGINE) -> None:
    """Pull an image with the engine.

    Args:
        name: of the image, with a tag or a digest.
        login: ``username`` and ``password`` of its registry; empty if it requires none.
        path: the engine's socket.

    Raises:
        InputError: with the engine's message, which does not contain the password.
    """
    repository, tag = split_name(name)
    query = urlencode({"fromImage": repository, "tag": tag})
    # An engine that stores images in containerd ignores a login without the registry that it is for.
    registry = split_registry(name)[0]
    sent = {**login, "serveraddress": HUB_LOGIN if registry == HUB else registry} if login else {}
    header = base64.urlsafe_b64encode(json.dumps(sent).encode()).decode()
    engine = _Engine(path)
    try:
        engine.request("POST", f"/images/create?{query}", headers={"X-Registry-Auth": header})
        answer = engine.getresponse()
        text = _problem(_lines(answer)) if answer.status == http.HTTPStatus.OK else _message(answer.read())
    except TimeoutError:
        text = f"the engine sent no output for {QUIET_S:g} s"
    except http.client.IncompleteRead:
        text = f"the engine at {path} ended before the image was there"
    except (OSError, http.client.HTTPException) as problem:
        text = f"the engine does not answer at {path}: {problem}"
    finally:
        engine.close()
    if text:
        who = f" as {one_line(login['username'])}" if login else ""
        sentence = one_line(hidden(text, [login.get("password")]))[:MOST]
        raise InputError(f"image {name}: could not be pulled{who}: {sentence}")


def pull_mirrored(name: str, mirror: str, login: Mapping[str, str], path: str = ENGINE) -> None:
    """Pull an image from a registry that mirrors all images, and give it its own name.

    Args:
        name: of the image, with a tag.
        mirror: the registry, with a path if it has one; the image's name there begins with its original registry.
        login: ``username`` and ``password`` of the mirror; empty if it requires none.
        path: the engine's socket.

    Raises:
        InputError: for a name with a digest, which an engine assigns only to images that it has pulled by it; else as
            for pull.
    """
    if full_name(name).startswith(f"{mirror}/"):
        # An image of the site itself, which its name already takes from the mirror.
        pull(name, login, path)
        return
    if "@" in name:
        raise InputError(f"image {name}: {NO_DIGESTS}")
    place = f"{mirror}/{mirrored_name(full_name(name))}"
    called = place if ":" in place.rpartition("/")[2] else f"{place}:latest"
    pull(called, login, path)
    repository, tag = split_name(name)
    text = _told(path, "POST", f"/images/{called}/tag?{urlencode({'repo': repository, 'tag': tag})}")
    if text:
        raise InputError(f"image {name}: the engine does not give it its name: {one_line(text)[:MOST]}")
    # A name with the mirror would keep the image when it is no longer used.
    _told(path, "DELETE", f"/images/{called}")


def _told(path: str, method: str, address: str) -> str:
    """Send a short request to the engine; return its error, empty on success."""
    engine = _Engine(path)
    try:
        engine.request(method, address)
        answer = engine.getresponse()
        body = answer.read()
        return "" if answer.status < http.HTTPStatus.BAD_REQUEST else _message(body)
    except (OSError, http.client.HTTPException) as problem:
        return f"the engine does not answer at {path}: {problem}"
    finally:
        engine.close()


def split_name(name: str) -> tuple[str, str]:
    """Return the repository of an image, and its digest, its tag, or ``latest``: without one, all tags are pulled."""
    rest, _, digest = name.partition("@")
    place, slash, last = rest.rpartition("/")
    own, _, tag = last.partition(":")
    return f"{place}{slash}{own}", digest or tag or "latest"


def _lines(answer: http.client.HTTPResponse) -> Iterator[bytes]:
    """Yield the lines of an answer as they arrive; http.client's readline treats a broken connection as the end.

    Raises:
        http.client.IncompleteRead: if the connection breaks.
    """
    rest = b""
    while part := answer.read1(2**16):
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
    yield rest


def _problem(lines: Iterable[bytes]) -> str:
    """Return why a pull failed, which the engine reports in its progress; empty on success."""
    for line in lines:
        try:
            told = json.loads(line)
        except ValueError:
            continue
        if isinstance(told, Mapping) and told.get("error"):
            return str(told["error"])
    return ""


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace") or "the engine refused it silently"


def full_name(name: str) -> str:
    """Return an image's name with its registry, and with the default registry's folder for official images.

    Args:
        name: as a user writes it; for ``debian:12`` the result is ``docker.io/library/debian:12``.
    """
    registry, rest = split_registry(name)
    return f"{registry}/{rest}" if registry != HUB or "/" in rest else f"{HUB}/library/{rest}"


def mirrored_name(name: str) -> str:
    """Return the name of an image in a mirror's registry.

    There a registry's name is a folder, which cannot have colons, capital letters or an address's brackets.

    Args:
        name: with its registry; for ``registry.example:5000/vllm:1`` the result is ``registry.example__5000/vllm:1``.
    """
    registry, _, rest = name.partition("/")
    address, bracket, port = registry.partition("]")
    if bracket:
        registry = "-".join(part or "0" for part in address[1:].split(":")) + port
    return f"{registry.lower().replace(':', '__')}/{rest}"
