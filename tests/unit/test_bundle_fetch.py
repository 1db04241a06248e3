"""Fetching a bundle: what is refused, what its parts are called, its signature, and that it is as it was signed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gaudi_serve.bundle.access import Access
from gaudi_serve.bundle.fetch import apt, before, downloads, images, python, sources, weights
from gaudi_serve.bundle.fetch.base import Bundle, FetchError, Got, Outcome
from gaudi_serve.bundle.fetch.finish import differences, failures, finish
from gaudi_serve.bundle.fetch.run import fetch_bundle, wanted, with_present
from gaudi_serve.bundle.fetch.settings import Settings
from gaudi_serve.bundle.fetch.signing import Signer
from gaudi_serve.bundle.images import INSIDE
from gaudi_serve.bundle.items import Item, Manifest, Need
from gaudi_serve.bundle.weights import TEXTS
from gaudi_serve.host.bundle_verify import SIGNATURE, SUMS, checksum, dearmoured, verify
from helpers import outside
from helpers.plugins import load
from helpers.weights_programs import COMMIT, NEWER

FILE = Path(__file__).parents[2] / "lib/gaudi_serve/host/bundle_verify.py"
DIGEST = f"sha256:{'a' * 64}"
IMAGE = Item("image", "registry.example/vllm", DIGEST, "registry.example", pinned=True)
DEB = Item("package", "hello", "", "debian 12", "debian 12 amd64", Need(("h1",), (), ("driver",)))


@pytest.fixture(scope="module")
def settings() -> Iterator[Settings]:
    """Return settings with a key that is made once; the path of its folder must be short."""
    with tempfile.TemporaryDirectory(prefix="gs-") as name:
        yield Settings(key_dir=Path(name) / "key", allow_unpinned=True)


@pytest.fixture
def signer(settings: Settings) -> Iterator[Signer]:
    """Return what signs."""
    with Signer(settings).ready() as found:
        yield found


def bundle(folder: Path, settings: Settings | None = None, **access: Any) -> Bundle:
    """Return a bundle in a folder, with what is there as it was signed."""
    made = Bundle(folder, settings or Settings(), Access(**access), tell=lambda line: None)
    made.work.mkdir(parents=True, exist_ok=True)
    return with_present(made)[0]


def signed(folder: Path, settings: Settings, signer: Signer, names: list[str]) -> Any:
    """Finish a bundle of an image with these files."""
    items = (Item(**{**vars(IMAGE), "path": ""}),)
    place = "images/x"
    found = bundle(folder, settings)
    for name in names:
        path = folder / place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_text(name)
    got = {IMAGE.identity: Got(place, 5, digest=DIGEST)}
    return finish(found, Manifest(items, "then"), items, Outcome(got, {}, {f"{place}/{one}" for one in names}), signer)


# ---- signature and checksums


def test_a_bundle_is_verified_by_its_key_alone(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    signed(tmp_path, settings, signer, ["a", "b/c"])
    assert verify(tmp_path, signer.fingerprint) == []
    spaced = " ".join(signer.fingerprint[at : at + 4] for at in range(0, 40, 4)).lower()
    assert verify(tmp_path, spaced) == []
    assert verify(tmp_path, "A" * 40) == [f"{tmp_path}: is signed by {signer.fingerprint}, not by {'A' * 40}"]
    assert "must be the 40 hexadecimal digits" in verify(tmp_path, "A" * 16)[0]
    lines = (tmp_path / SUMS).read_text().splitlines()
    assert [line.split("  ")[1] for line in lines] == ["images/x/a", "images/x/b/c", "key.asc", "manifest.json"]
    assert subprocess.run(["sha256sum", "--check", "--quiet", SUMS], cwd=tmp_path, check=False).returncode == 0
    (path,) = json.loads((tmp_path / "manifest.json").read_text())["items"]
    assert (path["path"], path["digest"], path["bytes"]) == ("images/x", DIGEST, 5)


def test_changed_missing_and_extra_files_are_named(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    signed(tmp_path, settings, signer, ["a", "b", "c", "d"])
    (tmp_path / "images/x/a").write_text("z")
    (tmp_path / "images/x/b").unlink()
    (tmp_path / "images/x/c").rename(tmp_path / "images/y")
    (tmp_path / "images/x/c").symlink_to("../y")
    (tmp_path / ".work").mkdir()
    assert verify(tmp_path, signer.fingerprint) == [
        f"{tmp_path}: .work exists: fetching was interrupted; run it again",
        "images/x/b: is missing",
        "images/y: is extra: the signed list does not have it",
        "images/x/c: is a link, where a file belongs",
        "images/x/a: was changed: its checksum differs",
    ]


def test_a_pipe_in_place_of_a_file_is_named_and_read_by_nobody(
    tmp_path: Path, settings: Settings, signer: Signer
) -> None:
    signed(tmp_path, settings, signer, ["a"])
    for name in ("images/x/a", "extra"):
        (tmp_path / name).unlink(missing_ok=True)
        os.mkfifo(tmp_path / name)
    # In a process of its own, because a reader of a pipe waits for ever.
    argv = [sys.executable, "-I", str(FILE), str(tmp_path), signer.fingerprint]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=30, check=False).stdout.splitlines()
    assert said == [
        "extra: is extra: the signed list does not have it",
        "extra: is a pipe, where a file belongs",
        "images/x/a: is a pipe, where a file belongs",
    ]
    assert with_present(bundle(tmp_path, settings))[1] == ["images/x/a: is missing since it was signed; fetched again"]
    (tmp_path / SUMS).unlink()
    os.mkfifo(tmp_path / SUMS)
    assert "has no SHA256SUMS" in verify(tmp_path, signer.fingerprint)[0]


@pytest.mark.parametrize("how", ["expired", "revoked"])
def test_a_key_that_apt_would_refuse_is_refused(tmp_path: Path, how: str) -> None:
    with tempfile.TemporaryDirectory(prefix="gs-") as name, outside.keyring(Path(name) / "key") as home:
        past = ("--faked-system-time", "20240101T000000!", "--passphrase", "")
        outside.gpg(
            home, *past, "--quick-generate-key", "old", "ed25519", "sign", "2d" if how == "expired" else "never"
        )
        fingerprint = (
            outside.gpg(home, "--with-colons", "--list-keys", "old").split("fpr:::::::::")[1].partition(":")[0]
        )
        (tmp_path / "a").write_text("a")
        if how == "revoked":
            revocation = (home / f"openpgp-revocs.d/{fingerprint}.rev").read_text().replace(":-----BEGIN", "-----BEGIN")
            (home / "revocation").write_text(revocation)
        (tmp_path / "key.asc").write_text(outside.gpg(home, "--armor", "--export", "old"))
        sums = "".join(f"{checksum(tmp_path / one)}  {one}\n" for one in ("a", "key.asc"))
        (tmp_path / SUMS).write_text(sums)
        outside.gpg(home, *past, "--local-user", "old", "--armor", "--detach-sign", tmp_path / SUMS)
        if how == "revoked":
            outside.gpg(home, "--import", home / "revocation")
            (tmp_path / "key.asc").write_text(outside.gpg(home, "--armor", "--export", "old"))
        said = verify(tmp_path, fingerprint)
    text = "was revoked" if how == "revoked" else "has expired on 2024-01-03"
    assert said == [f"{tmp_path / 'key.asc'}: the key {text}, so apt on the hosts refuses it: fetch with a valid key"]


def signed_by_gpg(folder: Path, home: Path, past: Sequence[str], *words: str) -> str:
    """Sign a bundle of one file with the key x, exported at a past time; return the key's fingerprint."""
    (folder / "key.asc").write_text(outside.gpg(home, *past, "--armor", "--export", "x"))
    (folder / SUMS).write_text(f"{checksum(folder / 'key.asc')}  key.asc\n")
    outside.gpg(home, *words, "--local-user", "x", "--armor", "--detach-sign", folder / SUMS)
    listed: str = outside.gpg(home, "--with-colons", "--list-keys", "x")
    return listed.split("fpr:::::::::")[1].partition(":")[0]


