"""One host fetches images for all: what another takes from it moves once, and nothing listens afterwards."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import testinfra

SCENARIO = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"])
FROM = {"vllm_image_from_host": "mol-image-a"}
LIMIT = ["--limit=mol-image-b"]

pytestmark = pytest.mark.on("mol-image-b")

# An image without anything.
TINY = "tar -c --files-from=/dev/null | docker import - site/there:1"


@pytest.fixture
def source_host() -> Any:
    """Return the host from which others fetch images."""
    return testinfra.get_host("docker://mol-image-a")


def received(host: Any) -> int:
    """Return how many bytes have come over the hosts' network."""
    return int(host.check_output("cat /sys/class/net/eth0/statistics/rx_bytes"))


def image_id(host: Any, name: str) -> str:
    """Return which image a host has under a name."""
    text: str = host.check_output(f"docker image inspect --format '{{{{.Id}}}}' {name}")
    return text


def left_open(host: Any) -> str:
    """Return what of a transfer is still there: units, keys, certificates, references, who listens."""
    found: str = host.run(
        "systemctl list-units --plain --no-legend --state=active 'gaudi-serve-registry*' docker-registry.service;"
        "ls -A /etc/docker/certs.d /run/gaudi-serve | grep -E ':8874|key$|^registry-';"
        "docker image ls --digests --format '{{.Repository}}@{{.Digest}}' | grep :8874;"
        "ss -Hltn | grep -E ':(5000|8874)'"
    ).stdout
    return found


def test_an_upgrade_moves_the_layer_that_has_changed(host: Any, source_host: Any, playbook: Any, started: Any) -> None:
    def take(number: int, *options: str) -> Any:
        images = [{"name": f"site/next:{number}"}]
        return playbook("playbooks/images.yml", *LIMIT, *options, **FROM, vllm_images=images, vllm_models=[])

    before = started("small")
    body = "mkdir /tmp/body && head -c 8M /dev/urandom >/tmp/body/file && tar -C /tmp/body -c . | docker import - "
    source_host.check_output(f"{body} site/next:1; rm -r /tmp/body")
    begin = received(host)
    run = take(1, "-vvv")
    assert run.status == 0, run.text
    assert image_id(host, "site/next:1") == image_id(source_host, "site/next:1")
    assert received(host) - begin > 8_000_000
    assert left_open(host) == "" and left_open(source_host) == ""
    assert "PRIVATE KEY" not in run.text
    # The package's own service would be open to everybody.
    assert source_host.run("systemctl is-enabled docker-registry.service").stdout.strip() == "masked"
    assert take(1).changed_nothing

    source_host.check_output("docker create --name changed site/next:1 / && docker cp /etc/hostname changed:/changed")
    source_host.check_output("docker commit changed site/next:2 && docker rm changed")
    checked = take(2, "--check")
    assert checked.status == 0 and "would provide site/next:2 from mol-image-a" in checked.flat, checked.text
    begin = received(host)
    run = take(2)
    assert run.status == 0, run.text
    assert image_id(host, "site/next:2") == image_id(source_host, "site/next:2")
    assert received(host) - begin < 200_000
    for one in (host, source_host):
        one.check_output("docker image rm site/next:1 site/next:2")
    assert started("small") == before


def test_what_cannot_be_given_is_reported_and_leaves_nothing(
    host: Any, source_host: Any, playbook: Any, started: Any
) -> None:
    before = started("small")
    wanted: dict[str, Any] = {"vllm_images": [{"name": "127.0.0.1:9/nothing:1"}], "vllm_models": []}
    run = playbook("playbooks/images.yml", *LIMIT, **FROM, **wanted)
    assert run.status != 0 and "127.0.0.1:9" in run.flat and "refused" in run.flat, run.text
    source_host.check_output(TINY)
    source_host.check_output("systemd-run --quiet --unit=foreign python3 -m http.server --bind=0.0.0.0 8874")
    try:
        wanted["vllm_images"] = [{"name": "site/there:1"}]
        run = playbook("playbooks/images.yml", *LIMIT, **FROM, **wanted)
    finally:
        source_host.check_output("systemctl stop foreign; docker image rm site/there:1")
    assert run.status != 0
    assert "port 8874: Address already in use; see vllm_image_serve_address and vllm_image_serve_port" in run.flat
    assert left_open(host) == "" and left_open(source_host) == ""
    assert started("small") == before


# As an engine would that trusts the registry, and has no certificate to show.
ASK = """\
import ssl, sys, urllib.request
context = ssl.create_default_context(cafile="/tmp/authority")
print(urllib.request.urlopen(sys.argv[1], context=context, timeout=9).status)
"""


