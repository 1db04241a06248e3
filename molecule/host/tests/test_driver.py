"""The driver from a bare host to an upgrade, with the vendor's packages by name and version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from runs import tear

STATE = "/etc/gaudi-sim/state.json"
NAMES = ["dkms", "firmware", "firmware-tools", "graph", "thunk", "rdma-core"]
UNIT = """[Unit]
Description=stands for a model
X-Gaudi-Serve=1
[Service]
ExecStart=/usr/bin/sleep infinity
[Install]
WantedBy=multi-user.target
"""


def simulate(host: Any, **changes: Any) -> None:
    """Change the simulated machine."""
    state = {**json.loads(host.file(STATE).content_string), **changes}
    host.check_output("echo %s > %s", json.dumps(state), STATE)


def held(host: Any) -> set[str]:
    """Return the packages that are held."""
    return set(host.check_output("apt-mark showhold").split())


def driver(host: Any) -> str:
    """Return the version of the loaded driver."""
    text: str = host.check_output("hl-smi -Q index,module_id,driver_version -f csv,noheader").splitlines()[0]
    return text.split(", ")[2].partition("-")[0]


def test_a_bare_host_gets_one_release_held_and_loaded(host: Any) -> None:
    for name in NAMES:
        assert host.package(f"habanalabs-{name}").version == "1.21.3-57"
    assert held(host) == {f"habanalabs-{name}" for name in NAMES}
    for module in ("habanalabs", "habanalabs_cn", "habanalabs_en", "habanalabs_ib"):
        assert host.file(f"/sys/module/{module}").is_directory
    assert driver(host) == "1.21.3"


def test_what_has_come_loose_is_held_and_loaded_again(host: Any, playbook: Any) -> None:
    host.check_output("apt-mark unhold habanalabs-graph && modprobe -r habanalabs_ib")
    assert playbook("playbooks/driver.yml").status == 0
    assert "habanalabs-graph" in held(host)
    assert host.file("/sys/module/habanalabs_ib").is_directory
    assert playbook("playbooks/driver.yml").changed_nothing


def test_another_release_is_refused_with_the_pair(host: Any, playbook: Any) -> None:
    run = playbook("playbooks/driver.yml", accelerator_release="1.22.0")
    assert run.status != 0
    text = "mol-host: driver packages of release 1.21.3 and release 1.22.0 differ; allow the change with"
    assert text in run.flat
    unknown = playbook("playbooks/driver.yml", accelerator_release="1.99.0")
    assert "apt knows no habanalabs-dkms of release 1.99.0; it knows 1.24.1-57, 1.22.0-100, 1.21.3-57" in unknown.flat
    assert driver(host) == "1.21.3"


def test_a_card_in_a_foreign_programs_hands_stops_an_upgrade(host: Any, playbook: Any) -> None:
    grab = (
        "import socket, time; s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + 'gaudi-sim-card-3'); time.sleep(300)"
    )
    host.check_output("systemd-run --quiet --unit=foreign python3 -c %s", grab)
    try:
        run = playbook("playbooks/driver.yml", accelerator_release="1.22.0", driver_upgrade_allowed=True)
    finally:
        host.run("systemctl stop foreign")
    assert run.status != 0
    assert "is used by python3" in run.flat
    assert driver(host) == "1.21.3"


def test_an_upgrade_drains_the_models_and_takes_all_packages_together(host: Any, playbook: Any) -> None:
    host.check_output("mkdir -p /etc/gaudi-serve && echo %s > /etc/gaudi-serve/fake.json", '{"module_ids": [0]}')
    host.check_output("printf %s > /etc/systemd/system/vllm-fake.service", UNIT)
    host.check_output("systemctl enable --quiet --now vllm-fake")
    run = playbook("playbooks/driver.yml", accelerator_release="1.22.0", driver_upgrade_allowed=True)
    assert run.status == 0, run.text
    assert not host.service("vllm-fake").is_running
    assert host.service("vllm-fake").is_enabled
    for name in NAMES:
        assert host.package(f"habanalabs-{name}").version == "1.22.0-100"
    assert held(host) == {f"habanalabs-{name}" for name in NAMES}
    assert driver(host) == "1.22.0"
    assert playbook("playbooks/driver.yml", accelerator_release="1.22.0").changed_nothing
    host.check_output("systemctl disable --quiet vllm-fake && rm /etc/systemd/system/vllm-fake.service")


def test_a_driver_that_no_package_installed_is_removed_before_another_comes(host: Any, playbook: Any) -> None:
    host.check_output("dpkg --purge --force-all habanalabs-dkms; cp /usr/lib/gaudi-sim/modprobe /usr/local/sbin/")
    run = playbook("playbooks/driver.yml", accelerator_release="1.24.1", driver_upgrade_allowed=True)
    assert run.status != 0
    assert (
        "mol-host: driver 1.21.3 and release 1.24.1 differ, and apt cannot replace a driver that no package" in run.flat
    )
    # As docs/guides/migrating.md shows; the release that the host had before takes the fewest packages.
    host.check_output(
        "for module in habanalabs habanalabs_ib habanalabs_en habanalabs_cn; do modprobe -r $module; done"
    )
    assert host.run("hl-smi").rc != 0
    host.check_output("rm /usr/local/sbin/modprobe")
    run = playbook("playbooks/driver.yml")
    assert run.status == 0, run.text
    assert driver(host) == "1.21.3"
    assert host.package("habanalabs-dkms").version == "1.21.3-57"


def test_a_module_that_does_not_load_is_reported_with_its_reason(host: Any, playbook: Any) -> None:
    host.check_output("modprobe -r habanalabs")
    simulate(host, modprobe_fault="Key was rejected by service")
    try:
        run = playbook("playbooks/driver.yml")
    finally:
        simulate(host, modprobe_fault=None)
    assert run.status != 0
    for part in ("module habanalabs does not load", "Key was rejected by service", "Secure Boot"):
        assert part in run.flat, run.text
    assert playbook("playbooks/driver.yml").status == 0
    assert driver(host) == "1.21.3"


def test_a_port_that_is_down_is_named(host: Any, playbook: Any) -> None:
    cards = json.loads(host.file(STATE).content_string)["cards"]
    broken = [
        {**card, "links": ["UP"] * 8 + ["DOWN"] + ["UP"] * 15} if card["module_id"] == 5 else card for card in cards
    ]
    simulate(host, cards=broken)
    try:
        run = playbook("playbooks/driver.yml")
        allowed = playbook("playbooks/driver.yml", driver_ports_may_be_down=[8])
    finally:
        simulate(host, cards=cards)
    assert "mol-host: card 5: ports 8 are down; check cables" in run.flat
    assert allowed.changed_nothing, allowed.text


def test_an_interrupted_dpkg_is_finished(host: Any, playbook: Any) -> None:
    host.check_output("dpkg --unpack /srv/gaudi-sim/apt/habanalabs-graph_1.21.3-57_amd64.deb")
    assert host.check_output("dpkg --audit")
    run = playbook("playbooks/driver.yml")
    assert run.status == 0, run.text
    assert host.check_output("dpkg --audit") == ""
    assert playbook("playbooks/driver.yml").changed_nothing


@pytest.mark.parametrize("want", ["hold", "deinstall"])
def test_a_package_whose_files_are_half_there_is_installed_again(host: Any, playbook: Any, want: str) -> None:
    tear(host, "habanalabs-graph", want)
    folder = "/usr/share/doc/habanalabs-graph"
    host.check_output(f"rmdir {folder}")
    run = playbook("playbooks/driver.yml")
    assert run.status == 0, run.text
    assert host.check_output("dpkg --audit") == ""
    assert host.file(folder).is_directory
    assert held(host) == {f"habanalabs-{name}" for name in NAMES}
    assert playbook("playbooks/driver.yml").changed_nothing
