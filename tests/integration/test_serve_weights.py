"""Folders of weights that one host gives to another: the program that serves, and the one that fetches."""

from __future__ import annotations

import fcntl
import io
import json
import os
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.programs import load_program
from helpers.weights_programs import (
    MIB,
    NEEDS_ROOT,
    PROGRAM,
    Host,
    alone,
    contents,
    in_process_list,
    model,
    mounted,
    noise,
)

TOKEN = "gaudi-serve-once-canary"  # noqa: S105 - a test looks for it
SERVE = PROGRAM.with_name("serve_weights")
HUB = {"kind": "hub", "repo": "Qwen/QwQ-32B"}
serve_weights: Any = load_program(SERVE)


class Slow(io.FileIO):
    """A file that is read slowly, or with one wrong byte."""

    rate = 0  # bytes a second
    flip: str | None = None  # name of the file

    def fileno(self) -> int:
        """Let no system call send it whole."""
        raise io.UnsupportedOperation

    def read(self, size: int | None = -1) -> bytes:
        """Return what is next."""
        begin = self.tell()
        data = super().read(size)
        if self.rate:
            time.sleep(len(data) / self.rate)
        if self.flip and str(self.name).endswith(self.flip) and begin == 0:
            return bytes([data[0] ^ 1]) + data[1:]
        return data


class SourceHost:
    """The host from which others fetch weights."""

    def __init__(self, folder: Path, source: dict[str, Any], revision: str | None = "c0ffee") -> None:
        self.folder, self.source, self.revision = model(folder), source, revision
        self.note()
        self.server: Any = None

    def note(self, sums: bool = True) -> None:
        """Write the folder's record."""
        files = {}
        for name, path in _files(self.folder).items():
            sha256 = serve_weights.digests(path)[0] if sums else None
            files[name] = {"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "sha256": sha256}
        serve_weights.write_manifest(self.folder, self.source, self.revision, files)

    def listed(self) -> dict[str, Any]:
        """Run the program that reports what is there."""
        job = {"do": "list", "host": "h0", "name": "served", "folders": [str(self.folder)]}
        job |= {"state": str(self.folder.with_name("served")), "address": "127.0.0.1", "port": 0, "idle_s": 1}
        done = subprocess.run(
            [sys.executable, SERVE], input=json.dumps(job), capture_output=True, text=True, check=False
        )
        assert done.stdout, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def serve(self, **job: Any) -> dict[str, Any]:
        """Serve, and return what a job of fetching gets."""
        listed = self.listed()["folders"][str(self.folder)]
        given = {"host": "h0", "folders": [str(self.folder)], "address": "127.0.0.1", "port": 0, "idle_s": 60}
        self.server = serve_weights.Server({**given, "token": TOKEN, **job})
        thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{self.server.server_address[1]}/{listed['number']}"
        return {"token": TOKEN, "from": {**listed, "host": "h0", "url": url}}


def _files(folder: Path) -> dict[str, Path]:
    """Return the files of a model by name."""
    found = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    return {name: path for name, path in found.items() if not name.startswith(".gaudi-serve")}


@pytest.fixture
def source_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SourceHost]:
    """A source host with a complete folder."""
    monkeypatch.setattr(Slow, "rate", 0)
    monkeypatch.setattr(Slow, "flip", None)
    found = SourceHost(tmp_path / "given", HUB)
    yield found
    if found.server:
        found.server.shutdown()
        found.server.server_close()


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> type[Slow]:
    """Let the server read its files in a way that a test can spoil."""
    monkeypatch.setattr(serve_weights.Path, "open", _opened(serve_weights.Path.open))
    return Slow


