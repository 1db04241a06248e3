"""container_runtime on a host whose owner has settings of their own."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

DAEMON = "/etc/docker/daemon.json"


def info(host: Any) -> dict[str, Any]:
    """Return what the running engine reports of itself."""
    found: dict[str, Any] = json.loads(host.check_output("docker info --format '{{json .}}'"))
    return found


def engine_pid(host: Any) -> str:
    """Return the running engine's process id."""
    text: str = host.check_output("systemctl show docker --property=MainPID --value")
    return text


def test_running_engine_has_the_runtime_and_the_owners_settings(host: Any) -> None:
    running = info(host)
    assert running["Runtimes"]["habana"]["path"] == "/usr/bin/habana-container-runtime"
    assert running["Runtimes"]["other"]["path"] == "/usr/bin/runc"
    assert running["DefaultRuntime"] == "runc"
    assert running["LiveRestoreEnabled"] is True
    written = json.loads(host.file(DAEMON).content_string)
    assert list(written)[:3] == ["log-opts", "log-driver", "runtimes"]
    assert written["log-opts"] == {"max-size": "10m"}
    assert host.service("docker").is_enabled
    backup = json.loads(host.file(f"{DAEMON}.before-gaudi-serve").content_string)
    assert backup["runtimes"] == {"other": {"path": "/usr/bin/runc"}}
    assert "live-restore" not in backup


@pytest.fixture
def small(host: Any) -> None:
    """Let the engine have an image to run something from."""
    host.check_output(
        "docker image inspect small:1 >/dev/null 2>&1 || "
        "tar -C / -c bin lib lib64 usr/bin/ls usr/bin/sleep usr/lib64 usr/lib/x86_64-linux-gnu"
        " | docker import - small:1"
    )


@pytest.fixture
def lasting(host: Any, small: None) -> Iterator[Callable[[], str]]:
    """Run a container, and return a function that returns its process and since when it runs."""
    host.check_output("docker run --detach --name lasting --network none small:1 sleep 900")
    yield lambda: str(host.check_output("docker inspect --format '{{.State.Pid}} {{.State.StartedAt}}' lasting"))
    host.check_output("docker rm --force lasting")


def test_no_container_gets_cards_that_it_did_not_name(host: Any, small: None) -> None:
    shown = host.check_output("docker run --rm --runtime=habana small:1 ls /dev")
    assert "accel" not in shown
    named = host.check_output("docker run --rm --runtime=habana -e HABANA_VISIBLE_DEVICES=3 small:1 ls /dev/accel")
    assert named.split() == ["accel3", "accel_controlD3"]


def test_the_engine_starts_a_command_in_place_of_an_image_s_own_server(host: Any, small: None) -> None:
    """As the supervisor starts a server in an official image, which would take the command for arguments."""
    host.check_output(
        "tar -C / -c bin lib lib64 usr/bin/ls usr/lib64 usr/lib/x86_64-linux-gnu"
        """ | docker import --change 'ENTRYPOINT ["vllm", "serve"]' - official:1"""
    )
    assert host.run("docker run --rm --network none official:1 ls /bin/ls").rc != 0
    shown = host.check_output("docker run --rm --network none --entrypoint '' official:1 ls /bin/ls")
    assert shown.strip() == "/bin/ls"
    host.check_output("docker image rm official:1")


def test_settings_of_the_runtime_are_toml(host: Any, playbook: Any, small: None) -> None:
    config = "/etc/habana-container-runtime/config.toml"
    host.check_output(f"cp {config} /tmp/config.toml; mv /usr/bin/habana-container-cli /tmp")
    quoted = '[ "habana-container-runtime" ]\\nmode = "oci"'
    host.check_output(f"printf '{quoted}' > {config}")
    run = playbook("playbooks/runtime.yml")
    assert run.status == 0, run.text
    assert "habana-container-cli missing, install it again" in run.flat
    written = host.file(config).content_string
    assert written == '[ "habana-container-runtime" ]\nvisible_devices_all_as_default = false\nmode = "oci"'
    shown = "docker run --rm --runtime=habana -e HABANA_VISIBLE_DEVICES=3 small:1 ls /dev/accel"
    assert host.check_output(shown).split() == ["accel3", "accel_controlD3"]
    for text, reason in (("no toml", "is not TOML"), ("mount_accelerators = false", "gives no container a card")):
        host.check_output(f"echo '{text}' > {config}")
        run = playbook("playbooks/runtime.yml")
        assert run.status != 0
        assert f"mol-host: {config}: {text if '=' in text else ''}" in run.flat and reason in run.flat
        assert host.file(config).content_string == f"{text}\n"
    host.check_output(f"cp /tmp/config.toml {config}")


