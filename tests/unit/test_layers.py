"""Which layers of an image a host has already; with a real engine in tests/integration/test_image_layers.py."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.host import layers, registry

BIG = 2 * layers.SMALL
A, B, C = (layers.Layer(f"sha256:{name * 64}", BIG, name) for name in "abc")
IMAGE = layers.Image("sha256:" + "0" * 64, b"", (A, B, C))


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.mark.parametrize(
    ("there", "below", "holders"),
    [
        ({"x": ["d"]}, 0, []),
        ({"x": ["a", "d"], "y": ["a", "b"]}, 2, []),
        ({"x": ["a", "b", "c", "d"]}, 3, []),
        # Upon another layer the engine cannot use it as it stands, though it has it.
        ({"x": ["d", "b"], "y": ["d", "b", "c"], "z": ["c"]}, 0, ["y"]),
        ({"x": ["a"], "y": ["d", "c"]}, 1, ["y"]),
    ],
)
def test_layers_are_known_by_their_content(there: dict[str, list[str]], below: int, holders: list[str]) -> None:
    assert layers.below(IMAGE, there) == below
    assert layers.holders(IMAGE.layers[below:], there) == holders


def test_for_a_small_layer_no_other_image_is_read() -> None:
    assert layers.holders([layers.Layer("", 32, "c")], {"x": ["d", "c"]}) == []


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, {}),
        ({"info": '[["driver-type","io.containerd.snapshotter.v1"]]', "ls": "x\n"}, {}),
        ({"ls": "x\ny\nx\n", "inspect": 'x ["a","b"]\ny null\n'}, {"x": ["a", "b"], "y": []}),
    ],
)
def test_what_the_engine_has(told: dict[str, str], expected: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], timeout: float = 0) -> Result:
        return Result(0, next((text for word, text in told.items() if word in argv), ""), "")

    monkeypatch.setattr(layers, "run", run)
    assert layers.engine_layers() == expected


class Blobs(layers.Source):
    """A registry of a few texts."""

    def __init__(self, **texts: bytes) -> None:
        super().__init__("192.0.2.1:8874", "images", Path())
        object.__setattr__(self, "texts", texts)

    def open(self, path: str, accept: str = "*/*") -> Any:
        """Return a text by the kind of what is asked for."""
        return io.BytesIO(self.__dict__["texts"][path.partition("/")[0]])


CONFIG = json.dumps({"rootfs": {"diff_ids": [digest_of(b"x")]}}).encode()


@pytest.mark.parametrize(
    "given",
    [
        {"manifests": []},
        {"config": {"digest": digest_of(CONFIG)}, "layers": []},
        {"config": {"digest": digest_of(CONFIG)}, "layers": [{"digest": "../x", "size": 1}]},
        {"config": {"digest": digest_of(CONFIG)}, "layers": [{"digest": digest_of(b""), "size": "much"}]},
        {"config": {"digest": digest_of(CONFIG)}, "layers": [7]},
        7,
    ],
)
def test_what_is_no_image_of_layers_is_left_to_the_engine(given: Any) -> None:
    manifest = json.dumps(given).encode()
    assert Blobs(manifests=manifest, blobs=CONFIG).image(digest_of(manifest)) is None


def test_a_manifest_and_a_configuration_are_what_was_asked_for() -> None:
    said = {"config": {"digest": digest_of(CONFIG)}, "layers": [{"digest": digest_of(b"y"), "size": 1}]}
    manifest = json.dumps(said).encode()
    image = Blobs(manifests=manifest, blobs=CONFIG).image(digest_of(manifest))
    assert image is not None and image.layers == (layers.Layer(digest_of(b"y"), 1, digest_of(b"x")),)
    for texts in ({"manifests": manifest + b" ", "blobs": CONFIG}, {"manifests": manifest, "blobs": CONFIG + b" "}):
        with pytest.raises(InputError, match=r"^192\.0\.2\.1:8874 gave sha256:.* in place of sha256:.*not loaded$"):
            Blobs(**texts).image(digest_of(manifest))


def test_a_connection_that_breaks_is_left_to_a_pull_and_a_wrong_layer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    faults: list[Exception] = [ConnectionResetError(), registry.http.client.IncompleteRead(b""), TimeoutError()]

    def bring(*_: Any) -> str:
        raise faults.pop(0)

    monkeypatch.setattr(registry, "bring", bring)
    for _ in list(faults):
        assert registry.without_known_layers(Blobs(), "site/x:1", "sha256:", 1) == ""
    faults.append(InputError("otherwise"))
    with pytest.raises(InputError, match=r"^image site/x:1: it could not be pulled from 192\.0\.2\.1:8874: otherwise$"):
        registry.without_known_layers(Blobs(), "site/x:1", "sha256:", 1)
