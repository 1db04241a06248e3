"""A gateway in front of three hosts: what it serves, to whom, and how it is kept."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import subprocess
import time
from typing import Any

import pytest
from clients import CHAT, CONTEXT, KEY, MODELS, Load, ask, chat, inside
from runs import eventually

GATEWAY = pytest.mark.on("mol-fleet-gw")
SERVER = pytest.mark.on("mol-fleet-a")
PASSWORD = "canary-password-of-carol"  # noqa: S105 - of a host that lives for minutes
SECRETS = (KEY, "canary-key-of-bob-77c1", "canary-of-the-whole-fleet", PASSWORD)
RUN = "molecule/fleet/converge.yml"


def servers(state: str, name: str = "mol-fleet-a") -> dict[str, Any]:
    """Drain the servers of a host at the gateway, or let them be ready; return what the module reports."""
    inventory = f"{os.environ['MOLECULE_SCENARIO_DIRECTORY']}/inventory"
    argv = ["ansible", "-i", inventory, "mol-fleet-gw", "--one-line", "-m", "gateway_servers"]
    said = subprocess.run([*argv, "-a", f"host={name} state={state}"], capture_output=True, text=True, check=False)
    found: dict[str, Any] = json.loads(said.stdout.partition("=> ")[2])
    return found


@GATEWAY
def test_a_second_run_changes_nothing_and_status_reports_of_all(playbook: Any) -> None:
    again = playbook(RUN, "-vvv", "--diff")
    assert again.changed_nothing, again.text
    assert not [one for one in SECRETS if one in again.text]
    status = playbook("playbooks/status.yml", "--limit", "mol-fleet-gw")
    assert status.status == 0, status.text
    assert "(gateway)" in status.flat and "6 of 6 up" in status.flat
    assert "(chat) - active - https://mol-fleet-gw:8090/" in status.flat


@GATEWAY
def test_every_model_answers_at_the_one_address(address: str) -> None:
    for model in MODELS:
        assert "Paris" in ask(address, CHAT, chat(model)).text
        assert ask(address, f"/models/{model.replace('/', '%2F')}{CHAT}", chat(model)).status == 200
    assert [one["id"] for one in json.loads(ask(address, "/v1/models").text)["data"]] == list(MODELS)
    assert ask(address, CHAT, chat("smal")).code == "model_not_found"
    assert ask(address, CHAT, chat("small"), key=None).code == "invalid_api_key"
    assert ask(address, CHAT, chat(MODELS[0]), key=SECRETS[1]).code == "model_not_found"
    # Five a minute; six may fall into two of them.
    asked = [ask(address, CHAT, chat("small"), key=SECRETS[1]) for _ in range(11)]
    assert "rate_limit_exceeded" in [one.code for one in asked if one.status == 429]


@GATEWAY
def test_people_talk_at_the_page_with_their_password(host: Any, address: str) -> None:
    login = {"Authorization": f"Basic {base64.b64encode(f'carol:{PASSWORD}'.encode()).decode()}", "X-Chat-Page": "1"}

    def get(path: str, body: Any = None, **headers: str) -> tuple[int, str]:
        connection = http.client.HTTPSConnection(address, 8090, timeout=60, context=CONTEXT)
        with contextlib.closing(connection):
            connection.request("POST" if body else "GET", path, body and json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    assert get("/")[0] == get("/v1/models")[0] == 401
    assert "<title>" in get("/", **login)[1] and json.loads(get("/settings.json", **login)[1])["title"] == "Talk"
    assert [one["id"] for one in json.loads(get("/v1/models", **login)[1])["data"]] == ["small"]
    assert "Paris" in get(CHAT, chat("small"), **login)[1]
    assert get(CHAT, chat(MODELS[0]), **login)[0] == 404
    # The socket by which the page shows who asks is HAProxy's alone.
    assert host.check_output("stat -c '%a %U' /run/gaudi-gateway/chat.sock") == "700 haproxy"


@SERVER
def test_servers_want_a_key_and_are_open_to_the_network_only(host: Any) -> None:
    listening = host.check_output("ss -Hltn 'sport = :30001'").split()[3]
    assert listening.startswith("10.") and listening.endswith(":30001")
    url = f"http://{listening}/v1/models"
    assert host.check_output(f"curl -s -o /dev/null -w '%{{http_code}}' {url}") == "401"


@GATEWAY
def test_no_key_of_a_client_is_on_the_gateway(host: Any) -> None:
    for secret in SECRETS:
        found = host.run(f"grep -rlF {secret} /etc /var/lib/gaudi-serve /run/gaudi-gateway /var/log /root 2>/dev/null")
        assert found.stdout == ""
        assert secret not in host.check_output("journalctl --no-pager; ps axww")
    modes = host.check_output("find /etc/gaudi-serve/gateway/ -type f -printf '%m\\n' | sort -u")
    assert modes == "600"
    assert host.check_output("stat -c %a /etc/gaudi-serve/gateway /run/gaudi-gateway/admin.sock").split() == [
        "700",
        "600",
    ]


@pytest.mark.long
@GATEWAY
def test_what_someone_has_changed_is_reported_and_taken_back(host: Any, playbook: Any, address: str) -> None:
    config = "/etc/gaudi-serve/gateway/current/haproxy.cfg"
    host.check_output(f"sed -i 's/timeout queue .*/timeout queue 1s/' {config}")
    status = playbook("playbooks/status.yml", "--limit", "mol-fleet-gw")
    assert status.status != 0 and "gateway: write haproxy.cfg" in status.flat
    check = playbook("playbooks/gateway.yml", "--check", "--diff", "--limit", "mol-fleet-gw")
    assert check.status == 0 and "timeout queue 60s" in check.text, check.text
    assert "timeout queue 1s" in host.file(config).content_string
    # Only the gateway takes part: what it serves of the others stays.
    run = playbook("playbooks/gateway.yml", "--limit", "mol-fleet-gw")
    assert run.status == 0, run.text
    assert "timeout queue 60s" in host.file(config).content_string
    assert playbook("playbooks/gateway.yml", "--limit", "mol-fleet-gw").changed_nothing
    assert ask(address, CHAT, chat("small")).status == 200


@pytest.mark.long
@GATEWAY
def test_files_that_haproxy_refuses_change_nothing(host: Any, playbook: Any, address: str) -> None:
    before = host.check_output("readlink /etc/gaudi-serve/gateway/current; systemctl show -p MainPID gaudi-gateway")
    wrong = {"address": "0.0.0.0", "port": 443, "certificate": "/etc/ssl/private/none.pem", "clients": {}, "open": True}
    run = playbook("playbooks/gateway.yml", fleet_gateway=wrong)
    assert run.status != 0
    assert "fleet_gateway.certificate: '/etc/ssl/private/none.pem': is not a file on this host" in run.flat
    # With -e every host is a gateway; the others serve models, and get no keys.
    assert before == host.check_output(
        "readlink /etc/gaudi-serve/gateway/current; systemctl show -p MainPID gaudi-gateway"
    )
    assert ask(address, CHAT, chat("small")).status == 200


@GATEWAY
@pytest.mark.long
def test_a_gateway_that_dies_comes_back_and_knows_who_is_drained(host: Any, address: str) -> None:
    stranger = servers("drain", "mol-fleet-aa")
    assert "host: 'mol-fleet-aa' has no server at this gateway; did you mean mol-fleet-a?" in stranger["msg"]
    drained = servers("drain")
    assert drained["servers"] == ["Qwen_QwQ-32B-713c5829/mol-fleet-a.large", "small/mol-fleet-a.small"]
    assert not servers("drain")["changed"]
    state = "systemctl show -p MainPID -p ActiveState gaudi-gateway"
    before = host.check_output(state)
    host.check_output("systemctl kill -s KILL gaudi-gateway")
    # For a moment systemd still calls the killed process active.
    end = time.monotonic() + 60
    while (now := host.check_output(state)) == before or "ActiveState=active" not in now:
        assert time.monotonic() < end, now
        time.sleep(0.2)
    assert ask(address, CHAT, chat("small")).status == 200
    assert not servers("drain")["changed"]
    assert len(servers("ready")["servers"]) == 2


@pytest.mark.long
@SERVER
def test_the_shared_address_goes_where_a_gateway_works(host: Any) -> None:
    def holder() -> list[str]:
        return [name for name in ("mol-fleet-c", "mol-fleet-gw") if "192.0.2.10/24" in inside(name, "ip -o address")]

    def answers() -> bool:
        return host.run("curl -sk --max-time 2 https://192.0.2.10/health").stdout == "ok"

    host.check_output("ip address replace 192.0.2.77/24 dev eth0")
    # The first of the inventory has it as long as it works.
    assert eventually(lambda: holder() == ["mol-fleet-c"] and answers(), 20)
    try:
        inside("mol-fleet-c", "systemctl stop gaudi-gateway")
        assert eventually(lambda: holder() == ["mol-fleet-gw"] and answers(), 20, 0.5)
    finally:
        inside("mol-fleet-c", "systemctl start gaudi-gateway")
    assert eventually(lambda: holder() == ["mol-fleet-c"] and answers(), 20)


@GATEWAY
def test_a_server_that_is_killed_takes_only_its_own_requests_along(address: str) -> None:
    with Load(address, 20) as load:
        time.sleep(3)
        subprocess.run(
            ["docker", "exec", "mol-fleet-b", "docker", "kill", "vllm-small"], check=True, capture_output=True
        )
        time.sleep(6)
    # Those that it had begun: it takes no more of them at a time than its share of the ten that ask for its model.
    assert len(load.failed) <= 10, load.failed
    assert all("small" in one for one in load.failed)
    assert load.done > 30


@pytest.mark.long
@GATEWAY
def test_a_gateway_without_a_shared_address_is_set_up_alone_and_serves_all_that_runs(
    host: Any, playbook: Any, address: str
) -> None:
    inside("mol-fleet-gw", "systemctl stop gaudi-gateway; rm -r /etc/gaudi-serve/gateway")
    own: dict[str, Any] = {"address": "0.0.0.0", "port": 443, "certificate": "/etc/ssl/private/gateway.pem"}
    own |= {"usage": True, "clients": {"alice": {"key": KEY}}}
    # The first run gives the shared address up; the second has none. The other gateway takes part in neither.
    for change in ({}, {"waiting": 50}):
        run = playbook(
            "playbooks/gateway.yml", "--limit", "!mol-fleet-c", mol_gateway={"mol-fleet-gw": {**own, **change}}
        )
        assert run.status == 0, run.text
        assert ask(address, CHAT, chat("small")).status == 200
    assert not host.file("/etc/systemd/system/gaudi-gateway-address.service").exists
    # The servers of the host without a part are missing: this gateway had lost its list.
    assert 'model="small"} 1' in host.check_output("curl -s http://127.0.0.1:8405/usage")
    run = playbook("playbooks/gateway.yml")
    assert run.status == 0, run.text
    assert len(json.loads(host.file("/etc/gaudi-serve/gateway/current/servers.json").content_string)) == 6


@pytest.mark.long
@GATEWAY
def test_a_reset_takes_the_gateway_back(host: Any, playbook: Any) -> None:
    run = playbook("playbooks/reset.yml", "--limit", "mol-fleet-gw", reset_confirm="reset")
    assert run.status == 0, run.text
    assert "gateway: unit, configuration, keys" in run.flat
    left = "ss -Hltn 'sport = :443'; ls -d /etc/gaudi-serve/gateway /var/lib/gaudi-serve/gateway 2>/dev/null || true"
    assert host.check_output(left) == ""
    assert not host.file("/etc/systemd/system/gaudi-gateway.service").exists
    # Packages go where that is asked for, as those of other roles.
    assert re.search(r"packages [^:]*haproxy[^:]*: kept \(reset_packages\)", run.flat)
