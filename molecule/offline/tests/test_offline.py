"""A site without internet: everything came out of the bundle, what it lacks is named, what was changed is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients import inside
from runs import Run

A, B, CONTROL = HOSTS = ("mol-site-a", "mol-site-b", "mol-site-control")
OUTSIDE = Path(__file__).parents[3] / ".molecule/outside"
SKIPPED = ("--skip-tags", "host,validate")
Site = Callable[..., Run]


def launched(name: str) -> str:
    """Return when the server of a host was started."""
    return inside(name, "docker inspect --format '{{.State.StartedAt}}' vllm-small")


@pytest.mark.on(A)
def test_bare_hosts_serve_and_nothing_asked_for_a_name_outside(host: Any) -> None:
    for name in HOSTS:
        assert inside(name, "systemctl is-active resolver") == "active"
        assert inside(name, "cat /run/asked") == "", name
        assert inside(name, "ip route show default") == ""
    body = json.dumps({"model": "small", "prompt": "What is the capital of France?", "max_tokens": 8})
    ask = f"curl -s -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:8080/v1/completions"
    assert "text" in json.loads(inside(CONTROL, ask))["choices"][0]
    for name in (A, B):
        # The packages' own source is written down nowhere, the toolkit's is not the host's.
        assert inside(name, "ls /etc/apt/sources.list.d") == ""
        assert inside(name, "dpkg-query -W -f '${Version}' habanalabs-dkms") == "1.21.3-57"
        assert "mirror.site" not in inside(name, "docker image ls --format '{{.Repository}}'")
        assert inside(name, "ls /data/hf_models/Other | grep -c safetensors") == "9"
    # What a recipe makes is built outside, and carried.
    assert inside(B, "docker inspect --format '{{.Config.Image}}' vllm-small").startswith(
        "gaudi-serve/vllm-gaudi:1.21.3-"
    )


@pytest.mark.on(A)
def test_a_second_run_changes_nothing_and_no_playbook_leaves_the_site(host: Any, site: Site) -> None:
    before = [launched(name) for name in (A, B)]
    run = site("site.yml", *SKIPPED)
    assert run.changed_nothing, run.text
    fingerprint = (OUTSIDE / "fingerprint").read_text()
    mirror = site("playbooks/mirror.yml", bundle_fingerprint=fingerprint)
    assert mirror.changed_nothing, mirror.text
    status = site("playbooks/status.yml")
    assert "everything is fetched from https://mirror.site:8443" in status.flat, status.text
    # The gateway reaches both hosts.
    assert "active 2 of 2 up" in status.flat, status.text
    # Without the stages that change the kernel.
    changed = site("molecule/fleet/rollout.yml", mol_seqs=4, rollout_approved=True)
    assert changed.status == 0, changed.text
    assert not {launched(name) for name in (A, B)} & {*before}
    for name in HOSTS:
        assert inside(name, "cat /run/asked") == "", name


@pytest.mark.on(A)
def test_what_the_mirror_lacks_is_named_before_anything_changes(host: Any, site: Site) -> None:
    before = [launched(name) for name in (A, B)]
    run = site("site.yml", *SKIPPED, mol_image="registry.example:5000/vllm-standin:9", mol_seqs=6)
    assert run.status == 3, run.text
    lacks = "the mirror https://mirror.site:8443 lacks image registry.example:5000/vllm-standin:9; make the"
    assert f"{A}: {lacks}" in run.flat and f"{B}: {lacks}" in run.flat
    gone = site("site.yml", *SKIPPED, gaudi_mirror_url="https://mirror.site:9", mol_seqs=6)
    assert f"{A}: the mirror https://mirror.site:9: it cannot be reached" in gone.flat, gone.text
    assert [launched(name) for name in (A, B)] == before


@pytest.mark.on(CONTROL)
def test_a_file_that_was_changed_and_another_signature_are_refused(host: Any, site: Site) -> None:
    fingerprint = (OUTSIDE / "fingerprint").read_text()
    other = site("playbooks/mirror.yml", bundle_fingerprint="A" * 40)
    assert other.status != 0 and f"is signed by {fingerprint}, not by {'A' * 40}" in other.flat, other.text
    deb = inside(CONTROL, "ls /srv/bundle/apt/debian-12-amd64/pool/docker.io_*")
    inside(CONTROL, f"cp -p {deb} /root/deb && printf x >>{deb}")
    try:
        run = site("playbooks/mirror.yml", bundle_fingerprint=fingerprint)
    finally:
        inside(CONTROL, f"cp -p /root/deb {deb} && rm /root/deb")
    assert run.status != 0 and "Nothing has been changed. The bundle /srv/bundle is refused" in run.flat, run.text
    assert f"{deb.removeprefix('/srv/bundle/')}: was changed" in run.flat
    assert "changed=0" in run.text
    assert site("playbooks/mirror.yml", bundle_fingerprint=fingerprint).changed_nothing


@pytest.mark.on(A)
def test_hosts_forget_the_mirror_where_internet_has_come(host: Any, site: Site) -> None:
    run = site("playbooks/offline.yml", "--limit", A, gaudi_offline=False)
    assert run.status == 0, run.text
    assert inside(A, "ls -d /etc/gaudi-mirror /var/lib/gaudi-mirror /etc/docker/certs.d/mirror.site:8443") == ""
    early = site("playbooks/models.yml", "--limit", A)
    assert early.status == 3 and f"{A}: the host does not match gaudi_offline (write /etc/" in early.flat, early.text
    again = site("playbooks/offline.yml", "--limit", A)
    assert again.status == 0 and inside(A, "ls /etc/gaudi-mirror | wc -l") == "4", again.text


@pytest.mark.on(A)
def test_the_execution_environment_of_an_awx_comes_from_the_mirror_too(host: Any, site: Site) -> None:
    # Other tests leave the hosts with other settings.
    assert site("site.yml", "--limit", B, *SKIPPED).status == 0
    image = "mirror.site:8443/docker.io/gaudi-serve/environment:1"
    # As a job of AWX does, on a host of the site that has an engine.
    inside(CONTROL, "tar -C /opt -c gaudi-serve | ssh -o StrictHostKeyChecking=no mol-site-a tar -C /opt -x")
    inside(CONTROL, "scp -q -o StrictHostKeyChecking=no /root/.ssh/id_ed25519 mol-site-a:/root/.ssh/")
    inside(CONTROL, "scp -q -o StrictHostKeyChecking=no -r /root/.config /root/.cache mol-site-a:/root/")
    own = " ".join(f"-v /root/{name}:/root/{name}" for name in (".ssh", ".config", ".cache"))
    mounts = f"-v /opt/gaudi-serve:/runner {own}"
    settings = (
        "--env ANSIBLE_HOST_KEY_CHECKING=false --env ANSIBLE_STDOUT_CALLBACK=default --env HOME=/root --user root"
    )
    given = json.dumps({"mol_inside": True, "fleet_all_at_once": True})
    playbook = f"ansible-playbook -i molecule/offline/inventory site.yml --limit {B} {' '.join(SKIPPED)} -e '{given}'"
    said = inside(A, f"docker run --rm --network host --workdir /runner {mounts} {settings} {image} {playbook} 2>&1")
    assert "changed=0" in said.rpartition("PLAY RECAP")[2] and "failed=0" in said, said
