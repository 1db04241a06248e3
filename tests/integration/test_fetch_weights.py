"""The program that fetches weights, through the real clients, against servers and repositories of this machine."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import weights_common
import weights_sources
from helpers.weights_programs import (
    COMMIT,
    MIB,
    NEEDS_ROOT,
    NEWER,
    PROGRAM,
    Host,
    alone,
    contents,
    in_process_list,
    model,
    mounted,
    noise,
    server_module,
)

TOKEN = "hf_canary5f2a"  # noqa: S105 - a test looks for it in logs


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Any]:
    """Serve a repository with two commits."""
    repo = tmp_path / "hub/Qwen/QwQ-32B"
    model(repo / COMMIT)
    model(repo / NEWER)
    (repo / NEWER / "model-2.safetensors").write_bytes(noise(MIB, 9))
    (repo / "refs.json").write_text(json.dumps({"main": COMMIT, "master": COMMIT, "v2": NEWER}))
    server = server_module().Server(tmp_path / "hub")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(params=["hub", "modelscope"])
def host(request: Any, tmp_path: Path, hub: Any) -> Host:
    """A host that fetches with one of the clients."""
    return Host(tmp_path, {"kind": request.param, "repo": "Qwen/QwQ-32B", "endpoint": hub.url})


def test_fetched_once_and_verified(host: Host, hub: Any) -> None:
    assert host.run()["changed"] is True
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)
    files = host.manifest()["files"]
    for name, content in contents(host.target).items():
        assert files[name]["sha256"] == hashlib.sha256(content).hexdigest()
    hub.sent.clear()
    again = host.run()
    assert (again["changed"], hub.sent) == (False, [])
    assert host.run(verify="full")["changed"] is False
    assert hub.sent == []


def test_a_single_file_is_fetched_from_a_mirror_with_its_checksum(tmp_path: Path, hub: Any) -> None:
    path = f"Qwen/QwQ-32B/{COMMIT}/model-1.safetensors"
    content = (hub.root / path).read_bytes()
    source = {"kind": "file", "url": f"https://{path}", "sha256": hashlib.sha256(content).hexdigest()}
    host = Host(tmp_path, {**source, "endpoint": f"{hub.url}/cdn"})
    assert host.run(source={**host.job["source"], "sha256": "0" * 64})["msg"].count("is not what its checksum requires")
    assert not host.target.exists()
    hub.busy = 1
    assert host.run()["changed"] is True
    assert contents(host.target) == {"model-1.safetensors": content}
    assert host.run()["changed"] is False
    gone = host.run(source={**host.job["source"], "url": f"https://{path}.gone"})
    assert "has no such file (404); nothing on the host has been changed" in gone["msg"]
    assert contents(host.target) == {"model-1.safetensors": content}


def test_revision_is_recorded(tmp_path: Path, hub: Any) -> None:
    host = Host(tmp_path, {"kind": "hub", "repo": "Qwen/QwQ-32B", "endpoint": hub.url})
    assert host.run()["revision"] == COMMIT
    assert host.manifest()["revision"] == COMMIT


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_interrupted_and_taken_up_again(host: Host, hub: Any, part: float) -> None:
    total = 128 * MIB
    for number in (1, 2):
        (hub.root / f"Qwen/QwQ-32B/{COMMIT}/model-{number}.safetensors").write_bytes(noise(total // 2, number))
    hub.rate = 256 * MIB
    host.kill_at(part, total)
    assert not host.target.exists()
    hub.rate = 0
    while hub.sending:
        time.sleep(0.01)
    before, sent = host.written(), len(hub.sent)
    # Of the last hundredth nothing may be left to come, on a machine that others use too.
    assert before < total or part == 0.99
    assert host.run()["changed"] is True
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)
    again = sum(length for name, _, length in hub.sent[sent:] if name.startswith("model-"))
    assert again == total - before


def test_flipped_byte_on_the_way_is_never_accepted(host: Host, hub: Any) -> None:
    hub.corrupt = {"model-2.safetensors"}
    result = host.run()
    assert result["failed"]
    assert "h1: model qwq: model-2.safetensors" in result["msg"]
    assert not host.target.exists()
    hub.corrupt = set()
    hub.sent.clear()
    assert host.run()["changed"] is True
    assert hub.fetched() == {"model-2.safetensors"}
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_flipped_byte_on_the_disk_is_found_and_only_it_is_fetched(host: Host, hub: Any) -> None:
    host.run()
    shard = host.target / "model-1.safetensors"
    stat, content = shard.stat(), bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    os.utime(shard, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    hub.sent.clear()
    assert host.run()["changed"] is False  # the same size and time: only a full look finds it
    result = host.run(verify="full")
    assert (result["changed"], result["fetched"]) == (True, ["model-1.safetensors"])
    assert hub.fetched() == {"model-1.safetensors"}
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_lost_and_cut_off_files_are_found_without_reading_all(host: Host, hub: Any) -> None:
    host.run()
    (host.target / "config.json").unlink()
    os.truncate(host.target / "model-2.safetensors", 5)
    hub.sent.clear()
    assert sorted(host.run()["fetched"]) == ["config.json", "model-2.safetensors"]
    assert hub.fetched() == {"config.json", "model-2.safetensors"}
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_touched_file_is_read_and_not_fetched(host: Host, hub: Any) -> None:
    host.run()
    os.utime(host.target / "model-2.safetensors")
    hub.sent.clear()
    result = host.run()
    assert (result["changed"], hub.sent) == (True, [])
    assert host.run()["changed"] is False


def test_other_revision_replaces_and_fetches_what_differs(host: Host, hub: Any) -> None:
    host.run()
    hub.sent.clear()
    newer = {**host.job["source"], "revision": "v2"}
    assert host.run(source=newer)["changed"] is True
    assert hub.fetched() - {"config.json", "vocab.txt"} == {"model-2.safetensors"}
    alone(host, hub.root / "Qwen/QwQ-32B" / NEWER)


def test_vanished_revision_is_reported_and_the_old_one_stays(host: Host, hub: Any) -> None:
    host.run()
    result = host.run(source={**host.job["source"], "revision": "v9"})
    assert result["failed"]
    assert "v9" in result["msg"] and "h1: model qwq: source" in result["msg"]
    assert contents(host.target) == contents(hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_wrong_token_is_reported_and_shown_nowhere(host: Host, hub: Any) -> None:
    hub.token = "right"  # noqa: S105
    for token, said in ((TOKEN, "with the token that was given"), ("", "no token was given")):
        result = host.run(token=token)
        assert result["failed"]
        assert f"{said}; see model_weights_tokens.{host.job['source']['kind']}" in result["msg"]
    assert not host.target.exists()
    assert host.run(token="right")["changed"] is True
    assert host.run(token=TOKEN, source={**host.job["source"], "revision": "v2"})["failed"]
    everything = [path.read_bytes() for path in host.folder.rglob("*") if path.is_file()]
    assert not any(TOKEN.encode() in content for content in everything)


def test_own_mistake_is_reported_and_its_traceback_kept(host: Host, hub: Any) -> None:
    result = host.run(token=TOKEN, retries=None, source={**host.job["source"], "endpoint": f"http://u:{TOKEN}@[/x"})
    assert result["failed"]
    assert result["msg"].startswith("h1: model qwq: ")
    assert "a bug of the toolkit; see " in result["msg"]
    kept = (host.folder / "state/fetch.log").read_text(encoding="utf-8")
    assert "Traceback (most recent call last)" in kept
    assert TOKEN not in kept + result["msg"]


@NEEDS_ROOT
def test_full_disk_under_the_log_hides_no_reason(host: Host, hub: Any) -> None:
    with mounted(host.folder / "state", "64k") as state:
        (state / "lock").touch()
        with contextlib.suppress(OSError):
            (state / "fill").write_bytes(bytes(1 << 20))
        hub.token = "right"  # noqa: S105
        assert "the file system is full" in host.run()["msg"]
    # Not even the folder can be made.
    (host.folder / "file").touch()
    result = host.run(state=str(host.folder / "file/state"))
    assert "Not a directory" in result["msg"]


def test_no_token_in_the_process_list(host: Host, hub: Any) -> None:
    hub.token, hub.rate = TOKEN, MIB
    with host.start(token=TOKEN) as process:
        host.begun(process)
        assert not in_process_list(TOKEN)
        process.kill()


def test_line_that_breaks_is_taken_up(host: Host, hub: Any) -> None:
    hub.broken, hub.busy = 1, 1
    assert host.run(retries=4)["changed"] is True
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_server_that_is_gone_ends_with_one_sentence(host: Host, hub: Any) -> None:
    result = host.run(source={**host.job["source"], "endpoint": "http://127.0.0.1:9"})
    assert result["failed"]
    assert "tried 2 times" in result["msg"]


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"endpoint": "http://hub.invalid"}, "hub.invalid"),
        ({"endpoint": "http://192.0.2.1", "proxy": "http://u:canary-proxy@127.0.0.1:9"}, "127.0.0.1"),
    ],
)
def test_name_or_proxy_that_is_gone_is_reported(host: Host, hub: Any, changed: dict[str, str], named: str) -> None:
    proxies = {"http_proxy": changed["proxy"]} if "proxy" in changed else {}
    result = host.run(source={**host.job["source"], "endpoint": changed["endpoint"]}, proxies=proxies)
    assert result["failed"]
    assert "tried 2 times" in result["msg"]
    assert named in result["msg"]
    assert "canary-proxy" not in result["msg"]
    assert not host.target.exists()


TINYPROXY = """Port {port}
Listen 127.0.0.1
Allow 127.0.0.1
BasicAuth robot canary-proxy
LogFile "{folder}/proxy.log"
LogLevel Connect
"""


@pytest.fixture
def proxy(tmp_path: Path) -> Iterator[str]:
    """Return the port of Debian's tinyproxy, which asks for a login."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (tmp_path / "proxy.conf").write_text(TINYPROXY.format(port=port, folder=tmp_path))
    with subprocess.Popen(["tinyproxy", "-d", "-c", str(tmp_path / "proxy.conf")], stdout=subprocess.DEVNULL) as served:
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                break
            time.sleep(0.02)
        yield str(port)
        served.terminate()