def test_a_runtime_that_the_running_engine_lacks_is_fetched_by_a_reload(host: Any, playbook: Any) -> None:
    pid = engine_pid(host)
    written = json.loads(host.file(DAEMON).content_string)
    del written["runtimes"]["habana"]
    host.check_output(f"echo '{json.dumps(written)}' > {DAEMON}")
    host.check_output("systemctl reload docker")
    run = playbook("playbooks/runtime.yml")
    assert run.status == 0, run.text
    assert "habana" in info(host)["Runtimes"]
    assert engine_pid(host) == pid


def test_a_running_container_outlives_reload_and_restart(host: Any, playbook: Any, lasting: Any) -> None:
    before = lasting()
    # An engine that does not know of live-restore would take its containers along.
    written = json.loads(host.file(DAEMON).content_string)
    written["live-restore"] = False
    host.check_output(f"echo '{json.dumps(written)}' > {DAEMON}; systemctl reload docker; sleep 1")
    assert info(host)["LiveRestoreEnabled"] is False
    pid = engine_pid(host)
    for proxy in ("http://one.example.net:3128", "http://two.example.net:3128"):
        run = playbook("playbooks/runtime.yml", container_runtime_http_proxy=proxy)
        assert run.status == 0, run.text
        assert info(host)["HttpProxy"] == proxy
        assert engine_pid(host) != pid
        pid = engine_pid(host)
    assert lasting() == before
    # Proxies and live-restore together, in both directions.
    for proxy, restores in (("", False), ("http://one.example.net:3128", True)):
        both = {"container_runtime_http_proxy": proxy, "container_runtime_live_restore": restores}
        run = playbook("playbooks/runtime.yml", **both)
        assert run.status == 0, run.text
        assert (info(host)["HttpProxy"], info(host)["LiveRestoreEnabled"]) == (proxy, restores)
        assert lasting() == before
        assert playbook("playbooks/runtime.yml", **both).changed_nothing
    assert playbook("playbooks/runtime.yml").status == 0
    assert not info(host)["HttpProxy"]
    assert not host.file("/etc/gaudi-serve/docker-proxy.env").exists
    assert lasting() == before


def test_an_engine_with_running_containers_is_not_moved(playbook: Any, lasting: Any) -> None:
    run = playbook("playbooks/runtime.yml", container_runtime_data_root="/data/docker")
    assert run.status != 0
    assert "container_runtime_data_root: '/data/docker': 1 containers run from /var/lib/docker" in run.flat
    assert "changed=0" in run.text


def test_an_engine_that_is_not_enabled_is_enabled_without_a_restart(host: Any, playbook: Any) -> None:
    pid = engine_pid(host)
    host.check_output("systemctl disable docker.service")
    assert playbook("playbooks/runtime.yml").status == 0
    assert host.service("docker").is_enabled
    assert engine_pid(host) == pid
    # Also with a text where a boolean belongs.
    assert playbook("playbooks/runtime.yml", "-e", "container_runtime_live_restore=true").changed_nothing


def test_a_run_cut_off_between_file_and_reload_is_finished(host: Any, playbook: Any) -> None:
    text = host.file(DAEMON).content_string
    written = json.loads(text)
    del written["runtimes"]["habana"]
    host.check_output(f"cp {DAEMON} /tmp/kept; echo '{json.dumps(written)}' > {DAEMON}; systemctl reload docker")
    # The engine reads the file some time after the signal, which is all that a reload waits for.
    end = time.monotonic() + 30
    while "habana" in info(host)["Runtimes"]:
        assert time.monotonic() < end, "the engine has not taken the file"
        time.sleep(0.2)
    host.check_output(f"cp /tmp/kept {DAEMON}")
    assert playbook("playbooks/runtime.yml").status == 0
    assert "habana" in info(host)["Runtimes"]


def test_an_invalid_daemon_json_is_refused_and_untouched(host: Any, playbook: Any) -> None:
    host.check_output(f"cp {DAEMON} /tmp/kept; printf '{{\\n  \"a\": 1,\\n}}\\n' > {DAEMON}")
    broken, pid = host.file(DAEMON).sha256sum, engine_pid(host)
    run = playbook("playbooks/runtime.yml")
    assert run.status != 0
    assert "mol-host: /etc/docker/daemon.json: line 3, column 1" in run.flat
    assert (host.file(DAEMON).sha256sum, engine_pid(host)) == (broken, pid)
    host.check_output(f"cp /tmp/kept {DAEMON}")