def _opened(real: Any) -> Any:
    def opened(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return Slow(path) if mode == "rb" and path.suffix == ".safetensors" else real(path, mode, *args, **kwargs)

    return opened


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """The client, a host that reaches no hub."""
    return Host(tmp_path, {**HUB, "endpoint": "http://127.0.0.1:9"})


def test_taken_once_with_its_origin_and_never_asked_for_again(host: Host, source_host: SourceHost) -> None:
    given = source_host.serve()
    result = host.run(**given)
    assert (result["changed"], result["revision"]) == (True, "c0ffee"), result
    alone(host, source_host.folder)
    record = host.manifest()
    assert (record["source"], record["revision"]) == (host.job["source"], "c0ffee")
    source_host.server.shutdown()
    source_host.server.server_close()
    for again in ({}, given, {"verify": "full"}):
        assert host.run(**again)["changed"] is False


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_broken_off_and_taken_up_again(host: Host, source_host: SourceHost, slow: type[Slow], part: float) -> None:
    total = 64 * MIB
    for number in (1, 2):
        (source_host.folder / f"model-{number}.safetensors").write_bytes(noise(total // 2, number))
    source_host.note()
    given = source_host.serve()
    slow.rate = 128 * MIB
    host.job |= given
    host.kill_at(part, total)
    slow.rate = 0
    before, sent = host.written(), []
    # Of the last hundredth nothing may be left to come, on a machine that others use too.
    assert part * total <= before and (before < total or part == 0.99)
    give = serve_weights.Handler.give

    def counted(handler: Any, folder: Path, place: Path, known: dict[str, Any]) -> None:
        begin = handler.headers.get("Range", "bytes=0-").removeprefix("bytes=").removesuffix("-")
        sent.append(known["size"] - int(begin) if place.suffix == ".safetensors" else 0)
        give(handler, folder, place, known)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(serve_weights.Handler, "give", counted)
        assert host.run()["changed"] is True
    alone(host, source_host.folder)
    assert sum(sent) == total - before


def test_flipped_byte_on_the_way_is_never_accepted(host: Host, source_host: SourceHost, slow: type[Slow]) -> None:
    given = source_host.serve()
    slow.flip = "model-2.safetensors"
    result = host.run(**given)
    assert "model-2.safetensors is not what h0 has recorded" in result["msg"]
    assert not host.target.exists()
    slow.flip = None
    assert host.run(**given)["fetched"] == ["model-2.safetensors"]
    alone(host, source_host.folder)


def test_flipped_byte_in_the_folder_that_is_given(host: Host, source_host: SourceHost) -> None:
    shard = source_host.folder / "model-1.safetensors"
    stat, content = shard.stat(), bytearray(shard.read_bytes())
    content[77] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    result = host.run(**source_host.serve())
    assert "model-1.safetensors is not what h0 has recorded" in result["msg"]
    assert "model_weights_verify=full for h0 (tried 2 times)" in result["msg"]
    assert not host.target.exists()


def test_file_that_changes_while_it_is_given(host: Host, source_host: SourceHost) -> None:
    given = source_host.serve()
    (source_host.folder / "model-1.safetensors").write_bytes(b"another one")
    assert "model-1.safetensors differs from the record of h0" in host.run(**given)["msg"]
    assert not host.target.exists()
    assert "model-1.safetensors differs from the record" in source_host.listed()["msg"]


def test_server_that_is_gone_or_not_ours(host: Host, source_host: SourceHost) -> None:
    given = source_host.serve()
    assert "h0 now serves another run (403)" in host.run(**{**given, "token": "old"})["msg"]
    source_host.server.shutdown()
    source_host.server.server_close()
    result = host.run(**given)
    assert "h0: ConnectionRefusedError" in result["msg"] and "tried 2 times" in result["msg"]
    assert not host.target.exists()


def test_only_what_was_asked_for_and_only_with_the_token(source_host: SourceHost) -> None:
    (source_host.folder / "notes.txt").write_text("not in the record")
    url = source_host.serve()["from"]["url"]

    def status(path: str, token: str = TOKEN, method: str = "GET", **headers: str) -> int:
        headers = {"Authorization": f"Bearer {token}", **headers}
        asked = urllib.request.Request(f"{url}{path}", headers=headers, method=method)  # noqa: S310
        try:
            with urllib.request.urlopen(asked, timeout=5) as answer:  # noqa: S310
                return int(answer.status)
        except urllib.error.HTTPError as problem:
            return problem.code

    assert status("/config.json") == 200
    assert status("/config.json", Range="bytes=5-") == 206
    assert status("/config.json", Range="bytes=5000-") == 416
    for path in ("/config.json", "/nothing", "/../../etc/passwd"):
        assert status(path, token="") == 403
    for path in ("/notes.txt", "/.gaudi-serve-weights.json", "/../../etc/passwd", "/%2e%2e/x", "/sub", ""):
        assert status(path) == 404
    assert status("/config.json", method="PUT") == 501


def test_token_is_in_no_process_list_and_no_file(host: Host, source_host: SourceHost, slow: type[Slow]) -> None:
    given = source_host.serve()
    slow.rate = MIB
    with host.start(**given) as process:
        host.begun(process)
        assert not in_process_list(TOKEN)
        slow.rate = 0
        assert process.wait(30) == 0
    assert not any(TOKEN.encode() in path.read_bytes() for path in host.folder.rglob("*") if path.is_file())


def test_server_ends_by_itself(source_host: SourceHost) -> None:
    source_host.serve(idle_s=0.2)
    watch = threading.Thread(target=source_host.server.end_when_idle, daemon=True)
    watch.start()
    watch.join(5)
    assert not watch.is_alive()


def test_server_waits_for_those_who_take_while_they_are_busy_with_something_else(
    host: Host, source_host: SourceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The client waits for another run on its host; meanwhile it asks for nothing but to be waited for.
    given = source_host.serve(idle_s=1.5)
    watch = threading.Thread(target=source_host.server.end_when_idle, daemon=True)
    watch.start()
    state = Path(host.job["state"])
    state.mkdir()
    with (state / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with host.start(**given, ping_s=0.2) as process:
            watch.join(4)
            waited = watch.is_alive() and process.poll() is None
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert waited
            assert process.wait(30) == 0
    alone(host, source_host.folder)
    watch.join(10)
    assert not watch.is_alive()


def test_one_run_leaves_anothers_server_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    said: list[str] = []
    monkeypatch.setattr(serve_weights, "running", lambda unit: [f"{unit}-0a1b2c3d.service"])
    monkeypatch.setattr(serve_weights.time, "sleep", lambda seconds: None)
    clock = iter(range(0, 100000, 20))
    monkeypatch.setattr(serve_weights.time, "monotonic", lambda: next(clock))

    def run(argv: list[str], **more: Any) -> subprocess.CompletedProcess[str]:
        commands.append(argv)
        return subprocess.CompletedProcess(argv, 0, "", "")

    monkeypatch.setattr(serve_weights.subprocess, "run", run)
    job = {"host": "h0", "state": str(tmp_path), "unit": "weights", "folders": [], "address": "127.0.0.1"}
    with socket.create_server(("127.0.0.1", 0)) as taken:
        job |= {"port": taken.getsockname()[1], "idle_s": 60, "max_s": 60}
        for do in ("list", "start"):
            with pytest.raises(serve_weights.WeightsError, match=r"another run serves weights \(weights-0a1b2c3d"):
                serve_weights.work({**job, "do": do}, said.append)
        assert commands == []
        assert said.count("another run serves weights (weights-0a1b2c3d.service); waiting until it ends") == 4
    units = {serve_weights.start(job, lambda text: None)["unit"] for _ in range(2)}
    assert len(units) == 2 and all(unit.startswith("weights-") for unit in units)
    assert [argv[1] for argv in commands] == [f"--unit={unit}" for unit in (c[1][7:] for c in commands)]
    monkeypatch.setattr(serve_weights, "running", lambda unit: [])
    with (
        socket.create_server(("127.0.0.1", job["port"])),
        pytest.raises(serve_weights.WeightsError, match=r"see model_weights_serve_address and model_weights_serve"),
    ):
        serve_weights.start(job, lambda text: None)


def test_link_out_of_the_folder_is_never_given(host: Host, source_host: SourceHost) -> None:
    secret = source_host.folder.with_name("secret")
    secret.write_text("of root")
    (source_host.folder / "link.json").symlink_to(secret)
    (source_host.folder / "alias.json").symlink_to("config.json")
    source_host.note()  # the record lists the links too
    given = source_host.serve()
    assert "link.json" not in given["from"]["files"]
    # And one that takes a file's place while it is given.
    shard = source_host.folder / "model-1.safetensors"
    stat = shard.stat()
    shard.rename(source_host.folder.with_name("elsewhere"))
    shard.symlink_to(source_host.folder.with_name("elsewhere"))
    assert serve_weights.untouched(shard, {"size": stat.st_size, "mtime_ns": stat.st_mtime_ns})
    assert "model-1.safetensors differs from the record of h0" in host.run(**given)["msg"]
    shard.unlink()
    source_host.folder.with_name("elsewhere").rename(shard)
    assert host.run(**given)["changed"] is True
    assert "link.json" not in contents(host.target)
    assert not (host.target / "alias.json").is_symlink()
    assert contents(host.target)["alias.json"] == contents(host.target)["config.json"]


def test_folder_that_was_put_there_by_hand_gets_checksums_and_stays_what_it_is(
    host: Host, source_host: SourceHost
) -> None:
    source_host.source, source_host.revision = {"kind": "adopted"}, None
    source_host.note(sums=False)
    assert source_host.listed()["changed"] is True
    assert source_host.listed()["changed"] is False
    assert host.run(**source_host.serve())["changed"] is True
    alone(host, source_host.folder)
    assert host.manifest()["source"] == {"kind": "adopted"}
    assert host.run()["changed"] is False


def test_converted_folder_is_repaired_and_never_mixed_with_another(host: Host, source_host: SourceHost) -> None:
    made = {"kind": "convert", "convert": "g2", "of": HUB}
    source_host.source = made
    source_host.note()
    given = {**source_host.serve(), "source": made, "made": True}
    assert host.run(**given)["changed"] is True
    (host.target / "model-2.safetensors").unlink()
    assert host.run(**given)["fetched"] == ["model-2.safetensors"]
    alone(host, source_host.folder)
    # Converted again, and not the same: all of it comes, but for what is equal.
    (source_host.folder / "model-1.safetensors").write_bytes(noise(MIB, 77))
    (source_host.folder / "model-2.safetensors").write_bytes(noise(MIB, 78))
    source_host.note()
    source_host.server.shutdown()
    source_host.server.server_close()
    (host.target / "config.json").unlink()
    result = host.run(**{**source_host.serve(), "source": made, "made": True})
    assert sorted(result["fetched"]) == ["config.json", "model-1.safetensors", "model-2.safetensors"], result
    alone(host, source_host.folder)


def test_converted_folder_without_a_record_is_not_taken_as_it_is(host: Host, source_host: SourceHost) -> None:
    model(host.target, seed=5)
    result = host.run(**source_host.serve(), made=True)
    assert result["changed"] is True
    assert contents(host.target) == contents(source_host.folder)


@NEEDS_ROOT
def test_too_small_a_disk_is_refused_before_anything_is_taken(
    tmp_path: Path, host: Host, source_host: SourceHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mounted(tmp_path / "small", "17m") as small:
        given = source_host.serve()
        monkeypatch.setattr(serve_weights.Handler, "give", None)  # who asks for a file breaks it
        result = host.run(target=str(small / "QwQ-32B"), **given)
        assert f"h1: model qwq: {small}/QwQ-32B.partial needs 0.00 GiB" in result["msg"]
