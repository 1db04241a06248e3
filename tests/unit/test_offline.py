"""Hosts of a site without internet: what they have of the mirror, what it lacks, and what it answers."""

from __future__ import annotations

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import sha256_text
from gaudi_serve.host import certificate, observe_mirror
from gaudi_serve.host.mirror import read
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.stages.base import Given, Pending
from gaudi_serve.stages.offline import STAGE, mirror_of
from gaudi_serve.stages.registry import facts_wanted
from helpers.plugins import run_module

URL = "https://mirror.site:8443"
SYSTEM = {"id": "debian", "version_id": "12", "architecture": "x86_64", "kernel": "6.1.0-1-amd64"}
AUTHORITY, KEY = "-----BEGIN CERTIFICATE-----\nx\n", "-----BEGIN PGP PUBLIC KEY BLOCK-----\nx\n"
NOTHING = {"files": dict.fromkeys(observe_mirror.FILES), "registries": {}, "release": ""}
ANSWER = {"problem": "", "release": "a" * 64, "items": [["package", "jq", "1", "debian 12 amd64"]]}


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    """A folder as playbooks/mirror.yml leaves it."""
    (tmp_path / "ca.crt").write_text(AUTHORITY)
    (tmp_path / "key.asc").write_text(KEY)
    return tmp_path


def variables(trust: Path, **more: Any) -> dict[str, Any]:
    """Return the variables of a host that uses the mirror."""
    own = {"offline_enabled": True, "offline_mirror_url": URL, "offline_trust": str(trust)}
    return {"gaudi_system": SYSTEM, "gaudi_mirror": NOTHING, **own, **more}


def pending(known: dict[str, Any], **answer: Any) -> Pending:
    """Return what the stage would do, given what the mirror answers."""
    return STAGE.asked(Given("h", known), lambda name, arguments: {**ANSWER, **answer})


def written(found: Pending) -> dict[str, str]:
    """Return the text of each file that would be written."""
    return {one["path"]: one["content"] for one in found.changes["files"]}


def seen(tmp_path: Path, texts: dict[str, str]) -> dict[str, Any]:
    """Return what is observed of a host with these files."""
    for path, text in texts.items():
        place = tmp_path / "host" / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    return observe_mirror.observe(str(tmp_path / "host"))


def test_a_host_gets_authority_key_and_one_source(trust: Path) -> None:
    found = pending(variables(trust))
    files = written(found)
    place = "/etc/docker/certs.d/mirror.site:8443"
    assert set(files) == {*observe_mirror.FILES, f"{place}/ca.crt", f"{place}/gaudi-serve"}
    assert files[f"{place}/ca.crt"] == files["/etc/gaudi-mirror/ca.crt"] == AUTHORITY
    line = "deb [signed-by=/etc/gaudi-mirror/key.asc] https://mirror.site:8443/apt/debian-12-amd64 ./"
    assert line in files["/etc/gaudi-mirror/apt.list"].splitlines()
    assert 'Dir::Etc::sourceparts "/dev/null";' in files["/etc/gaudi-mirror/apt.conf"]
    assert found.changes["read"] and found.due[-1] == f"read the packages of {URL}"
    assert found.facts["has"] == ANSWER["items"]


def test_the_second_look_finds_nothing_and_every_single_change_is_seen(trust: Path, tmp_path: Path) -> None:
    files = written(pending(variables(trust)))
    here = {**seen(tmp_path, files), "release": ANSWER["release"]}
    assert not pending(variables(trust, gaudi_mirror=here)).due
    mark = "/etc/docker/certs.d/mirror.site:8443/gaudi-serve"
    for path in set(files) - {mark}:
        changed = {**seen(tmp_path, {**files, path: "another"}), "release": ANSWER["release"]}
        again = pending(variables(trust, gaudi_mirror=changed))
        assert path in written(again), path
        assert f"write {path}" in again.due and again.drift == again.due
    (tmp_path / "host" / mark.lstrip("/")).unlink()
    unmarked = pending(variables(trust, gaudi_mirror={**observe_mirror.observe(str(tmp_path / "host"))}))
    assert mark in written(unmarked)
    older = pending(variables(trust, gaudi_mirror={**seen(tmp_path, files), "release": "b" * 64}))
    assert older.due == [f"read the packages of {URL}"]
    # Another mirror takes the place of this one.
    moved = pending(variables(trust, gaudi_mirror=here, offline_mirror_url="https://other.site"))
    assert "remove /etc/docker/certs.d/mirror.site:8443/ca.crt" in moved.due
    assert moved.changes["empty"] == ["/etc/docker/certs.d/mirror.site:8443"] and not moved.changes["gone"]


def test_where_it_is_over_the_files_go_and_nothing_is_asked(trust: Path, tmp_path: Path) -> None:
    files = written(pending(variables(trust)))
    off = variables(trust, gaudi_mirror=seen(tmp_path, files), offline_enabled=False)
    found = STAGE.asked(Given("h", off), lambda *_: pytest.fail("the mirror is asked"))
    assert set(found.changes["absent"]) == set(files) and not found.changes["files"]
    assert found.changes["empty"] == ["/etc/docker/certs.d/mirror.site:8443", "/etc/gaudi-mirror"]
    assert found.changes["gone"] == ["/var/lib/gaudi-mirror"]
    none = STAGE.asked(Given("h", {**off, "gaudi_mirror": NOTHING}), lambda *_: pytest.fail("the mirror is asked"))
    assert not none.due and not none.changes["due"]
    left = STAGE.reset(Given("h", off))
    assert set(files) < set(left["paths"]) and left["empty"] == [
        "/etc/docker/certs.d/mirror.site:8443",
        "/etc/gaudi-mirror",
    ]


