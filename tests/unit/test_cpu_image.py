"""The archive of the CPU image, of which no engine has seen the largest layer, and how progress is shown meanwhile."""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from helpers.programs import load_program

BUILDER = Path(__file__).parents[2] / "roles/vllm_image/files/build_cpu_image"


@pytest.fixture(scope="module")
def builder() -> Any:
    """Return the program as a module."""
    return load_program(BUILDER)


def saved(path: Path) -> bytes:
    """Write what docker save writes of an image with one layer, and return the layer."""
    below = io.BytesIO()
    with tarfile.open(fileobj=below, mode="w") as layer:
        layer.addfile(tarfile.TarInfo("etc"))
    digest = f"sha256:{hashlib.sha256(below.getvalue()).hexdigest()}"
    config = {"created": "2026-01-01T00:00:00Z", "config": {"Env": ["A=b"]}, "rootfs": {"diff_ids": [digest]}}
    manifest = [{"Config": "one.json", "RepoTags": ["x:1-system"], "Layers": ["a/layer.tar"]}]
    files = {"a/layer.tar": below.getvalue(), "one.json": json.dumps(config).encode()}
    files["manifest.json"] = json.dumps(manifest).encode()
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return below.getvalue()


def test_the_archive_is_the_saved_image_with_one_more_layer(builder: Any, tmp_path: Path) -> None:
    below = saved(tmp_path / "system.tar")
    site = tmp_path / "site"
    (site / "bin").mkdir(parents=True)
    (site / "bin/vllm").write_text("#!/usr/bin/python3\n", encoding="ascii")
    (site / "bin/vllm").chmod(0o700)
    (site / "one.py").write_text("1", encoding="ascii")
    (site / "one.py").chmod(0o600)
    target = tmp_path / "image.tar"
    builder.write_archive(tmp_path / "system.tar", site, "x:1", target)
    assert target.stat().st_size % tarfile.BLOCKSIZE == 0
    with tarfile.open(target) as archive:

        def read(name: str) -> bytes:
            file = archive.extractfile(name)
            assert file
            return file.read()

        manifest = json.loads(read("manifest.json"))
        assert manifest[0]["RepoTags"] == ["x:1"]
        assert manifest[0]["Config"] == f"{hashlib.sha256(read(manifest[0]['Config'])).hexdigest()}.json"
        layers = [read(name) for name in manifest[0]["Layers"]]
        config = json.loads(read(manifest[0]["Config"]))
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}" for layer in layers]
    assert layers[0] == below and config["config"] == {"Env": ["A=b"]}
    with tarfile.open(fileobj=io.BytesIO(layers[1])) as layer:
        members = {one.name: one for one in layer}
    assert sorted(members) == ["opt/vllm", "opt/vllm/bin", "opt/vllm/bin/vllm", "opt/vllm/one.py"]
    assert all(one.uid == one.gid == 0 for one in members.values())
    assert members["opt/vllm/one.py"].mode == 0o644 and members["opt/vllm/bin/vllm"].mode == 0o755


def test_the_image_has_what_compiles_a_model_at_its_start(builder: Any) -> None:
    # PyTorch's inductor calls g++, and includes Python.h.
    assert {"g++", "libpython3-dev"} <= {*builder.RECIPE.split()}


def test_a_folder_that_is_there_is_not_unpacked_again(builder: Any, tmp_path: Path, monkeypatch: Any) -> None:
    did: list[str] = []
    for name in ("download", "unpack", "save"):
        monkeypatch.setattr(builder, name, lambda *_, name=name: did.append(name))
    words = ["build_cpu_image", "--cache", str(tmp_path), "--site", str(tmp_path / "site")]
    monkeypatch.setattr("sys.argv", words)
    builder.main()
    assert did == ["download", "unpack"]
    (tmp_path / "site").mkdir()
    monkeypatch.setattr("sys.argv", [*words, "--output", str(tmp_path / "image.tar")])
    builder.main()
    assert did == ["download", "unpack", "save"]
    monkeypatch.setattr("sys.argv", [*words[:3], "--download"])
    builder.main()
    assert did == ["download", "unpack", "save", "download"]
    monkeypatch.setattr("sys.argv", words[:1])
    with pytest.raises(SystemExit):
        builder.main()


def test_a_long_step_shows_that_it_goes_on(capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    from testhosts_lib import common

    monkeypatch.setattr(common, "TICK_S", 0.05)
    with common.step("One"):
        time.sleep(0.2)
    with pytest.raises(ValueError, match="x"), common.step("Two"):
        raise ValueError("x")
    first, *ticks, end, second, failed = capsys.readouterr().err.splitlines()
    assert (first, second) == ("One ...", "Two ...")
    assert re.fullmatch(r"One: \d+ s", end) and re.fullmatch(r"Two: failed after \d+ s", failed)
    assert ticks and all(re.fullmatch(r"One: \d+ s so far", tick) for tick in ticks)