def test_an_engine_that_does_not_take_the_file_gets_its_old_one_back(host: Any, playbook: Any) -> None:
    before = host.file(DAEMON).sha256sum
    # A folder that cannot be made: the merged file is valid JSON, but no engine starts with it.
    run = playbook("playbooks/runtime.yml", container_runtime_data_root="/proc/nowhere")
    assert run.status != 0
    assert "The previous file is restored, and Docker runs with it" in run.flat, run.text
    assert host.file(DAEMON).sha256sum == before
    assert info(host)["ServerVersion"]


def test_keys_with_which_the_engine_does_not_start_again_are_refused(host: Any, playbook: Any) -> None:
    text, pid = host.file(DAEMON).content_string, engine_pid(host)
    without = json.dumps({**json.loads(text), "live-restore": False})
    try:
        host.check_output(f"echo 'DOCKER_OPTS=--live-restore' >> /etc/default/docker; echo '{without}' > {DAEMON}")
        host.check_output("systemctl reload docker; docker swarm init --advertise-addr 127.0.0.1")
        written = host.file(DAEMON).sha256sum
        run = playbook("playbooks/runtime.yml", "--check")
        assert run.status != 0
        assert "mol-host: /etc/default/docker: the engine's command line has --live-restore true, and" in run.flat
        assert "mol-host: container_runtime_live_restore: true: the engine belongs to a swarm (active)" in run.flat
        assert playbook("playbooks/runtime.yml").status != 0
        assert (host.file(DAEMON).sha256sum, engine_pid(host)) == (written, pid)
    finally:
        host.run("docker swarm leave --force; sed -i '/live-restore/d' /etc/default/docker")
        host.check_output(f"echo '{text}' > {DAEMON}; systemctl reload docker")


def test_proxies_with_credentials_stay_hidden(host: Any, playbook: Any) -> None:
    proxy = "http://user:canary-77@proxy.example.net:3128"
    run = playbook("playbooks/runtime.yml", "-vvv", "--diff", container_runtime_https_proxy=proxy)
    assert run.status == 0, run.text
    kept = host.file("/etc/gaudi-serve/docker-proxy.env")
    assert kept.mode == 0o600
    assert "canary-77" in kept.content_string
    assert "canary-77" not in host.check_output("systemctl show docker")
    assert info(host)["HttpsProxy"]
    shown = "\n".join(line for line in run.text.splitlines() if "ansible-playbook" not in line)
    assert "canary-77" not in shown
    assert playbook("playbooks/runtime.yml", container_runtime_https_proxy=proxy).changed_nothing
    again = playbook("playbooks/runtime.yml")
    assert again.status == 0
    assert not host.file("/etc/systemd/system/docker.service.d/gaudi-serve-proxy.conf").exists
    assert playbook("playbooks/runtime.yml").changed_nothing


def test_passwords_of_the_owners_proxies_stay_on_the_host(host: Any, playbook: Any) -> None:
    owners = json.loads(host.file(DAEMON).content_string)
    changed = {**owners, "live-restore": False, "proxies": {"http-proxy": "http://bob:canary-88@127.0.0.1:3128"}}
    host.check_output(f"echo '{json.dumps(changed)}' > {DAEMON}; systemctl reload docker")
    try:
        run = playbook("playbooks/runtime.yml", "-vvv", "--diff")
        assert run.status == 0, run.text
        assert "canary-88" not in run.text
        written = json.loads(host.file(DAEMON).content_string)
        assert written["proxies"] == changed["proxies"] and written["live-restore"] is True
        status = playbook("playbooks/status.yml", "-vvv", gaudi_stages=["container_runtime"])
        assert "bob:gaudi-serve-redacted-" in status.text and "canary-88" not in status.text
    finally:
        host.check_output(f"echo '{json.dumps(owners)}' > {DAEMON}; systemctl reload docker")


def test_pinned_package_version(host: Any, playbook: Any) -> None:
    run = playbook("playbooks/runtime.yml", container_runtime_habana_version="1.22.0-100")
    assert run.status == 0, run.text
    assert host.package("habanalabs-container-runtime").version == "1.22.0-100"
