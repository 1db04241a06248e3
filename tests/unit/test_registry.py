"""The registry by which one host gives images to others: certificates, names, and what it forgets."""

from __future__ import annotations

import datetime
import re
import ssl
import subprocess
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.host import registry
from gaudi_serve.stages.image import images_shared

HOSTS = ["a", "b"]


def shared(missing: list[dict[str, Any]], giver: str, host: str = "b") -> dict[str, list[Any]]:
    return images_shared(missing, missing, giver, host, HOSTS)


def test_a_host_takes_what_another_one_fetches_for_all() -> None:
    pulled, archived = {"name": "x:1"}, {"name": "y:1", "archive": "/srv/y.tar"}
    built = {"name": "z:1-0", "alias": "z", "build": "gaudi", "build_host": "a"}
    for entries in ([pulled], [archived], [built], [pulled, archived, built]):
        assert shared(entries, "a") == {"own": [], "take": entries, "refusal": []}
        assert shared(entries, "a", "a") == {"own": entries, "take": [], "refusal": []}
        assert shared(entries, "") == {"own": entries, "take": [], "refusal": []}


@pytest.mark.parametrize("yes", [True, "true", "yes", 1])
def test_what_each_host_has_a_way_of_its_own_to_is_not_sent(yes: Any) -> None:
    share = {"name": "x:1", "archive": "/nfs/x.tar", "archive_on_host": yes}
    pinned = {"name": "r.example/x@sha256:" + "0" * 64}
    other = {"name": "x:2", "archive": "/nfs/x.tar", "archive_on_host": "false"}
    assert shared([share, pinned, other], "a") == {"own": [share, pinned], "take": [other], "refusal": []}


def test_a_host_that_is_none_and_two_that_fetch_are_refused() -> None:
    assert shared([], "c")["refusal"] == ["b: vllm_image_from_host 'c': is not a host of the inventory, which has a, b"]
    built = {"name": "z:1-0", "alias": "z", "build": "gaudi", "build_host": "b"}
    assert shared([built], "a")["refusal"] == [
        "b: vllm_image_from_host 'a': image z:1-0 has build_host 'b': one host provides images for all; "
        "leave build_host out, or set the same host in both"
    ]
    # A host that is not to build anything may have an old word there.
    assert shared([{**built, "build": "cpu"}], "a")["refusal"] == []


def told(path: Path, *options: str) -> str:
    return subprocess.run(
        ["openssl", "x509", "-in", path, "-noout", *options], capture_output=True, text=True, check=True
    ).stdout


def test_certificates_hold_where_clocks_differ_and_for_one_purpose_alone(tmp_path: Path) -> None:
    for name in ("server", "client"):
        registry.certificate_pair(tmp_path, name, "IP:192.0.2.1")
        moments = [line.partition("=")[2] for line in told(tmp_path / f"{name}.crt", "-dates").splitlines()]
        begin, end = (datetime.datetime.strptime(one, "%b %d %H:%M:%S %Y GMT") for one in moments)
        now = datetime.datetime.now(datetime.timezone.utc).replace(tzinfo=None)
        assert datetime.timedelta(days=2) < now - begin < datetime.timedelta(days=4)
        assert datetime.timedelta(days=2) < end - now < datetime.timedelta(days=4)
        assert (tmp_path / f"{name}.key").stat().st_mode & 0o077 == 0
    assert "IP Address:192.0.2.1" in told(tmp_path / "server.crt", "-ext", "subjectAltName")
    assert "TLS Web Server Authentication" in told(tmp_path / "server.crt", "-ext", "extendedKeyUsage")
    # Who has stolen it cannot pose as the registry.
    assert "Server" not in told(tmp_path / "client.crt", "-ext", "extendedKeyUsage")
    assert told(tmp_path / "server.crt", "-serial") != told(tmp_path / "client.crt", "-serial")
    ssl.create_default_context(cafile=str(tmp_path / "server.crt"))


