"""Facts and variables of a wrong shape: the exact sentence each gets, and never a traceback."""

from __future__ import annotations

import ast
import copy
import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import shown
from gaudi_serve.host.observe_host import existing, weights, weights_read
from gaudi_serve.host.observe_weights import folder
from gaudi_serve.host.weights_names import MANIFEST
from gaudi_serve.inventory.facts import checked_host
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.fleet import gaudi_facts_saved, vllm_fleet_lines, vllm_fleet_plan
from gaudi_serve.platforms import PLATFORMS
from helpers.plans import QWQ, gaudi_host, known, live_of, model, planned
from helpers.standin_host import STANDINS, Host
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jinja2 import TemplateError

CASES = yaml.safe_load(Path(__file__).with_name("facts.yml").read_text(encoding="utf-8"))
HAND = {
    "accelerator": "gaudi",
    "device_name": "HL-225",
    "modules": [{"module_id": n, "numa_node": n // 4} for n in range(8)],
}


def put(into: Any, path: str, value: Any) -> None:
    """Set what lies at a dotted path; null takes it away."""
    *parents, last = [int(part) if part.isdigit() else part for part in path.split(".")]
    for part in parents:
        into = into[part]
    if value is None:
        del into[last]
    else:
        into[last] = value


def told(case: dict[str, Any], folder: Path) -> list[str]:
    """Return the messages that a host gets from saved facts, beside a good host that is planned all the same."""
    one = known()
    one["gaudi_host"]["services"] = live_of(planned(model()))
    facts = copy.deepcopy(gaudi_facts_saved(one))
    for path, value in case.get("facts", {}).items():
        put(facts, path, value)
    (folder / "a.json").write_bytes(str(case.get("text", json.dumps(facts))).encode(case.get("encoding", "utf-8")))
    (folder / "b.json").write_text(json.dumps(HAND))
    usual = {"vllm_models": [model()], "accelerator_release": "1.21.3"}
    variables = {"a": {**usual, **case.get("variables", {})}, "b": usual}
    fleet = vllm_fleet_plan(variables, ["a", "b"], [], str(folder))
    assert len(fleet["hosts"]["b"]["models"]) == 1
    assert all(error["host"] == "a" and error["key"] for error in fleet["errors"])
    return [error["message"].replace(str(folder), "FOLDER") for error in fleet["errors"]]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["messages"][0][:60])
def test_a_mistake_is_one_sentence(case: dict[str, Any], tmp_path: Path) -> None:
    assert told(case, tmp_path) == case["messages"]


def test_a_good_host_gets_no_report(tmp_path: Path) -> None:
    assert told({}, tmp_path) == []


def test_what_facts_by_hand_may_leave_out() -> None:
    host, problems = checked_host(HAND)
    assert problems == []
    card = {"module_id": 7, "numa_node": 1, "index": 7, "cpus": [], "in_use": False, "held_by": None, "problem": None}
    assert {key: host["modules"][7][key] for key in card} == card
    empty = {"services": {}, "ports": {}, "weights": {}, "problem": None, "host_nics": False}
    assert {key: host[key] for key in empty} == empty
    assert (host["ip"], host["interface"], "driver_version" in host) == ("127.0.0.1", "lo", False)
    assert set(HAND["modules"][0]) == {"module_id", "numa_node"}, "what was given is not changed"
    assert checked_host({"accelerator": "cpu"})[0]["modules"] == []


def test_what_is_observed_is_taken_as_it_is() -> None:
    silent = {"device_name": None, "driver_version": None, "memory_mib": 0, "modules": [], "problem": ["no device"]}
    assert checked_host({"accelerator": "gaudi", **silent})[1] == []
    services = live_of(planned(model()))
    services["old"] = {"module_ids": [0], "port": None, "digest": None, "active": False, "launch": {}, "env": {}}
    host = gaudi_host(services=services, ports={"22": "sshd (pid 1)"}, weights={"/m": None})
    found, problems = checked_host(host)
    assert problems == []
    assert {key: found["services"]["qwq"][key] for key in services["qwq"]} == services["qwq"]
    assert found["weights"] == {"/m": None}


def test_everything_that_gaudi_facts_reads_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUDI_SIM_ROOT", str(Host(tmp_path).root))
    monkeypatch.setenv("PATH", f"{STANDINS}:/usr/bin:/bin")
    folder = tmp_path / "qwq"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWQ))
    module = (Path(__file__).parents[2] / "library/gaudi_facts.py").read_text(encoding="utf-8")
    keep = ast.literal_eval(re.search(r"keep = (\(.*\))", module)[1])  # type: ignore[index]
    service = {**dict.fromkeys(keep), "holds": False}
    read = {
        "accelerator": "gaudi",
        **PLATFORMS["gaudi"].observe(),
        "weights": weights([str(folder)]),
        "services": {"qwq": service},
    }
    assert len(read["modules"]) == 8 and read["weights"][str(folder)]
    assert checked_host(read)[1] == []