PAST = ("--faked-system-time", "20240101T000000!", "--passphrase", "")
FUTURE = ("--faked-system-time", "20990101T000000!", "--passphrase", "")
IN_FUTURE = "the key or its signature is from the future, so the clock of this machine is wrong: set it"


@pytest.mark.parametrize(
    ("kind", "made", "signed_with", "message"),
    [
        ("ed25519", PAST, (), ""),
        ("rsa2048", PAST, ("--digest-algo", "SHA1"), "the key signed with SHA-1, which apt on the hosts refuses"),
        ("rsa2048", PAST, ("--digest-algo", "RIPEMD160"), "the key signed with RIPEMD-160, which apt on the hosts"),
        ("ed25519", PAST, (*PAST, "--default-sig-expire", "2d"), "the key made a signature that has expired, so apt"),
        ("ed25519", FUTURE, FUTURE, IN_FUTURE),
        ("ed25519", PAST, FUTURE, IN_FUTURE),
    ],
)
def test_a_signature_is_judged_as_apt_does(
    tmp_path: Path, kind: str, made: tuple[str, ...], signed_with: tuple[str, ...], message: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="gs-") as name, outside.keyring(Path(name) / "key") as home:
        outside.gpg(home, *made, "--quick-generate-key", "x", kind, "sign", "never")
        said = verify(tmp_path, signed_by_gpg(tmp_path, home, made, *signed_with))
    assert message in "".join(said) and len(said) == bool(message)


