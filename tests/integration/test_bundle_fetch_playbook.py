"""A bundle that is fetched by its playbook, with the real programs, from what stands on loopback."""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked
import pytest
from gaudi_serve.bundle.roles import pins
from gaudi_serve.bundle.weights import CLIENTS
from gaudi_serve.core.yaml_text import load
from gaudi_serve.host.bundle_verify import verify
from helpers import outside
from helpers.simulated.fleet import ROOT, fleet
from helpers.weights_programs import COMMIT, MIB, Host, contents

CANARY = "canary-of-a-password"
TOKEN = "hf_canary-of-a-token"  # noqa: S105 - a test looks for it
VENDORS = ("dkms", "firmware", "firmware-tools", "graph", "rdma-core", "thunk")
NEEDED = [
    *("apparmor", "ca-certificates", "linux-cpupower", "linux-headers-6.1.0-1-amd64"),
    *("openssh-client", "python3-pip", "python3-venv", "sshpass", "python3", "python3-debian"),
]
PROGRAMS = ("skopeo", "docker-registry", "apt-ftparchive", "dpkg-deb", "gpg", "gpgv")
pytestmark = pytest.mark.skipif(
    any(shutil.which(one) is None for one in PROGRAMS), reason="scripts/deps installs the programs that fetch"
)


