"""Serving a bundle that gpg has signed, up to where something would be changed: in check mode on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from gaudi_serve.bundle.fetch.settings import Settings
from gaudi_serve.bundle.fetch.signing import Signer
from gaudi_serve.host.bundle_verify import KEY, SIGNATURE, SUMS, checksums, files_of

ROOT = Path(__file__).parents[2]
READY = "Nothing has been changed. The bundle"


@pytest.fixture
def made() -> Iterator[tuple[Path, str]]:
    """A signed bundle of an Ubuntu for other machines, where services may read it, and who has signed it."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        Path(name).chmod(0o755)
        place = Path(name, "bundle")
        (place / "apt/ubuntu-24.04-arm64").mkdir(parents=True)
        (place / "apt/ubuntu-24.04-arm64/InRelease").write_text("signed")
        (place / "manifest.json").write_text(json.dumps({"items": []}))
        with Signer(Settings({}, key_dir=Path(name, "key"))).ready() as signer:
            yield place, sealed(place, signer)


def sealed(place: Path, signer: Signer) -> str:
    """Sign a bundle as it is, and return who has."""
    signer.export(place / KEY)
    sums = checksums(place, files_of(place))
    (place / SUMS).write_text("".join(f"{total}  {path}\n" for path, total in sums.items()))
    signer.detached(place / SUMS, place / SIGNATURE)
    return signer.fingerprint


def serve(folder: Path, *options: str, status: int = 3, group: str = "mirror", count: int = 1, **given: Any) -> str:
    """Run the playbook in check mode, and return what it prints in one line."""
    own = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_become": False}
    hosts = {f"m{number}": {**own, "site_mirror_address": "127.0.0.1"} for number in range(count)}
    (folder / "hosts.json").write_text(json.dumps({"all": {"children": {group: {"hosts": hosts}}}}))
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), "playbooks/mirror.yml", "--check", "--diff", *options]
    environment = {**os.environ, "ANSIBLE_STDOUT_CALLBACK": "default", "ANSIBLE_NOCOLOR": "1"}
    ended, text = forked.playbook([*argv, "-e", json.dumps(given)], ROOT, environment, 120)
    assert ended == status, text
    assert status == 0 or ("changed=0" in text and "changed=1" not in text)
    return " ".join(text.replace("\\n", " ").split())


def test_an_inventory_without_one_mirror_is_refused_in_a_sentence(tmp_path: Path) -> None:
    said = serve(tmp_path, group="servers")
    assert "Nothing has been changed. Group mirror of the inventory has no host. It must have exactly one host" in said
    assert "Group mirror of the inventory has m0, m1. It must have exactly one host" in serve(tmp_path, count=2)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"site_mirror_address": ""},
            'm0: site_mirror_address "": must be the name or IPv4 address',
        ),
        ({"site_mirror_address": "localhost"}, 'site_mirror_address "localhost": resolves to 127.0.0.1 on this host'),
        (
            {"site_mirror_address": "no-such-name.invalid"},
            '"no-such-name.invalid": resolves to no address on this host',
        ),
        ({"bundle_fingerprint": "78FE"}, 'm0: bundle_fingerprint "78FE": must be the fingerprint that'),
        ({"bundle": "bundle"}, "bundle 'bundle': must be the absolute path of its folder on this host"),
        ({"bundle": "/srv/my bundle"}, "bundle '/srv/my bundle': must be the absolute path"),
        ({"bundle": "/tmp/bundle"}, "bundle '/tmp/bundle': must not be below /tmp, which services do not see"),
        ({"bundle": "/nowhere"}, f"{READY} /nowhere is refused: /nowhere: has no SHA256SUMS, SHA256SUMS.asc, key.asc"),
    ],
)
def test_wrong_variables_are_named_before_anything_changes(
    made: tuple[Path, str], tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    place, fingerprint = made
    assert said in serve(tmp_path, **{"bundle": str(place), "bundle_fingerprint": fingerprint, **given})


def test_an_unknown_state_is_refused(tmp_path: Path) -> None:
    said = serve(tmp_path, status=2, site_mirror_state="gone")
    assert "value of site_mirror_state must be one of: present, absent, got: gone" in said


def test_a_bundle_of_another_system_and_one_that_is_closed_are_refused(made: tuple[Path, str], tmp_path: Path) -> None:
    place, fingerprint = made
    text = serve(tmp_path, bundle=str(place), bundle_fingerprint=fingerprint)
    assert f"{READY} {place} is refused: has no packages of this host (" in text
    assert "it has those of ubuntu-24.04-arm64: make it with this host in the inventory" in text
    place.chmod(0o700)
    try:
        text = serve(tmp_path, bundle=str(place), bundle_fingerprint=fingerprint)
    finally:
        place.chmod(0o755)
    assert f"{place} cannot be read by every user of this host" in text


def test_check_mode_shows_the_files_of_a_virgin_host_and_takes_a_fingerprint_as_people_write_it(
    made: tuple[Path, str], tmp_path: Path
) -> None:
    place, fingerprint = made
    release = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().split("\n") if "=" in line)
    machine = subprocess.run(
        ["dpkg", "--print-architecture"], capture_output=True, text=True, check=True
    ).stdout.strip()
    own = place / f"apt/{release['ID']}-{release['VERSION_ID'].strip(chr(34))}-{machine}"
    own.mkdir()
    (own / "InRelease").write_text("signed")
    with Signer(Settings({}, key_dir=place.parent / "key")).ready() as signer:
        sealed(place, signer)
    groups = " ".join(fingerprint[start : start + 4].lower() for start in range(0, 40, 4))
    text = serve(tmp_path, status=0, bundle=str(place), bundle_fingerprint=groups)
    assert "+ listen 127.0.0.1:8443 ssl;" in text and "PRIVATE KEY" not in text
    assert not Path("/etc/gaudi-mirror-server").exists()
    # Where there is no mirror, there is nothing to take away, and no other variable is asked for.
    serve(tmp_path, "-e", "site_mirror_state=absent", status=0, site_mirror_address="")