def test_weights_of_mistrals_own_format_are_described_by_their_parameters(tmp_path: Path) -> None:
    params = {
        **{"dim": 7168, "n_layers": 61, "hidden_dim": 16384, "n_heads": 128, "n_kv_heads": 128, "kv_lora_rank": 512},
        **{"max_position_embeddings": 294912, "moe": {"num_experts": 128, "expert_hidden_dim": 4096}},
        "quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "TENSOR"},
    }
    (tmp_path / "params.json").write_text(json.dumps(params), encoding="utf-8")
    (tmp_path / "consolidated-00001-of-00001.safetensors").write_bytes(b"12345678")
    found = weights([str(tmp_path)])[str(tmp_path)]
    assert found["bytes"] == 8
    assert found["config"] == {
        **{"hidden_size": 7168, "num_hidden_layers": 61, "intermediate_size": 16384, "num_attention_heads": 128},
        **{"num_key_value_heads": 128, "kv_lora_rank": 512, "max_position_embeddings": 294912, "num_experts": 128},
        **{"moe_intermediate_size": 4096, "quantization_config": {"quant_method": "fp8"}},
    }
    assert folder(tmp_path)["config"] is True
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2}', encoding="utf-8")
    assert weights([str(tmp_path)])[str(tmp_path)]["config"] == {"num_hidden_layers": 2}


