"""A fleet that is watched: what is asked, who may ask, and alerts that come when the thing happens, and go after it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from clients import inside
from runs import eventually

WATCHES, SERVES = "mol-mon-p", "mol-mon-a"
P = pytest.mark.on(WATCHES)
CONVERGE = "molecule/monitoring/converge.yml"
PROMETHEUS, ALERTMANAGER = "http://127.0.0.1:9090/api/v1", "http://127.0.0.1:9093/api/v2"
TARGETS = 7


def got(url: str) -> Any:
    """Return what an address on the host that watches answers, as JSON."""
    return json.loads(inside(WATCHES, f"curl -sS '{url}'"))


def value(query: str) -> list[tuple[dict[str, str], float]]:
    """Return what Prometheus knows now."""
    text = inside(WATCHES, f"curl -sS --data-urlencode 'query={query}' {PROMETHEUS}/query")
    return [(one["metric"], float(one["value"][1])) for one in json.loads(text)["data"]["result"]]


def alerts(name: str) -> list[dict[str, str]]:
    """Return the labels of an alert that holds, whether it waits for its time or fires."""
    return [
        one["labels"] for one in got(f"{PROMETHEUS}/alerts")["data"]["alerts"] if one["labels"]["alertname"] == name
    ]


def comes_and_goes(name: str, happens: Callable[[], Any], ends: Callable[[], Any], **labels: str) -> None:
    """See that an alert is not there, comes when something happens, and goes when that has ended."""
    # Of another test there may be one that is about to go.
    assert eventually(lambda: alerts(name) == [], 90), alerts(name)
    try:
        happens()
        assert eventually(lambda: alerts(name) != [], 90), f"{name} has not come"
        assert [one for one in alerts(name) if labels.items() <= one.items()], alerts(name)
    finally:
        ends()
    assert eventually(lambda: alerts(name) == [], 90), f"{name} has not gone: {alerts(name)}"


def on(command: str) -> Callable[[], str]:
    """Return what runs a command on the host that serves."""
    return lambda: inside(SERVES, command)


def listening(name: str) -> set[str]:
    """Return what listens beyond loopback on a host, but for servers' own workers, which have ports by chance."""
    found = {line.split()[3] for line in inside(name, "ss -Hltn").splitlines()}
    beyond = {one for one in found if not one.startswith(("127.", "[::1]"))}
    return {one for one in beyond if int(one.rpartition(":")[2]) < 32768}