class World:
    """Everything outside, and a site that fetches from it."""

    def __init__(self, folder: Path, home: Path, files: outside.Files, hub: Any) -> None:
        self.folder, self.files, self.hub, self.bundle = folder, files, hub, folder / "out/bundle"
        self.public = outside.Registry(folder / "public")
        self.private = outside.Registry(folder / "private", "robot", CANARY)
        self.debian = outside.Apt(files.root / "debian", home)
        self.vendor = outside.Apt(files.root / "vendor", home)
        self.key = files.root / "key.asc"
        self.key.write_text(outside.gpg(home, "--armor", "--export"))
        self.commit = outside.git(files.root / "git/hccl_demo.git")
        shutil.copytree(files.root / "git/hccl_demo.git", files.root / "git/x.git")
        self._packages()
        self._images()
        found = load((ROOT / "collections/requirements.yml").read_text(encoding="utf-8"))["collections"]
        outside.galaxy(files.root / "galaxy", f"{files.url}/galaxy", [(one["name"], one["version"]) for one in found])
        outside.index(files.root / "simple", dict.fromkeys([*pins("requirements.txt"), *pins(CLIENTS)]))  # type: ignore[arg-type]
        self.environment = self._site()

    def _packages(self) -> None:
        self.debian.add("libdependency", "2.0")
        self.debian.add("docker.io", depends="libdependency (>= 1)")
        for name in NEEDED:
            self.debian.add(name)
        for name in VENDORS:
            self.vendor.add(f"habanalabs-{name}", "1.21.3-57")
        self.vendor.add("habanalabs-container-runtime", "1:1.21.3-57")
        for one in (self.debian, self.vendor):
            one.sign()

    def _images(self) -> None:
        shared = outside.layer(1)
        labels = {"org.opencontainers.image.licenses": "Test-3.0"}
        for name in ("amd64", "arm64"):
            outside.image(self.folder / name, [shared], {**labels, "for": name})
        parts = {name: self.folder / name for name in ("amd64", "arm64")}
        # As registries have the images of distributions: one name for all architectures.
        self.base = outside.image_list(self.folder / "base", parts)
        self.public.push(self.folder / "base", "library/debian:12")
        self.image = outside.image(self.folder / "vllm", [shared, outside.layer(2)], {})
        self.private.push(self.folder / "vllm", "ai/vllm:1")

    def _site(self) -> dict[str, str]:
        conf = self.folder / "home/.config/containers/registries.conf"
        conf.parent.mkdir(parents=True)
        conf.write_text(
            f'[[registry]]\nprefix = "docker.io"\nlocation = "{self.public.name}"\ninsecure = true\n'
            f'[[registry]]\nlocation = "{self.private.name}"\ninsecure = true\n'
        )
        named = f"{self.private.name}/ai/vllm@{self.image}"
        model = {
            **{"name": "m", "weights": "/data/model", "port": 30001, "tensor_parallel_size": 1, "max_model_len": 4096},
            **{"image": named, "launch_profile": "vllm"},
            "source": {"kind": "hub", "repo": "owner/model", "revision": COMMIT, "endpoint": self.hub.url},
        }
        port = self.files.server_address[1]
        vendor = {"uris": [f"http://bot:{CANARY}@127.0.0.1:{port}/vendor"], "suites": ["./"]}
        repository = {**vendor, "signed_by": f"{self.files.url}/key.asc"}
        found = fleet(
            self.folder,
            2,
            vllm_models=[model],
            vllm_images=[{"name": named}],
            vllm_image_registries={self.private.name: {"username": "robot", "password": CANARY}},
            model_weights_tokens={"hub": TOKEN},
            model_weights_index_url=f"http://bot:{CANARY}@127.0.0.1:{port}/simple",
            driver_repository=repository,
            driver_version="1.21.3-57",
            container_runtime_habana_repository=repository,
            container_runtime_habana_version="1:1.21.3-57",
            link_validation_hccl_repository=f"{self.files.url}/git/hccl_demo.git",
            link_validation_hccl_commit=self.commit,
        )
        self._facts()
        more = {"HOME": str(self.folder / "home"), "PIP_INDEX_URL": f"{self.files.url}/simple", "NO_PROXY": "127.0.0.1"}
        return {**found, **more, "no_proxy": "127.0.0.1", "ANSIBLE_GALAXY_SERVER": f"{self.files.url}/galaxy/"}

    def _facts(self) -> None:
        (self.folder / "facts").mkdir()
        cards = [{"module_id": number, "numa_node": number // 4} for number in range(8)]
        host = {"accelerator": "gaudi", "device_name": "HL-225", "driver_version": "1.21.3-57", "modules": cards}
        system = {"id": "debian", "version_id": "12", "kernel": "6.1.0-1-amd64", "accelerator": "gaudi"}
        for name in ("h01", "h02"):
            text = json.dumps({"gaudi_host": host, "gaudi_system": system})
            (self.folder / f"facts/{name}.json").write_text(text, encoding="utf-8")

    def argv(self, *options: str, **given: Any) -> list[str]:
        """Return the command of a run."""
        source = {"uris": [f"{self.files.url}/debian"], "suites": ["./"], "signed_by": str(self.key)}
        known = {
            **{"plan_facts_dir": str(self.folder / "facts"), "bundle": str(self.bundle), "bundle_fetch": True},
            **{"bundle_apt_sources": {"debian 12": [source]}, "bundle_allow_unpinned": True, **given},
        }
        hosts = str(self.folder / "hosts.json")
        return ["ansible-playbook", "-i", hosts, "playbooks/bundle.yml", "-e", json.dumps(known), *options]

    def run(self, *options: str, status: int = 0, env: dict[str, str] | None = None, **given: Any) -> str:
        """Run the playbook, and return what it reported, in one line."""
        environment = {**self.environment, **(env or {})}
        ended, text = forked.playbook(self.argv(*options, **given), ROOT, environment, 120)
        assert ended == status, text
        assert CANARY not in text and TOKEN not in text
        return " ".join(text.split())

    def state(self) -> dict[str, tuple[int, int, bytes]]:
        """Return the files of the bundle: when they were written, and what is in them."""
        paths = [path for path in sorted(self.bundle.rglob("*")) if path.is_file()]
        stats = [path.stat() for path in paths]
        return {
            path.relative_to(self.bundle).as_posix(): (stat.st_ino, stat.st_mtime_ns, path.read_bytes())
            for path, stat in zip(paths, stats, strict=True)
        }

    @property
    def items(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return the items of the manifest."""
        text = (self.bundle / "manifest.json").read_text(encoding="utf-8")
        return {(one["kind"], one["name"]): one for one in json.loads(text)["items"]}

    def stop(self) -> None:
        """End the registries."""
        self.public.stop()
        self.private.stop()


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    """Return everything; the tests of this file go on with what the one before has left, so they are one story."""
    # Not below pytest's folder: gpg's agent has a socket there, whose path must be short.
    with tempfile.TemporaryDirectory(prefix="gs-") as name, outside.keyring(Path(name) / "gpg") as home:
        folder = Path(name)
        (folder / "files").mkdir()
        (folder / "hub").mkdir()
        with (
            outside.served(outside.Files(folder / "files")) as files,
            outside.hub(folder / "hub", TOKEN) as hub,
        ):
            made = World(folder, home, files, hub)
            try:
                yield made
            finally:
                made.stop()


def test_a_bundle_from_the_first_fetch_to_an_update(world: World) -> None:
    refused(world)
    checked(world)
    interrupted(world)
    fetched(world)
    usable(world)
    unchanged(world)
    updated(world)
    tampered(world)


def refused(world: World) -> None:
    """What is missing is named before anything is fetched."""
    with tempfile.TemporaryDirectory() as name:
        for program in ("ansible-playbook", "ansible-galaxy", "python3", "git", "gpg", "gpgv", "apt-get", "dpkg"):
            (Path(name) / program).symlink_to(shutil.which(program) or "")
        said = world.run(status=3, env={"PATH": name}, bundle_allow_unpinned=False, bundle_leave_out=["image nosuch"])
    assert "Nothing has been changed, and nothing was fetched. What must be fixed first:" in said
    assert "skopeo: this machine has no such program; install the package skopeo" in said
    assert "apt-ftparchive: this machine has no such program; install the package apt-utils" in said
    assert "image docker.io/library/debian:12 (control node): no digest: a tag may be moved" in said
    assert "bundle_leave_out 'image nosuch': matches nothing in the list" in said
    assert not world.bundle.exists() and not world.files.sent


def checked(world: World) -> None:
    """Check mode reports what would be fetched, and asks nobody."""
    said = world.run("--check")
    assert "items would be fetched; nothing was" in said
    assert "would fetch image docker.io/library/debian:12" in said
    assert not world.bundle.exists() and not world.files.sent and not world.hub.sent


def interrupted(world: World) -> None:
    """A run that is killed while weights come leaves nothing unfinished under a final name."""
    world.hub.rate = MIB
    with (world.folder / "log").open("w+") as said:
        one = forked.start(world.argv(), ROOT, world.environment, said)
        deadline = time.monotonic() + 60
        while not world.hub.sending:
            assert one.poll() is None and time.monotonic() < deadline, (world.folder / "log").read_text()
            time.sleep(0.02)
        time.sleep(0.5)
        forked.end(forked.kill(one.pid))
        said.seek(0)
        assert CANARY not in said.read()
    world.hub.rate = 0
    while world.hub.sending:
        time.sleep(0.02)
    assert not [path for path in world.bundle.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert verify(world.bundle, "0" * 40) and not list(world.bundle.glob("weights/owner/*"))


def fetched(world: World) -> None:
    """The next run completes it, and fetches nothing twice."""
    before = dict(world.files.sent)
    said = world.run()
    again = {name for name, size in world.files.sent.items() if size > before.get(name, 0)}
    assert not [name for name in again if name.endswith((".deb", ".whl"))]
    assert "signed by" in said and "a site needs this fingerprint" in said
    fingerprint = said.partition("signed by ")[2].partition(":")[0]
    assert verify(world.bundle, fingerprint) == []
    assert not (world.bundle / ".work").exists()
    lacks = [key for key, one in world.items.items() if not one.get("path")]
    assert lacks == [] and all((world.bundle / one["path"]).exists() for one in world.items.values())
    for path in world.bundle.rglob("*"):
        assert not path.is_file() or not {CANARY.encode(), TOKEN.encode()} & {*path.read_bytes().split(b'"')}
        assert not path.is_file() or CANARY.encode() not in path.read_bytes()
    assert world.items["image", "docker.io/library/debian"]["licence"] == "Test-3.0"
    assert world.items["collection", "ansible.posix"]["licence"] == "Test-2.0"
    assert world.items["python", "ansible-core"]["licence"] == "Test-1.0"


def usable(world: World) -> None:
    """What came is what others take: apt, skopeo, pip, git and a hub's client read it."""
    apt_reads(world)
    for kind, digest in (("docker.io/library/debian", world.base), (f"{world.private.name}/ai/vllm", world.image)):
        path = world.bundle / world.items["image", kind]["path"]
        assert path == world.bundle / "images" / kind / digest.removeprefix("sha256:")
        told = json.loads(outside.run("skopeo", "--insecure-policy", "inspect", f"dir:{path}"))
        assert told["Digest"] == digest == world.items["image", kind]["digest"]
        # Inside, a registry has it under the same digest.
        world.public.push(path, f"carried/{path.name[:8]}:1")
        place = f"docker://{world.public.name}/carried/{path.name[:8]}:1"
        raw = outside.run("skopeo", "--insecure-policy", "inspect", "--tls-verify=false", "--raw", place)
        assert f"sha256:{hashlib.sha256(raw.encode()).hexdigest()}" == digest
    blobs = [path.stat().st_ino for path in world.bundle.rglob("images/**/*") if path.stat().st_size > MIB]
    assert (len(blobs), len(set(blobs))) == (3, 2)
    with outside.served(outside.Files(world.bundle)) as inside, tempfile.TemporaryDirectory() as name:
        words = ["install", "--quiet", "--no-deps", "--target", name, "--index-url", f"{inside.url}/python/simple"]
        pip = [shutil.which("python3") or "", "-m", "pip", *words, "huggingface_hub==2.4.0"]
        outside.run(*pip, PIP_DISABLE_PIP_VERSION_CHECK="1")
        place = world.files.url.removeprefix("http://")
        outside.run("git", "clone", "--quiet", f"{inside.url}/sources/{place}/git/hccl_demo.git", f"{name}/clone")
        assert outside.run("git", "rev-parse", "HEAD", cwd=Path(name) / "clone").strip() == world.commit
        (Path(name) / "host").mkdir()
        host = Host(Path(name) / "host", {"kind": "hub", "repo": "owner/model", "endpoint": f"{inside.url}/weights"})
        told = host.run(source={**host.job["source"], "revision": COMMIT})
        assert told["changed"] and told["revision"] == COMMIT, told
        assert contents(host.target) == contents(world.folder / f"hub/owner/model/{COMMIT}")


def apt_reads(world: World) -> None:
    """Apt of a host takes the driver and what the engine needs from the folder, by the bundle's key."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        for one in ("lists/partial", "cache/archives/partial", "parts"):
            (root / one).mkdir(parents=True)
        place = world.bundle / "apt/debian-12-amd64"
        (root / "sources.list").write_text(f"deb [signed-by={world.bundle}/key.asc] file:{place} ./\n")
        values = {"Dir::State": root, "Dir::State::status": "/dev/null", "Dir::Cache": root / "cache"}
        values |= {"Dir::State::lists": root / "lists", "Dir::Etc::sourcelist": root / "sources.list"}
        values |= {"Dir::Etc::sourceparts": root / "parts", "APT::Sandbox::User": "root"}
        options = [word for key, value in values.items() for word in ("-o", f"{key}={value}")]
        outside.run("apt-get", *options, "update", "--error-on=any")
        names = ["habanalabs-dkms=1.21.3-57", "docker.io", "habanalabs-container-runtime=1:1.21.3-57"]
        said = outside.run("apt-get", *options, "-qq", "--print-uris", "install", *names)
    assert "libdependency_2.0_amd64.deb" in said and len(said.splitlines()) == 4


def unchanged(world: World) -> None:
    """A second run changes nothing, and asks for no file again."""
    before = world.state()
    world.files.sent.clear()
    world.hub.sent.clear()
    said = world.run()
    assert "nothing changed in the bundle" in said
    assert world.state() == before
    assert not [name for name in world.files.sent if name.endswith((".deb", ".whl", ".tar.gz", ".pack"))]
    assert not world.hub.fetched()


def updated(world: World) -> None:
    """One changed package moves the difference alone."""
    before = world.state()
    world.debian.add("libdependency", "2.1")
    world.debian.sign()
    world.files.sent.clear()
    said = world.run()
    assert [name for name in world.files.sent if name.endswith(".deb")] == ["debian/pool/libdependency_2.1_amd64.deb"]
    assert "added: 1 file," in said and "removed: 1 file," in said
    assert "apt/debian-12-amd64/pool/libdependency_2.0_amd64.deb" in said
    after = world.state()
    new = {name for name in after if after[name] != before.get(name)}
    indexes = {f"apt/debian-12-amd64/{one}" for one in ("Packages", "Packages.xz", "Release", "InRelease")}
    assert new - {"SHA256SUMS", "SHA256SUMS.asc", "manifest.json"} == {
        *indexes,
        "apt/debian-12-amd64/pool/libdependency_2.1_amd64.deb",
    }
    apt_reads_newer(world)


def apt_reads_newer(world: World) -> None:
    """The index has the new one alone."""
    text = (world.bundle / "apt/debian-12-amd64/Packages").read_text()
    assert "libdependency_2.1" in text and "libdependency_2.0" not in text


def tampered(world: World) -> None:
    """A tampered, a missing and an extra file are named, and the next fetch repairs what belongs to the bundle."""
    deb = world.bundle / "apt/debian-12-amd64/pool/sshpass_1.0_amd64.deb"
    content = bytearray(deb.read_bytes())
    content[-1] ^= 1
    deb.write_bytes(content)
    (world.bundle / f"weights/owner/model/resolve/{COMMIT}/config.json").unlink()
    (world.bundle / "extra").touch()
    said = world.run(status=2, bundle_fetch=False, bundle_verify=True)
    assert f"{deb.relative_to(world.bundle)}: was changed: its checksum differs" in said
    assert f"weights/owner/model/resolve/{COMMIT}/config.json: is missing" in said and "extra: is extra" in said
    (world.bundle / "extra").unlink()
    world.hub.sent.clear()
    said = world.run(bundle_verify=True)
    assert f"{deb.relative_to(world.bundle)}: was changed since it was signed; fetched again" in said
    assert world.hub.fetched() == {"config.json"} and "files are as they were signed by" in said
