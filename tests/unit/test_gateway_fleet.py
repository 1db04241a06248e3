"""From the plans of a fleet to what a gateway serves, and what is refused of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.gateway import haproxy
from gaudi_serve.gateway.fleet import (
    backends_of,
    behind_gateway,
    entry_of,
    fleet_entries,
    fleet_gateways,
    fleet_keys,
    gateway_left,
    server_key,
    server_secrets,
    unreached,
)
from gaudi_serve.gateway.inputs import read_gateway
from gaudi_serve.host.secret import BESIDE
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.fleet import vllm_fleet_plan, vllm_fleet_summary
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.stages.base import Given
from gaudi_serve.stages.gateway import (
    file_changes,
    gateway_config,
    gateway_drift,
    gateway_due,
    gateway_notes,
    gateway_problems,
    gateway_refusal,
    gateway_reset,
)
from gaudi_serve.stages.registry import BY_ROLE, facts_wanted, plans_models, run_stages
from helpers import plans

ROOT = Path(__file__).parents[2]
SECRET = "canary-of-the-whole-fleet-0123456789"  # noqa: S105 - a canary
GATEWAYS = ["gw"]
LIVE: dict[str, Any] = {
    "installed": ["haproxy"],
    "interface": "eth0",
    "address": {
        "unit": {"active": False, "enabled": False, "need_reload": False},
        "unit_sha256": None,
        "runs_sha256": None,
    },
    "unit": {"there": True, "active": True, "enabled": True, "need_reload": False},
    "unit_sha256": hashlib.sha256(b"unit").hexdigest(),
    "folder": "abc",
    "running": "abc",
    "servers": [],
    "states": [],
    "reboots": {},
    "folders": ["/etc/gaudi-serve/gateway", "/var/lib/gaudi-serve/gateway"],
    "ports": {},
}


def model(name: str, host: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    """Return a planned model."""
    own = {"name": name, "served_model_name": name, "host": host, "port": 30001, "max_num_seqs": 32, "state": "started"}
    return {**own, **more}


def planned(*models: dict[str, Any], ip: str = "10.0.0.1", **more: Any) -> dict[str, Any]:
    """Return the variables of a host that this run has planned."""
    return {"preflight_plan": {"models": list(models), "errors": []}, "gaudi_host": {"ip": ip}, **more}


def test_gateways_are_the_hosts_that_report_so() -> None:
    hosts: dict[str, Any] = {"a": {}, "b": {"fleet_gateway": {}}, "c": {"fleet_gateway": None}}
    assert fleet_gateways(hosts, hosts) == ["b"]


def test_servers_listen_where_a_gateway_elsewhere_reaches_them() -> None:
    assert behind_gateway({"image": "x"}, GATEWAYS, "g1", "10.0.0.1") == {"host": "10.0.0.1", "image": "x"}
    # What a user has set stays; and on the gateway's own host nothing is opened.
    assert behind_gateway({"host": "0.0.0.0"}, GATEWAYS, "g1", "10.0.0.1") == {"host": "0.0.0.0"}
    assert behind_gateway({}, GATEWAYS, "gw", "10.0.0.1") == {}
    assert behind_gateway({}, [], "g1", "10.0.0.1") == {}
    assert behind_gateway({}, ["gw", "gw2"], "gw", "10.0.0.1") == {"host": "10.0.0.1"}
    assert behind_gateway("nonsense", GATEWAYS, "g1", "10.0.0.1") == "nonsense"


def test_every_model_gets_a_key_of_its_own_unless_it_has_one() -> None:
    given = {"a": {"HF_TOKEN": "t"}, "b": {"VLLM_API_KEY": "mine"}, "elsewhere": {"X": "y"}}
    found = server_secrets(given, {"a": "A", "b": "B", "c": "C"}, GATEWAYS, "g1", SECRET)
    assert found["a"] == {"VLLM_API_KEY": server_key(SECRET, "A"), "HF_TOKEN": "t"}
    assert found["b"] == {"VLLM_API_KEY": "mine"}
    assert found["c"] == {"VLLM_API_KEY": server_key(SECRET, "C"), BESIDE: True}
    assert found["elsewhere"] == {"X": "y"}
    assert len({found[name]["VLLM_API_KEY"] for name in "abc"}) == 3
    assert server_secrets(given, {"a": "A"}, GATEWAYS, "gw", SECRET) == given
    assert server_secrets(given, {"a": "A"}, GATEWAYS, "g1", "short") == given
    assert server_secrets("nonsense", {"a": "A"}, GATEWAYS, "g1", SECRET) == "nonsense"


def test_servers_come_from_plans_and_those_of_other_hosts_stay() -> None:
    live = [
        {"host": name, "unit": "old", "model": "old", "address": "10.0.0.9", "port": 1, "takes": 2}
        for name in ("g1", "g2", "g3", "gone")
    ]
    hosts: dict[str, Any] = {
        "g1": planned(model("a"), model("off", state="stopped"), model("own", host="127.0.0.1")),
        "g2": {},
        "g3": {**planned(model("a")), "preflight_refusal": ["wrong"]},
        "g4": planned(model("any", host="0.0.0.0", max_num_seqs=None), fleet_address="192.168.0.4"),
        "g5": {**planned(model("a")), "rollout_host": {"accepted": False}},
        "g6": {**planned(model("c")), "rollout_host": {"accepted": True}},
        "gw": planned(model("b", host="127.0.0.1")),
    }
    found = fleet_entries(hosts, hosts, "gw", live)
    assert [(one["host"], one["unit"], one["address"], one["takes"]) for one in found] == [
        ("g1", "a", "10.0.0.1", 32),
        ("g4", "any", "192.168.0.4", 256),
        ("gw", "b", "127.0.0.1", 32),
        ("g6", "c", "10.0.0.1", 32),
        ("g2", "old", "10.0.0.9", 2),
        ("g3", "old", "10.0.0.9", 2),
    ]
    models = hosts["g1"]["preflight_plan"]["models"]
    assert unreached(models, GATEWAYS, "g1") == [
        "g1: model own: host 127.0.0.1: gw cannot reach this address; leave host out: the server then listens "
        "where gateways reach it, at the address of the default route, or at fleet_address, which a host without that "
        "route needs"
    ]
    assert unreached(models, GATEWAYS, "gw") == unreached(models, [], "g1") == []


def test_what_a_gateway_serves_is_the_same_after_it_was_written_and_read() -> None:
    shared = model("gte", served=[{"served_model_name": "gte"}, {"served_model_name": "rerank"}])
    hosts = {"g1": planned(model("a", args=["--lora-modules", "sql=/a"], port=30002), shared)}
    entries = fleet_entries(hosts, hosts, "gw")
    assert len(entries) == 3
    units = {"gateway": "unit", "address": ""}
    live = {**LIVE, "servers": json.loads(json.dumps(entries))}
    assert gateway_due(live, {}, units, entries) == []
    assert gateway_due({**live, "servers": live["servers"][:2]}, {}, units, entries) == ["serve g1.gte (rerank)"]
    assert gateway_due(live, {}, units, entries[:2]) == ["stop serving g1.gte"]
    moved = [{**one, "adapters": []} for one in live["servers"]]
    assert gateway_due({**live, "servers": moved}, {}, units, entries) == ["change g1.a"]


def running(port: int = 30001, host: str = "10.0.0.1", active: bool = True) -> dict[str, Any]:
    """Return a service of gaudi_host."""
    return {"port": port, "active": active, "launch": {"command": ["serve", "--host", host, "--port", str(port)]}}


@pytest.mark.parametrize(
    ("services", "state", "ports"),
    [
        # A server that runs again, and is not in the gateway's list.
        ({"a": running()}, "started", [30001]),
        # What the inventory has changed and no run has carried out: it is asked where it still is.
        ({"a": running(port=1)}, "started", [1]),
        ({"a": running(host="10.0.0.2")}, "started", [1]),
        ({"a": running(port=1)}, "stopped", [1]),
        ({}, "started", [1]),
        ({"a": running(active=False)}, "stopped", []),
    ],
)
def test_a_run_of_the_gateway_alone_takes_what_runs(services: Any, state: str, ports: list[int]) -> None:
    live = [{"host": "g1", "unit": "a", "model": "a", "address": "10.0.0.1", "port": 1, "takes": 2}]
    host = {**planned(model("a", state=state)), "preflight_stages": []}
    host["gaudi_host"]["services"] = services
    hosts = {"g1": host, "gw": {}}
    assert [one["port"] for one in fleet_entries(hosts, hosts, "gw", live)] == ports
    # A run that carries the plan out takes the plan.
    host["preflight_stages"] = ["vllm_service", "gateway"]
    assert [one["port"] for one in fleet_entries(hosts, hosts, "gw", live)] == ([30001] if state == "started" else [])


def test_a_run_of_the_gateway_alone_looks_at_the_models_of_all_hosts() -> None:
    assert run_stages(["gateway"], ["all"], models=["m"], gateways=True) == ["behind_gateway"]
    assert run_stages(None, ["gateway"], models=["m"], gateways=True, gateway=True) == ["gateway", "behind_gateway"]
    assert run_stages(["gateway"], ["all"], models=["m"]) == ["none"]
    assert "behind_gateway" not in run_stages(None, ["all"], models=["m"], gateways=True)
    assert plans_models(["behind_gateway"]) and "host" in facts_wanted(["behind_gateway"])


def test_the_adapters_of_a_server_are_names_that_clients_may_use() -> None:
    args = ["--enable-lora", "--lora-modules", "sql=/a", '{"name": "law", "path": "/b"}', "--port", "1"]
    hosts = {"g1": planned(model("a", args=args)), "g2": planned(model("a", args=args[:3]), ip="10.0.0.2")}
    entries = fleet_entries(hosts, hosts, "gw")
    assert [one["adapters"] for one in entries] == [("sql", "law"), ("sql",)]
    # An adapter of some servers is not a name of the gateway, but a body could name it: a key of the base may not.
    (backend,) = backends_of(entries, {})
    assert (backend.adapters, backend.partly) == (("sql",), ("law",))
    keys = {name: {"key": f"0123456789abcdef-{name}"} for name in ("all", "base", "both")}
    clients = {
        **keys,
        "base": {**keys["base"], "models": ["a"]},
        "both": {**keys["both"], "models": ["a", "sql", "law"]},
    }
    allowed = gateway_config({"clients": clients}, entries, {})["files"]["allowed.map"].splitlines()
    assert allowed == ["all|a all", "all|sql named", "base|a strict", "both|a all", "both|sql named"]
    clients["base"]["models"] = ["a", "sql"]
    assert "base|a strict" in gateway_config({"clients": clients}, entries, {})["files"]["allowed.map"]


@pytest.mark.parametrize(
    ("served", "kinds"),
    [
        ({"smoke": ["text"]}, ("text",)),
        ({"smoke": ["text"], "sees": True}, ("text", "image")),
        ({"smoke": ["image"]}, ("text", "image")),
        ({"smoke": ["embedding"], "sees": True}, ()),
        ({"smoke": ["rerank"]}, ()),
        ({}, ("text",)),
    ],
)
def test_what_a_model_takes_in_a_conversation(served: dict[str, Any], kinds: tuple[str, ...]) -> None:
    hosts = {"g1": planned(model("m", served=[{"served_model_name": "m", **served}]))}
    (entry,) = fleet_entries(hosts, hosts, "gw")
    assert entry_of(entry).kinds == kinds and backends_of([entry], {})[0].kinds == kinds
    # A file of before, which has none, is as it was.
    assert ("kinds" in entry) == (kinds != ("text",))


def test_the_servers_of_a_model_have_one_key() -> None:
    hosts: dict[str, Any] = {
        "g1": planned(model("a")),
        "g2": planned(model("a")),
        "gw": planned(model("b", "127.0.0.1")),
    }
    entries = fleet_entries(hosts, hosts, "gw")
    assert fleet_keys(hosts, entries, GATEWAYS, SECRET) == {"a": server_key(SECRET, "a")}
    # A host that is the only gateway has a server without a key, which takes any.
    assert fleet_keys(hosts, entries, ["g2"], SECRET)["a"] == server_key(SECRET, "a")
    hosts["g1"]["vllm_secrets"] = hosts["g2"]["vllm_secrets"] = {"a": {"VLLM_API_KEY": "mine"}}
    assert fleet_keys(hosts, entries, GATEWAYS, SECRET) == {"a": "mine"}
    hosts["g2"]["vllm_secrets"] = {"a": {"VLLM_API_KEY": "canary-other"}}
    with pytest.raises(InputError, match=r"VLLM_API_KEY of g1\.a and of g2\.a differ; a gateway has one") as raised:
        fleet_keys(hosts, entries, GATEWAYS, SECRET)
    assert "canary" not in str(raised.value)


def test_a_gateway_keeps_the_key_that_its_own_host_stores_until_the_inventory_withdraws_it(tmp_path: Path) -> None:
    stored = {"gaudi_services": {"units": {"a": {"secret_names": ["HF_TOKEN", "VLLM_API_KEY"]}}}}
    hosts: dict[str, Any] = {"gw": planned(model("a", "127.0.0.1"), **stored)}
    entries = fleet_entries(hosts, hosts, "gw")
    for given, expected in (
        (None, {"a": "@stored:a"}),
        ({"other": {"VLLM_API_KEY": "x"}}, {"a": "@stored:a"}),
        ({"a": {}}, {}),
        ({"a": {"HF_TOKEN": "x"}}, {}),
        ({"a": {"VLLM_API_KEY": "mine"}}, {"a": "mine"}),
    ):
        hosts["gw"]["vllm_secrets"] = given
        assert fleet_keys(hosts, entries, GATEWAYS) == expected
    hosts["gw"] |= {"vllm_secrets": None, "gaudi_services": {"units": {"a": {"secret_names": ["HF_TOKEN"]}}}}
    assert fleet_keys(hosts, entries, GATEWAYS) == {}
    # The module reads the key on its host; a file without one has none.
    (tmp_path / "a.secret").write_text("HF_TOKEN=t\nVLLM_API_KEY=canary\n", encoding="utf-8")
    secrets = {"servers.map": "a @stored:a\nb @stored:b\nc other\n", "users.map": "u\n"}
    assert haproxy.with_stored(secrets, tmp_path) == {"servers.map": "a canary\nc other\n", "users.map": "u\n"}


def test_a_key_of_the_inventory_comes_before_one_that_a_host_stores() -> None:
    stored = {"gaudi_services": {"units": {"a": {"secret_names": ["VLLM_API_KEY"]}}}}
    hosts = {"a1": planned(model("a", "127.0.0.1"), **stored), "g1": planned(model("a"))}
    entries = fleet_entries(hosts, hosts, "a1")
    assert fleet_keys(hosts, entries, ["a1"], SECRET) == {"a": server_key(SECRET, "a")}


def test_a_server_that_refuses_the_gateways_key_is_not_up_and_differs_from_the_plan() -> None:
    state = {"name": "g1.a", "up": True, "drained": False, "maintained": False, "weight": 100, "refused": 0}
    states = [state, {**state, "name": "g2.a", "up": False, "refused": 401}, {**state, "name": "g3.a", "up": False}]
    live = {**LIVE, "states": states}
    (line,) = gateway_drift(live, [])
    assert line.startswith("g2.a refuses the gateway's key (HTTP 401): set VLLM_API_KEY of its model in vllm_secrets")
    assert gateway_notes(live) == ["gateway: does not reach g3.a"]


def test_what_is_wrong_with_a_hosts_variables() -> None:
    assert gateway_problems({"clients": {}}, None, ["gw"], "gw", serves=False) == []
    assert gateway_problems({"prot": 1}, None, ["gw"], "gw", serves=False)[0].startswith(
        "gw: fleet_gateway: prot: is not"
    )
    wrong = gateway_problems("canary", None, ["gw"], "gw", serves=False)
    assert wrong[0].startswith("gw: fleet_gateway: (hidden): must be a mapping") and "canary" not in wrong[0]
    missing = gateway_problems(None, None, ["gw"], "g1", serves=True)[0]
    assert missing.startswith(
        "g1: fleet_gateway_secret: is required: it must be a quoted text of at least 32 characters"
    )
    assert missing.endswith("It is required because gw is a gateway that reaches this host's servers")
    assert "canary" not in gateway_problems(None, "canary", ["gw"], "g1", serves=True)[0]
    assert gateway_problems(None, SECRET, ["gw"], "g1", serves=True) == []
    # Keys of servers are computed from it on both sides.
    for theirs, has in ((f"{SECRET}!", "another one"), (None, "none")):
        assert gateway_problems(None, SECRET, ["gw"], "g1", serves=True, theirs={"gw": theirs}) == [
            f"g1: fleet_gateway_secret: (hidden): gw has {has}, and all requests to this host would fail; give all "
            "hosts one value that does not change: a lookup of password needs a file in place of /dev/null"
        ]
    assert gateway_problems(None, SECRET, ["gw"], "g1", serves=True, theirs={"gw": SECRET}) == []
    assert gateway_problems(None, None, ["gw"], "gw", serves=True) == []


def one_server() -> list[dict[str, Any]]:
    """Return the servers of a fleet of one."""
    hosts = {"g1": planned(model("a"))}
    return fleet_entries(hosts, hosts, "gw")


def test_what_is_due() -> None:
    servers = one_server()
    assert gateway_due({**LIVE, "servers": servers}, {}, {"gateway": "unit", "address": "other"}, servers) == []
    fresh = {**LIVE, "installed": [], "folder": "", "running": "", "unit_sha256": None}
    fresh["unit"] = {"there": False, "active": False, "enabled": False, "need_reload": False}
    assert gateway_due(
        fresh, {"haproxy.cfg": [], "servers.json": []}, {"gateway": "unit", "address": "other"}, servers
    ) == [
        "install haproxy",
        "write gaudi-gateway.service",
        "serve g1.a (a)",
        "start gaudi-gateway.service",
    ]
    moved = [{**servers[0], "port": 2}]
    changed = {**LIVE, "servers": [*moved, {**servers[0], "unit": "b"}], "running": "other"}
    assert gateway_due(
        changed, {"haproxy.cfg": ["frontend a: bind: x -> y"]}, {"gateway": "unit", "address": "other"}, servers
    ) == [
        "stop serving g1.b",
        "change g1.a",
        "write haproxy.cfg: frontend a: bind: x -> y",
        "reload HAProxy, which runs with older files",
    ]
    cut = {**LIVE, "servers": servers, "reboots": {"g1": ["g1.a"]}}
    assert gateway_due(cut, {}, {"gateway": "unit", "address": "other"}, servers) == [
        "return g1 to service: an interrupted run drained it for a reboot"
    ]


def test_a_change_of_settings_shows_key_and_both_values() -> None:
    settings = {"address": "0.0.0.0", "open": True, "plain_allowed": True, "port": 8080}
    before = gateway_config(settings, one_server(), {})["files"]
    changed = {**settings, "port": 9090, "virtual_address": "10.0.0.100/24"}
    after = gateway_config(changed, [*one_server(), {**one_server()[0], "host": "g2"}], {})["files"]
    differs = [name for name, text in after.items() if before.get(name) != text]
    diff = [
        {"after_header": f"/etc/x/{name}", "before": before.get(name, ""), "after": after[name]} for name in differs
    ]
    found = file_changes({"differs": [*differs, "keys.map"], "diff": diff})
    assert found["keys.map"] == found["servers.json"] == []
    assert any(line.endswith(": 0.0.0.0:8080 -> 0.0.0.0:9090") for line in found["haproxy.cfg"]), found["haproxy.cfg"]
    # Servers have lines of their own.
    assert not any(" server " in line or ": server" in line for line in found["haproxy.cfg"])
    assert len(found["keepalived.conf"]) <= 9 and "more" in found["keepalived.conf"][-1]


def test_the_shared_address_is_due_where_it_is_requested_for() -> None:
    settings = {"address": "0.0.0.0", "open": True, "plain_allowed": True, "virtual_address": "10.0.0.100/24"}
    text = gateway_config(settings, [], {}, 2, "eth1")["files"]["keepalived.conf"]
    assert "priority 180\n" in text and "interface eth1\n" in text and "        10.0.0.100/24\n" in text
    units = {"gateway": "unit", "address": "other"}
    assert gateway_due(LIVE, {}, units, [], text) == [
        "install keepalived",
        "write gaudi-gateway-address.service",
        "start gaudi-gateway-address.service",
    ]
    runs = {"unit": LIVE["unit"], "unit_sha256": hashlib.sha256(b"other").hexdigest(), "runs_sha256": "x"}
    live = {**LIVE, "installed": ["haproxy", "keepalived"], "address": runs}
    assert gateway_due(live, {}, units, [], text) == ["reload keepalived, which runs with an older configuration"]
    assert gateway_due(live, {}, units, []) == ["give up the virtual address"]
    runs["runs_sha256"] = hashlib.sha256(text.encode()).hexdigest()
    assert gateway_due(live, {}, units, [], text) == []


def test_what_has_drifted_and_what_is_in_the_way() -> None:
    servers = one_server()
    states = [
        {"backend": "a", "name": "g1.a", "up": False, "drained": True, "maintained": False, "weight": 100},
        {"backend": "a", "name": "g2.a", "up": True, "drained": False, "maintained": False, "weight": 50},
    ]
    drift = gateway_drift({**LIVE, "states": states}, ["write haproxy.cfg"])
    assert drift == ["write haproxy.cfg", "g1.a is drained: it gets no requests until it is ready again"]
    assert gateway_notes({**LIVE, "states": states}) == [
        "gateway: does not reach g1.a",
        "gateway: g2.a gets 50 % of its share",
    ]
    for ports, running, expected in (
        (
            {"8080": "nginx (pid 1)"},
            "abc",
            "gw: fleet_gateway.port: 8080: nginx (pid 1) listens there; choose another port",
        ),
        (
            {"8405": "haproxy (pid 9)"},
            "",
            "gw: fleet_gateway.metrics_port: 8405: haproxy (pid 9) listens there; choose",
        ),
    ):
        found = gateway_refusal({}, servers, {}, {**LIVE, "ports": ports, "running": running}, "", "gw")
        assert len(found) == 1 and found[0].startswith(expected)
    assert gateway_refusal({}, servers, {}, {**LIVE, "ports": {"8080": "haproxy (pid 9)"}}, "", "gw") == []
    beside = gateway_refusal({"port": servers[0]["port"]}, servers, {}, LIVE, "", servers[0]["host"])
    assert beside == [
        f"g1: fleet_gateway.port: {servers[0]['port']}: model a of this host listens there; choose another port"
    ]


def test_one_model_on_hosts_of_two_vendors_is_one_behind_the_gateway() -> None:
    weights = {"/data/m": {"config": plans.QWQ, "bytes": 65_000_000_000}}
    facts = {
        "g1": plans.gaudi_host(driver_version="1.24.1-5", weights=weights, ip="10.0.0.1"),
        "g2": plans.host_of("rocm", weights=weights, ip="10.0.0.2"),
    }
    spec = {"name": "qwq", "weights": "/data/m", "max_model_len": 4096, "tensor_parallel_size": 2, "port": 30001}
    hosts = {
        name: {
            "gaudi_host": host,
            "preflight_plan": vllm_plan([{**spec, "host": host["ip"]}], host, host_name=name, release="1.24.1"),
        }
        for name, host in facts.items()
    }
    assert [known["preflight_plan"]["errors"] for known in hosts.values()] == [[], []]
    images = {known["preflight_plan"]["models"][0]["image"].partition(":")[0] for known in hosts.values()}
    assert len(images) == 2
    entries = fleet_entries(hosts, hosts, "gw")
    (backend,) = backends_of(entries, {})
    settings = {"clients": {"al": {"key": "0123456789abcdef"}}}
    text = gateway_config(settings, entries, {})["files"]["haproxy.cfg"]
    assert "10.0.0.1:30001" in text and "10.0.0.2:30001" in text, text
    assert len(backend.servers) == 2


def test_a_client_may_use_what_some_host_is_to_have_whether_it_serves_now_or_not() -> None:
    # As amid a rollout that stops after its canary, with --limit, or while a model is stopped.
    clients = {"al": {"key": "0123456789abcdef", "models": ["a", "later"]}}
    made = gateway_config({"clients": clients}, one_server(), {})
    assert made["files"]["allowed.map"] == "al|a all\n"
    assert gateway_refusal({"clients": clients}, one_server(), {}, LIVE, "", "gw") == []
    gateway = {"fleet_gateway": {"clients": clients}, "preflight_gateways": ["gw"], "gaudi_host": {"services": {}}}
    gateway["fleet_gateway_secret"] = SECRET
    entry = plans.model()
    stopped = plans.known(vllm_models=[{**entry, "name": "b", "served_model_name": "later", "state": "stopped"}])
    hosts = {
        "gw": gateway,
        "g1": plans.known(vllm_models=[{**entry, "name": "a"}], fleet_gateway_secret=SECRET),
        "g2": {**stopped, "fleet_gateway_secret": SECRET},
    }
    assert inventory_refusal({**gateway, "hostvars": hosts}, "gw") == []
    assert vllm_fleet_plan(hosts, list(hosts), [])["errors"] == []
    del hosts["g2"]
    sentence = "gw: fleet_gateway.clients.al.models: 'later' is not a model of any host of this inventory; there are a"
    assert inventory_refusal({**gateway, "hostvars": hosts}, "gw") == [sentence]
    assert [one["message"] for one in vllm_fleet_plan(hosts, list(hosts), [])["errors"]] == [sentence]
    # A host whose models are none has an error of its own; which there would be, nobody knows.
    unread = "; these could not be read: g2: vllm_models 'later': must be a list of models"
    hosts["g2"] = {"vllm_models": "later"}
    assert inventory_refusal({**gateway, "hostvars": hosts}, "gw") == [sentence + unread]


@pytest.mark.parametrize("key", ["port", "metrics_port", "chat.port"])
def test_the_plan_knows_that_a_model_has_the_gateways_port(key: str) -> None:
    entry = {**plans.model(), "name": "a", "port": 30001}
    settings = {"chat": {"port": 30001}} if key == "chat.port" else {key: 30001}
    for state, expected in (("started", 1), ("stopped", 0)):
        hosts = {"g1": plans.known(vllm_models=[{**entry, "state": state}], fleet_gateway=settings)}
        fleet = vllm_fleet_plan(hosts, ["g1"], [])
        sentence = f"g1: fleet_gateway.{key}: 30001: model a of this host listens there; choose another port"
        assert [one["message"] for one in fleet["errors"]] == [sentence] * expected
        assert vllm_fleet_summary(fleet)["failure"] == ("1 error in the plan of g1, listed above" if expected else "")


def test_the_example_of_the_page_is_planned_without_an_error() -> None:
    page = (ROOT / "docs/guides/fleet.md").read_text(encoding="utf-8")
    example = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])["all"]
    hosts: dict[str, Any] = {
        name: {**example["vars"], **group["vars"]} for group in example["children"].values() for name in group["hosts"]
    }
    facts = plans.known()
    facts["gaudi_host"] = {**facts["gaudi_host"], "driver_version": "1.24.1-1"}
    facts = dict.fromkeys(hosts, facts) | {"gw01": {"gaudi_host": {"services": {}}}}
    hosts = {name: {**facts[name], **variables} for name, variables in hosts.items()}
    catalog = [str(ROOT / "roles/preflight/files/catalog")]
    fleet = vllm_fleet_plan(hosts, list(hosts), catalog)
    assert [one["message"] for one in fleet["errors"]] == []
    assert "..." not in str(example) and len(fleet["hosts"]) == 4


def test_a_reset_takes_unit_files_and_state() -> None:
    left = {"own": {"/etc/gaudi-serve": ["gateway"], "/var/lib/gaudi-serve": ["gateway"]}, "installed": ["haproxy"]}
    left |= {"records": {"gateway": {"installed": []}}}
    found = gateway_reset(LIVE, left, ["haproxy"])
    assert found["paths"] == [
        "/etc/gaudi-serve/gateway",
        "/var/lib/gaudi-serve/gateway",
        "/etc/systemd/system/gaudi-gateway.service",
    ]
    assert found["packages"] == ["haproxy"]
    nothing = {"own": {"/etc/gaudi-serve": None, "/var/lib/gaudi-serve": None}, "installed": [], "records": {}}
    assert not gateway_reset({**LIVE, "unit_sha256": None, "folders": []}, nothing, ["haproxy"])["due"]


def test_files_come_whole_into_a_folder_of_their_own(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"g1": planned(model("a"))}
    servers = fleet_entries(hosts, hosts, "gw")
    made = gateway_config({}, servers, {"a": "canary"})
    assert "canary" not in str(made["files"]) and "canary" in made["secrets"]["servers.map"]
    checked, answers = list[str](), {"haproxy": Result(0, "", ""), "systemctl": Result(0, "ActiveState=inactive\n", "")}

    def run(argv: list[str]) -> Result:
        checked.extend(argv[3:] if argv[0] == "haproxy" else [])
        return answers[argv[0]]

    monkeypatch.setattr(haproxy, "run", run)
    monkeypatch.setattr(haproxy.Gateway, "state", str(tmp_path / "state"))
    assert haproxy.install(made["files"], made["secrets"], tmp_path)
    name = haproxy.current(tmp_path)
    text = (tmp_path / "current/haproxy.cfg").read_text(encoding="utf-8")
    assert (
        checked == [str(tmp_path / name / "haproxy.cfg")] and f"description {name}\n" in text and "@FOLDER@" not in text
    )
    assert "canary" not in name
    assert haproxy.differing(made["files"], made["secrets"], tmp_path) == []
    assert not haproxy.install(made["files"], made["secrets"], tmp_path)
    # Another key alone has no other digest, but files of its own.
    assert haproxy.install(made["files"], {"servers.map": "a other\n"}, tmp_path)
    assert haproxy.current(tmp_path) == f"{name}.b" and not (tmp_path / name).exists()
    (tmp_path / "current/haproxy.cfg").write_text("broken", encoding="utf-8")
    assert haproxy.differing(made["files"], {"servers.map": "a other\n"}, tmp_path) == ["haproxy.cfg"]
    assert haproxy.install(made["files"], {"servers.map": "a other\n"}, tmp_path)
    assert haproxy.current(tmp_path) == name
    answers["haproxy"] = Result(1, "", "no, canary")
    with pytest.raises(InputError, match=r"nothing has changed: no, \(hidden\)$"):
        haproxy.install(made["files"], made["secrets"], tmp_path)
    assert haproxy.current(tmp_path) == name


def test_a_gateway_that_nobody_requests_any_more_is_reported() -> None:
    there = {"gateway": True}
    assert gateway_left(there, ["gw"], "g1") == [
        "g1: gateway: it runs here, but the inventory has no fleet_gateway for this host; set fleet_gateway: "
        "{state: absent} for it, and playbooks/gateway.yml removes it"
    ]
    assert gateway_left(there, ["gw", "g1"], "g1") == []
    assert gateway_left({"gateway": False}, [], "g1") == gateway_left(None, [], "g1") == []


def test_a_gateway_is_taken_off_a_host_with_what_its_clients_lose() -> None:
    absent = {"state": "absent", "clients": {"c": {"key": "k" * 32}}}
    assert read_gateway(absent).ports == {}
    with pytest.raises(InputError, match=r"fleet_gateway\.state: 'gone' is neither present nor absent"):
        read_gateway({"state": "gone"})
    assert fleet_gateways({"a": {"fleet_gateway": absent}, "b": {"fleet_gateway": {"state": "present"}}}, "ab") == ["b"]
    assert run_stages(None, ["all"], [], removes=True, models=None) == ["offline", "gateway"]
    hosts = {"g1": planned(model("a"), model("b", port=30002))}
    live = {**LIVE, "servers": fleet_entries(hosts, hosts, "gw")}
    stage = BY_ROLE["gateway"]
    given = Given("gw", {"gateway_settings": absent, "gaudi_haproxy": live})
    found = stage.asked(given, lambda *_: pytest.fail("it has no files to compare"))
    paths = [*LIVE["folders"], "/etc/systemd/system/gaudi-gateway.service"]
    assert found.changes["removal"] == {"units": ["gaudi-gateway.service"], "paths": paths}
    assert (
        list(found.due)
        == list(found.drift)
        == [
            "remove the gateway: its clients no longer reach a, b through this host",
            "stop gaudi-gateway.service",
            *(f"remove {path}" for path in paths),
        ]
    )
    gone = {**live, "unit_sha256": None, "folders": [], "servers": []}
    found = stage.compared(Given("gw", {"gateway_settings": absent, "gaudi_haproxy": gone}))
    assert (found.changes["due"], found.due, found.drift, found.left) == (False, [], [], [])
