"""The plan of a fleet: from live or saved facts, what it shows, what would change."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.vault import AnsibleVaultError
from gaudi_serve.catalog.files import BUILTIN
from gaudi_serve.host.secret import BESIDE
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.fleet import gaudi_facts_saved, vllm_fleet_lines, vllm_fleet_plan
from helpers.plans import gaudi_host, known, live_of, model, planned
from jinja2 import TemplateError


def test_all_hosts_in_one_call_and_every_error_with_its_host() -> None:
    wrong = {"vllm_models": [model(port=0)], "accelerator_cards": "4", "accelerator": "cpu"}
    fleet = vllm_fleet_plan({"a": known(), "b": known(**wrong), "c": {}}, ["a", "b", "c"], [])
    assert [one["name"] for one in fleet["hosts"]["a"]["models"]] == ["qwq"]
    assert [(error["host"], error["key"]) for error in fleet["errors"]] == [
        ("b", "accelerator"),
        ("b", "accelerator_cards"),
        ("b", "port"),
        ("c", "facts"),
    ]
    assert all(set(error) == {"host", "model", "key", "value", "allowed", "message"} for error in fleet["errors"])
    assert fleet["errors"][3]["message"].startswith("c: could not be read")


def test_what_is_shown() -> None:
    cpu = {"accelerator": "cpu", "ip": "10.0.0.9", "modules": [], "services": {}, "ports": {}, "weights": {}}
    tiny = {"name": "tiny", "weights": "/m/tiny", "image": "vllm:1", "state": "stopped"}
    hosts = {
        "a": known(vllm_models=[model(max_num_seqs=64, recipe_cache_path="/data/cache")]),
        "b": known(vllm_models=[model(max_num_seqs=64, recipe_cache_path="/data/cache")]),
        "c": known(gaudi_host=cpu, vllm_models=[tiny]),
        "d": known(vllm_models=[]),
    }
    lines = vllm_fleet_lines(vllm_fleet_plan(hosts, list(hosts), []))
    assert lines[0] == "a: 8 cards HL-225 on 2 NUMA nodes, driver 1.21.3-57, Debian 12, 10.0.0.1"
    assert " ".join(lines[1].split()) == (
        "MODEL CARDS CORES PORT PRECISION CONTEXT GRAPHS WARM-UP CACHED GIB/CARD LEFT FIT"
    )
    row = "qwq 0-1 0-19 30001 bfloat16 8192 490 13 min 5 min 90/96 6 44 of 64"
    assert " ".join(lines[3].split()) == row
    assert lines[4] == "  a frozen server restarts after 300 to 600 s (10 times its longest step)"
    assert lines[5:7] == ["  would change:", "    + qwq: start on cards 0,1, port 30001"]
    assert "c: CPU host, Debian 12, 10.0.0.9" in lines
    # Columns that have nothing about a host are left out.
    head = next(number for number, line in enumerate(lines) if line.startswith("c: ")) + 1
    assert lines[head].split() == ["MODEL", "CARDS", "PORT", "PRECISION", "CONTEXT", "GRAPHS", "WARM-UP", "CACHED"]
    assert lines[head + 2].split()[:4] == ["tiny", "(stopped)", "cpu", "8000"]
    # Which has its line, and no more.
    assert lines[lines.index("d: left alone: the inventory gives it no models, no gateway and no other task") + 1] == ""
    # What is the same on several hosts is reported once.
    assert any(line.startswith("  a, b: model qwq: max_model_len 8192 allows") for line in lines)
    assert lines[-1] == "4 hosts, 3 models, 2 hosts would change, 0 errors"


def test_errors_are_shown_together_at_the_end() -> None:
    hosts = {name: known(vllm_models=[model(port=0)]) for name in "abcde"}
    lines = vllm_fleet_lines(vllm_fleet_plan(hosts, list(hosts), []))
    assert lines[-4:-2] == [
        "ERRORS (5)",
        "  a, b, c and 2 more: model qwq: port 0: must be an integer from 1 to 65535",
    ]


def test_saved_facts_plan_like_live_ones(tmp_path: Path) -> None:
    one = known()
    (tmp_path / "a.json").write_text(json.dumps(gaudi_facts_saved(one)))
    (tmp_path / "b.json").write_text(json.dumps(one["gaudi_host"]))
    said = {"vllm_models": [model()], "accelerator_release": "1.21.3"}
    desk = vllm_fleet_plan(dict.fromkeys("ab", said), ["a", "b"], [], str(tmp_path))
    live = vllm_fleet_plan({"a": one, "b": one}, ["a", "b"], [])
    assert desk["errors"] == live["errors"] == []
    # What a run would do below the models, and what was measured, only the live host shows.
    assert {**desk["hosts"]["a"], "due": {}, "down": [], "reboot": [], "links": None} == live["hosts"]["a"]
    assert desk["hosts"]["b"]["models"] == live["hosts"]["b"]["models"]


def test_every_host_has_its_own_catalog(tmp_path: Path) -> None:
    entry = {"weights": "/data/QwQ-32B", "max_model_len": 4096, "input_range": [4, 2048], "output_range": [4, 2048]}
    for folder, more in (("common", {}), ("own", {"max_model_len": 8192}), ("wrong", {"weights": "w"})):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "mine.yml").write_text(json.dumps({**entry, **more}))
    (tmp_path / "wrong/list.yml").write_text("- a\n")
    one = known(vllm_models=[{"name": "q", "model": "mine", "image": "vllm:1", "tensor_parallel_size": 2}])
    other = known(vllm_models=[{**one["vllm_models"][0], "model": "nowhere"}])
    own, wrong = [str(tmp_path / "own")], [str(tmp_path / "wrong"), "/nowhere"]
    hosts = {
        "a": one,
        "b": {**one, "vllm_catalog_dirs": own},
        "c": {**one, "vllm_catalog_dirs": wrong},
        "d": {**other, "vllm_catalog_dirs": wrong},
        "e": {**one, "vllm_catalog_dirs": wrong, "preflight_catalog": {"mine": entry}},
        "f": {**other, "vllm_catalog_dirs": "/srv"},
    }
    fleet = vllm_fleet_plan(hosts, list(hosts), [str(tmp_path / "common")])
    lengths = {name: [m["max_model_len"] for m in host["models"]] for name, host in fleet["hosts"].items()}
    assert lengths == {"a": [4096], "b": [8192], "c": [4096], "d": [], "e": [4096], "f": []}
    told = [error["message"].replace(str(tmp_path), "FOLDER") for error in fleet["errors"]]
    mistakes = [
        'FOLDER/wrong/list.yml: is ["a"]; a catalog entry must be a mapping with the keys of a model',
        "FOLDER/wrong/mine.yml: weights 'w': must be an absolute path of letters, digits and . _ - / @ +",
        "vllm_catalog_dirs: /nowhere: no such folder",
    ]
    assert [line.replace(str(tmp_path), "FOLDER") for line in inventory_refusal(hosts["c"], "c")] == [
        f"c: {mistake}" for mistake in mistakes
    ]
    assert inventory_refusal(hosts["e"], "e") == []
    # Nothing is reported to be missing that may be in a folder that could not be read.
    assert told == [
        *[f"{host}: {mistake}" for host in "cd" for mistake in mistakes],
        "f: vllm_catalog_dirs '/srv': must be a list of folders",
    ]
    assert {error["key"] for error in fleet["errors"]} == {"vllm_catalog_dirs"}


class Unread(dict[str, Any]):
    """Variables of which one cannot be read."""

    cause: Exception = KeyError("s3cret")

    def __getitem__(self, key: str) -> Any:
        if key == "vllm_secrets":
            raise TemplateError("a template\nwith s3cret") from self.cause
        return super().__getitem__(key)


class HashiVaultError(Exception):
    """An error of a lookup in another kind of vault."""


def test_a_secret_that_cannot_be_read_is_not_quoted() -> None:
    hosts = {"a": Unread(known(vllm_secrets={}))}
    fleet = vllm_fleet_plan(hosts, ["a"], [])
    (error,) = fleet["errors"]
    assert error["message"] == "a: vllm_secrets: a template with a mistake"
    # What failed is no secret. Nor does every error about a vault come from Ansible's own.
    hosts["a"].cause = HashiVaultError("The lookup plugin 'vault' failed: s3cret")
    (error,) = vllm_fleet_plan(hosts, ["a"], [])["errors"]
    assert error["message"] == (
        "a: vllm_secrets: the lookup plugin 'vault' failed; its reason is not shown, because it can contain a secret"
    )
    hosts["a"].cause = AnsibleVaultError("Attempting to decrypt but no vault secrets found.")
    (error,) = vllm_fleet_plan(hosts, ["a"], [])["errors"]
    assert error["message"] == (
        "a: vllm_secrets: a vault that cannot be opened: its password is missing or wrong; give it with "
        "--ask-vault-pass or --vault-password-file"
    )
    assert len(fleet["hosts"]["a"]["models"]) == 1


def test_unset_models_do_not_remove_what_is_served() -> None:
    one = known()
    one["gaudi_host"]["services"] = live_of(planned(model()))
    del one["vllm_models"]
    fleet = vllm_fleet_plan({"a": one}, ["a"], [])
    assert fleet["hosts"]["a"]["changes"] == []
    assert fleet["errors"][0]["message"] == (
        "a: vllm_models is not set, but this host serves qwq; set vllm_models: [] to remove them all"
    )


def test_host_nics_are_an_inventory_variable() -> None:
    host = gaudi_host(device_name="HL-288", driver_version="1.21.3-57")
    wide = {"gaudi_host": host, "vllm_models": [model(tensor_parallel_size=8)]}
    assert vllm_fleet_plan({"a": known(**wide)}, ["a"], [])["errors"]
    assert not vllm_fleet_plan({"a": known(**wide, gaudi_host_nics="true")}, ["a"], [])["errors"]


@pytest.mark.parametrize(("device", "memory"), [("HL-328", 128), ("HL-388", 128), ("HL-328L", 128), ("HL-225D", 96)])
def test_names_of_other_markets_are_of_their_generation(device: str, memory: int) -> None:
    host = gaudi_host(device_name=device, driver_version="1.21.3-57")
    fleet = vllm_fleet_plan({"a": known(gaudi_host=host)}, ["a"], [])
    assert fleet["errors"] == []
    assert fleet["hosts"]["a"]["models"][0]["memory"]["device_gib"] == memory


def test_devices_that_are_not_known_are_refused_in_one_sentence_or_get_a_family() -> None:
    new, old = (gaudi_host(device_name=device, driver_version="1.21.3-57") for device in ("HL-999X", "HL-205"))
    served = "HL-225, HL-288, HL-325, HL-328, HL-338, HL-388"
    hosts = {
        "a": known(gaudi_host=new),
        "b": known(gaudi_host=old),
        "c": known(gaudi_host=old, gaudi_device_family="HL-325"),
        "d": known(gaudi_device_family="HL-32"),
        # Of a known device the inventory does not decide: a group may have several kinds.
        "e": known(gaudi_device_family="HL-325"),
        "f": known(gaudi_host=new, gaudi_device_family="HL-325"),
    }
    fleet = vllm_fleet_plan(hosts, list(hosts), [])
    assert [error["message"] for error in fleet["errors"]] == [
        f"a: device HL-999X is not known; set gaudi_device_family to its family: {served}",
        f"b: HL-205 is a Gaudi1 card, which is not served here; served are {served}",
        f"c: HL-205 is a Gaudi1 card, which is not served here; served are {served}",
        f"d: gaudi_device_family 'HL-32': must be one of {served}, for a device that is not known",
    ]
    assert "a: model qwq: memory is not checked: the memory of HL-999X is unknown" in fleet["warnings"]
    sizes = {name: fleet["hosts"][name]["models"][0]["memory"]["device_gib"] for name in ("e", "f")}
    assert sizes == {"e": 96, "f": 128}
    # Groups of four, as those of the family have them.
    wide = {"gaudi_host": new, "vllm_models": [model(tensor_parallel_size=8)]}
    assert not vllm_fleet_plan({"a": known(**wide, gaudi_device_family="HL-325")}, ["a"], [])["errors"]
    assert vllm_fleet_plan({"a": known(**wide, gaudi_device_family="HL-288")}, ["a"], [])["errors"]


def test_bad_cards_are_warnings_of_the_plan() -> None:
    host = gaudi_host(driver_version="1.21.3-57")
    host["modules"][3] |= {"in_use": True, "held_by": "python3 (pid 7), which has /dev/accel/accel4 open"}
    host["unusable_cards"] = [{"bus_id": "0000:19:00.0", "problem": "hl-smi does not show it"}]
    host["unusable_cards"] += [{"index": 9, "problem": "why"}, {"problem": "why"}]
    fleet = vllm_fleet_plan({"a": known(gaudi_host=host)}, ["a"], [])
    assert fleet["errors"] == []
    assert [text for text in fleet["warnings"] if "model" not in text] == [
        "a: card 3 is not used: it is used by python3 (pid 7), which has /dev/accel/accel4 open",
        "a: card 0000:19:00.0 is not used: hl-smi does not show it",
        "a: card of index 9 is not used: why",
        "a: a card is not used: why",
    ]
    wrong = vllm_fleet_plan({"a": known(gaudi_host={**host, "unusable_cards": [{"bus_id": "x"}]})}, ["a"], [])
    assert [error["message"] for error in wrong["errors"]] == [
        "a: facts: gaudi_host.unusable_cards[0].problem is missing: it must be a text of one line"
    ]


def test_images_of_another_accelerator_or_release_are_refused() -> None:
    vendor = "vault.habana.ai/gaudi-docker/1.22.0/ubuntu22.04/habanalabs/pytorch-installer-2.6.0:latest"
    for image, entry, allowed in (
        ("cpu:1", {"name": "cpu:1", "build": "cpu"}, "is made for cpu hosts, and this is a gaudi host"),
        (
            vendor,
            {"name": vendor},
            "is of release 1.22.0, but accelerator_release is 1.21.3; both must be of one release",
        ),
    ):
        one = known(vllm_models=[model(image=image)], vllm_images=[entry])
        (error,) = vllm_fleet_plan({"a": one}, ["a"], [])["errors"]
        assert (error["key"], error["allowed"]) == ("image", allowed)


def test_changes_are_the_difference_of_two_plans() -> None:
    before = live_of(planned(model(env={"A": 1, "B": 2}, mounts=[{"source": "/x", "target": "/y"}])))
    assert vllm_plan_changes(planned(model(env={"A": 1, "B": 2}))["models"], {}) == [
        "+ qwq: start on cards 0,1, port 30001"
    ]
    after = planned(model(max_num_seqs=16, env={"A": 3, "C": 4}, enable_auto_tool_choice=True), services=before)
    assert vllm_plan_changes(after["models"], before) == [
        "~ qwq: restart",
        "    - env B: 2",
        "    - mount /y: /x read-only",
        "    ~ env VLLM_DECODE_BS_BUCKET_STEP: 2 -> 1",
        "    ~ env VLLM_DECODE_BS_BUCKET_MAX: 32 -> 16",
        "    ~ env VLLM_DECODE_BLOCK_BUCKET_MAX: 1664 -> 896",
        "    ~ env A: 1 -> 3",
        "    + env C: 4",
        "    ~ --max-num-seqs: 32 -> 16",
        "    + --enable-auto-tool-choice",
    ]


def test_a_supervisor_is_compared_with_the_one_of_this_version() -> None:
    one = planned(model())
    text = (Path(__file__).parents[2] / "roles/vllm_service/files/vllm-supervisor").read_bytes()
    for digest, lines in ((hashlib.sha256(text).hexdigest(), []), ("0", ["replace its supervisor"])):
        live = {name: {**unit, "supervisor": digest} for name, unit in live_of(one).items()}
        found = vllm_plan_changes(one["models"], live, set())
        assert found == [f"~ qwq: {line} (its server keeps running)" for line in lines]


def test_a_variable_that_only_the_supervisor_sets_is_shown_as_a_restart() -> None:
    spec = {"name": "r1", "weights": "/data/R1-G2", "image": "vllm:1", "launch_profile": "deepseek_r1"}
    plan = planned(spec)
    before = live_of(plan)
    before["r1"]["env"] = {**before["r1"]["env"], "HABANA_VISIBLE_DEVICES": "ALL"}
    before["r1"]["digest"] = "of the version before"
    lines = vllm_plan_changes(plan["models"], before)
    assert lines[0] == "~ r1: restart"
    assert "    - env HABANA_VISIBLE_DEVICES: ALL" in lines


def test_models_that_go_stop_or_only_start() -> None:
    live = live_of(planned(model()))
    stopped = planned(model(state="stopped"), services=live)["models"]
    assert vllm_plan_changes(stopped, live) == ["~ qwq: stop"]
    assert vllm_plan_changes([], live) == ["- qwq: stop and remove (it used cards 0,1)"]
    idle = {"qwq": {**live["qwq"], "active": False}}
    assert vllm_plan_changes(planned(model(), services=idle)["models"], idle) == [
        "~ qwq: start on cards 0,1, port 30001"
    ]
    assert vllm_plan_changes(planned(model(), services=live)["models"], live) == []
    assert vllm_plan_changes(stopped, idle) == []


def test_a_live_launch_that_cannot_be_read_is_a_restart_with_everything_new() -> None:
    lines = vllm_plan_changes(planned(model())["models"], {"qwq": {"digest": None, "active": True}})
    assert lines[0] == "~ qwq: restart"
    assert "    + --max-num-seqs: 32" in lines


def test_secrets_of_a_misspelt_model_are_warned_about() -> None:
    one = known(vllm_secrets={"qvq": {"VLLM_API_KEY": "s3cret"}, "elsewhere": {"A": "b"}})
    fleet = vllm_fleet_plan({"a": one}, ["a"], [])
    (warning,) = (text for text in fleet["warnings"] if "vllm_secrets" in text)
    assert warning == "a: vllm_secrets: 'qvq' is not a model of this host; did you mean qwq?"


def test_secrets_that_stay_or_go_because_the_inventory_lacks_them_are_reported() -> None:
    def warnings(gateways: tuple[str, ...] = (), **variables: Any) -> list[str]:
        one = known(**variables)
        one["gaudi_services"]["units"] = {"qwq": {"secret_names": ["HF_TOKEN", "VLLM_API_KEY"]}}
        hosts = {"a": one, **{name: {"fleet_gateway": {}} for name in gateways if name != "a"}}
        one |= {"fleet_gateway": {"clients": {"c": {"key": "k" * 32}}}} if "a" in gateways else {}
        return [text for text in vllm_fleet_plan(hosts, ["a"], [])["warnings"] if "vllm_secrets" in text]

    stays = "a: vllm_secrets: has no entry for qwq, which keeps its stored HF_TOKEN, VLLM_API_KEY"
    way_out = "; set vllm_secrets: {qwq: {}} to withdraw all secrets of the model"
    assert warnings() == warnings(vllm_secrets={}) == [stays + way_out]
    assert warnings(("a",)) == [f"{stays}, also in the gateway{way_out}"]
    goes = "a: vllm_secrets: lacks {} of qwq, so a run withdraws what the host stores"
    assert warnings(vllm_secrets={"qwq": {}}) == [goes.format("HF_TOKEN, VLLM_API_KEY")]
    key = {"VLLM_API_KEY": "s3cret"}
    assert warnings(vllm_secrets={"qwq": key}) == [goes.format("HF_TOKEN")]
    assert warnings(vllm_secrets={"qwq": {**key, "HF_TOKEN": "hf"}}) == []
    # A gateway on another host gives every model a key, and the rest stays.
    assert warnings(vllm_secrets={"qwq": 5}) == [stays + way_out]
    beside = f"{stays.replace(', VLLM_API_KEY', '')}{way_out}"
    assert warnings(("gw",)) == [beside]
    assert warnings(("gw",), vllm_secrets={"qwq": {"VLLM_API_KEY": "derived", BESIDE: True}}) == [beside]


def test_a_gateway_that_the_inventory_has_no_more_is_warned_about() -> None:
    left = known()
    left["gaudi_services"]["gateway"] = True
    warnings = vllm_fleet_plan({"a": left}, ["a"], [])["warnings"]
    assert [
        text for text in warnings if text.startswith("a: gateway: it runs here, but the inventory has no fleet_gateway")
    ]
    left["gaudi_services"]["gateway"] = False
    assert not [text for text in vllm_fleet_plan({"a": left}, ["a"], [])["warnings"] if "gateway" in text]


def test_an_entry_of_the_catalog_is_tried_as_if_every_host_served_it() -> None:
    hosts: dict[str, Any] = {
        "a": known(plan_try="qwen3-8b", vllm_images=[]),
        "b": known(plan_try="qwen3-8b", vllm_models=[model(tensor_parallel_size=8)]),
        "c": known(plan_try=""),
    }
    hosts["a"]["gaudi_host"]["ports"] = {"30002": "nginx (pid 1)"}
    fleet = vllm_fleet_plan(hosts, list(hosts), [BUILTIN])
    assert fleet["errors"] == []
    assert {name: [one["name"] for one in host["models"]] for name, host in fleet["hosts"].items()} == {
        **{"a": ["qwq", "qwen3-8b-tried"], "b": ["qwq"], "c": ["qwq"]}
    }
    tried = fleet["hosts"]["a"]["models"][1]
    assert (tried["port"], tried["image"]) == (30003, hosts["a"]["vllm_models"][0]["image"])
    (why,) = [text for text in fleet["warnings"] if "tried" in text and text.startswith("b: ")]
    assert why.startswith("b: model qwen3-8b-tried: tensor_parallel_size 2: this host has 8 cards, 0 of them free")
    # The plan of a run knows of none.
    assert [text for text in fleet["warnings"] if "tried" in text and text.startswith("c: ")] == []
    for wrong, shown in (("qwen3-8", "'qwen3-8'"), (["qwen3-8b"], '["qwen3-8b"]')):
        (error,) = vllm_fleet_plan({"a": known(plan_try=wrong)}, ["a"], [BUILTIN])["errors"]
        assert error["message"].startswith(f"a: plan_try {shown}: is not an entry of the catalog of this host")


def test_more_servers_than_the_fleet_has_are_warned_of() -> None:
    hosts = {name: known(vllm_models=[model(min_available=2)]) for name in "ab"}
    assert "min_available" not in str(vllm_fleet_plan(hosts, ["a", "b"], [])["warnings"])
    hosts["a"]["vllm_models"] = [model(min_available=3)]
    text = (
        "a: model qwq: min_available 3 is more than the fleet's 2 servers of qwq: a rollout refuses to take any of "
        "them down"
    )
    assert text in vllm_fleet_plan(hosts, ["a", "b"], [])["warnings"]
    # What the hosts that are not planned serve is unknown.
    assert "min_available" not in str(vllm_fleet_plan(hosts, ["a"], [])["warnings"])
    stopped = {**hosts, "b": known(vllm_models=[model(state="stopped")])}
    assert "the fleet's 1 server of qwq" in vllm_fleet_plan(stopped, ["a", "b"], [])["warnings"][-1]