def test_an_expired_subkey_that_did_not_sign_is_no_problem(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="gs-") as name, outside.keyring(Path(name) / "key") as home:
        outside.gpg(home, *PAST, "--quick-generate-key", "x", "ed25519", "sign", "never")
        fingerprint = outside.gpg(home, "--with-colons", "--list-keys", "x").split("fpr:::::::::")[1].partition(":")[0]
        outside.gpg(home, *PAST, "--quick-add-key", fingerprint, "ed25519", "sign", "2d")
        assert verify(tmp_path, signed_by_gpg(tmp_path, home, PAST)) == []


@pytest.mark.parametrize(
    ("kind", "options", "words"),
    [
        ("ed25519", ("--faked-system-time", "20240101T000000!"), "cannot sign: it has expired, was revoked"),
        ("rsa1024", (), "apt may refuse it: use ed25519, or RSA with 2048 bits"),
        ("dsa1024", (), "apt may refuse it"),
        ("rsa2048", (), ""),
    ],
)
def test_a_key_of_the_user_is_checked_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, options: tuple[str, ...], words: str
) -> None:
    with tempfile.TemporaryDirectory(prefix="gs-") as name, outside.keyring(Path(name) / "key") as home:
        outside.gpg(home, *options, "--passphrase", "", "--quick-generate-key", "x", kind, "sign", "2d")
        (home / "gpg.conf").write_text("digest-algo SHA1\n")
        monkeypatch.setenv("GNUPGHOME", str(home))
        signs = Signer(Settings(signing_key="x"))
        assert words in signs.problem() and bool(signs.problem()) == bool(words)
        if not words:
            # Whatever the user's settings of gpg are.
            signs.export(tmp_path / "key.asc")
            (tmp_path / SUMS).write_text(f"{checksum(tmp_path / 'key.asc')}  key.asc\n")
            signs.detached(tmp_path / SUMS, tmp_path / SIGNATURE)
            assert verify(tmp_path, signs.fingerprint) == []


def test_files_that_only_pretend_are_neither_followed_nor_read_for_hours(
    tmp_path: Path, settings: Settings, signer: Signer
) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    signed(folder, settings, signer, ["a"])
    forged = folder / "x\n\x1b[2J"
    forged.write_text("")
    assert verify(folder, signer.fingerprint) == [r"'x\n\x1b[2J': is extra: the signed list does not have it"]
    forged.unlink()
    os.truncate(folder / "images/x/a", shutil.disk_usage(folder).total + 1)
    assert verify(folder, signer.fingerprint) == ["images/x/a: was changed: its checksum differs"]
    for name in (SUMS, SIGNATURE, "key.asc"):
        (folder / name).rename(tmp_path / name)
        (folder / name).symlink_to(tmp_path / name)
        assert f"has no {name}" in verify(folder, signer.fingerprint)[0]
        (folder / name).unlink()
        shutil.copy(tmp_path / name, folder / name)
        os.truncate(folder / name, 1 << 36)
        assert f"{name} is too large" in verify(folder, signer.fingerprint)[0]
        shutil.copy(tmp_path / name, folder / name)


def test_a_new_link_to_a_folder_makes_a_verified_bundle_unknown(tmp_path: Path) -> None:
    state_of = load("library/bundle_verified.py").state_of
    (tmp_path / "a").write_text("a")
    before = state_of(tmp_path, "A" * 40)
    assert state_of(tmp_path, "A" * 40) == before
    (tmp_path / "more").symlink_to("/etc")
    assert state_of(tmp_path, "A" * 40) != before


def test_a_key_that_expires_after_a_bundle_was_verified_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified = load("library/bundle_verified.py")
    folder, key = tmp_path / "bundle", "A" * 40
    folder.mkdir()
    record = tmp_path / "verified.json"
    record.write_text(json.dumps({"verified": verified.state_of(folder, key)}) + "\n")
    given = {"bundle": str(folder), "fingerprint": key, "record": str(record), "system": ""}

    def fail(msg: str) -> None:
        raise RuntimeError(msg)

    monkeypatch.setattr(verified, "AnsibleModule", lambda **_: SimpleNamespace(params=given, fail_json=fail))
    monkeypatch.setattr(verified, "place_problem", lambda _: "")  # the folder of tests is below /tmp
    monkeypatch.setattr(verified, "signature_problem", lambda *_: "the key has expired")
    with pytest.raises(RuntimeError, match="is refused: the key has expired"):
        verified.main()


def test_checksums_that_were_written_again_are_no_longer_signed(
    tmp_path: Path, settings: Settings, signer: Signer
) -> None:
    signed(tmp_path, settings, signer, ["a"])
    text = (tmp_path / SUMS).read_text()
    (tmp_path / SUMS).write_text(text.replace("images/x/a", "images/x/b"))
    assert verify(tmp_path, signer.fingerprint) == [
        f"{tmp_path / SIGNATURE}: is not a signature of SHA256SUMS by key.asc: one of the three was changed"
    ]
    (tmp_path / "key.asc").write_text("no key")
    assert verify(tmp_path, signer.fingerprint) == [f"{tmp_path / 'key.asc'}: is not an armoured key"]
    (tmp_path / SIGNATURE).unlink()
    assert "has no SHA256SUMS.asc: it is not a bundle" in verify(tmp_path, signer.fingerprint)[0]