def test_an_openssl_that_fails_is_reported(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^no certificate for the registry: openssl req: "):
        registry.certificate_pair(tmp_path, "server", "NONSENSE:\n[x")


def test_a_tag_holds_any_name() -> None:
    names = ["registry.example.net:5000/a/b:1", "a/b:1", "a/b:2"]
    tags = {registry.tag_of(name) for name in names}
    assert len(tags) == 3 and all(re.fullmatch(r"[0-9a-f]{40}", tag) for tag in tags)


def test_keys_are_files_of_root_and_gone_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRUSTED", tmp_path)
    client = registry.RegistryClient("192.0.2.1:8874", "authority", "certificate", "key")
    folder = tmp_path / client.registry
    with pytest.raises(RuntimeError), registry.trusted(client):
        assert {path.name for path in folder.iterdir()} == {"ca.crt", "client.cert", "client.key", registry.MARK}
        assert folder.stat().st_mode & 0o077 == 0 and (folder / "client.key").stat().st_mode & 0o077 == 0
        raise RuntimeError
    assert not folder.exists()
    # What a run that was killed has left is taken over; what an owner has put there is not.
    folder.mkdir()
    (folder / registry.MARK).touch()
    with registry.trusted(client):
        pass
    folder.mkdir()
    (folder / "ca.crt").write_text("the owner's")
    told = "exists, and is not the toolkit's; choose another vllm_image_serve_port"
    with pytest.raises(InputError, match=told), registry.trusted(client):
        pass
    assert (folder / "ca.crt").read_text() == "the owner's"


class Docker:
    """Answers in place of the client."""

    def __init__(self, images: str) -> None:
        self.images, self.asked = images, list[list[str]]()

    def __call__(self, argv: list[str], timeout: float = 0) -> Result:
        self.asked.append(argv)
        return Result(0, self.images if argv[:3] == ["docker", "image", "ls"] else "", "")


def test_what_the_engine_no_longer_has_goes_from_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TAGS", tmp_path)
    engine = Docker("a:1\nb:latest\n")
    monkeypatch.setattr(registry, "run", engine)
    for name in ("a:1", "b", "asked:1"):
        (tmp_path / registry.tag_of(name)).mkdir()
    registry.forget_what_is_gone(["asked:1"])
    assert len(list(tmp_path.iterdir())) == 3 and [one[0] for one in engine.asked] == ["docker"]
    (tmp_path / registry.tag_of("gone:1")).mkdir()
    registry.forget_what_is_gone(["asked:1"])
    assert {path.name for path in tmp_path.iterdir()} == {registry.tag_of(name) for name in ("a:1", "b", "asked:1")}
    assert engine.asked[-1][:3] == ["docker-registry", "garbage-collect", "--delete-untagged"]


def test_the_clients_last_line_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    said = "Using default tag: latest\nError response from daemon: no space left on device\n"
    monkeypatch.setattr(registry, "run", lambda argv, timeout=0: Result(1, "", said))
    with pytest.raises(InputError, match=r"^image a:1: Error response from daemon: no space left on device$"):
        registry.docker(["push", "x"], "image a:1")


def test_a_port_that_someone_else_has_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "run", lambda argv: Result(0, "", ""))  # systemd knows no registry
    with registry.socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(InputError) as problem:
            registry.free_port("127.0.0.1", port)
    assert str(problem.value) == (
        f"no registry can listen at 127.0.0.1 port {port}: Address already in use; "
        "see vllm_image_serve_address and vllm_image_serve_port"
    )


def test_a_registry_that_a_dead_run_has_left_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    server, ended = registry.socket.create_server(("127.0.0.1", 0)), list[str]()
    port = server.getsockname()[1]

    def end(unit: str) -> None:
        ended.append(unit)
        server.close()

    monkeypatch.setattr(registry, "QUIET_S", 0)
    units = "gaudi-serve-registry-1.service loaded active running The registry\n"
    monkeypatch.setattr(registry, "run", lambda argv: Result(0, units, ""))
    monkeypatch.setattr(registry, "end", end)
    registry.free_port("127.0.0.1", port)
    assert ended == ["gaudi-serve-registry-1"]
