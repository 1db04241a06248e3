"""A registry of images on one host of a fleet, which runs while other hosts pull images from it.

It is Debian's docker-registry as a systemd unit that ends by itself. Its layers stay on the disk, so that the next
image adds only changed layers. Its certificates are made for one run, and it accepts only clients with that run's
certificate. Standard library only.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import re
import secrets
import shutil
import socket
import ssl
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path

from ..core.errors import InputError
from ..core.hide import hidden
from ..core.run import read_text, run
from .layers import DIGEST, Source, bring
from .observe_host import network

STORE = Path("/var/lib/gaudi-serve/registry")
RUNTIME = Path("/run/gaudi-serve")
# The engine's folder of registry certificates.
TRUSTED = Path("/etc/docker/certs.d")
UNIT, USER, REPOSITORY = "gaudi-serve-registry", "docker-registry", "images"
TAGS = STORE / "docker/registry/v2/repositories" / REPOSITORY / "_manifests/tags"
ADDRESS = re.compile(r"(?!-)[A-Za-z0-9.-]{1,253}")
# Clocks of hosts that are not set yet differ: a certificate is valid for days around a run, but its key is deleted
# after the run.
CLOCKS_DIFFER = timedelta(days=3)
READY_S, QUIET_S, SHORT_S = 30.0, 60.0, 60.0
MARK = ".gaudi-serve"
# The files that the registry reads at its start.
READ = ("config.yml", "server.crt", "server.key", "client.crt")
ESTABLISHED = "01"  # the kernel's number for this state of a connection
# openssl can sign with a start time in the past only in this way; the values are for one certificate.
AUTHORITY = """\
[ca]
default_ca = own
[own]
database = {folder}/index
serial = {folder}/serial
new_certs_dir = {folder}
default_md = sha256
policy = any
x509_extensions = {name}
unique_subject = no
[any]
commonName = supplied
[req]
distinguished_name = subject
[subject]
[server]
basicConstraints = critical,CA:true
subjectAltName = {subject}
extendedKeyUsage = serverAuth
[client]
basicConstraints = critical,CA:true
extendedKeyUsage = clientAuth
"""
CONFIG = """\
version: 0.1
log:
  level: warn
storage:
  filesystem:
    rootdirectory: {store}
  delete:
    enabled: true
http:
  addr: {address}:{port}
  tls:
    certificate: {folder}/server.crt
    key: {folder}/server.key
    minimumtls: tls1.2
    clientcas: [{folder}/client.crt]
