"""What a user writes of monitoring, what is watched, and which files and units a host has for it."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import InputError
from gaudi_serve.gateway.config import File
from gaudi_serve.host import certificate, observe_metrics
from gaudi_serve.host.observe_metrics import FOLDER
from gaudi_serve.host.permissions import rule_of
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.monitoring.files import alertmanager_config, watcher_files
from gaudi_serve.monitoring.fleet import fleet_monitors, fleet_watched
from gaudi_serve.monitoring.settings import Monitoring, read_monitoring
from gaudi_serve.stages import monitoring
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.registry import run_stages
from helpers.monitoring_tools import tool
from jinja2.nativetypes import NativeEnvironment

HOSTS = ["a", "b", "p"]
PORTS = {"exporters_port": 9445, "node_exporter_port": 9100, "cards_port": 0}
MODEL = {"name": "qwq", "served_model_name": "Qwen/QwQ-32B", "host": "127.0.0.1", "port": 30001, "state": "started"}
MODEL |= {"launch_profile": "vllm"}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ([], "fleet_monitoring: (hidden): must be a mapping; an empty one, {}, takes all defaults"),
        ({"retention": 3}, "retention: is not a known name; did you mean retention_gib or retention_days?"),
        ({"port": 0}, "fleet_monitoring.port: 0 is not an integer from 1 to 65535"),
        ({"interval_s": 1}, "fleet_monitoring.interval_s: 1 is not an integer of seconds from 5 to 60"),
        ({"port": 9093}, "fleet_monitoring.alertmanager_port: 9093 is port too; choose another"),
        ({"hosts": []}, "fleet_monitoring.hosts: [] is not a list of hosts; leave it out for all"),
        ({"hosts": ["aa"]}, "fleet_monitoring.hosts: 'aa' is not a host of the inventory"),
        ({"files_only": "/etc/prometheus"}, "the absolute path must end in /gaudi-serve"),
        ({"alertmanager": "token"}, "fleet_monitoring.alertmanager: (hidden): is not a mapping"),
        (
            {"alertmanager": {"route": {"receiver": "x"}}},
            "alertmanager: has no receivers; it needs route and receivers",
        ),
        ({"alertmanager": {"receivers": "x"}}, "fleet_monitoring.alertmanager.receivers: (hidden): is not a list"),
        (
            {"alertmanager": {"receivers": [{"name": "ops"}], "route": {"receiver": "opps"}}},
            "fleet_monitoring.alertmanager.route.receiver: 'opps' is none of ops",
        ),
        ({"thresholds": {"drained_s": 7200.5}}, "drained_s: 7200.5 is not an integer number of seconds"),
        ({"alertmanager": {"receiver": []}}, "receiver: is not a known name; did you mean receivers?"),
        ({"runbooks": "wiki"}, "fleet_monitoring.runbooks: 'wiki' is not an address of a page"),
    ],
)
def test_a_mistake_in_the_settings_is_one_sentence(given: Any, sentence: str) -> None:
    with pytest.raises(InputError) as error:
        read_monitoring(given, HOSTS)
    assert sentence in str(error.value)
    hostvars: dict[str, Any] = {name: {} for name in HOSTS}
    found = inventory_refusal({"fleet_monitoring": given, "hostvars": hostvars}, "p")
    assert len(found) == 1 and found[0].startswith("p: ") and sentence in found[0]


def test_nothing_of_receivers_is_in_a_message() -> None:
    for wrong in ({"alertmanager": ["canary"]}, {"alertmanager": {"receivers": "canary"}, "port": 0}, "canary"):
        with pytest.raises(InputError) as error:
            read_monitoring(wrong)
        assert "canary" not in str(error.value)


def facts(name: str, **certificates: str) -> dict[str, Any]:
    """Return the facts of a host, with the texts of its certificates."""
    address = f"10.0.0.{ord(name) - 96}"
    names = {"host": [address], "client": ["prometheus"]}
    found = {kind: {"text": text, "names": names[kind], "until": 2**40} for kind, text in certificates.items()}
    return {"address": address, "certificates": {"host": {}, "client": {}, **found}, "watched": []}


def fleet(**changed: Any) -> dict[str, dict[str, Any]]:
    """Return the variables of three hosts, of which p watches the others, a serves, and b is a gateway."""
    plan = {"models": [{**MODEL, **changed}], "errors": []}
    return {
        "a": {"vllm_models": [1], "preflight_plan": plan, "gaudi_metrics": facts("a", host="A"), "gaudi_host": {
            "ip": "10.0.0.1", "modules": [1]}},
        "b": {"fleet_gateway": {"metrics_port": 8405}, "gaudi_metrics": facts("b", host="B")},
        "p": {"fleet_monitoring": {}, "gaudi_metrics": facts("p", client="P")},
    }  # fmt: skip


def test_everything_of_the_fleet_is_watched() -> None:
    hostvars = fleet(slo={"ttft_s": 2.5})
    assert fleet_monitors(hostvars, HOSTS) == ["p"]
    found = fleet_watched(hostvars, HOSTS, "p")
    other: dict[str, Any] = {"usage": False, "cards": False, "models": ()}
    endpoint = {"model": "qwq", "served": "Qwen/QwQ-32B", "address": "127.0.0.1", "port": 30001}
    assert found["watched"] == [
        {
            **{"host": "a", "address": "10.0.0.1", "certificate": "A", "gateway": 0},
            **{"usage": False, "cards": True},
            "models": ({**endpoint, "slo": {"ttft_s": 2.5}},),
        },
        {**other, "host": "b", "address": "10.0.0.2", "certificate": "B", "gateway": 8405},
        {**other, "host": "p", "address": "10.0.0.16", "certificate": "", "gateway": 0},
    ]
    seen = fleet_watched(hostvars, HOSTS, "a")
    assert seen["monitors"] == [{"host": "p", "certificate": "P"}] and seen["watched"] == []
    assert seen["settings"] == PORTS


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"state": "stopped"}, []),
        ({"host": "0.0.0.0"}, [("127.0.0.1", 30001)]),
        ({"host": "10.0.0.1"}, [("10.0.0.1", 30001)]),
    ],
)
def test_a_model_is_asked_where_its_host_reaches_it(changed: dict[str, Any], expected: Any) -> None:
    (first, *_) = fleet_watched(fleet(**changed), HOSTS, "p")["watched"]
    assert [(one["address"], one["port"]) for one in first["models"]] == expected


@pytest.mark.parametrize(
    "unread",
    [
        {"preflight_plan": {"models": [], "errors": ["x"]}},
        {"preflight_refusal": ["x"]},
        {"rollout_host": {"accepted": False}},
    ],
)
def test_a_host_that_this_run_does_not_know_is_watched_as_before(unread: dict[str, Any]) -> None:
    hostvars = fleet()
    before = fleet_watched(hostvars, HOSTS, "p")["watched"]
    hostvars["p"]["gaudi_metrics"]["watched"] = json.loads(json.dumps(before))
    hostvars["a"]["preflight_plan"] = {"models": [], "errors": []}
    assert fleet_watched(hostvars, HOSTS, "p")["watched"][0]["models"] == ()
    hostvars["a"] |= unread
    assert fleet_watched(hostvars, HOSTS, "p")["watched"] == before
    # Out of the inventory, out of sight.
    assert [one["host"] for one in fleet_watched(hostvars, ["b", "p"], "p")["watched"]] == ["b", "p"]


def test_some_hosts_are_watched_by_nobody_and_two_who_watch_agree() -> None:
    hostvars = fleet()
    hostvars["p"]["fleet_monitoring"] = {"hosts": ["b"]}
    assert [one["host"] for one in fleet_watched(hostvars, HOSTS, "p")["watched"]] == ["b"]
    assert fleet_watched(hostvars, HOSTS, "a")["monitors"] == []
    hostvars["b"]["fleet_monitoring"] = {"exporters_port": 9446}
    hostvars["p"]["fleet_monitoring"] = {}
    text = "fleet_monitoring.exporters_port: b 9446, p 9445: must be the same on all hosts that watch the same hosts"
    found = {name: fleet_watched(hostvars, HOSTS, name) for name in HOSTS}
    # One of the two reports it; it concerns all.
    assert {name: one["refusal"] for name, one in found.items()} == {"a": [], "b": [], "p": [text]}
    assert {name: one["unclear"] for name, one in found.items()} == {key: [text] for key in HOSTS}


def test_a_mistake_is_refused_on_its_host_and_leaves_what_the_others_have(live: dict[str, Any]) -> None:
    hostvars = fleet()
    hostvars["p"]["fleet_monitoring"] = {"port": 0}
    found = renewals(hostvars, live, "a")
    assert not (found.refusal or found.due or found.left or found.drift)
    assert found.changes == {**monitoring.UNCHANGED} and not found.changes["due"]
    assert found.notes == ["monitoring: fleet_monitoring of p is refused; this host stays as it is"]
    with pytest.raises(InputError, match="port: 0 is not an integer"):
        fleet_watched(hostvars, HOSTS, "p")


def test_absent_takes_it_back_everywhere() -> None:
    hostvars = fleet()
    hostvars["p"]["fleet_monitoring"] = {"state": "absent"}
    for host in HOSTS:
        found = fleet_watched(hostvars, HOSTS, host)
        assert (found["monitors"], found["watched"]) == ([], [])
        want = monitoring.wanted(host, found, hostvars["p"]["fleet_monitoring"] if host == "p" else None, {})
        assert (want.files, want.units, want.certificates, want.packages) == ({}, {}, {}, [])


def wanted(host: str, hostvars: dict[str, dict[str, Any]], **settings: Any) -> monitoring.Wanted:
    found = fleet_watched(hostvars, HOSTS, host)
    return monitoring.wanted(host, json.loads(json.dumps(found)), settings if host == "p" else None, {})


def test_only_a_host_that_another_one_watches_listens_beyond_loopback() -> None:
    hostvars = fleet()
    one = wanted("a", hostvars)
    assert one.units == {
        **{"gaudi-metrics.timer": 0, "gaudi-node-exporter.service": 9100, "gaudi-exporters.service": 9445}
    }
    config = one.files[f"{FOLDER}/exporters.cfg"].text
    assert "bind 10.0.0.1:9445 ssl crt" in config and "verify required" in config
    for path, server in (("node", "127.0.0.1:9100"), ("model/qwq", "127.0.0.1:30001")):
        assert f"{{ path /{path}/metrics }}" in config and f"server it {server}\n" in config
    assert one.files[f"{FOLDER}/clients.pem"].text == "P"
    assert one.certificates == {f"{FOLDER}/host.pem": "10.0.0.1"}
    alone = wanted("p", {**hostvars, "a": {}, "b": {}})
    assert "gaudi-exporters.service" not in alone.units and alone.certificates == {}
    for path, file in alone.files.items():
        if path.endswith(".service"):
            listens = [word for word in file.text.split() if "listen-address=" in word]
            assert all(word.endswith("=") or "=127.0.0.1:" in word for word in listens), path


def test_what_prometheus_asks() -> None:
    files = wanted("p", fleet(), cards_port=41611).files
    told = {path.rpartition("/")[2]: json.loads(one.text) for path, one in files.items() if "/targets/" in path}
    away = {"job": "vllm", "__scheme__": "https", "__metrics_path__": "/model/qwq/metrics", "host": "a", "model": "qwq"}
    assert told["vllm.json"] == [{"targets": ["10.0.0.1:9445"], "labels": away}]
    assert [one["targets"] for one in told["node.json"]] == [["10.0.0.1:9445"], ["10.0.0.2:9445"], ["127.0.0.1:9100"]]
    assert told["haproxy.json"][0]["labels"]["__metrics_path__"] == "/gateway/metrics"
    assert [one["labels"]["host"] for one in told["cards.json"]] == ["a"]
    config = yaml.safe_load(files[f"{FOLDER}/prometheus.yml"].text)
    jobs = [job["job_name"] for job in config["scrape_configs"]]
    assert jobs == ["vllm", "node", "haproxy", "usage", "cards", "prometheus", "alertmanager"]
    # A rule about a job that nobody asks would never fire.
    assert {job for one in files.values() for job in re.findall(r'job="(\w+)"', one.text)} - {*jobs} == set()
    assert config["scrape_configs"][4]["scrape_interval"] == "15s"
    assert config["scrape_configs"][0]["tls_config"]["ca_file"] == f"{FOLDER}/hosts.pem"
    assert files[f"{FOLDER}/hosts.pem"].text == "AB"
    # A file without a certificate would keep Prometheus from every host.
    bare = fleet()
    for host in "ab":
        bare[host]["gaudi_metrics"] = facts(host)
    assert f"{FOLDER}/hosts.pem" not in wanted("p", bare).files


def test_prometheus_reads_the_tokens_by_client_of_a_gateway_that_counts_them() -> None:
    hostvars = fleet()
    gateway: dict[str, Any] = {"metrics_port": 8405, "usage": True}
    hostvars["b"]["fleet_gateway"] = hostvars["p"]["fleet_gateway"] = gateway
    for host in "bp":
        assert next(one for one in fleet_watched(hostvars, HOSTS, "p")["watched"] if one["host"] == host)["usage"]
    told = json.loads(wanted("p", hostvars).files[f"{FOLDER}/targets/usage.json"].text)
    away = {"job": "usage", "host": "b", "__scheme__": "https", "__metrics_path__": "/usage/metrics"}
    here = {"job": "usage", "host": "p", "__metrics_path__": "/usage"}
    assert told == [
        {"targets": ["10.0.0.2:9445"], "labels": away},
        {"targets": ["127.0.0.1:8405"], "labels": here},
    ]
    text = wanted("b", hostvars).files[f"{FOLDER}/exporters.cfg"].text
    assert re.search(r"if { path /usage/metrics }", text) and "set-uri /usage\n" in text
    assert "/usage" not in wanted("b", fleet()).files[f"{FOLDER}/exporters.cfg"].text


def test_alertmanager_gets_what_the_user_wrote_and_a_host_that_is_gone_speaks_for_its_models() -> None:
    own = {"receivers": [{"name": "ops"}], "route": {"receiver": "ops"}, "inhibit_rules": [{"equal": ["host"]}]}
    file = wanted("p", fleet(), alertmanager=own).files[f"{FOLDER}/alertmanager.yml"]
    assert (file.mode, file.group, file.secret) == ("0640", "prometheus", True)
    told = yaml.safe_load(file.text)
    assert told["receivers"][:-1] == own["receivers"] and told["route"]["receiver"] == "ops"
    assert told["inhibit_rules"][0]["source_matchers"] == ['alertname="HostDown"'] and len(told["inhibit_rules"]) == 2


DEADMAN = {"matchers": ["alertname = Watchdog"], "receiver": "deadman", "repeat_interval": "5m"}


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ({}, ("gaudi-serve-nobody", "none")),
        ({"route": None, "receivers": None}, ("gaudi-serve-nobody", "none")),
        ({"receivers": [{"name": "ops"}], "route": {"receiver": "ops"}}, ("gaudi-serve-nobody", "ops")),
        (
            {"receivers": [{"name": "ops"}, {"name": "deadman"}], "route": {"receiver": "ops", "routes": [DEADMAN]}},
            ("deadman", "ops"),
        ),
    ],
)
def test_the_watchdog_calls_nobody_unless_a_route_names_it(own: Any, expected: tuple[str, str], tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(alertmanager_config({"alertmanager": own}), encoding="utf-8")
    for labels, receiver in zip((["alertname=Watchdog"], ["alertname=HostDown", "host=a"]), expected, strict=True):
        command = [tool("amtool"), "config", "routes", "test", f"--config.file={path}", *labels]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.strip() == receiver


def test_a_prometheus_of_the_site_gets_files_alone() -> None:
    one = wanted("p", fleet(), files_only="/etc/prometheus/gaudi-serve", grafana="/etc/grafana/provisioning")
    assert set(one.units) == {"gaudi-metrics.timer", "gaudi-node-exporter.service"}
    assert "/etc/prometheus/gaudi-serve/targets/vllm.json" in one.files
    assert "/etc/grafana/provisioning/datasources/gaudi-serve.yaml" in one.files
    told = json.loads(one.files[f"{FOLDER}/places.json"].text)
    assert set(told) == {path for path in one.files if path.startswith(("/etc/prometheus", "/etc/grafana"))}
    assert not [path for path in one.files if "alertmanager" in path]


# What is compared, and what is seen of it.


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """Return the facts of the host p, on which everything is as wanted and runs since."""
    want = wanted("p", fleet())
    files = {path: {"sha256": digest(one), "changed": 100.0} for path, one in want.files.items()}
    files |= {path: {"sha256": "", "changed": 90.0} for path in want.certificates}
    unit = {"there": True, "active": True, "enabled": True, "need_reload": False, "since": 200.0, "pid": 7, "argv": []}
    none = {**unit, "there": False, "active": False, "enabled": False, "since": None, "pid": 0}
    yield {
        "installed": list(want.packages),
        "address": "10.0.0.16",
        "units": {name: dict(unit if name in want.units else none) for name in observe_metrics.UNITS},
        "files": files,
        "read": {name: {"ok": True, "at": 200.0} for name in observe_metrics.READ},
        "ports": {"9090": "prometheus (pid 7)"},
        "certificates": {},
        "clients": [],
        "masked": [],
        "folder": True,
        "collected": ["/var/lib/prometheus/node-exporter/gaudi-host.prom", "/var/lib/gaudi-serve/metrics"],
    }


def digest(file: File) -> str:
    import hashlib

    return hashlib.sha256(file.text.encode()).hexdigest()


def changes(live: dict[str, Any], **settings: Any) -> dict[str, Any]:
    return monitoring.monitoring_changes(live, wanted("p", fleet(), **settings), {})


def test_what_is_as_wanted_is_left_alone(live: dict[str, Any]) -> None:
    assert changes(live) == {
        **{key: [] for key in ("install", "certificates", "write", "absent", "stop", "start", "restart", "read")},
        **{"gone": [], "empty": [], "reload": False, "due": False},
    }


def test_every_single_file_that_differs_is_seen_and_read_by_what_reads_it(live: dict[str, Any]) -> None:
    readers = {"prometheus.yml": "prometheus", "hosts.pem": "prometheus", "alertmanager.yml": "alertmanager"}
    for path, known in live["files"].items():
        if path == f"{FOLDER}/client.pem":
            continue
        found = changes({**live, "files": {**live["files"], path: {**known, "sha256": "x"}}})
        assert [one["path"] for one in found["write"]] == [path]
        name = path.rpartition("/")[2]
        reader = "prometheus" if "/rules/" in path else readers.get(name)
        assert found["read"] == ([reader] if reader else []), path
        unit = {"gaudi-metrics.service": "gaudi-metrics.timer"}.get(name, name)
        assert found["restart"] == ([unit] if "/systemd/" in path else []), path
        assert found["reload"] == ("/systemd/" in path)


def test_files_are_written_with_the_permissions_that_are_compared(live: dict[str, Any]) -> None:
    for path, one in wanted("p", fleet()).files.items():
        rule = rule_of(path)
        assert rule and (f"{rule.mode:04o}", rule.owners) == (one.mode, ("root", one.group)), path


def test_what_has_changed_since_a_program_read_it_is_read_again(live: dict[str, Any]) -> None:
    for path, readers, units in (
        (f"{FOLDER}/prometheus.yml", ["prometheus"], []),
        (f"{FOLDER}/client.pem", ["prometheus"], []),
        (f"{FOLDER}/alertmanager.yml", ["alertmanager"], []),
        ("/etc/systemd/system/gaudi-prometheus.service", [], ["gaudi-prometheus.service"]),
        ("/etc/systemd/system/gaudi-metrics.service", [], ["gaudi-metrics.timer"]),
        (f"{FOLDER}/targets/vllm.json", [], []),
    ):
        found = changes({**live, "files": {**live["files"], path: {**live["files"][path], "changed": 201.0}}})
        assert (found["read"], found["restart"], found["write"]) == (readers, units, []), path
    refused = {**live["read"], "prometheus": {"ok": False, "at": 200.0}}
    assert changes({**live, "read": refused})["read"] == ["prometheus"]


def test_what_is_not_wanted_goes(live: dict[str, Any]) -> None:
    live["files"][f"{FOLDER}/rules/old.yml"] = {"sha256": "", "changed": 1.0}
    assert changes(live)["absent"] == [f"{FOLDER}/rules/old.yml"]
    nothing = monitoring.Wanted({}, {}, {})
    found = monitoring.monitoring_changes(live, nothing, {})
    assert set(found["absent"]) == {*live["files"], "/var/lib/prometheus/node-exporter/gaudi-host.prom"}
    assert set(found["stop"]) == {name for name, unit in live["units"].items() if unit["there"]}
    assert found["gone"] == ["/etc/gaudi-monitoring", "/var/lib/gaudi-serve/metrics"]
    assert set(found["empty"]) == {"/etc/gaudi-serve", "/usr/local/lib/gaudi-serve"}
    # A folder alone is removed too, and then nothing is left.
    units = {name: {**unit, "there": False} for name, unit in live["units"].items()}
    rest = {"files": {}, "collected": [], "units": units}
    found = monitoring.monitoring_changes({**live, **rest}, nothing, {})
    assert (found["gone"], found["due"]) == (["/etc/gaudi-monitoring"], True)
    assert not monitoring.monitoring_changes({**live, **rest, "folder": False}, nothing, {})["due"]
    live["installed"] = []
    live["units"]["gaudi-prometheus.service"]["enabled"] = False
    found = changes(live)
    assert found["install"] == ["prometheus", "prometheus-alertmanager", "prometheus-node-exporter", "openssl"]
    assert found["start"] == ["gaudi-prometheus.service"]


def test_a_port_that_is_taken_is_refused_before_anything(live: dict[str, Any]) -> None:
    hostvars = fleet()
    want, told = wanted("p", hostvars), fleet_watched(hostvars, HOSTS, "p")
    assert monitoring.monitoring_refusal(live, want, told, {}, "p") == []
    live["ports"]["9093"] = "prometheus-aler (pid 99)"
    assert monitoring.monitoring_refusal(live, want, told, {9090: "model qwq"}, "p") == [
        "p: fleet_monitoring.port: 9090: model qwq listens there; choose another port",
        "p: fleet_monitoring.alertmanager_port: 9093: prometheus-aler (pid 99) listens there; choose another port",
    ]


def test_a_host_waits_for_the_certificate_of_the_other(live: dict[str, Any]) -> None:
    hostvars = fleet()
    hostvars["a"]["gaudi_metrics"], hostvars["p"]["gaudi_metrics"] = {**live, "certificates": {}}, {
        **live, "certificates": {}}  # fmt: skip
    known = {
        "monitoring_fleet": fleet_watched(hostvars, HOSTS, "a"),
        "monitoring_settings": None,
        "gaudi_metrics": hostvars["a"]["gaudi_metrics"],
        "preflight_plan": hostvars["a"]["preflight_plan"],
    }
    found = monitoring.STAGE.pending(Given("a", known))
    assert "let p ask this host, when it has a certificate" in found.due
    del hostvars["p"]["gaudi_metrics"]
    known["monitoring_fleet"] = fleet_watched(hostvars, HOSTS, "a")
    found = monitoring.STAGE.pending(Given("a", known))
    assert not [text for text in found.due if "when it has a certificate" in text]
    assert found.notes == ["monitoring: p was not read in this run; it scrapes this host as before"]


@pytest.mark.parametrize("name", ["10.0.0.5", "fd00::5", "gaudi01.example"])
def test_a_certificate_is_made_once_and_again_for_another_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / "host.pem"
    assert certificate.problem(certificate.read(path), name) == "there is none"
    certificate.make(path, name)
    found = certificate.read(path)
    assert certificate.problem(found, name) == "" and path.stat().st_mode & 0o777 == 0o600
    assert "PRIVATE KEY" in path.read_text() and "PRIVATE" not in found["text"]
    assert certificate.problem(found, "other") == f"it is for {name}"
    assert certificate.problem({**found, "until": 0}, name) == "it ends in 0 days"
    path.write_text("-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
    assert certificate.read(path) == {}


def test_defaults_apply_to_keys_without_a_value() -> None:
    assert read_monitoring({"hosts": ["a"], "port": None}) == Monitoring(hosts=("a",))
    files = watcher_files("p", read_monitoring({"retention_days": 7, "retention_gib": 3}), [], {}, {})
    text = files["/etc/systemd/system/gaudi-prometheus.service"].text
    assert "retention.time=7d" in text and "retention.size=3GB" in text


def test_a_run_without_the_host_that_watches_leaves_its_door_open(live: dict[str, Any]) -> None:
    hostvars = fleet()
    before = wanted("a", hostvars)
    del hostvars["p"]["gaudi_metrics"]
    found = json.loads(json.dumps(fleet_watched(hostvars, HOSTS, "a")))
    after = monitoring.wanted("a", found, None, {}, known=["P"])
    assert (after.files, after.units, after.certificates) == (before.files, before.units, before.certificates)
    # Nobody has asked it so far: it comes with a run that has both.
    assert "gaudi-exporters.service" not in monitoring.wanted("a", found, None, {}).units
    # One that is read counts alone.
    found = fleet_watched(fleet(), HOSTS, "a")
    assert monitoring.wanted("a", found, None, {}, known=["old"]).files[f"{FOLDER}/clients.pem"].text == "P"


def renewals(hostvars: dict[str, Any], live: dict[str, Any], host: str) -> Any:
    """Return what a host is to do in a run that has these hosts."""
    known = {"preflight_plan": {"models": [], "errors": []}, **hostvars[host]}
    settings = known.get("fleet_monitoring")
    live["files"][f"{FOLDER}/host.pem"] = {"sha256": "", "changed": 90.0}
    known |= {
        "monitoring_fleet": fleet_watched(hostvars, HOSTS, host),
        "monitoring_settings": settings,
        "gaudi_host": {},
    }
    return monitoring.STAGE.pending(
        Given(host, {**known, "gaudi_metrics": {**live, "clients": [], **hostvars[host]["gaudi_metrics"]}})
    )


@pytest.mark.parametrize(
    ("owner", "kind", "other"), [("a", "host", "p"), ("p", "client", "a")], ids=["of a host", "of who watches"]
)
def test_a_new_certificate_comes_to_the_other_side_in_the_same_run(
    owner: str, kind: str, other: str, live: dict[str, Any]
) -> None:
    hostvars = fleet()
    assert f"read the new certificate of {owner}" not in renewals(hostvars, live, other).due
    for changed in ({"until": time.time() + 80 * 86400}, {"names": ["10.9.9.9"]}):
        hostvars = fleet()
        hostvars[owner]["gaudi_metrics"]["certificates"][kind] |= changed
        assert [one["path"] for one in renewals(hostvars, live, owner).changes["certificates"]] == [
            f"{FOLDER}/{kind}.pem"
        ]
        # The other side takes part, so that it reads the new one after it was made.
        found = renewals(hostvars, live, other)
        assert f"read the new certificate of {owner}" in found.due and found.changes["due"]


@pytest.mark.parametrize(("owner", "kind", "other"), [("a", "host", "p"), ("p", "client", "a")])
def test_an_old_certificate_waits_for_a_run_with_the_other_side(
    owner: str, kind: str, other: str, live: dict[str, Any]
) -> None:
    for days, made in ((80, False), (20, True)):
        hostvars = fleet()
        del hostvars[other]["gaudi_metrics"]
        hostvars[owner]["gaudi_metrics"]["certificates"][kind]["until"] = time.time() + days * 86400
        found = renewals(hostvars, live, owner)
        assert [one["path"] for one in found.changes["certificates"]] == ([f"{FOLDER}/{kind}.pem"] if made else [])
        text = (
            f"{other} refuses the new certificate of this host until playbooks/monitoring.yml has both"
            if made
            else f"the certificate of this host is old; playbooks/monitoring.yml with {other} too renews it"
        )
        assert f"monitoring: {text}" in found.notes


def test_an_empty_mapping_watches_with_all_defaults() -> None:
    assert "gaudi-prometheus.service" in wanted("p", fleet()).units
    defaults = yaml.safe_load(Path("roles/monitoring/defaults/main.yml").read_text(encoding="utf-8"))
    assert defaults["monitoring_settings"] is None
    handed = yaml.safe_load(Path("playbooks/vars/stages.yml").read_text(encoding="utf-8"))["monitoring_settings"]
    template = NativeEnvironment().from_string(handed)
    assert (template.render(fleet_monitoring={}), template.render()) == ({}, None)


def test_no_secret_is_in_a_result(live: dict[str, Any]) -> None:
    receivers = [{"name": "ops", "webhook_configs": [{"url": "https://x/canary-3b7e"}]}]
    own = {"receivers": receivers, "route": {"receiver": "ops"}}
    found = changes(live, alertmanager=own)
    assert [one["path"] for one in found["write"]] == [f"{FOLDER}/alertmanager.yml"]
    assert "canary-3b7e" not in json.dumps(found)
    assert "canary-3b7e" in alertmanager_config({"alertmanager": own})


def test_rules_that_go_are_forgotten(live: dict[str, Any]) -> None:
    live["files"][f"{FOLDER}/rules/old.yml"] = {"sha256": "", "changed": 1.0}
    assert changes(live)["read"] == ["prometheus"]


@pytest.mark.parametrize(
    ("thresholds", "slo", "refused"),
    [
        ({"fast_burn": 10}, None, ["fast_burn: 10"]),
        ({"fast_burn": 10, "slow_burn": 3}, None, ["fast_burn: 10", "slow_burn: 3"]),
        ({"fast_burn": 10}, {"ttft_s": 2.5}, []),
        ({"waiting": 5}, None, []),
        (None, None, []),
    ],
)
def test_an_alert_on_objectives_needs_a_model_with_one(thresholds: Any, slo: Any, refused: list[str]) -> None:
    model = {"model": "m", "served": "m", "address": "127.0.0.1", "port": 1, "slo": slo or {}}
    fleet = {"watched": [{"host": "a", "address": "10.0.0.1", "models": [model]}]}
    found = monitoring.objective_refusal({"thresholds": thresholds}, fleet, "p")
    assert [text.partition(": this alert")[0] for text in found] == [
        f"p: fleet_monitoring.thresholds.{one}" for one in refused
    ]
    assert monitoring.objective_refusal(None, fleet, "a") == []


def test_ports_of_a_gateway_and_a_port_that_nobody_has_yet(live: dict[str, Any]) -> None:
    known = {"fleet_gateway": {"port": 9090, "metrics_port": 9093}, "preflight_plan": {"models": [MODEL], "errors": []}}
    ports = monitoring.planned_ports(known)
    assert ports == {30001: "model qwq", 9090: "the gateway", 9093: "the gateway's own page"}
    live["units"]["gaudi-exporters.service"] |= {"active": True, "pid": 8}
    hostvars = fleet()
    want, told = wanted("a", hostvars), fleet_watched(hostvars, HOSTS, "a")
    assert monitoring.monitoring_refusal(live, want, told, {}, "a") == []


def test_what_is_left_where_nobody_watches_any_more_goes() -> None:
    assert run_stages(None, models=None, services={"monitoring": True}, monitors=False) == ["offline", "monitoring"]
    assert run_stages(None, models=None, services={"monitoring": False}, monitors=False) == ["left_alone"]
    found = fleet_watched({"a": {"gaudi_metrics": facts("a")}}, ["a"], "a")
    assert monitoring.wanted("a", found, None, {}).files == {}


def test_paths_have_one_text() -> None:
    found = read_monitoring({"files_only": "/etc/prometheus/gaudi-serve/", "grafana": "/etc/grafana/"})
    assert (found.files_only, found.grafana) == ("/etc/prometheus/gaudi-serve", "/etc/grafana")


def test_a_reset_unmasks_what_the_toolkit_masked_alone(live: dict[str, Any]) -> None:
    live |= {
        "folder": True,
        "data": [],
        "masked": [f"/etc/systemd/system/{name}.service" for name in ("haproxy", "prometheus")],
    }
    left = {"records": {"monitoring": {"installed": ["haproxy"]}}, "installed": ["haproxy", "prometheus"]}
    found = monitoring.monitoring_reset(live, left, data=False)
    assert "/etc/systemd/system/prometheus.service" in found["paths"]
    assert "/etc/systemd/system/haproxy.service" not in found["paths"]
    assert found["packages"] == ["prometheus"]