def test_everything_goes_through_a_proxy_whose_password_nobody_sees(
    host: Host, hub: Any, proxy: str, tmp_path: Path
) -> None:
    def by(password: str) -> dict[str, str]:
        # The hub is on loopback, which tests otherwise keep from proxies.
        return {"http_proxy": f"http://robot:{password}@127.0.0.1:{proxy}", "no_proxy": "nowhere.invalid"}

    refused = host.run(proxies=by("canary-wrong"))
    assert refused["failed"] and "canary" not in json.dumps(refused) and hub.sent == []
    done = host.run(proxies=by("canary-proxy"))
    assert done["changed"] is True and "canary" not in json.dumps(done)
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)
    # Each file came through it.
    asked = (tmp_path / "proxy.log").read_text().count(f"GET {hub.url}")
    assert asked >= len(contents(host.target))
    assert not [path for path, content in contents(host.target).items() if b"canary-proxy" in content]


def test_disk_that_fills_up_leaves_nothing_under_the_name(host: Host, hub: Any) -> None:
    result = host.run(limit=MIB // 2)
    assert result["failed"]
    assert not host.target.exists()
    assert host.run()["changed"] is True
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


@NEEDS_ROOT
def test_too_small_a_disk_is_refused_before_anything_is_fetched(tmp_path: Path, hub: Any) -> None:
    host = Host(tmp_path, {"kind": "hub", "repo": "Qwen/QwQ-32B", "endpoint": hub.url})
    with mounted(tmp_path / "small", "17m") as small:
        result = host.run(target=str(small / "QwQ-32B"))
        assert result["failed"]
        assert f"h1: model qwq: {small}/QwQ-32B.partial needs 0.00 GiB" in result["msg"]
        assert "GiB free" in result["msg"]
        assert hub.sent == []
        assert not (small / "QwQ-32B").exists()


@NEEDS_ROOT
def test_conversion_is_reckoned_with(tmp_path: Path, hub: Any) -> None:
    host = Host(tmp_path, {"kind": "hub", "repo": "Qwen/QwQ-32B", "endpoint": hub.url})
    with mounted(tmp_path / "small", "19m") as small:
        target = str(small / "QwQ-32B")
        refused = host.run(target=target, converts=True, space_reason=" with its conversion")
        assert "with its conversion, its file system has" in refused["msg"]
        assert host.run(target=target)["changed"] is True


def test_folder_put_there_by_hand_is_taken_as_it_is(host: Host, hub: Any) -> None:
    model(host.target)
    (host.target / "model-2.safetensors").write_bytes(b"another one")
    result = host.run()
    assert result["changed"] is True
    assert "is accepted without changes" in result["msg"]
    assert host.run()["changed"] is False
    assert hub.sent == []
    full = host.run(verify="full")
    assert full["fetched"] == ["model-2.safetensors"]
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_cut_off_between_the_two_renames(host: Host, hub: Any) -> None:
    host.run()
    host.target.rename(host.target.with_name("QwQ-32B.gaudi-serve-old"))
    hub.sent.clear()
    assert host.run()["changed"] is False
    assert hub.sent == []
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)