def test_a_path_that_leaves_the_folder_is_refused(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    signed(tmp_path, settings, signer, ["a"])
    for path in ("/etc/passwd", "../x", "a//b", "./a"):
        (tmp_path / SUMS).write_text(f"{'0' * 64}  {path}\n")
        signer.detached(tmp_path / SUMS, tmp_path / SIGNATURE)
        assert verify(tmp_path, signer.fingerprint) == [
            f"{tmp_path / SUMS}: line 1 is not a checksum of a file of the bundle"
        ]


def test_it_runs_alone_where_nothing_of_the_toolkit_is(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    signed(tmp_path / "out", settings, signer, ["a"])
    shutil.copy(FILE, tmp_path / "verify.py")
    argv = [sys.executable, "-I", str(tmp_path / "verify.py"), str(tmp_path / "out"), signer.fingerprint]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, f"{tmp_path / 'out'}: is complete, and as it was signed\n")
    (tmp_path / "out/images/x/a").write_text("z")
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "images/x/a: was changed: its checksum differs\n")


def test_a_key_with_headers_is_read() -> None:
    text = "-----BEGIN PGP PUBLIC KEY BLOCK-----\nComment: x\n\nAAAA\n=abcd\n-----END PGP PUBLIC KEY BLOCK-----\n"
    assert dearmoured(text) == bytes(3)