def test_the_record_of_a_folder_gives_a_digest_of_its_checksums(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    files = {"a.safetensors": {"size": 1, "sha256": "aa", "mtime_ns": 1}}

    def content(**record: Any) -> Any:
        (tmp_path / ".gaudi-serve-weights.json").write_text(json.dumps({"files": files, **record}), encoding="utf-8")
        return weights([str(tmp_path)])[str(tmp_path)]["content"]

    first = content(source={"kind": "hub"})
    assert first and content(source={"kind": "path"}) == first
    assert content(source={"kind": "hub", "convert": "g2"}) is None
    assert content(files={"a.safetensors": {**files["a.safetensors"], "mtime_ns": 2}}) == first
    assert content(files={"a.safetensors": {**files["a.safetensors"], "sha256": "ab"}}) not in (first, None)
    assert content(files={"a.safetensors": {"size": 1, "sha256": None}}) is None
    assert content(files=[]) is None
    (tmp_path / ".gaudi-serve-weights.json").unlink()
    assert weights([str(tmp_path)])[str(tmp_path)]["content"] is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"num_hidden_layers": 2, "hid', "line 1, column 26: Unterminated string starting at"),
        ("[" * 100_000, "must be nested at most 20 levels deep, with numbers below 10^15"),
        ('{"a": ' * 30 + "1" + "}" * 30, "must be nested at most 20 levels deep, with numbers below 10^15"),
        ('{"a": 1' + "0" * 20 + "}", "must be nested at most 20 levels deep, with numbers below 10^15"),
        ('{"a": NaN}', "must be nested at most 20 levels deep, with numbers below 10^15"),
        ("[1]", "must be a JSON object"),
        ("", "line 1, column 1: Expecting value"),
    ],
)
def test_a_config_json_that_cannot_be_read_is_named_and_takes_nothing_else_down(
    tmp_path: Path, text: str, why: str
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for path, content in ((good, '{"num_hidden_layers": 2}'), (bad, text)):
        path.mkdir()
        (path / "config.json").write_text(content, encoding="utf-8")
    paths = [str(good), str(bad), str(tmp_path / "none")]
    found, unread = weights_read(paths)
    assert found == weights(paths)
    assert [found[path] and found[path]["config"] for path in paths] == [{"num_hidden_layers": 2}, None, None]
    assert unread == {str(bad): f"config.json: {why}"}
    assert "config" in folder(bad)


def test_cards_without_cores_or_a_node_are_bound_to_none() -> None:
    alone = [{"module_id": n, "numa_node": -1, "cpus": ["0-79"] if n else ["3", "5-9"]} for n in range(8)]
    for modules in (HAND["modules"], alone):
        fleet = vllm_fleet_plan({"a": known(gaudi_host={**HAND, "modules": modules})}, ["a"], [])
        assert len(fleet["hosts"]["a"]["models"]) == 1
        assert fleet["warnings"][0] == "a: facts: no card has cpus and a numa_node, so no model is bound to cores"
    one = planned(model(), modules=[{**module, "in_use": False} for module in alone])["models"][0]
    assert (one["numactl"], one["cpus"]) == (None, None)


def test_folders_without_facts(tmp_path: Path) -> None:
    def first(folder: Any, **more: Any) -> str:
        message: str = vllm_fleet_plan({"a": {"vllm_models": [], **more}}, ["a"], [], folder)["errors"][0]["message"]
        return message.replace(str(tmp_path), "FOLDER")

    save = "save them with playbooks/plan.yml -e plan_save_facts_dir=FOLDER{} on a run that reaches the hosts"
    save += ", or write them by hand (docs/guides/planning.md)"
    assert first(str(tmp_path)) == f"a: no saved facts FOLDER/a.json; {save.format('')}"
    nowhere = f"{tmp_path}/nowhere"
    assert (
        first(nowhere) == f"a: plan_facts_dir FOLDER/nowhere: no such folder of saved facts; {save.format('/nowhere')}"
    )
    empty = "must be the folder of saved facts; leave it out to read the hosts"
    assert first("", plan_facts_dir="") == f"a: plan_facts_dir '': {empty}"
    assert first(["x"], plan_facts_dir=["x"]) == f'a: plan_facts_dir ["x"]: {empty}'
    assert first("") == "a: could not be read; see above, or plan it from saved facts (plan_facts_dir)"
    for text in ("[" * 100_000, f'{{"accelerator": {"1" * 5000}}}'):
        (tmp_path / "a.json").write_text(text)
        unread = "no facts: the file is not UTF-8, or its numbers or its nesting are too large"
        assert first(str(tmp_path)) == f"a: FOLDER/a.json: {unread}"
    (tmp_path / "a.json").unlink()
    (tmp_path / "a.json").mkdir()
    assert first(str(tmp_path)) == "a: FOLDER/a.json: Is a directory"


def test_models_with_mistakes_are_not_reported_to_be_removed() -> None:
    one = known(vllm_models=[model(port=0)])
    one["gaudi_host"]["services"] = {**live_of(planned(model())), **live_of(planned(model(name="gone")))}
    fleet = vllm_fleet_plan({"a": one}, ["a"], [])
    assert [error["key"] for error in fleet["errors"]] == ["port"]
    assert fleet["hosts"]["a"]["changes"] == ["- gone: stop and remove (it used cards 0,1)"]
    assert vllm_plan_changes([], live_of(planned(model())), ["qwq", None]) == []


def test_values_are_shown_short_and_on_one_line() -> None:
    assert shown("a\nb") == r"'a\nb'"
    assert shown({"a": True}) == '{"a": true}'
    assert shown(["\u2028"]).isprintable()
    assert len(shown(list(range(100)))) == 83
    for user in ("https://u:s3cret@", "https://s3cret@", "u:s3cret@", "https://u:s3/cr@et:s3cret@", "x:u:s3cret@"):
        assert shown(f"deb {user}apt.example/x y").endswith("***@apt.example/x y'")
        assert "s3" not in shown({"uris": [f"{user}apt.example:5000/x", "b"]})
        assert '"b"' in shown({"uris": [f"{user}apt.example:5000/x", "b"]})
    for text in (f"a.example:5000/x:1@sha256:{'0' * 30}", "git@a.example:x"):
        assert shown(text) == repr(text)
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert shown(deep) == "a value of type list"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["0-39", "1", "cpu"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)
VARIABLES = (
    *("vllm_models", "vllm_images", "vllm_model_defaults", "vllm_catalog_dirs", "vllm_secrets", "preflight_catalog"),
    *("accelerator", "accelerator_cards", "accelerator_release", "gaudi_host_nics", "gaudi_device_family"),
    *("gaudi_runtime", "plan_facts_dir"),
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every part of a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *[found for key, part in inner for found in places(part, (*path, key))]]


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a value in which the part at a path is another one."""
    if not path:
        return new
    parts = dict(value) if isinstance(value, dict) else list(value)
    parts[path[0]] = replaced(value[path[0]], path[1:], new)
    return parts


def served() -> dict[str, Any]:
    """Return the facts of a host that serves a model."""
    one = known()
    one["gaudi_host"]["services"] = live_of(planned(model()))
    return json.loads(json.dumps(gaudi_facts_saved(one)))  # type: ignore[no-any-return]


FACTS = served()
PLACES = st.sampled_from(places(FACTS))


@settings(max_examples=300, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(PLACES, JSON), max_size=2), st.dictionaries(st.sampled_from(VARIABLES), JSON, max_size=2))
def test_no_facts_and_no_variables_make_a_plan_raise(
    changes: list[tuple[tuple[Any, ...], Any]], variables: dict[str, Any]
) -> None:
    facts = FACTS
    for path, value in changes:
        if path in places(facts):
            facts = replaced(facts, path, value)
    one = {"vllm_models": [model()], **(facts if isinstance(facts, dict) else {"gaudi_host": facts}), **variables}
    fleet = vllm_fleet_plan({"a": one, "b": known()}, ["a", "b"], [])
    assert fleet["hosts"]["b"]["models"]
    for error in fleet["errors"]:
        assert error["host"] == "a" and error["message"].startswith("a: ")
        assert error["message"].isprintable(), error
    assert vllm_fleet_lines(fleet)


class Templates(dict[str, Any]):
    """As Ansible gives a mapping: what has a template is rendered when it is read, which may fail."""

    def __getitem__(self, key: str) -> Any:
        if super().__getitem__(key) == "{{ no_such }}/x":
            raise TemplateError("Ansible's words") from ValueError("'no_such' is undefined")
        return super().__getitem__(key)


@pytest.mark.parametrize(
    ("variable", "value", "model", "key", "place"),
    [
        ("vllm_models", [{"name": "a"}, Templates(name="m", image="{{ no_such }}/x")], "m", "image", "model m: image"),
        ("vllm_models", [{"name": "m", "env": Templates(A="{{ no_such }}/x")}], "m", "env.A", "model m: env.A"),
        ("vllm_models", [Templates(name="{{ no_such }}/x")], None, "name", "vllm_models[0].name"),
        (
            "vllm_model_defaults",
            Templates(image="{{ no_such }}/x"),
            None,
            "vllm_model_defaults",
            "vllm_model_defaults.image",
        ),
        (
            "preflight_catalog",
            {"b": Templates(image="{{ no_such }}/x")},
            None,
            "preflight_catalog",
            "preflight_catalog.b.image",
        ),
    ],
)
def test_what_has_no_value_is_reported_with_its_model_and_key(
    variable: str, value: Any, model: str | None, key: str, place: str
) -> None:
    known_ = known(**{variable: value})
    (error,) = vllm_fleet_plan({"a": known_}, ["a"], [])["errors"]
    sentence = f"a: {place}: 'no_such' is undefined; set it for this host, or write the value itself"
    assert (error["model"], error["key"], error["message"]) == (model, key, sentence)
    assert inventory_refusal(known_, "a") == [sentence]


def test_a_list_that_holds_itself_twice_ends() -> None:
    models: list[Any] = []
    models += [models, models]
    (error,) = vllm_fleet_plan({"a": known(vllm_models=models)}, ["a"], [])["errors"]
    assert error["message"].startswith("a: vllm_models: maximum recursion depth exceeded")


def test_a_path_at_which_nobody_can_look_is_no_file(tmp_path: Path) -> None:
    # The kernel refuses to look, as a share does that lets no root of another host in.
    refused = f"{tmp_path}/{'long' * 100}"
    assert existing([str(tmp_path), refused, f"{tmp_path}/x"]) == {
        str(tmp_path): True,
        refused: False,
        f"{tmp_path}/x": False,
    }


def test_a_shard_that_is_missing_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWQ), encoding="utf-8")
    index = {"weight_map": {f"w{number}": f"model-{number}.safetensors" for number in (1, 2, 3)}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")

    def reasons() -> list[str]:
        found = weights([str(tmp_path)])
        plan = planned(model(weights=str(tmp_path)), weights=found)
        return [one["allowed"] for one in plan["errors"] if one["key"] == "weights"]

    # Empty tensors, other types, and metadata without a value are complete files; so are files of another index.
    tensors = {"__metadata__": None, "w": {"dtype": "F8_E8M0", "shape": [8], "data_offsets": [0, 8]}}
    tensors["scaled_fp8"] = {"dtype": "F4", "shape": [0], "data_offsets": [8, 8]}
    header = json.dumps(tensors).encode()
    complete = struct.pack("<Q", len(header)) + header + bytes(8)
    (tmp_path / "consolidated.safetensors").write_bytes(complete)
    assert reasons() == []
    for number in (1, 2):
        (tmp_path / f"model-{number}.safetensors").write_bytes(complete)
    assert reasons() == ["is damaged: model-3.safetensors is missing. Copy these files again"]
    (tmp_path / "model-3.safetensors").write_bytes(complete)
    assert reasons() == []


def test_a_weight_file_that_is_not_complete_is_an_error(tmp_path: Path) -> None:
    header = json.dumps({"__metadata__": {"a": "b"}, "w": {"dtype": "BF16", "shape": [4], "data_offsets": [0, 8]}})
    whole = struct.pack("<Q", len(header)) + header.encode() + bytes(8)
    (tmp_path / "config.json").write_text(json.dumps(QWQ), encoding="utf-8")
    shard = tmp_path / "model-1.safetensors"
    shard.write_bytes(whole)
    (tmp_path / "model-2.safetensors").write_text("no header that anybody knows", encoding="utf-8")

    def reasons() -> list[str]:
        found = weights([str(tmp_path)])
        plan = planned(model(weights=str(tmp_path)), weights=found)
        return [one["allowed"] for one in plan["errors"] if one["key"] == "weights"]

    assert reasons() == []
    for size in (len(whole) - 1, len(header)):
        shard.write_bytes(whole[:size])
        assert len(reasons()) == 1
        needs = len(whole) if size > len(header) else 8 + len(header)
        assert f"model-1.safetensors has {size} bytes, and its header needs {needs}" in reasons()[0]
    shard.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", encoding="utf-8")
    assert "model-1.safetensors is a pointer of git-lfs, not the file itself" in reasons()[0]
    for content, reason in ((b"", "is empty"), (bytes(64), "has 64 bytes, and begins with zeros")):
        shard.write_bytes(content)
        assert f"is damaged: model-1.safetensors {reason}. Copy" in reasons()[0]
    shard.unlink()
    shard.symlink_to("../../blobs/abc")
    assert "model-1.safetensors is a link to a file that does not exist" in reasons()[0]
    # The record of a folder that a run has fetched has the sizes of its files, which another stage compares.
    (tmp_path / MANIFEST).write_text("{}", encoding="utf-8")
    assert reasons() == []