@P
def test_every_target_is_up_and_every_rule_is_in_force(host: Any) -> None:
    assert eventually(lambda: all(up for _, up in value("up")) and len(value("up")) == TARGETS, 60), value("up")
    asked = {(one.get("job"), one.get("host"), one.get("model", "")) for one, _ in value("up")}
    assert asked == {
        *(("vllm", SERVES, model) for model in ("large", "small")),
        *(("node", name, "") for name in (SERVES, WATCHES)),
        ("haproxy", SERVES, ""),
        *((job, WATCHES, "") for job in ("prometheus", "alertmanager")),
    }
    groups = got(f"{PROMETHEUS}/rules")["data"]["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert len([rule for rule in rules if rule["type"] == "alerting"]) > 30
    assert eventually(lambda: all(one["health"] == "ok" for group in got(f"{PROMETHEUS}/rules")["data"]["groups"]
                                  for one in group["rules"]), 60)  # fmt: skip
    assert got(f"{PROMETHEUS}/alertmanagers")["data"]["activeAlertmanagers"]
    assert host.run("promtool check config /etc/gaudi-monitoring/prometheus.yml").rc == 0


@P
def test_what_clients_ask_is_seen_at_the_gateway_and_at_the_servers(host: Any) -> None:
    def asked() -> tuple[float, ...]:
        queries = (
            'sum(haproxy_backend_http_requests_total{proxy=~"small|Qwen.*"})',
            "sum(vllm:prompt_tokens_total)",
            "sum(vllm:time_to_first_token_seconds_count)",
            'sum(vllm:request_success_total{model="small"})',
        )
        return tuple(sum(number for _, number in value(one)) for one in queries)

    before = asked()
    for model in ("small", "Qwen/QwQ-32B"):
        body = json.dumps({"model": model, "max_tokens": 8, "messages": [{"role": "user", "content": "Answer yes."}]})
        ask = f"curl -sS -H 'Content-Type: application/json' -d '{body}' http://127.0.0.1:8080/v1/chat/completions"
        assert "choices" in inside(SERVES, f"for _ in 1 2 3; do {ask} & done; wait")
    assert eventually(lambda: all(now > then for now, then in zip(asked(), before, strict=True)), 60), asked()


@P
def test_a_second_run_changes_nothing_and_the_status_is_as_planned(playbook: Any, host: Any) -> None:
    assert playbook(CONVERGE).changed_nothing
    run = playbook("playbooks/status.yml", gaudi_stages=["vllm_service", "gateway", "monitoring"], status_metrics=True)
    assert run.status == 0, run.text
    assert "(prometheus)" in run.text and "2 as planned" in run.text
    assert eventually(lambda: value('gaudi_serve_fleet_pending_changes{stage="models"}') != [], 30)


@P
def test_nothing_listens_beyond_loopback_but_the_port_for_who_watches(host: Any) -> None:
    address = inside(SERVES, "hostname -i").split()[0]
    assert listening(SERVES) == {f"{address}:9445"}
    assert listening(WATCHES) == set()
    ask = "curl -sS -o /dev/null -w '%{http_code}' --max-time 10 --cacert /etc/gaudi-monitoring/hosts.pem"
    proven = f"{ask} --cert /etc/gaudi-monitoring/client.pem --key /etc/gaudi-monitoring/client.pem"
    assert inside(WATCHES, f"{proven} https://{address}:9445/node/metrics") == "200"
    assert inside(WATCHES, f"{proven} https://{address}:9445/model/large/v1/models") == "404"
    assert inside(WATCHES, f"{proven} https://{address}:9445/model/large/metrics/../v1/models") == "404"
    assert inside(WATCHES, f"{proven} -X POST https://{address}:9445/node/metrics") == "405"
    for unknown in ("", "--cert /tmp/own.pem --key /tmp/own.pem"):
        inside(WATCHES, "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=x "
               "-keyout - -out - >/tmp/own.pem 2>/dev/null")  # fmt: skip
        assert inside(WATCHES, f"{ask} {unknown} https://{address}:9445/node/metrics") == "000"
    secret = host.file("/etc/gaudi-monitoring/client.pem")
    assert (secret.mode, secret.user, secret.group) == (0o640, "root", "prometheus")


@P
def test_a_change_is_what_runs_after_it_and_a_mistake_changes_nothing(playbook: Any, host: Any) -> None:
    def running() -> str:
        return str(got(f"{ALERTMANAGER}/status")["config"]["original"])

    since = inside(WATCHES, "systemctl show gaudi-prometheus gaudi-alertmanager -p ActiveEnterTimestampMonotonic")
    wrong = {"route": {"receiver": "nobody"}, "receivers": [{"name": "ops"}]}
    before = running()
    run = playbook("playbooks/monitoring.yml", mol_alertmanager=wrong)
    assert run.status != 0
    assert running() == before
    right = {"route": {"receiver": "ops"}, "receivers": [{"name": "ops", "webhook_configs": [
        {"url": "http://127.0.0.1:9/canary-5d1f"}]}]}  # fmt: skip
    run = playbook("playbooks/monitoring.yml", "--diff", mol_alertmanager=right)
    assert run.status == 0, run.text
    assert "receiver: ops" in running()
    # What may hold a password is in no output and for no other user.
    assert "canary-5d1f" not in run.text
    assert host.file("/etc/gaudi-monitoring/alertmanager.yml").mode == 0o640
    assert playbook("playbooks/monitoring.yml", mol_alertmanager=right).changed_nothing
    assert playbook("playbooks/monitoring.yml").status == 0
    assert running() == before
    # Nobody was restarted for that.
    now = inside(WATCHES, "systemctl show gaudi-prometheus gaudi-alertmanager -p ActiveEnterTimestampMonotonic")
    assert now == since


@P
def test_what_someone_changed_by_hand_is_seen_and_repaired(playbook: Any, host: Any) -> None:
    targets = "/etc/gaudi-monitoring/targets/vllm.json"
    inside(WATCHES, f"echo '[]' >{targets}; echo >>/etc/gaudi-monitoring/prometheus.yml")
    inside(SERVES, "systemctl stop gaudi-node-exporter; rm /etc/gaudi-monitoring/clients.pem")
    check = playbook("playbooks/monitoring.yml", "--check", "--diff")
    assert check.status == 0, check.text
    for text in (targets, "prometheus.yml", "gaudi-node-exporter.service", "clients.pem"):
        assert text in check.flat
    run = playbook("playbooks/monitoring.yml")
    assert run.status == 0, run.text
    assert eventually(lambda: len(value("up == 1")) == TARGETS, 60), value("up")
    assert playbook("playbooks/monitoring.yml").changed_nothing


@P
def test_alerts_come_when_the_thing_happens_and_go_after_it(host: Any) -> None:
    comes_and_goes("HostDown", on("systemctl stop gaudi-exporters"), on("systemctl start gaudi-exporters"), host=SERVES)
    comes_and_goes("EngineSilent", on("docker pause vllm-small"), on("docker unpause vllm-small"), model="small")
    edit = "sed -i 's/%s/%s/' /etc/gaudi-serve/small.json"
    changed = on(edit % ('"digest": "', '"digest": "x'))
    comes_and_goes("LaunchDiffers", changed, on(edit % ('"digest": "x', '"digest": "')), model="small")
    state = "sed -i 's/%s/%s/' /etc/gaudi-sim/state.json"
    lost, found = '"module_id": 7', '"missing": true, "module_id": 7'
    comes_and_goes("CardMissing", on(state % (lost, found)), on(state % (found, lost)), host=SERVES)


@P
def test_shapes_that_compile_while_a_model_serves_are_counted(host: Any) -> None:
    def shapes() -> float:
        return sum(number for _, number in value('gaudi_serve_model_unwarmed_shapes_total{model="small"}'))

    before = shapes()
    line = "WARNING 11-27 09:59:52 [hpu_model_runner.py:1] Configuration: ('prompt', 1, %d) was not warmed-up!"
    # Each twice, as every worker reports it.
    said = "\n".join(line % (9000 + number // 2) for number in range(12))
    inside(SERVES, f"docker exec -i vllm-small sh -c 'cat >/proc/1/fd/1' <<'END'\n{said}\nEND")
    assert eventually(lambda: shapes() == before + 6, 90), shapes()
    assert eventually(lambda: alerts("CompilesWhileServing") != [], 60)
    # It fires at once, and Alertmanager has it.
    assert eventually(
        lambda: "CompilesWhileServing" in {one["labels"]["alertname"] for one in got(f"{ALERTMANAGER}/alerts")}, 60
    )


@P
def test_thresholds_are_what_the_site_reports(playbook: Any, host: Any) -> None:
    far = {"certificate_days": 100_000, "disk_free_ratio": 1}
    assert eventually(lambda: (alerts("CertificateExpires"), alerts("DiskFull")) == ([], []), 90)
    try:
        run = playbook("playbooks/monitoring.yml", mol_thresholds=far)
        assert run.status == 0, run.text
        assert eventually(lambda: alerts("CertificateExpires") != [] and alerts("DiskFull") != [], 90)
    finally:
        assert playbook("playbooks/monitoring.yml").status == 0
    assert eventually(lambda: alerts("CertificateExpires") == [] and alerts("DiskFull") == [], 90)


@P
def test_nobody_is_called_for_a_rollout(host: Any) -> None:
    record = "/var/lib/gaudi-serve/rollout/record.json"
    inside(SERVES, f"mkdir -p {record.rpartition('/')[0]} && echo '{{}}' >{record}")
    try:
        assert eventually(lambda: value("gaudi_serve_host_in_rollout == 1") != [], 90)
        inside(SERVES, "docker pause vllm-small")
        assert eventually(lambda: value('gaudi_serve_model_state{state="silent",model="small"} == 1') != [], 90)
        assert alerts("EngineSilent") == []
    finally:
        inside(SERVES, f"docker unpause vllm-small; rm {record}")
    assert eventually(lambda: value("gaudi_serve_host_in_rollout == 1") == [], 90)


@P
def test_a_reset_keeps_what_was_measured_and_a_run_starts_it_again(playbook: Any, host: Any) -> None:
    kept = playbook("playbooks/reset.yml", "--limit", WATCHES, reset_confirm="reset")
    assert kept.status == 0, kept.text
    assert "/var/lib/gaudi-prometheus: what was measured (reset_metrics)" in kept.flat
    assert inside(WATCHES, "ls /var/lib/gaudi-prometheus")
    again = playbook("playbooks/monitoring.yml")
    assert again.status == 0, again.text
    assert eventually(lambda: len(value("up == 1")) == TARGETS, 60), value("up")


@P
def test_a_reset_takes_it_back(playbook: Any, host: Any) -> None:
    before = inside(WATCHES, "curl -sS http://127.0.0.1:9090/metrics | grep -c ^prometheus_")
    assert int(before) > 0
    run = playbook(
        "playbooks/reset.yml", "--limit", WATCHES, reset_confirm="reset", reset_metrics=True, reset_packages=True
    )
    assert run.status == 0, run.text
    places = ("/etc/gaudi-monitoring", "/var/lib/gaudi-[ap]*", "/etc/systemd/system/gaudi-*.*e*", "/etc/gaudi-serve")
    # What the test itself has installed stays.
    left = inside(WATCHES, f"ls -d {' '.join(places)} 2>/dev/null").splitlines()
    assert left == ["/etc/systemd/system/gaudi-metrics.timer.d"]
    assert inside(WATCHES, "dpkg-query -W -f '${Package}\\n' | grep ^prometheus") == ""
    assert inside(WATCHES, "ss -Hltn 'sport = :9090 or sport = :9093 or sport = :9100'") == ""


@P
@pytest.mark.long
def test_a_host_that_is_everything_is_watched(playbook: Any, host: Any, tmp_path: Path) -> None:
    alone = {
        "ansible_connection": "community.docker.docker",
        "ansible_python_interpreter": "/usr/bin/python3",
        "fleet_monitoring": {"interval_s": 5},
    }
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"all": {"hosts": {WATCHES: alone}}}), encoding="utf-8")
    playbook.inventory = inventory
    run = playbook("playbooks/monitoring.yml")
    assert run.status == 0, run.text
    assert eventually(lambda: {one["job"] for one, up in value("up") if up == 1} >= {"node", "prometheus"}, 60), value(
        "up"
    )
    assert playbook("playbooks/monitoring.yml").changed_nothing