def test_a_second_end_writes_nothing(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    assert signed(tmp_path, settings, signer, ["a"]).changed
    before = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*") if path.is_file()}
    done = signed(tmp_path, settings, signer, ["a"])
    assert not done.changed and done.lines == ["nothing changed in the bundle"] and not done.problems
    after = {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in tmp_path.rglob("*") if path.is_file()}
    assert after == before


def test_only_what_was_signed_once_is_removed(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    signed(tmp_path, settings, signer, ["a", "sub/b"])
    (tmp_path / "mine").touch()
    done = signed(tmp_path, settings, signer, ["a", "c"])
    assert not (tmp_path / "images/x/sub").exists() and (tmp_path / "mine").exists()
    assert done.problems == ["mine: is not part of the bundle; move it away"]
    assert done.lines[:5] == [
        "added: 1 file, 0.0 MB",
        "  images/x/c",
        "removed: 1 file, 0.0 MB",
        "  images/x/sub/b",
        "changed: 0 files, 0.0 MB",
    ]
    assert verify(tmp_path, signer.fingerprint)[1:] == ["mine: is extra: the signed list does not have it"]


def test_what_failed_is_reported_and_keeps_what_is_there(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    signed(tmp_path, settings, signer, ["a"])
    found = bundle(tmp_path, settings)
    outcome = Outcome({}, {IMAGE.identity: "no route"})
    done = finish(found, Manifest((IMAGE,), "then"), [IMAGE], outcome, signer)
    assert done.problems == [f"image registry.example/vllm@{DIGEST}: no route"]
    assert (tmp_path / "images/x/a").exists() and (tmp_path / ".work").exists()
    assert failures(
        [DEB, Item(**{**vars(DEB), "name": "x"})],
        Outcome({}, dict.fromkeys((DEB.identity, ("package", "x", *DEB.identity[2:])), "why")),
    ) == ["package hello (debian 12 amd64), x (debian 12 amd64): why"]


def test_a_damaged_file_is_removed_so_that_it_is_fetched_again(
    tmp_path: Path, settings: Settings, signer: Signer
) -> None:
    signed(tmp_path, settings, signer, ["a", "b"])
    (tmp_path / "images/x/a").write_text("z")
    found = bundle(tmp_path, settings)
    # An image is of no use without one of its files.
    assert found.broken == {"images/x/a"} and not found.has("images/x") and not (tmp_path / "images/x").exists()
    assert found.has("key.asc")


def test_the_user_s_own_key_must_be_there(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("GNUPGHOME", str(tmp_path))
    tmp_path.chmod(0o700)
    assert "this user has no such secret key" in Signer(Settings(signing_key="nobody@x.example")).problem()


def test_differences_name_few_files() -> None:
    now = {f"a{number:02}": "x" for number in range(30)}
    lines = differences(Path("/"), {"b": "y", **dict.fromkeys(now, "x")}, now, {"b": 10**9})
    assert lines == ["added: 0 files, 0.0 MB", "removed: 1 file, 1.0 GB", "  b", "changed: 0 files, 0.0 MB"]


# ---- refusals


def refusal(items: list[Item], settings: Settings, tmp_path: Path, **access: Any) -> list[str]:
    """Return what keeps items from being fetched, programs left out."""
    found = before.refusal(bundle(tmp_path / "b", settings, **access), items, Signer(settings))
    return [one for one in found if "no such program" not in one]


def test_what_nobody_can_fetch_is_refused_and_what_moves_unless_allowed(tmp_path: Path, settings: Settings) -> None:
    never = Item("python", "requirements of vllm", problem=INSIDE)
    moving = Item("image", "debian", "12", problem="no digest")
    assert refusal([never, moving], settings, tmp_path) == [
        f"python requirements of vllm (control node): {INSIDE}; or leave it out with bundle_leave_out"
    ]
    assert (
        f"weights texts (control node): {TEXTS}"
        in refusal([Item("weights", "texts", problem=TEXTS)], settings, tmp_path)[0]
    )
    strict = Settings(key_dir=settings.key_dir)
    assert refusal([moving], strict, tmp_path) == [
        "image debian:12 (control node): no digest",
        "bundle_allow_unpinned=true fetches today's version of what can change, and records which one it is",
    ]
    inside = Settings(key_dir=tmp_path / "b/key")
    assert "is inside the bundle, which would then contain its secret key" in refusal([], inside, tmp_path)[0]


def test_a_system_without_sources_and_a_key_that_is_not_here_are_named(tmp_path: Path, settings: Settings) -> None:
    other = Item(**{**vars(DEB), "system": "ubuntu 99.04 amd64"})
    repositories = {"debian 12 amd64": [{"uris": ["http://x"], "suites": ["./"], "signed_by": "/nosuch.asc"}]}
    found = refusal([other], settings, tmp_path, repositories=repositories)
    assert found[0].startswith("bundle_apt_sources: has no entry 'ubuntu 99.04', whose packages are wanted")
    assert found[1] == "signed_by /nosuch.asc: this machine has no such file; copy it here too"
    known = Settings({"ubuntu 99.04": [{"uris": "http://x", "suites": "y"}]}, key_dir=settings.key_dir)
    assert refusal([other], known, tmp_path) == []
    wheel = Item("python", "x", "1", need=Need(("h1",), (), ("model_weights",)))
    assert (
        "bsd 1: the Python of this release is not known"
        in refusal([wheel], settings, tmp_path, systems={"h1": "bsd 1 amd64"})[0]
    )
    strange = Item(**{**vars(DEB), "system": "rocky"})
    assert "is not a system with Debian packages" in refusal([strange], settings, tmp_path)[0]


def test_missing_programs_are_named_with_their_packages(tmp_path: Path, settings: Settings, monkeypatch: Any) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    items = [IMAGE, DEB, Item("source", "x", "1", "https://git.example/x"), Item("collection", "a.b", "1")]
    found = before.refusal(bundle(tmp_path / "b", Settings()), items, Signer(Settings()))
    names = {one.partition(":")[0]: one.rpartition(" ")[2] for one in found if "no such program" in one}
    assert names == {
        **{"apt-ftparchive": "apt-utils", "apt-get": "apt", "git": "git", "gpg": "gnupg", "gpgv": "gpgv"},
        "skopeo": "skopeo",
    }


def test_a_pattern_that_is_for_nothing_is_a_mistake(tmp_path: Path) -> None:
    left = Settings(leave_out=("package hel*", "image nosuch"))
    assert left.leaves_out(DEB) and not left.leaves_out(IMAGE)
    report = fetch_bundle(tmp_path / "b", Manifest((DEB,)), left, Access())
    assert report.errors[1:] == ["bundle_leave_out 'image nosuch': matches nothing in the list"]
    assert not (tmp_path / "b").exists()


# ---- names


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("debian", "docker.io/library/debian"),
        ("owner/vllm", "docker.io/owner/vllm"),
        ("docker.io/library/debian", "docker.io/library/debian"),
        ("docker.io/debian", "docker.io/library/debian"),
        ("localhost/x", "localhost/x"),
        ("registry.example:5000/a/b", "registry.example:5000/a/b"),
    ],
)
def test_repositories_of_images(name: str, whole: str) -> None:
    assert images.repository_of(Item("image", name, "1")) == whole


def test_places_of_sources_keep_the_address() -> None:
    assert sources.place_of("https://u:p@git.example:8443/a/b.git?x=1") == "git.example:8443/a/b.git"
    assert sources.place_of("git@git.example:a/b.git") == "git.example/a/b.git"
    assert sources.place_of("file:///srv/x.git") == "localhost/srv/x.git"
    for address in ("https://git.example", "https://git.example/../x", "https://u:p@h/a//b"):
        with pytest.raises(FetchError, match="has no path that a bundle can store"):
            sources.place_of(address)


def test_packages_have_names_without_an_epoch_and_versions_with() -> None:
    one = apt.Deb("http://x/y.deb", "docker-ce_5%3a24.0-1_amd64.deb", 1, "", "")
    assert (one.package, one.version, one.file) == ("docker-ce", "5:24.0-1", "docker-ce_24.0-1_amd64.deb")
    assert apt.System.of("debian 12-slim") == apt.System("debian", "12", apt.own_architecture())
    assert apt.System.of("ubuntu 22.04 arm64") == apt.System("ubuntu", "22.04", "arm64")
    assert apt.System.of("ubuntu 22.04 arm64").folder == "apt/ubuntu-22.04-arm64"  # type: ignore[union-attr]


def test_hosts_with_other_versions_of_a_package_are_solved_apart(tmp_path: Path, settings: Settings) -> None:
    items = [
        Item("package", "x", version, "o", "debian 12 amd64", Need((host,), (), ("driver",)))
        for version, host in (("1", "h1"), ("2", "h2"), ("2", "h3"))
    ]
    engine = Item("package", "docker-ce", "", "o", "debian 12 amd64", Need(("h1",), (), ("container_runtime",)))
    fetch = apt._Fetch(bundle(tmp_path, settings), apt.System("debian", "12", "amd64"), items, Signer(settings))
    assert list(fetch.sets([*items, engine])) == [
        (["docker-ce", "x=1"], []),
        (["docker-ce"], ["--install-recommends"]),
        (["x=2"], []),
    ]


@pytest.mark.skipif(shutil.which("apt-ftparchive") is None, reason="scripts/deps installs apt-utils")
def test_a_package_that_nobody_has_keeps_none_of_the_others(tmp_path: Path, settings: Settings, signer: Signer) -> None:
    home = settings.key_dir
    debian = outside.Apt(tmp_path / "debian", home)
    debian.add("hello", depends="libhello")
    debian.add("libhello")
    debian.sign()
    key = tmp_path / "vendor.asc"
    key.write_text(outside.gpg(home, "--armor", "--export"))
    source = {"uris": f"file:{tmp_path / 'debian'}", "suites": "./", "signed_by": key.read_text()}
    known = Settings({"debian 12": [source]}, key_dir=home)
    lost = Item(**{**vars(DEB), "name": "nosuch"})
    made = bundle(tmp_path / "b", known)
    signer.export(made.folder / "key.asc")
    outcome = apt.fetch(made, [DEB, lost], signer)
    assert outcome.failed == {lost.identity: "apt-get: E: Unable to locate package nosuch"}
    got = outcome.got[DEB.identity]
    assert (got.path, got.fetched) == ("apt/debian-12-amd64/pool/hello_1.0_amd64.deb", "1.0")
    assert (tmp_path / "b/apt/debian-12-amd64/pool/libhello_1.0_amd64.deb").is_file()
    # A key that is not the repository's is not a key for it.
    other = Settings({"debian 12": [{**source, "signed_by": "/usr/share/keyrings/debian-archive-keyring.gpg"}]})
    assert "is not signed" in apt.fetch(bundle(tmp_path / "c", other), [DEB], signer).failed[DEB.identity]


def test_a_repository_without_wanted_packages_is_nothing_to_fetch() -> None:
    place = Item("repository", "https://x", "./", "https://x", DEB.system)
    assert wanted(Manifest((place, DEB)), Settings()) == [place, DEB]
    assert wanted(Manifest((place, DEB)), Settings(leave_out=("package hello*",))) == []


def test_wheels_are_for_the_python_of_each_host(tmp_path: Path) -> None:
    one = Item("python", "x", "1", "package index of pip", need=Need(("h1", "h2"), (), ("model_weights",)))
    found = python.jobs(bundle(tmp_path, systems={"h1": "ubuntu 22.04 arm64", "h2": "debian 12 amd64"}), [one])
    assert [job.target[1] for job in found] == ["3.11", "3.10"]
    assert "manylinux_2_17_aarch64" in [*found][1].target


# ---- logins


def test_no_login_or_token_stands_in_what_is_reported() -> None:
    access = Access(
        origins={"https://***@x/a": "https://bot:s%3Acret@x/a"},
        repositories={"debian 12 amd64": [{"uris": ["http://apt:hidden1@y"]}]},
        logins={"r.example": {"username": "robot", "password": "hidden2"}},
        tokens={"hub": "hidden3"},
    )
    said = access.cleaned("s%3Acret s:cret hidden1 hidden2 hidden3 https://q:z@w/ fine")
    assert said == "(hidden) (hidden) (hidden) (hidden) (hidden) https://***@w/ fine"
    assert access.origin(Item("python", "x", origin="https://***@x/a")) == "https://bot:s%3Acret@x/a"


def test_the_access_of_hosts_is_joined() -> None:
    part = {"origins": {}, "repositories": {"debian 12 amd64": [{"uris": ["x"]}]}, "tokens": {"hub": "a"}}
    part |= {"logins": {}, "weights": [{"name": "m"}], "systems": {"h1": "debian 12 amd64"}}
    found = Access.joined([part, {**part, "tokens": {"hub": "b"}, "systems": {"h2": "debian 12 amd64"}}])
    assert found.tokens == {"hub": "a"} and set(found.systems) == {"h1", "h2"}
    assert found.repositories == {"debian 12 amd64": [{"uris": ["x"]}]} and found.weights == [{"name": "m"}]


def test_a_login_of_docker_hub_reaches_skopeo_under_either_name(tmp_path: Path) -> None:
    login = {"username": "robot", "password": "word"}
    for name in ("docker.io", "index.docker.io"):
        there = bundle(tmp_path, logins={name: login})
        with images._logged_in(there) as options:
            auths = json.loads(Path(options[1]).read_text())["auths"]
            item = Item("image", "vllm", DIGEST, "docker.io", pinned=True)
            assert list(auths) == ["docker.io"] and images._Image(there, item, options).login == options


# ---- single files


def test_a_download_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/x.tar").write_bytes(bytes(range(200)))
    with outside.served(outside.Files(tmp_path / "files")) as files:
        (tmp_path / "part").write_bytes(bytes(range(150)))
        downloads.download(f"{files.url}/x.tar", tmp_path / "part")
        assert (tmp_path / "part").read_bytes() == bytes(range(200)) and files.sent == {"x.tar": 50}
        downloads.download(f"{files.url}/x.tar", tmp_path / "part")
        assert files.sent == {"x.tar": 50}
        with pytest.raises(FetchError, match=r"^http://127.0.0.1:\d+/nosuch: status 404$"):
            downloads.download(files.url.replace("//", "//u:p@") + "/nosuch", tmp_path / "part2")


def test_a_download_with_another_content_is_refused(tmp_path: Path) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/x.tar").write_bytes(b"x")
    with outside.served(outside.Files(tmp_path / "files")) as files:
        item = Item("download", "x.tar", f"sha256:{'0' * 64}", f"{files.url}/x.tar", pinned=True)
        outcome = downloads.fetch(bundle(tmp_path / "b"), [item])
    assert re.search(r"has the SHA-256 2d711642\w{4}\.\.\. in place of \w{12}\.\.\.$", outcome.failed[item.identity])
    assert not (tmp_path / "b/downloads").exists()


# ---- images


@pytest.mark.skipif(shutil.which("skopeo") is None, reason="scripts/deps installs skopeo")
def test_an_image_of_a_local_archive_is_copied_once(tmp_path: Path) -> None:
    outside.image(tmp_path / "made", [outside.layer(1, 1000)], {})
    archive = tmp_path / "x.tar"
    outside.run("skopeo", "--insecure-policy", "copy", f"dir:{tmp_path / 'made'}", f"docker-archive:{archive}:x:1")
    item = Item("image", "vllm", "1", f"archive {archive} on the control node")
    first = images.fetch(bundle(tmp_path / "b"), [item]).got[item.identity]
    assert first.path.startswith("images/docker.io/library/vllm/") and first.fetched.startswith("archive sha256:")
    assert images.is_whole(tmp_path / "b" / first.path, first.digest)
    missing = Item("image", "vllm", "1", "archive /nosuch.tar on the control node")
    assert images.fetch(bundle(tmp_path / "b"), [missing]).failed == {
        missing.identity: "/nosuch.tar: is not a file on this machine"
    }
    assert before.is_inside(Item("image", "vllm", "1", "archive /x.tar on the host"))


def test_an_image_is_whole_by_its_own_names(tmp_path: Path) -> None:
    digest = outside.image(tmp_path / "x", [outside.layer(1, 1000)], {images.LICENCES: "MIT"})
    assert images.is_whole(tmp_path / "x", digest) and images.licence(tmp_path / "x") == "MIT"
    assert not images.is_whole(tmp_path / "x", DIGEST)
    blob = next(path for path in (tmp_path / "x").iterdir() if path.stat().st_size > 1000)
    blob.write_bytes(b"other")
    assert not images.is_whole(tmp_path / "x", digest)


# ---- weights


def weights_of(folder: Path, source: dict[str, Any], revision: str) -> tuple[Bundle, Item]:
    """Return a bundle and weights with a source."""
    place = str(source.get("url") or source["endpoint"])
    item = Item("weights", str(source.get("repo") or place), revision, place, pinned=len(revision) == 40)
    told = {"name": item.name, "version": revision, "origin": place, "source": {**source, "revision": revision}}
    return bundle(folder, weights=[told]), item


def test_weights_of_a_newer_commit_fetch_the_difference_alone(
    tmp_path: Path, settings: Settings, signer: Signer
) -> None:
    (tmp_path / "hub").mkdir()
    with outside.hub(tmp_path / "hub", "") as hub:
        newer = tmp_path / "hub/owner/model" / NEWER
        shutil.copytree(tmp_path / "hub/owner/model" / COMMIT, newer)
        (newer / "model-2.safetensors").write_bytes(b"other")
        source = {"kind": "hub", "repo": "owner/model", "endpoint": hub.url, "exclude": ["sub/*"]}
        made, item = weights_of(tmp_path / "b", source, COMMIT)
        got = weights.fetch(made, [item]).got[item.identity]
        assert got.path == f"weights/owner/model/resolve/{COMMIT}" and got.keeps == (
            f"weights/api/models/owner/model/revision/{COMMIT}",
        )
        answer = json.loads((tmp_path / "b" / got.keeps[0]).read_text())
        names = sorted(one["rfilename"] for one in answer["siblings"])
        assert names == ["config.json", "model-1.safetensors", "model-2.safetensors"]
        hub.sent.clear()
        made, item = weights_of(tmp_path / "b", source, NEWER)
        got = weights.fetch(made, [item]).got[item.identity]
        assert hub.fetched() - {"config.json"} == {"model-2.safetensors"}
        assert (tmp_path / "b" / got.path / "model-2.safetensors").read_bytes() == b"other"
        old = tmp_path / "b/weights/owner/model/resolve" / COMMIT
        assert len((old / "model-2.safetensors").read_bytes()) > 5
        made, lost = weights_of(tmp_path / "b", source, "v9")
        assert "status 404" in weights.fetch(made, [lost]).failed[lost.identity]


@pytest.mark.parametrize("kind", ["git", "modelscope"])
def test_weights_of_other_sources_are_folders(tmp_path: Path, kind: str) -> None:
    (tmp_path / "hub").mkdir()
    with outside.hub(tmp_path / "hub", "") as hub:
        commit = outside.git(tmp_path / "model.git")
        if kind == "git":
            source = {"kind": "git", "url": f"file://{tmp_path}/model.git"}
            path = f"weights/folders/localhost{tmp_path}/model.git/{commit}"
        else:
            refs = {COMMIT: COMMIT, "master": COMMIT}
            (tmp_path / "hub/owner/model/refs.json").write_text(json.dumps(refs))
            source, commit = {"kind": "modelscope", "repo": "owner/model", "endpoint": hub.url}, COMMIT
            path = f"weights/folders/modelscope/owner/model/{COMMIT}"
        made, item = weights_of(tmp_path / "b", source, commit)
        outcome = weights.fetch(made, [item])
        assert outcome.failed == {} and outcome.got[item.identity].path == path
        assert (tmp_path / "b" / path / ("run.py" if kind == "git" else "config.json")).is_file()
        assert before.weights.kinds(made, [item]) == {kind}


def test_hosts_that_want_other_files_of_the_same_weights_get_all_of_them(tmp_path: Path) -> None:
    _, item = weights_of(tmp_path, {"kind": "hub", "repo": "o/m", "endpoint": "https://h"}, COMMIT)

    def source(*lists: dict[str, list[str]]) -> dict[str, Any]:
        told = [{"name": item.name, "version": COMMIT, "origin": item.origin, "source": one} for one in lists]
        return weights._source(bundle(tmp_path, weights=told), item)

    assert source({"include": ["b"]}, {"include": ["a"]})["include"] == ["a", "b"]
    assert source({"include": ["b"]}, {})["include"] == []
    assert source({"exclude": ["b"]}, {"exclude": ["a"]})["exclude"] == []
    assert source({"exclude": ["b"]}, {"exclude": ["b"]})["exclude"] == ["b"]


# ---- git


def test_a_git_mirror_is_updated_in_a_copy(tmp_path: Path, settings: Settings) -> None:
    first = outside.git(tmp_path / "x.git")
    work = tmp_path / "x.work"
    address = f"file://{tmp_path}/x.git"
    path = f"sources/localhost{tmp_path}/x.git"
    one = Item("source", "x", first, address, pinned=True)
    made = bundle(tmp_path / "b")
    assert sources.fetch(made, [one]).got[one.identity].path == path
    (work / "more").write_text("x")
    outside.run("git", "add", ".", cwd=work)
    who = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t", "GIT_COMMITTER_NAME": "t", "GIT_COMMITTER_EMAIL": "t"}
    outside.run("git", "commit", "--quiet", "-m", "two", cwd=work, **who)
    outside.run("git", "push", "--quiet", tmp_path / "x.git", "main", cwd=work)
    second = outside.run("git", "rev-parse", "HEAD", cwd=work).strip()
    other = Item("source", "x", second, address, pinned=True)
    moving = Item("source", "x", "", address)
    outcome = sources.fetch(made, [one, other, moving])
    assert outcome.failed == {} and outcome.got[moving.identity].fetched == second
    lost = Item("source", "x", "0" * 40, address, pinned=True)
    assert sources.fetch(made, [lost]).failed == {lost.identity: f"the repository has no commit {'0' * 40}"}
    with outside.served(outside.Files(tmp_path / "b")) as files:
        outside.run("git", "clone", "--quiet", f"{files.url}/{path}", tmp_path / "clone")
    assert outside.run("git", "rev-parse", "HEAD", cwd=tmp_path / "clone").strip() == second