def test_empty_folder_and_a_link_to_one_get_their_weights(host: Host, hub: Any, tmp_path: Path) -> None:
    host.target.mkdir(parents=True)
    assert host.run()["changed"] is True
    alone(host, hub.root / "Qwen/QwQ-32B" / COMMIT)
    disk, link = tmp_path / "disk/Qwen", tmp_path / "link"
    disk.mkdir(parents=True)
    link.symlink_to(disk)
    assert host.run(target=str(link))["changed"] is True
    assert link.is_symlink() and (disk / "config.json").is_file()
    assert [path.name for path in disk.parent.iterdir()] == ["Qwen"]
    assert host.run(target=str(link))["changed"] is False


@NEEDS_ROOT
def test_mounted_folder_is_refused_before_anything_is_fetched(tmp_path: Path, hub: Any) -> None:
    host = Host(tmp_path, {"kind": "hub", "repo": "Qwen/QwQ-32B", "endpoint": hub.url})
    with mounted(tmp_path / "disk", "64m") as disk:
        result = host.run(target=str(disk))
        assert result["failed"]
        assert f"{disk}: is a mounted file system; weights need a folder inside it, such as {disk}/qwq" in result["msg"]
        assert hub.sent == []


def test_second_run_waits_for_the_first(host: Host, hub: Any) -> None:
    hub.rate = 2 * MIB
    with host.start() as first:
        host.begun(first)
        second = host.run()
        assert first.wait(20) == 0
    assert second["changed"] is False
    assert sum(length for name, _, length in hub.sent if name == "model-1.safetensors") == MIB