"""


@dataclass(frozen=True)
class RegistryClient:
    """The access of a host to the registry: its address and port, and the client and CA certificates, as PEM."""

    registry: str
    authority: str
    certificate: str
    key: str

    def files(self) -> dict[str, str]:
        """Return the files that an engine reads, by their names in its folder."""
        return {"ca.crt": self.authority, "client.cert": self.certificate, "client.key": self.key}


def tag_of(name: str) -> str:
    """Return the tag of an image in the registry: names have characters that tags must not have."""
    return hashlib.sha256(name.encode()).hexdigest()[:40]


def reference(registry: str, name: str) -> str:
    """Return the reference of an image in the registry."""
    return f"{registry}/{REPOSITORY}:{tag_of(name)}"


def docker(argv: Sequence[str], told: str, timeout: float = SHORT_S) -> str:
    """Run the engine's client and return its output.

    Raises:
        InputError: with ``told`` and the client's last line.
    """
    done = run(["docker", *argv], timeout)
    if done.status:
        lines = [line.strip() for line in (done.err or done.out).splitlines() if line.strip()]
        raise InputError(f"{told}: {lines[-1] if lines else f'docker {argv[0]} ended with {done.status}'}")
    return done.out.strip()


def certificate_pair(folder: Path, name: str, subject: str) -> None:
    """Make a key and its self-signed certificate, ``<name>.key`` and ``<name>.crt``.

    Args:
        folder: the output folder, which other users must not be able to read.
        name: server or client, a section of the configuration.
        subject: the server's name in the certificate, such as IP:192.0.2.1.

    Raises:
        InputError: with openssl's message.
    """
    now = datetime.now(timezone.utc)
    begin, end = (f"{moment:%Y%m%d%H%M%SZ}" for moment in (now - CLOCKS_DIFFER, now + CLOCKS_DIFFER))
    config = folder / f"{name}.cnf"
    config.write_text(AUTHORITY.format(folder=folder, name=name, subject=subject), encoding="ascii")
    (folder / "index").write_text("", encoding="ascii")
    (folder / "serial").write_text(f"{secrets.randbits(120) | 1 << 120:032x}\n", encoding="ascii")
    key, request = str(folder / f"{name}.key"), str(folder / f"{name}.csr")
    called = ["-subj", f"/CN=gaudi-serve {name}", "-config", str(config)]
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    sign = ["ca", "-batch", "-selfsign", "-notext", "-config", str(config), "-keyfile", key, "-in", request]
    for argv in (
        ["req", "-new", *curve, "-keyout", key, "-out", request, *called],
        [*sign, "-startdate", begin, "-enddate", end, "-out", str(folder / f"{name}.crt")],
    ):
        done = run(["openssl", *argv], READY_S)
        if done.status:
            raise InputError(f"no certificate for the registry: openssl {argv[0]}: {done.err.strip()[-300:]}")


@contextlib.contextmanager
def trusted(client: RegistryClient) -> Iterator[Path]:
    """Give this host's engine access to the registry meanwhile; yield the folder with the certificates.

    Raises:
        InputError: if the engine has foreign certificates for that address. An error of what runs meanwhile is raised
            without the client's key, which the engine can repeat.
    """
    folder = TRUSTED / client.registry
    if folder.exists() and not (folder / MARK).exists():
        raise InputError(f"{folder} exists, and is not the toolkit's; choose another vllm_image_serve_port")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        (folder / MARK).touch()
        for name, text in client.files().items():
            with open(folder / name, "w", encoding="ascii", opener=_private) as file:
                file.write(text)
        yield folder
    except InputError as problem:
        raise InputError(hidden(str(problem), [client.key, *client.key.splitlines()])) from problem
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def serve(address: str, port: int, names: Sequence[str], seconds: int) -> tuple[str, RegistryClient, dict[str, str]]:
    """Start the registry on this host and push images of its engine into it.

    Args:
        address: its listening address; empty for the address of the default route.
        port: its port.
        names: images of this host's engine.
        seconds: after which it ends by itself; one push takes no longer.

    Returns:
        Its unit; the access for clients; the digest of each image, by name.

    Raises:
        InputError: with the conflict or the failure.
    """
    address = address or str(network()["ip"])
    unit = f"{UNIT}-{secrets.token_hex(4)}"
    free_port(address, port)
    forget_what_is_gone(names)
    client = start(unit, address, port, seconds)
    try:
        with trusted(client):
            return unit, client, {name: push(client.registry, name, seconds) for name in names}
    except BaseException:
        end(unit)
        raise


def start(unit: str, address: str, port: int, seconds: int) -> RegistryClient:
    """Start the registry as a unit, and wait until it answers.

    It reads its key and its configuration once, so their files exist only while it starts.

    Raises:
        InputError: if it does not start.
    """
    subject = f"IP:{address}" if re.fullmatch(r"[\d.]+", address) else f"DNS:{address}"
    RUNTIME.mkdir(mode=0o755, exist_ok=True)
    STORE.mkdir(mode=0o700, parents=True, exist_ok=True)
    shutil.chown(STORE, USER, USER)
    with tempfile.TemporaryDirectory(dir=RUNTIME, prefix="registry-") as made:
        folder = Path(made)
        for name in ("server", "client"):
            certificate_pair(folder, name, subject)
        text = CONFIG.format(store=STORE, address=address, port=port, folder=folder)
        (folder / "config.yml").write_text(text, encoding="ascii")
        for path in (folder, *(folder / name for name in READ)):
            shutil.chown(path, USER)
        argv = ["systemd-run", f"--unit={unit}", "--collect", "--quiet", "--service-type=exec"]
        limits = [f"RuntimeMaxSec={seconds}", f"User={USER}", "ProtectSystem=strict", "NoNewPrivileges=yes"]
        limits += [f"ReadWritePaths={STORE}", "ProtectHome=yes", "PrivateTmp=yes", "CapabilityBoundingSet="]
        argv += [f"--property={limit}" for limit in limits]
        done = run([*argv, "/usr/bin/docker-registry", "serve", str(folder / "config.yml")], READY_S)
        if done.status:
            raise InputError(f"the registry did not start: {done.err.strip()}; see journalctl -u {unit}")
        parts = [read_text(folder / name) or "" for name in ("server.crt", "client.crt", "client.key")]
        client = RegistryClient(f"{address}:{port}", *parts)
        try:
            wait_until_ready(unit, client.registry, folder)
        except BaseException:
            end(unit)
            raise
    return client


def wait_until_ready(unit: str, registry: str, folder: Path) -> None:
    """Query the registry until it answers, as an engine does.

    Raises:
        InputError: if it does not, with the last line of its log.
    """
    context = ssl.create_default_context(cafile=str(folder / "server.crt"))
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    # It is on this host: never use a proxy of the environment.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), opener.open(f"https://{registry}/v2/", timeout=5):
            return
        if run(["systemctl", "is-active", f"{unit}.service"]).status:
            break
        time.sleep(0.1)
    # Exclude systemd's own messages about the unit.
    match = f"_SYSTEMD_UNIT={unit}.service"
    said = run(["journalctl", "--no-pager", "--output=cat", "--lines=1", match]).out.strip()
    raise InputError(f"the registry at {registry} does not answer: {said or 'it sent no message'}")


def key_file(unit: str) -> Path:
    """Return the path of the client key that is saved for the run."""
    return RUNTIME / f"{unit}.key"


def save_key(unit: str, key: str) -> None:
    """Save the key in a file for the run to fetch: the result of a module may be shown."""
    with open(key_file(unit), "w", encoding="ascii", opener=_private) as file:
        file.write(key)


def end(unit: str) -> None:
    """Stop a registry; one that has ended by itself is not an error.

    Raises:
        InputError: if it continues to run.
    """
    key_file(unit).unlink(missing_ok=True)
    done = run(["systemctl", "stop", f"{unit}.service"], SHORT_S)
    if done.status not in (0, 5):
        raise InputError(f"{unit} could not be stopped: {done.err.strip()}")


def push(registry: str, name: str, seconds: int) -> str:
    """Push an image into the registry and return its digest; layers that it already has are not sent again."""
    called = reference(registry, name)
    docker(["image", "tag", name, called], f"image {name}")
    try:
        docker(
            ["image", "push", "--quiet", called], f"image {name}: the registry {registry} did not accept it", seconds
        )
        told = json.loads(docker(["image", "inspect", "--format", "{{json .RepoDigests}}", called], f"image {name}"))
    finally:
        run(["docker", "image", "rm", called], SHORT_S)
    place = f"{registry}/{REPOSITORY}@"
    found = [one.removeprefix(place) for one in told or [] if one.startswith(place)]
    if not found or not DIGEST.fullmatch(found[-1]):
        raise InputError(f"image {name}: the engine shows no digest of it after the push to {registry}")
    return str(found[-1])


def take(client: RegistryClient, name: str, digest: str, seconds: int) -> None:
    """Pull an image from the registry and give it its name; the digest rejects altered content.

    Raises:
        InputError: with the engine's message.
    """
    called = f"{client.registry}/{REPOSITORY}@{digest}"
    hint = "this host must reach that address and port, and an engine with a proxy must not use it there (NO_PROXY)"
    with trusted(client) as folder:
        found = without_known_layers(Source(client.registry, REPOSITORY, folder), name, digest, seconds)
        if not found:
            told = f"image {name}: it could not be pulled from {client.registry} ({hint})"
            docker(["image", "pull", "--quiet", called], told, seconds)
    docker(["image", "tag", found or called, name], f"image {name}")
    # Only the name is needed now; without it, the layers would be removed too.
    run(["docker", "image", "rm", called], SHORT_S)


def without_known_layers(source: Source, name: str, digest: str, seconds: int) -> str:
    """Fetch an image without the layers that the engine has; return its ID, or an empty text to request a pull.

    Raises:
        InputError: with the image's name, and the error in a layer.
    """
    try:
        return bring(source, digest, seconds)
    except InputError as problem:
        raise InputError(f"image {name}: it could not be pulled from {source.registry}: {problem}") from problem
    except (OSError, http.client.HTTPException):
        # The pull retries broken connections and reports their errors.
        return ""


def forget_what_is_gone(names: Sequence[str]) -> None:
    """Remove images from the store that this host's engine no longer has, and the layers that only they had.

    Raises:
        InputError: with docker-registry's message.
    """
    listed = docker(["image", "ls", "--format", "{{.Repository}}:{{.Tag}}"], "images of this host").splitlines()
    kept = {tag_of(name) for name in (*names, *listed)} | {tag_of(name.removesuffix(":latest")) for name in listed}
    old = [path for path in TAGS.glob("*") if path.name not in kept]
    if not old:
        return
    for path in old:
        shutil.rmtree(path)
    with tempfile.NamedTemporaryFile("w", suffix=".yml", encoding="ascii") as config:
        config.write(f"version: 0.1\nstorage:\n  filesystem:\n    rootdirectory: {STORE}\n")
        config.flush()
        done = run(["docker-registry", "garbage-collect", "--delete-untagged", config.name], 600)
    if done.status:
        raise InputError(f"{STORE}: layers of images that are gone could not be removed: {done.err.strip()[-300:]}")


def free_port(address: str, port: int) -> None:
    """Free the port: stop a registry that an interrupted run has left.

    Raises:
        InputError: if another program uses it, or another run's registry has clients.
    """
    where, quiet = f"{address} port {port}", time.monotonic() + QUIET_S
    while (problem := _conflict(address, port)) is not None:
        others = _registries()
        if not others:
            raise InputError(
                f"no registry can listen at {where}: {problem}; see vllm_image_serve_address and vllm_image_serve_port"
            )
        if ESTABLISHED in _states(port):
            if time.monotonic() > quiet + 10 * QUIET_S:
                raise InputError(f"another run's registry is in use at {where}; start again when that run has ended")
            quiet = max(quiet, time.monotonic() + QUIET_S / 6)
        elif time.monotonic() > quiet:
            for unit in others:
                end(unit.removesuffix(".service"))
            quiet += QUIET_S
        time.sleep(1)


def _conflict(address: str, port: int) -> str | None:
    try:
        with socket.create_server((address, port)):
            return None
    except OSError as problem:
        # Python appends the address, which the message already has.
        return os.strerror(problem.errno) if problem.errno else str(problem)


def _registries() -> list[str]:
    argv = ["systemctl", "list-units", "--plain", "--no-legend", "--state=active,activating", f"{UNIT}-*"]
    return [line.split()[0] for line in run(argv).out.splitlines() if line.strip()]


def _states(port: int) -> set[str]:
    """Return the states of the connections of a local port."""
    lines = [line.split() for line in (read_text("/proc/net/tcp") or "").splitlines()[1:]]
    return {one[3] for one in lines if int(one[1].rpartition(":")[2], 16) == port}