def test_a_mirror_that_cannot_be_used_refuses_the_run(trust: Path) -> None:
    found = pending(variables(trust), problem="it cannot be reached: refused", release="", items=[])
    assert found.refusal == [f"h: the mirror {URL}: it cannot be reached: refused"] and not found.due
    without = pending(variables(trust), release="")
    assert not without.changes["read"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offline_mirror_url": "http://x"}, "gaudi_mirror_url 'http://x': must be the address of the site's mirror"),
        ({"offline_mirror_url": ""}, "gaudi_mirror_url '': must be"),
        ({"offline_trust": "/nowhere"}, "gaudi_mirror_trust '/nowhere': has no ca.crt that can be read"),
    ],
)
def test_what_is_missing_is_named(trust: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said.replace("'", ".")):
        mirror_of(variables(trust, **change))
    (trust / "key.asc").write_text("no key")
    with pytest.raises(InputError, match=r"has no key\.asc"):
        mirror_of(variables(trust))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("gaudi_mirror_url", "mirror"),
        ("gaudi_offline", "perhaps"),
        ("site_mirror_fingerprint", "x"),
        ("gaudi_mirror_url", 1),
    ],
)
def test_wrong_variables_are_refused(key: str, value: Any) -> None:
    (said,) = inventory_refusal({key: value, "vllm_models": []}, "h")
    assert said.startswith(f"h: {key} ")


def test_each_run_of_a_site_looks_at_the_mirror() -> None:
    assert "mirror" not in facts_wanted(["container_runtime"])
    assert {"mirror", "system", "runtime"} <= set(facts_wanted(["container_runtime"], offline=True))


# ---- the mirror itself


class Quiet(SimpleHTTPRequestHandler):
    """Serves files silently."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[tuple[str, str, Path]]:
    """A mirror with TLS on loopback: its address, its authority, its folder."""
    certificate.make(tmp_path / "host.pem", "127.0.0.1")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "host.pem")
    folder = tmp_path / "bundle"
    (folder / "apt/debian-12-amd64").mkdir(parents=True)
    (folder / "apt/debian-12-amd64/InRelease").write_text("signed")
    item = {"kind": "package", "name": "jq", "version": "1", "system": "debian 12 amd64", "origin": "x"}
    (folder / "manifest.json").write_text(json.dumps({"items": [item]}))
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        text = certificate.read(tmp_path / "host.pem")["text"]
        yield f"https://127.0.0.1:{server.server_address[1]}", text, folder
        server.shutdown()
        thread.join()


def test_a_host_reads_what_the_mirror_has(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url, authority, folder = site
    # A proxy of the host leads outside.
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")
    found = read(url, authority, "debian-12-amd64")
    index = hashlib.sha256((folder / "apt/debian-12-amd64/InRelease").read_bytes()).hexdigest()
    assert found == {"problem": "", "release": index, "items": [["package", "jq", "1", "debian 12 amd64"]]}
    assert read(url, authority, "ubuntu-24.04-amd64")["release"] == ""
    (folder / "manifest.json").write_text("{}")
    assert read(url, authority, "debian-12-amd64")["problem"].startswith("manifest.json cannot be read")
    (folder / "manifest.json").unlink()
    assert read(url, authority, "debian-12-amd64")["problem"] == "it answers manifest.json with status 404"


def test_a_mirror_that_is_another_one_or_silent_is_reported(site: Any, tmp_path: Path) -> None:
    url, _, _ = site
    certificate.make(tmp_path / "other.pem", "127.0.0.1")
    other = certificate.read(tmp_path / "other.pem")["text"]
    assert "certificate verify failed" in read(url, other, "x")["problem"]
    assert read(url, "nothing", "x")["problem"] == "its authority is not a certificate in PEM"
    assert read("https://127.0.0.1:9", other, "x")["problem"].startswith("it cannot be reached: ")


def test_a_mirror_that_has_just_been_started_is_waited_for(site: Any) -> None:
    url, authority, folder = site
    given = {"url": url, "authority": authority, "system": "debian-12-amd64"}
    (folder / "manifest.json").rename(folder / "later")
    assert "status 404" in run_module("mirror_read", **given)["problem"]
    begin = threading.Timer(1, (folder / "later").rename, (folder / "manifest.json",))
    begin.start()
    assert run_module("mirror_read", **given, wait=20)["problem"] == ""
    begin.join()


def test_apt_is_asked_again_when_its_index_is_another_one(tmp_path: Path) -> None:
    lists = {f"{observe_mirror.LISTS}/mirror_._InRelease": "signed"}
    assert seen(tmp_path, lists)["release"] == sha256_text("signed")
    assert seen(tmp_path, {f"{observe_mirror.LISTS}/other_InRelease": "x"})["release"] == ""