def test_only_wanted_files(host: Host, hub: Any) -> None:
    host.run(source={**host.job["source"], "include": ["*.json", "*.safetensors"], "exclude": ["model-2*"]})
    assert sorted(contents(host.target)) == ["config.json", "model-1.safetensors"]


# A git repository with git-lfs


def git(*words: str, cwd: Path) -> str:
    """Run git without the machine's own settings."""
    settings = {"GIT_CONFIG_GLOBAL": "/dev/null", "HOME": str(cwd), "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b"}
    settings |= {"GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b"}
    done = subprocess.run(
        ["git", *words], cwd=cwd, env={**os.environ, **settings}, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    """Make a bare repository whose shards git-lfs keeps, and a second commit with another shard."""
    if not shutil.which("git-lfs"):
        pytest.fail("git-lfs is not installed; make deps installs it")
    bare, clone = tmp_path / "remote.git", tmp_path / "clone"
    bare.mkdir()
    git("init", "--quiet", "--bare", "-b", "main", ".", cwd=bare)
    git("clone", "--quiet", f"file://{bare}", "clone", cwd=tmp_path)
    git("lfs", "install", "--local", cwd=clone)
    git("lfs", "track", "*.safetensors", cwd=clone)
    model(clone / "x")
    for path in (clone / "x").iterdir():
        path.rename(clone / path.name)
    (clone / "x").rmdir()
    for number in (1, 2):
        git("add", "--all", cwd=clone)
        git("commit", "--quiet", "-m", str(number), cwd=clone)
        git("tag", f"v{number}", cwd=clone)
        git("push", "--quiet", "--tags", "origin", "HEAD:main", cwd=clone)
        if number == 1:
            (clone / "model-2.safetensors").write_bytes(noise(MIB, 9))
    return bare


@pytest.fixture
def git_host(tmp_path: Path, remote: Path) -> Host:
    """A host that clones."""
    return Host(tmp_path, {"kind": "git", "url": f"file://{remote}", "revision": "v1"})


def original(host: Host) -> dict[str, bytes]:
    """Return what the first commit holds."""
    expected = contents(model(host.folder / "expected"))
    return {**expected, ".gitattributes": b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"}


def test_git_lfs_is_fetched_once(git_host: Host, remote: Path) -> None:
    result = git_host.run()
    assert result["changed"] is True, result
    assert result["revision"] == git("rev-parse", "v1", cwd=remote)
    assert contents(git_host.target) == original(git_host)
    assert not (git_host.target / ".git").exists()
    remote.rename(remote.with_name("away"))
    assert git_host.run()["changed"] is False
    assert git_host.run(verify="full")["changed"] is False


def test_git_lfs_interrupted(git_host: Host) -> None:
    for seen in (git_host.partial.exists, lambda: git_host.written() > 0):
        until(git_host, seen)
        assert not git_host.target.exists()
    assert git_host.run()["changed"] is True
    assert contents(git_host.target) == original(git_host)


def until(host: Host, seen: Callable[[], bool]) -> None:
    """Start the program and kill it, and what it has started, as soon as something is seen."""
    with host.start() as process:
        while not seen() and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_git_lfs_repairs_one_file(git_host: Host, remote: Path) -> None:
    git_host.run()
    os.truncate(git_host.target / "model-1.safetensors", 7)
    # Nothing else can come: the store lacks it now.
    other = hashlib.sha256(noise(MIB, 2)).hexdigest()
    (remote / "lfs/objects" / other[:2] / other[2:4] / other).unlink()
    result = git_host.run()
    assert result.get("fetched") == ["model-1.safetensors"], result
    assert contents(git_host.target) == original(git_host)


def test_git_flipped_byte_in_the_store(git_host: Host, remote: Path) -> None:
    oid = hashlib.sha256(noise(MIB, 1)).hexdigest()
    stored = remote / "lfs/objects" / oid[:2] / oid[2:4] / oid
    stored.chmod(0o644)
    content = bytearray(stored.read_bytes())
    content[77] ^= 1
    stored.write_bytes(content)
    result = git_host.run()
    assert result["failed"]
    assert not git_host.target.exists()


def test_gits_token_is_for_the_host_of_the_address_alone(tmp_path: Path) -> None:
    if not shutil.which("git"):
        pytest.fail("git is not installed; make deps installs it")
    sources = weights_sources

    def given(url: str, place: str) -> str:
        job = {"source": {"kind": "git", "url": url}, "secrets": [TOKEN], "host": "h1", "name": "qwq"}
        git = sources.Git(job, tmp_path, lambda text: None)
        git.folder.mkdir(parents=True, exist_ok=True)
        place = f"url={place}\n\n"
        real = subprocess.run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sources.subprocess, "run", lambda *a, **k: real(*a, **k, input=place.encode()))
            try:
                found: str = git.git("credential", "fill").decode()
            except (sources.RetryableError, sources.WeightsError):
                return ""
            return found

    ours = "https://git.example.net/a/b.git"
    assert f"password={TOKEN}" in given(ours, ours)
    for place in (
        "https://other.example.net/a/b.git",
        "http://git.example.net/a/b.git",
        "https://git.example.net:444/a",
    ):
        assert TOKEN not in given(ours, place), place
    assert TOKEN not in given("http://git.example.net/a.git", "http://git.example.net/a.git")
    assert TOKEN in given("http://127.0.0.1:9/a.git", "http://127.0.0.1:9/a.git")


def test_git_reports_a_refusal_from_a_number(tmp_path: Path) -> None:
    sources = weights_sources
    job = {"source": {"kind": "git", "url": "https://h/m-401/x 403.git"}, "secrets": [], "host": "h1", "name": "qwq"}
    git = sources.Git(job, tmp_path, lambda text: None)
    for said in (
        "fatal: unable to access: The requested URL returned error: 403",
        "error: RPC failed; HTTP 401 curl 22",
        "batch response: Client error: https://h/x from HTTP 403",
    ):
        with pytest.raises(sources.WeightsError, match="refuses access"):
            git.judge(said)
    for said in (
        "transfer closed with 403 bytes remaining to read",
        "fetching model-401 of 4013",
        "error: 4031 objects",
    ):
        git.judge(said)


def test_git_without_such_a_revision_or_repository(git_host: Host) -> None:
    url = git_host.job["source"]["url"]
    result = git_host.run(source={"kind": "git", "url": url, "revision": "v9"})
    assert f"{url} has no revision v9" in result["msg"]
    result = git_host.run(source={"kind": "git", "url": "file:///nowhere.git"})
    assert result["failed"]
    assert "/nowhere.git" in result["msg"]
    assert not git_host.target.exists()


# A script of the image


def docker_that_does_nothing(folder: Path) -> Path:
    """Return a stand-in of docker that keeps what it was asked to list and to remove."""
    # It reports what it was given and writes nothing, with status 0, as the vendor's calibration does where it fails.
    docker = folder / "docker"
    docker.parent.mkdir()
    # A container of an earlier run is there, and a stranger's of the same name, which has no label.
    says = ["#!/bin/sh", 'case "$1" in', 'ps) echo "$@" >>"$0.ps"', 'case "$@" in']
    says += ["*label=gaudi-serve.weights=r1*) echo 0wn;;", "*) echo 5tranger;;", "esac;;"]
    says += ['rm) echo "$@" >>"$0.rm";;', '*) echo "$@"; echo "proxy=$https_proxy"; echo no texts;;', "esac"]
    docker.write_text("\n".join(says) + "\n")
    docker.chmod(0o755)
    return docker


@pytest.mark.parametrize("calibrates", [True, False])
def test_what_docker_is_asked_for(tmp_path: Path, calibrates: bool) -> None:
    docker = docker_that_does_nothing(tmp_path / "bin")
    source = {"kind": "calibrate" if calibrates else "convert"}
    job: dict[str, Any] = {"host": "h1", "name": "r1", "state": str(tmp_path / "state"), "source": source}
    job |= {"target": str(tmp_path / "out"), "input": str(tmp_path), "in": "/in", "out": "/out", "weights": False}
    job |= {"container": "c", "image": "i", "log": "x.log", "what": "the step", "command": ["bash", "x.sh"]}
    job |= {"network": calibrates, "workdir": "/opt/vllm-fork" if calibrates else "", "options": []}
    job["env"] = {"https_proxy": f"http://u:{TOKEN}@proxy:3128"}
    environment = {**os.environ, "PATH": f"{docker.parent}:{os.environ['PATH']}"}
    (tmp_path / "state").mkdir()
    (tmp_path / "state/x.log").write_text("of a run before\n")
    argv = [sys.executable, PROGRAM.with_name("convert_weights")]
    done = subprocess.run(argv, input=json.dumps(job), env=environment, capture_output=True, text=True, check=False)
    told = json.loads(done.stdout)["msg"]
    assert "it has written nothing: run --rm" in told and "no texts" in told
    asked = (tmp_path / "state/x.log").read_text().splitlines()[1]
    assert ("--network none" in asked, "--workdir /opt/vllm-fork" in asked) == (not calibrates, calibrates)
    assert "--env https_proxy" in asked and TOKEN not in asked and "--label gaudi-serve.weights=r1" in asked
    assert docker.with_name("docker.rm").read_text() == "rm --force 0wn\n"
    assert "name=^/c$" in docker.with_name("docker.ps").read_text()
    assert TOKEN not in told and f"proxy=http://u:{TOKEN}@proxy:3128" in (tmp_path / "state/x.log").read_text()
    # The mark is there from before the script's first byte; without it the folder is a user's.
    partial = tmp_path / "out.partial"
    assert [path.name for path in partial.iterdir()] == [".gaudi-serve-work"]
    (partial / "of-the-script").touch()
    subprocess.run(argv, input=json.dumps(job), env=environment, capture_output=True, text=True, check=False)
    assert [path.name for path in partial.iterdir()] == [".gaudi-serve-work"]
    shutil.rmtree(partial)
    partial.mkdir()
    (partial / "mine").touch()
    done = subprocess.run(argv, input=json.dumps(job), env=environment, capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["msg"].startswith(f"h1: model r1: {partial}: is not managed by the toolkit")
    assert [path.name for path in partial.iterdir()] == ["mine"]


# A folder of the host


@pytest.fixture
def path_host(tmp_path: Path) -> Host:
    """A host that copies from a folder."""
    return Host(tmp_path, {"kind": "path", "path": str(model(tmp_path / "nfs"))})


def test_path_is_copied_once(path_host: Host) -> None:
    assert path_host.run()["changed"] is True
    alone(path_host, path_host.folder / "nfs")
    assert path_host.run()["changed"] is False


def test_links_out_of_a_folder_are_left_out(path_host: Host) -> None:
    nfs, secret = path_host.folder / "nfs", path_host.folder / "secret"
    secret.write_text("of root")
    (nfs / "link.json").symlink_to(secret)
    (nfs / "alias.json").symlink_to("config.json")
    assert path_host.run()["changed"] is True
    assert sorted(set(contents(path_host.target))) == sorted(
        ["alias.json", "config.json", "model-1.safetensors", "model-2.safetensors", "sub/vocab.txt"]
    )
    log = path_host.folder / "state/fetch.log"
    assert f"link.json is a link out of {nfs}, and is ignored" in log.read_text()
    adopted = path_host.folder / "adopted"
    adopted.mkdir()
    (adopted / "config.json").write_text("{}")
    (adopted / "link.json").symlink_to(secret)
    result = path_host.run(target=str(adopted))
    assert "accepted without changes, 1 file (1 link out of it ignored)" in result["msg"]
    assert "link.json" not in json.loads((adopted / ".gaudi-serve-weights.json").read_text())["files"]


def test_folder_of_nothing_but_links_is_refused(path_host: Host) -> None:
    links = path_host.folder / "links"
    links.mkdir()
    (links / "config.json").symlink_to(path_host.folder / "nfs/config.json")
    result = path_host.run(source={"kind": "path", "path": str(links)})
    assert "has only links to files elsewhere; name the folder that has the files" in result["msg"]


def users(host: Host, suffix: str) -> Path:
    """Put a folder of a user's beside the target, and return its file."""
    mine = host.target.with_name(f"QwQ-32B{suffix}") / "mine.safetensors"
    mine.parent.mkdir()
    mine.write_bytes(b"mine")
    return mine


def test_a_users_old_folder_is_neither_removed_nor_served(path_host: Host) -> None:
    mine = users(path_host, ".old")
    assert path_host.run()["changed"] is True
    assert contents(path_host.target) == contents(path_host.folder / "nfs")
    os.truncate(path_host.target / "model-2.safetensors", 7)
    assert path_host.run()["fetched"] == ["model-2.safetensors"]
    (path_host.folder / "nfs/config.json").write_text("{}")
    assert path_host.run(source={**path_host.job["source"], "revision": "2"})["changed"] is True
    assert mine.read_bytes() == b"mine"
    assert {path.name for path in path_host.target.parent.iterdir()} == {"QwQ-32B", "QwQ-32B.old"}


def test_a_users_partial_folder_is_refused(path_host: Host) -> None:
    mine = users(path_host, ".partial")
    result = path_host.run()
    assert result["failed"]
    assert result["msg"].startswith(f"h1: model qwq: {path_host.partial}: is not managed by the toolkit")
    assert result["msg"].endswith("move it away, or remove it")
    assert not path_host.target.exists()
    assert [path.name for path in path_host.partial.iterdir()] == ["mine.safetensors"]
    # It is in the way only of what needs its place.
    away = path_host.folder / "away"
    path_host.partial.rename(away)
    assert path_host.run()["changed"] is True
    away.rename(path_host.partial)
    assert path_host.run()["changed"] is False
    os.truncate(path_host.target / "model-2.safetensors", 7)
    assert "is not managed by the toolkit" in path_host.run()["msg"]
    assert mine.read_bytes() == b"mine"


def test_a_partial_folder_is_marked_at_every_moment(path_host: Host) -> None:
    """Kill the program at its every call that changes the partial folder; the next run takes it up."""
    calls = ("mkdir", "rename", "unlink", "rmdir", "open")
    cut = f"""
import os, runpy, sys
count = 0
def hook(event, given):
    global count
    place = str(given[0]) if given else ""
    writes = event != "open" or isinstance(given[1], str) and set(given[1]) & set("wax")
    if event.rpartition(".")[2] in {calls!r} and writes and ".partial" in place:
        count += 1
        if count == int(sys.argv[1]):
            os._exit(9)
sys.addaudithook(hook)
sys.argv[0] = sys.argv[2]
sys.path.insert(0, os.path.dirname(sys.argv[2]))
runpy.run_path(sys.argv[2], run_name="__main__")
"""
    original = path_host.folder / "nfs"
    job = json.dumps({**path_host.job, "parallel": 1})
    for number in range(1, 200):
        argv = [sys.executable, "-c", cut, str(number), str(PROGRAM)]
        done = subprocess.run(argv, input=job, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            break
        assert done.returncode == 9, done.stderr
        assert path_host.run().get("failed") is None, f"cut off at call {number}"
        alone(path_host, original)
        shutil.rmtree(path_host.target)
    assert number > 20
    alone(path_host, original)


def test_path_that_is_not_mounted(path_host: Host) -> None:
    result = path_host.run(source={"kind": "path", "path": "/not/mounted"})
    assert "/not/mounted is not a folder on this host; is it mounted?" in result["msg"]
    assert not path_host.target.exists()


@pytest.mark.parametrize("part", [0.1, 0.5, 0.99])
def test_path_copy_that_broke_off_is_completed(path_host: Host, part: float) -> None:
    shard = (path_host.folder / "nfs/model-1.safetensors").read_bytes()
    beginning = path_host.partial / ".gaudi-serve-work/parts" / f"model-1.safetensors.{MIB}"
    beginning.parent.mkdir(parents=True)
    beginning.write_bytes(shard[: int(MIB * part)])
    assert path_host.run()["changed"] is True
    alone(path_host, path_host.folder / "nfs")


def test_path_wrong_beginning_is_not_continued(path_host: Host) -> None:
    beginning = path_host.partial / ".gaudi-serve-work/parts" / f"model-1.safetensors.{MIB}"
    beginning.parent.mkdir(parents=True)
    beginning.write_bytes(b"x" * 1000)
    assert path_host.run()["changed"] is True
    alone(path_host, path_host.folder / "nfs")


def test_path_repairs_from_the_source(path_host: Host) -> None:
    path_host.run()
    os.truncate(path_host.target / "model-2.safetensors", 7)
    assert path_host.run()["fetched"] == ["model-2.safetensors"]
    alone(path_host, path_host.folder / "nfs")


def test_names_that_leave_the_folder_are_refused() -> None:
    for name in ("../x", "/etc/passwd", "a/../../b", "a//b", ".gaudi-serve-work/x", ""):
        with pytest.raises(weights_common.WeightsError):
            weights_common.safe_name(name)
    assert weights_common.safe_name("a/b.json") == "a/b.json"