def module(state: str, **given: Any) -> dict[str, Any]:
    """Run module image_registry on the host that gives, and return its result."""
    argv = ["ansible", "-i", str(SCENARIO / "inventory"), "mol-image-a", "-m", "image_registry"]
    done = subprocess.run(
        [*argv, "-a", json.dumps({"state": state, **given})],
        capture_output=True,
        text=True,
        check=False,
        cwd=SCENARIO.parents[1],
        env={**os.environ, "ANSIBLE_STDOUT_CALLBACK": "minimal", "ANSIBLE_CALLBACK_RESULT_FORMAT": "json"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.JSONDecoder().raw_decode(done.stdout, done.stdout.index("{"))[0]
    return result


def test_who_has_not_the_runs_certificate_gets_nothing(host: Any, source_host: Any, playbook: Any) -> None:
    if source_host.run("test -x /usr/bin/docker-registry").failed:
        wanted: dict[str, Any] = {"vllm_images": [{"name": "site/there:1"}], "vllm_models": []}
        source_host.check_output(TINY)
        assert playbook("playbooks/images.yml", *LIMIT, **FROM, **wanted).status == 0
    server = module("serving", port=8874, names=[])
    address = f"https://{server['registry']}/v2/"
    try:
        host.check_output("cat >/tmp/authority <<'END'\n" + server["authority"] + "\nEND")
        unauthorised = host.run(f"python3 -c %s {address}", ASK)
        # Go reports "bad certificate" for none, newer ones "certificate required".
        assert unauthorised.failed and re.search("alert (bad certificate|certificate required)", unauthorised.stderr)
        assert host.run(f"docker pull {server['registry']}/images:x").failed
        assert source_host.check_output(f"systemctl show --value -p User {server['unit']}") == "docker-registry"
        assert source_host.check_output(f"stat -c '%a %U' {server['key_file']}") == "600 root"
        # No file has the server's key any more, and no process list shows it.
        assert source_host.run(
            "grep -rls 'PRIVATE KEY' /run/gaudi-serve /etc/docker /var/lib/gaudi-serve"
        ).stdout.split() == [server["key_file"]]
    finally:
        module("stopped", unit=server["unit"])
    assert left_open(source_host) == ""


# A registry of the distribution's that asks for a login; the password is of this test alone, as its digest by bcrypt.
LOGIN = {"username": "robot", "password": "canary-of-the-registry"}
DIGEST = "$2b$04$8hqe727QFJC7oq3JuBI.aOyIbUp5FiPCPcbNN3R42rGGe66dIcZcK"
PRIVATE = """
import pathlib, sys
folder = pathlib.Path("/run/private")
folder.mkdir(exist_ok=True)
(folder / "htpasswd").write_text(f"robot:{sys.argv[1]}\\n")
asks = "auth: {htpasswd: {realm: private, path: /run/private/htpasswd}}"
for name, more in (("open", ""), ("asks", asks)):
    text = f"version: 0.1\\nstorage: {{filesystem: {{rootdirectory: /run/private/store}}}}\\n"
    (folder / f"{name}.yml").write_text(f"{text}http: {{addr: '127.0.0.1:5055'}}\\n{more}\\n")
"""


@pytest.fixture
def private(source_host: Any) -> Any:
    """A registry with one image, on the host that gives, of which only who logs in gets anything."""

    def serve(kind: str) -> None:
        source_host.run("systemctl stop private-registry.service; systemctl reset-failed private-registry.service")
        unit = "systemd-run --quiet --unit=private-registry --property=RuntimeMaxSec=300"
        source_host.check_output(f"{unit} docker-registry serve /run/private/{kind}.yml")
        source_host.check_output("timeout 20 sh -c 'until ss -Hltn | grep -q :5055; do sleep 0.1; done'")

    # As the toolkit provides it, whose own service would be open to everybody.
    source_host.check_output("systemctl mask docker-registry.service")
    install = "apt-get install --yes --no-install-recommends docker-registry"
    source_host.check_output(f"command -v docker-registry || {{ apt-get update && {install}; }}")
    source_host.check_output("python3 -c %s %s", PRIVATE, DIGEST)
    serve("open")
    name = "127.0.0.1:5055/site/private:1"
    source_host.check_output(TINY.replace("site/there:1", name))
    source_host.check_output(f"docker push {name} && docker image rm {name}")
    serve("asks")
    yield name
    source_host.run(f"systemctl stop private-registry; docker image rm {name}; rm -r /run/private")


@pytest.mark.on("mol-image-a")
def test_an_image_of_a_registry_that_asks_for_a_login(source_host: Any, playbook: Any, private: str) -> None:
    def images(**more: Any) -> Any:
        wish = {"vllm_images": [{"name": private}], "vllm_models": [], **more}
        return playbook("playbooks/images.yml", "--limit=mol-image-a", "-vvv", "--diff", **wish)

    refused = images()
    assert refused.status == 2 and f"image {private}: could not be pulled: " in refused.flat, refused.text
    run = images(vllm_image_registries={"127.0.0.1:5055": LOGIN})
    assert run.status == 0, run.text
    assert source_host.run(f"docker image inspect {private}").succeeded
    assert LOGIN["password"] not in run.text
    # As docker login would keep it, it is no plain text.
    encoded = base64.b64encode(f"{LOGIN['username']}:{LOGIN['password']}".encode()).decode()
    kept = f"grep -rlF -e {LOGIN['password']} -e {encoded} /root /etc /var/lib/gaudi-serve /run --exclude-dir=private"
    assert source_host.run(kept).stdout == ""
