"""From a plan to files, and from what is live to what is left to do."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.core import images
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.paths import vllm_unit_paths
from gaudi_serve.core.run import Result
from gaudi_serve.host import observe_services
from gaudi_serve.host.adopt import adopt
from gaudi_serve.host.observe_host import Listener
from gaudi_serve.host.secret import BESIDE
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.stages import image, service
from helpers.plans import gaudi_host, live_of, model, planned
from helpers.services import SUPERVISOR, TEMPLATE, changes, digest, live


@pytest.fixture
def models() -> list[dict[str, Any]]:
    """Return two planned models."""
    plan = planned(model(), model(name="two", port=30002, tensor_parallel_size=1))
    assert plan["errors"] == []
    result: list[dict[str, Any]] = plan["models"]
    return result


def test_nothing_to_do_where_all_is_as_planned(models: list[dict[str, Any]]) -> None:
    found = changes(models, live(models))
    assert not found.pop("due")
    assert not any(found.values())


def test_virgin_host_gets_everything(models: list[dict[str, Any]]) -> None:
    found = changes(models, {"units": {}, "supervisor_sha256": None})
    assert found["start"] == found["wait"] == found["smoke"] == ["qwq", "two"]
    assert len(found["write"]) == 6
    assert found["supervisor"]
    assert found["reload"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"container": {"running": True, "digest": "old", "secret_mtime": ""}}, {"restart": ["qwq"], "wait": ["qwq"]}),
        ({"state": "failed", "container": None, "smoke": None}, {"start": ["qwq"], "wait": ["qwq"]}),
        ({"enabled": False}, {"start": ["qwq"]}),
        ({"state": "activating", "container": None, "smoke": None}, {"start": [], "restart": [], "wait": ["qwq"]}),
        (
            {"state": "activating", "container": None, "status": "failed before; next try in 80 s"},
            {"start": [], "restart": ["qwq"], "wait": ["qwq"]},
        ),
        # As after the boot of a run that changes the model later on: it would make the container of before.
        ({"state": "activating", "container": None, "digest": "old"}, {"restart": ["qwq"], "wait": ["qwq"]}),
        # After a power cut the old container is there still, with what it has answered; its unit makes a new one.
        (
            {"state": "activating", "container": {"running": False}, "supervisor": "unknown"},
            {"restart": [], "adopt": ["qwq"], "wait": ["qwq"], "smoke": ["qwq"]},
        ),
        ({"smoke": None}, {"start": [], "restart": [], "smoke": ["qwq"]}),
        ({"env_sha256": "x"}, {"start": [], "restart": [], "reload": False}),
        ({"unit_sha256": "x"}, {"start": [], "restart": [], "reload": True}),
    ],
)
def test_only_what_differs_is_done(models: list[dict[str, Any]], changed: Any, expected: Any) -> None:
    found = changes(models, live(models, **changed))
    assert found["due"]
    assert {key: found[key] for key in expected} == expected
    assert "two" not in found["start"] + found["restart"] + found["stop"]


def test_changed_model_is_restarted_alone(models: list[dict[str, Any]]) -> None:
    before = live(models)
    after = planned(model(max_num_seqs=8), model(name="two", port=30002, tensor_parallel_size=1))["models"]
    assert changes(after, before)["restart"] == ["qwq"]


def test_removed_and_stopped_models(models: list[dict[str, Any]]) -> None:
    found = changes(models[1:], live(models))
    assert (found["remove"], found["restart"], found["reload"]) == (["qwq"], [], True)
    stopped = [{**models[0], "state": "stopped"}, models[1]]
    assert changes(stopped, live(models))["stop"] == ["qwq"]
    assert changes(stopped, live(models, state="inactive", enabled=False, container=None))["stop"] == []


def test_a_secret_that_is_newer_than_its_container_restarts_it(models: list[dict[str, Any]]) -> None:
    same = {"running": True, "digest": models[0]["digest"], "secret_mtime": "5.0"}
    assert changes(models, live(models, secret_mtime=5.0, container=same))["restart"] == []
    assert changes(models, live(models, secret_mtime=6.0, container=same))["restart"] == ["qwq"]


def test_a_container_that_was_started_with_an_edited_environment_is_seen(models: list[dict[str, Any]]) -> None:
    planned_env = digest(service.vllm_service_files(models, TEMPLATE)["/etc/gaudi-serve/qwq.env"]["content"])
    for env, restart in ((planned_env, []), ("edited", ["qwq"]), (None, [])):
        container = {"running": True, "digest": models[0]["digest"], "secret_mtime": "", "env_sha256": env}
        state = live(models, container=container)
        found = changes(models, state)
        assert found["restart"] == restart, env
        drift = service.vllm_service_drift(found, state, models)
        assert drift == ["model qwq: runs with an environment that was edited on the host"] * len(restart)
        services = live_of({"models": models})
        services["qwq"]["env_sha256"] = env
        lines = vllm_plan_changes(models, services)
        assert lines == (
            ["~ qwq: restart", "    its environment is not the planned one: its file was edited before its start"]
            if restart
            else []
        )


def test_limits_that_were_set_in_a_running_container_restart_it(models: list[dict[str, Any]]) -> None:
    container = {"running": True, "digest": models[0]["digest"], "secret_mtime": "", "limits": ["NanoCpus"]}
    state = live(models, container=container)
    found = changes(models, state)
    assert found["restart"] == ["qwq"]
    drift = service.vllm_service_drift(found, state, models)
    assert drift == ["model qwq: runs with limits that were set with docker update: NanoCpus"]
    services = live_of({"models": models})
    services["qwq"]["limits"] = ["NanoCpus"]
    lines = vllm_plan_changes(models, services)
    assert lines == ["~ qwq: restart", "    - NanoCpus that was set with docker update"]


def test_a_setting_of_the_supervisor_is_announced_with_both_values(models: list[dict[str, Any]]) -> None:
    live_launch = {"hang_timeout_s": 900, "start_timeout_s": models[0]["start_timeout_s"]}
    text = f"hang_timeout_s: 900 -> {models[0]['hang_timeout_s']}"
    assert service.setting_changes(live_launch, models[0]) == [text]
    assert service.setting_changes({}, models[0]) == []
    state = live(models, launch=live_launch, launch_sha256="x")
    found = changes(models, state)
    assert (found["restart"], found["due"]) == ([], True)
    assert service.vllm_service_drift(found, state, models) == [f"model qwq: {text}"]
    services = live_of({"models": models})
    services["qwq"]["launch"] = {**services["qwq"]["launch"], **live_launch}
    assert vllm_plan_changes(models, services) == [f"~ qwq: {text} (its server keeps running)"]


def test_a_paused_container_is_resumed_and_not_restarted(models: list[dict[str, Any]]) -> None:
    container = {"running": True, "paused": True, "digest": models[0]["digest"], "secret_mtime": ""}
    state = live(models, container=container)
    found = changes(models, state)
    assert (found["unpause"], found["wait"], found["restart"], found["due"]) == (["qwq"], ["qwq"], [], True)
    assert service.vllm_service_drift(found, state, models) == ["model qwq: its container is paused"]
    assert "resume the paused container of qwq" in service.vllm_service_summary(found)
    container["digest"] = "old"
    assert changes(models, live(models, container=container))["unpause"] == []


def test_a_container_that_runs_without_its_stopped_unit_is_removed(models: list[dict[str, Any]]) -> None:
    models[0]["state"] = "stopped"
    container = {"running": True, "digest": models[0]["digest"], "secret_mtime": ""}
    off = {"state": "inactive", "enabled": False}
    assert changes(models, live(models, **off, container=container))["orphans"] == ["vllm-qwq"]
    renamed = {**container, "renamed": "mine"}
    assert changes(models, live(models, **off, container=renamed))["orphans"] == ["mine"]
    assert changes(models, live(models, **off, container={**container, "running": False}))["orphans"] == []


def test_launch_file_and_unit(models: list[dict[str, Any]]) -> None:
    files = service.vllm_service_files(models, TEMPLATE)
    launch = json.loads(files["/etc/gaudi-serve/qwq.json"]["content"])
    assert launch["command"][:7] == ["numactl", "-C", "0-9,10-19", "-p", "0", "python3", "-m"]
    assert launch["module_ids"] == [0, 1]
    unit = files["/etc/systemd/system/vllm-qwq.service"]["content"]
    assert f"TimeoutStartSec={models[0]['start_timeout_s']}\n" in unit
    assert "X-Gaudi-Serve=qwq\n" in unit
    assert "RequiresMountsFor=/data/QwQ-32B\n" in unit
    assert "\nRequires=docker" not in unit
    assert files["/etc/gaudi-serve/qwq.env"]["mode"] == "0640"
    assert "HABANA_VISIBLE_MODULES=0,1\n" in files["/etc/gaudi-serve/qwq.env"]["content"]


def test_broken_template_is_named(models: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match=r"qwq: the unit's template cannot be rendered: .*nonsense"):
        service.vllm_service_files(models, "{{ nonsense }}")


def test_secret_files_are_those_of_this_hosts_models(models: list[dict[str, Any]]) -> None:
    secrets = {"qwq": {"VLLM_API_KEY": "s3cret"}, "elsewhere": {"A": "b"}}
    (file,) = service.vllm_secret_files(secrets, models)
    assert file == {
        "path": "/etc/gaudi-serve/qwq.secret",
        "content": "VLLM_API_KEY=s3cret\n",
        "mode": "0600",
        "stored": False,
    }
    (file,) = service.vllm_secret_files({"qwq": {"VLLM_API_KEY": "s3cret", BESIDE: True}}, models)
    assert (file["content"], file["stored"]) == ("VLLM_API_KEY=s3cret\n", True)
    # Only a gateway adds it; a user's key of that name is no variable.
    assert service.secrets_refusal({"qwq": {"VLLM_API_KEY": "s3cret", BESIDE: True}}) == []
    (refused,) = service.secrets_refusal({"qwq": {BESIDE: "yes"}}, "gaudi01")
    assert "is not a name of a variable" in refused


def test_withdrawn_secret_is_removed(models: list[dict[str, Any]]) -> None:
    state = live(models, secret_mtime=5.0)
    assert service.vllm_withdrawn_secrets(state, {"qwq": {}}) == ["/etc/gaudi-serve/qwq.secret"]
    assert service.vllm_withdrawn_secrets(state, {"qwq": {"A": "b"}}) == []
    with_secret = {"running": True, "digest": models[0]["digest"], "secret_mtime": "5.0"}
    assert changes(models, live(models, container=with_secret))["restart"] == ["qwq"]


@pytest.mark.parametrize(
    ("secrets", "message"),
    [
        ("s3cret", "gaudi01: vllm_secrets: must be a mapping of models"),
        ({"qwq": "s3cret"}, "gaudi01: vllm_secrets: qwq: must be a mapping of environment variables"),
        ({"qwq": {"A B": "s3cret"}}, "gaudi01: vllm_secrets: qwq: 'A B' is not a name of a variable"),
        ({"qwq": {"A": "s3cret\nB=1"}}, "gaudi01: vllm_secrets: qwq: A must be one line of printable text"),
        (
            {"qwq": {"A": ""}},
            "gaudi01: vllm_secrets: qwq: A must be not empty; to withdraw all secrets of a model, give it {}",
        ),
    ],
)
def test_wrong_secrets_are_named_but_never_shown(secrets: Any, message: str) -> None:
    assert service.secrets_refusal(secrets, "gaudi01") == [message]
    assert "s3cret" not in message


def test_containers_without_a_unit_and_a_missed_reload_are_found(models: list[dict[str, Any]]) -> None:
    state = {**live(models, need_reload=True), "orphans": ["vllm-gone"]}
    found = changes(models, state)
    assert (found["orphans"], found["reload"], found["due"]) == (["vllm-gone"], True, True)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vllm", "vllm:latest"),
        ("docker.io/library/debian:12", "debian:12"),
        ("reg.example.net:5000/vllm", "reg.example.net:5000/vllm:latest"),
        ("reg.example.net/vllm@sha256:ab", "reg.example.net/vllm@sha256:ab"),
    ],
)
def test_image_names_are_compared_as_the_engine_lists_them(name: str, expected: str) -> None:
    assert images.image_name(name) == expected
    assert image.missing_images([{"name": name}], {expected: "id"}) == []
    assert image.missing_images([{"name": name}], {}) == [{"name": name}]
    assert (images.vllm_image_id({expected: "id"}, name), images.vllm_image_id({}, name)) == ("id", None)


def test_small_helpers(models: list[dict[str, Any]]) -> None:
    assert service.vllm_api_keys({"a": {"VLLM_API_KEY": "k"}, "b": {"HF_TOKEN": "t"}}) == {"a": "k"}
    assert list(service.vllm_start_limits(models, ["two"])) == ["two"]
    assert {"/etc/gaudi-serve/a.secret", "/var/lib/gaudi-serve/a/ends.json"} <= set(vllm_unit_paths(["a"]))
    summary = service.vllm_service_summary(changes(models, {"units": {}, "supervisor_sha256": None}))
    assert "start qwq" in summary
    assert "write the supervisor" in summary


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"state": "inactive", "smoke": None}, ["model qwq: not running"]),
        ({"enabled": False}, ["model qwq: does not start at boot"]),
        ({"smoke": None}, ["model qwq: has not answered its smoke test since its last start"]),
        (
            {"env_sha256": "x", "container": {"running": True, "digest": "x"}, "smoke": None},
            ["model qwq: its environment differs from the plan", "model qwq: runs as it was planned before"],
        ),
    ],
)
def test_drift_of_a_model_in_words(models: list[dict[str, Any]], changed: dict[str, Any], expected: list[str]) -> None:
    state = live(models, **changed)
    assert service.vllm_service_drift(changes(models, state), state) == expected


def test_drift_of_models_that_are_not_there_or_not_planned(models: list[dict[str, Any]]) -> None:
    state = {**live(models), "orphans": ["vllm-old"]}
    del state["units"]["two"]
    models[0]["state"] = "stopped"
    assert service.vllm_service_drift(changes(models, state), state) == [
        "container vllm-old: runs without a unit",
        "model two: has no unit",
        "model qwq: runs, planned stopped",
    ]
    assert "model qwq: exists, but is not planned" in service.vllm_service_drift(changes([], state), state)


def test_images_of_an_engine_that_does_not_answer_are_not_known() -> None:
    missing = [{"name": "a:1"}, {"name": "b:1"}]
    assert image.image_drift(missing, {"info": None}) == ["not known, the Docker engine does not answer"]
    assert image.image_drift(missing, {"info": {"a": 1}}) == ["a:1 is missing", "b:1 is missing"]


def test_one_model_of_a_fleet_is_named_or_refused() -> None:
    fleet = {"a": {"gaudi_services": {"units": {"tiny": {}, "qwq": {}}}}, "b": {"gaudi_services": {"units": {}}}}
    assert service.model_refusal("qwq", fleet, ["a", "b"], {"lines": "200", "restart_timeout": 7200}) == []
    assert service.model_refusal(None, fleet, ["a", "b"]) == [
        "-e model=NAME is missing: the name of one model; a: its models are qwq, tiny"
    ]
    assert service.model_refusal("x;id", fleet, ["a"]) == ["model 'x;id': no host has it; a: its models are qwq, tiny"]
    assert service.model_refusal("qw", fleet, ["a"])[0].endswith("; did you mean qwq?")
    assert service.model_refusal("qwq", fleet, ["b"]) == ["model 'qwq': no host has it; no model is served on b"]
    assert service.model_refusal("qwq", fleet, ["a"], {"lines": "all", "restart_timeout": "0"}) == [
        "lines must be an integer from 1 to 9999999; it is 'all'",
        "restart_timeout must be an integer from 1 to 9999999; it is '0'",
    ]


def test_a_server_that_came_back_between_two_looks_is_no_foreign_program(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    answer = Result(0, "vllm-back\n", "")

    def docker(argv: list[str]) -> Result:
        asked.append(argv)
        return answer

    monkeypatch.setattr(observe_services, "run", docker)
    units: dict[str, Any] = {
        "up": {"active": True, "state": "active", "container": {"running": True}},
        "warms-up": {"active": False, "state": "activating", "container": {"running": True}},
    }
    assert observe_services.holding(units) == {"up", "warms-up"}
    assert asked == [], "only where something is down"
    units |= {name: {"active": False, "state": "activating", "container": None} for name in ("back", "waits")}
    units["down"] = {"active": False, "state": "inactive", "container": {"running": False}}
    assert observe_services.holding(units) == {"up", "warms-up", "back"}
    # A dead engine reports of no container whether it runs.
    answer = Result(1, "", "Cannot connect to the Docker daemon")
    assert observe_services.holding(units) == {"up", "warms-up", "back", "waits"}


def test_a_full_disk_is_reported_before_anything_restarts() -> None:
    live = {"free": {"/etc/gaudi-serve": 10 * service.ROOM, "/var/lib/gaudi-serve": 4096}}
    assert service.vllm_service_refusal({"due": True}, live, "h") == [
        "h: /var/lib/gaudi-serve: 4 KiB are free there, and 1024 KiB are required: units, environments and results of "
        "smoke tests are written below it"
    ]
    # Who writes nothing needs no room.
    assert service.vllm_service_refusal({"due": False}, live, "h") == []
    assert service.vllm_service_refusal({"due": True}, {}, "h") == []


NEWER = "2" * 64


def test_a_new_supervisor_reaches_what_serves_and_restarts_nothing(models: list[dict[str, Any]]) -> None:
    current = digest(SUPERVISOR)
    state = live(models, supervisor="of an older release")
    state["units"]["two"]["supervisor"] = current
    found = changes(models, state)
    assert {key: value for key, value in found.items() if value} == {"adopt": ["qwq"], "wait": ["qwq"], "due": True}
    assert service.vllm_service_summary(found) == ["replace the supervisor of qwq: its server keeps running"]
    assert service.vllm_service_drift(found, state) == [
        "model qwq: its supervisor is of another version; the next run replaces it, and the server keeps running"
    ]
    # What is restarted gets it anyway, what waits between two tries too, and of what does not run there is none.
    old = {"running": True, "digest": "old", "secret_mtime": ""}
    for changed in (
        {"supervisor": "older", "container": old},
        {"supervisor": "older", "state": "activating", "container": None, "status": "failed before; next try in 5 s"},
        {"supervisor": None, "state": "inactive", "container": None},
    ):
        assert changes(models, live(models, **changed))["adopt"] == []


def test_supervisors_are_replaced_and_looked_at_until_all_are(models: list[dict[str, Any]]) -> None:
    looks: list[dict[str, tuple[int, str | None]]] = [
        {"a": (10, "old"), "b": (11, NEWER), "c": (12, "old"), "gone": (0, None)},
        {"a": (0, None), "c": (12, "old"), "gone": (0, None)},
        {"a": (20, NEWER), "c": (22, NEWER), "gone": (23, NEWER)},
    ]
    killed: list[tuple[int, int]] = []
    given = {"look": lambda _: looks.pop(0), "kill": lambda *one: killed.append(one), "sleep": lambda _: None}
    assert adopt(["a", "b", "c", "gone"], NEWER, **given) == []
    # One that is asked to end would stop its container.
    assert killed == [(10, signal.SIGKILL), (12, signal.SIGKILL)]
    stuck = {**given, "look": lambda names: dict.fromkeys(names, (10, "old"))}
    assert adopt(["a"], NEWER, timeout=0, **stuck) == ["a"]


def container_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Return what the engine reports of the container of a planned model."""
    labels = {"model": "qwq", "digest": plan["digest"], "env": digest(service.env_text(plan)), "secret": ""}
    config = {
        "Labels": {f"gaudi-serve.{name}": value for name, value in {**labels, "secret-mtime": ""}.items()},
        "Cmd": service.vllm_container(plan)["command"],
        "Env": ["HABANA_VISIBLE_DEVICES=ALL", "HABANA_VISIBLE_DEVICES=7,6"],
    }
    state: dict[str, Any] = {"Running": True, "StartedAt": "now"}
    return {
        "Name": "/vllm-qwq",
        "Id": "a" * 64,
        "Config": config,
        "State": state,
        "Created": "c",
        "Image": "i",
    }


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return what observes a host on which model qwq serves, as its files and the engine report."""
    folders = {name: tmp_path / name.lower() for name in ("UNITS", "CONFIG", "STATE")}
    monkeypatch.setattr(observe_services, "ROOT", str(tmp_path))
    for name, folder in folders.items():
        folder.mkdir()
        monkeypatch.setattr(observe_services, name, folder)
    (plan,) = planned(model())["models"]
    for path, file in service.vllm_service_files([plan], TEMPLATE).items():
        (folders["UNITS" if path.startswith(service.UNITS) else "CONFIG"] / Path(path).name).write_text(file["content"])
    for index, module in ((7, 0), (6, 1)):
        card = tmp_path / f"sys/class/accel/accel{index}/device"
        card.mkdir(parents=True)
        (card / "module_id").write_text(f"{module}\n", encoding="ascii")
    (folders["STATE"] / "qwq").mkdir()
    record = {"pid": 77, "sha256": digest(SUPERVISOR)}
    (folders["STATE"] / "qwq/supervisor.json").write_text(json.dumps(record), encoding="utf-8")
    box = container_of(plan)

    def observed(
        unit_state: str = "active",
        pid: int = 77,
        pid_of_server: int = 0,
        mounts: list[dict[str, Any]] | None = None,
        changed: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        box["Mounts"], box["State"]["Pid"] = mounts or [], pid_of_server
        shown = f"Id=vllm-qwq.service\nActiveState={unit_state}\nUnitFileState=enabled\nMainPID={pid}\n"
        answers = {"systemctl": shown, "ps": "a\n", "inspect": json.dumps([{**box, **(changed or {})}]), "image": ""}

        def run(argv: list[str]) -> Result:
            return Result(0, answers[argv[0] if argv[0] == "systemctl" else argv[1]], "")

        monkeypatch.setattr(observe_services, "run", run)
        return {**observe_services.observe(), "supervisor_sha256": digest(SUPERVISOR)}

    return observed


def test_what_was_done_to_a_container_by_hand_is_observed(serving: Callable[..., dict[str, Any]]) -> None:
    limits = {"NanoCpus": 10**9, "Memory": 0, "PidsLimit": None, "RestartPolicy": {"Name": "always"}}
    changed = {"Name": "/mine", "HostConfig": limits, "State": {"Running": True, "Paused": True, "StartedAt": "now"}}
    found = serving(changed=changed)
    box = found["units"]["qwq"]["container"]
    assert (box["renamed"], box["paused"], box["limits"]) == ("mine", True, ["NanoCpus", "RestartPolicy always"])
    assert found["orphans"] == []
    # It still has the model's cards and port.
    assert observe_services.holding(found["units"]) == {"qwq"}
    trial = {"Config": {"Labels": {"gaudi-serve.model": "qwq", "gaudi-serve.trial": "1"}}}
    found = serving(changed={"Name": "/vllm-qwq.trial", **trial})
    assert (found["units"]["qwq"]["container"], found["orphans"]) == (None, ["vllm-qwq.trial"])


@pytest.fixture(params=[("launch", None), ("launch", ""), ("unit", ""), ("unit", None)], ids=str)
def lost(request: Any, serving: Callable[..., dict[str, Any]]) -> tuple[str, dict[str, Any]]:
    """Return which file of the serving model is lost or emptied, and what is observed of it."""
    kind, content = request.param
    unit, launch = observe_services.UNITS / "vllm-qwq.service", observe_services.CONFIG / "qwq.json"
    path = unit if kind == "unit" else launch
    path.unlink()
    if content is not None:
        path.write_text(content, encoding="utf-8")
    return f"{kind} file", serving("inactive", pid=0) if kind == "unit" else serving()


def planned_beside(found: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Plan the model again on the host that was observed, and return services and plan."""
    units = {**found["without_unit"], **found["units"]}
    services = {name: {**unit, "holds": name in observe_services.holding(units)} for name, unit in units.items()}
    cards = [{**card, "in_use": card["module_id"] in (0, 1)} for card in gaudi_host()["modules"]]
    return services, planned(model(), services=services, ports={"30001": "python3 (pid 469)"}, modules=cards)


def test_a_launch_file_that_is_newer_than_its_container_does_not_hide_what_runs(
    serving: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # A run that was cut off has written the next launch, and has not restarted the server.
    (later,) = planned(model(port=30009))["models"]
    for path, file in service.vllm_service_files([later], TEMPLATE).items():
        if path.startswith(service.CONFIG):
            (observe_services.CONFIG / Path(path).name).write_text(file["content"])
    listening = [Listener("127.0.0.1", 30001, "python3", 500), Listener("10.0.0.1", 22, "sshd", 7)]
    monkeypatch.setattr(observe_services, "listeners", lambda: listening)
    groups = {"/proc/500/cgroup": f"0::/system.slice/docker-{'a' * 64}.scope\n", "/proc/7/cgroup": "0::/ssh.service\n"}
    read = observe_services.read_text
    monkeypatch.setattr(observe_services, "read_text", lambda path: groups.get(str(path)) or read(path))
    unit = serving()["units"]["qwq"]
    (first,) = planned(model())["models"]
    assert (unit["digest"], unit["port"]) == (first["digest"], 30001)
    assert (unit["container"]["env_sha256"], unit["secret_stale"]) == (digest(service.env_text(first)), False)
    assert "secret" not in unit["container"]
    assert unit["container"]["listens"] == ["127.0.0.1:30001"]
    shown = vllm_plan_changes([later], {"qwq": unit}, (), digest(SUPERVISOR))
    assert shown == ["~ qwq: restart", "    ~ --port: 30001 -> 30009"]


def test_a_model_that_was_stopped_reports_by_what_and_when(serving: Callable[..., dict[str, Any]]) -> None:
    (plan,) = planned(model())["models"]
    note = observe_services.STATE / "qwq/stopped.json"
    note.write_text('{"by": "stop.yml", "at": "2026-11-25 14:31 UTC"}', encoding="utf-8")
    for state, expected in (("active", []), ("inactive", ["model qwq: stopped by stop.yml at 2026-11-25 14:31 UTC"])):
        found = serving(state)
        unit = found["units"]["qwq"]
        unit["smoke"], unit["supervisor"] = {"kinds": ["text"]}, digest(SUPERVISOR)
        lines = service.vllm_service_drift(changes([plan], found), found)
        assert [line for line in lines if "stopped" in line] == expected
    note.write_text("{half", encoding="utf-8")
    assert serving("inactive")["units"]["qwq"]["stopped"] == ""


def test_a_serving_model_is_known_by_its_container_whatever_file_is_lost(lost: tuple[str, dict[str, Any]]) -> None:
    (plan,) = planned(model())["models"]
    words, found = lost
    services, again = planned_beside(found)
    state = services["qwq"]
    assert (state["port"], state["module_ids"], state["digest"]) == (30001, [0, 1], plan["digest"])
    # Neither its port nor its cards are in conflict.
    assert (again["errors"], again["models"][0]["module_ids"]) == ([], [0, 1])
    shown = vllm_plan_changes(again["models"], services, (), digest(SUPERVISOR))
    assert shown == [f"~ qwq: write its {words} again (its server keeps running)"]
    todo = changes(again["models"], found)
    assert (todo["restart"], todo["orphans"], todo["remove"]) == ([], [], [])
    assert todo["start"] == (["qwq"] if words == "unit file" else [])
    assert service.vllm_service_drift(todo, found)[0] == (
        "model qwq: has no unit; the next run writes it, and its container keeps running"
        if words == "unit file"
        else "model qwq: its launch file is missing or empty"
    )


def test_a_model_that_has_lost_a_file_is_not_restarted_by_hand(lost: tuple[str, dict[str, Any]]) -> None:
    words, found = lost
    assert service.model_refusal("qwq", {"a": {"gaudi_services": found}}, ["a"]) == []
    assert service.restart_refusal(found, "qwq", "gaudi01") == [
        f"gaudi01: model qwq: its {words} is missing or empty, so a restart would end its server and start none; "
        "run playbooks/models.yml, which writes it again without stopping the server"
    ]


def test_what_is_observed_of_a_serving_model(serving: Callable[..., dict[str, Any]]) -> None:
    whole = serving()
    assert whole["units"]["qwq"]["supervisor"] == digest(SUPERVISOR)
    assert (whole["units"]["qwq"]["lost"], whole["without_unit"]) == ([], {})
    assert service.restart_refusal(whole, "qwq") == []
    assert serving(pid=78)["units"]["qwq"]["supervisor"] == "unknown", "a version that wrote nothing down"
    assert serving("inactive", pid=0)["units"]["qwq"]["supervisor"] is None
    services, again = planned_beside(serving(pid=78))
    assert vllm_plan_changes(again["models"], services) == ["~ qwq: replace its supervisor (its server keeps running)"]
    # Of a model that is not planned, or planned stopped, the container goes.
    unit = observe_services.UNITS / "vllm-qwq.service"
    unit.unlink()
    assert changes([], serving())["orphans"] == ["vllm-qwq"]
    assert changes([{**again["models"][0], "state": "stopped"}], serving())["orphans"] == ["vllm-qwq"]
    # A unit of another's is not taken for a lost one.
    unit.write_text("[Service]\nExecStart=/bin/true\n", encoding="utf-8")
    assert (serving()["without_unit"], serving()["orphans"]) == ({}, ["vllm-qwq"])


def test_a_changed_model_whose_unit_does_not_start_at_boot_is_restarted(models: list[dict[str, Any]]) -> None:
    old = {"running": True, "digest": "old", "secret_mtime": ""}
    found = changes(models, live(models, enabled=False, container=old))
    assert (found["restart"], found["start"]) == (["qwq"], [])


@pytest.mark.parametrize(
    "differs", [{"launch_sha256": "old"}, {"env_sha256": "old"}, {"unit_sha256": None}, {"secret_differs": True}]
)
def test_a_start_that_a_boot_may_have_begun_with_old_files_begins_once_more(
    models: list[dict[str, Any]], differs: dict[str, Any]
) -> None:
    found = changes(models, live(models, state="inactive", container=None, **differs))
    assert (found["start"], found["anew"]) == (["qwq"], ["qwq"])
    # With the right files it may go on.
    assert changes(models, live(models, state="inactive", container=None))["anew"] == []
    # What runs already, and is only to start at boot too, is left alone.
    digest_now = models[0]["digest"]
    runs = {"running": True, "digest": digest_now, "secret_mtime": ""}
    if "secret_differs" not in differs:
        found = changes(models, live(models, enabled=False, container=runs, **differs))
        assert (found["start"], found["anew"]) == (["qwq"], [])


def test_a_bucket_file_that_is_gone_is_known_by_the_launch_that_names_it(
    serving: Callable[..., dict[str, Any]],
) -> None:
    launch, buckets = (observe_services.CONFIG / f"qwq.{kind}" for kind in ("json", "buckets"))
    plain = launch.read_text(encoding="utf-8")
    launch.write_text(json.dumps({**json.loads(plain), "mounts": [{"source": str(buckets)}]}), encoding="utf-8")
    buckets.write_text("something", encoding="utf-8")
    assert serving()["units"]["qwq"]["lost"] == []
    buckets.unlink()
    assert serving()["units"]["qwq"]["lost"] == ["buckets"]
    # A launch without one lacks nothing.
    launch.write_text(plain, encoding="utf-8")
    assert serving()["units"]["qwq"]["lost"] == []


def drift(models: list[dict[str, Any]], container: dict[str, Any], **state: Any) -> list[str]:
    """Return the drift of the first model, whose container is changed."""
    unit = {"running": True, "digest": models[0]["digest"], "secret_mtime": "", **container}
    found = {**live(models, container=unit, active=True), **state}
    return service.vllm_service_drift(changes(models, found), found, models)


def test_what_runs_is_compared_with_the_plan_and_not_with_what_was_written(models: list[dict[str, Any]]) -> None:
    command = service.vllm_container(models[0])["command"]
    assert drift(models, {"command": command}) == []
    old = ["30009" if part == "30001" else part for part in command]
    # Its label and all files are as planned.
    found = changes(models, live(models, container={**live(models)["units"]["qwq"]["container"], "command": old}))
    assert found["restart"] == ["qwq"]
    assert drift(models, {"command": old}) == [
        "model qwq: runs as it was planned before: ~ --port: 30009 -> 30001",
    ]


@pytest.mark.parametrize(
    ("host", "listens", "expected"),
    [
        ("127.0.0.1", ["127.0.0.1:30001", "127.0.0.1:41234"], None),
        ("127.0.0.1", ["127.0.0.1:30009"], "127.0.0.1:30009"),
        ("127.0.0.1", ["10.0.0.1:30001"], "10.0.0.1:30001"),
        ("127.0.0.1", ["*:30001"], "*:30001"),
        ("127.0.0.1", [], "no port"),
        ("0.0.0.0", ["0.0.0.0:30001"], None),
        ("0.0.0.0", ["*:30001"], None),
        ("::", [":::30001"], None),
        ("localhost", ["127.0.0.1:30001"], None),
    ],
)
def test_the_listener_of_a_server_is_compared_with_the_plan(
    host: str, listens: list[str], expected: str | None
) -> None:
    (planned_one,) = planned(model(host=host))["models"]
    found = drift([planned_one], {"listens": listens})
    text = f"model qwq: listens on {expected}, and the plan has {host}:30001"
    assert found == ([text] if expected else [])


def test_weights_that_another_folder_has_replaced_restart_their_server(models: list[dict[str, Any]]) -> None:
    container = {"running": True, "digest": models[0]["digest"], "secret_mtime": "", "stale": ["/data/QwQ-32B"]}
    assert changes(models, live(models, container=container))["restart"] == ["qwq"]
    assert drift(models, container) == [
        "model qwq: has /data/QwQ-32B as it was at its start; another folder has replaced it since"
    ]
    services = {"qwq": {"digest": models[0]["digest"], "active": True, "stale": ["/data/QwQ-32B"]}}
    services["qwq"] |= {"launch": service.vllm_container(models[0]), "env": models[0]["env"]}
    assert vllm_plan_changes(models[:1], services) == [
        "~ qwq: restart",
        "    ~ /data/QwQ-32B: as it was at its start -> as it is now",
    ]


def test_a_folder_is_compared_with_the_one_that_a_container_has(
    serving: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    # This process stands for the server: what it sees below its root is what is there.
    for source, destination, writable, expected in (
        (here, here, False, []),
        (here, other, False, [str(here)]),
        (here, other, True, []),
        (tmp_path / "gone", other, False, []),
    ):
        mount = {"Source": str(source), "Destination": str(destination), "RW": writable}
        unit = serving(pid_of_server=os.getpid(), mounts=[mount])["units"]["qwq"]
        assert unit["container"]["stale"] == expected


def test_an_older_image_of_the_same_name_is_drift(models: list[dict[str, Any]]) -> None:
    assert drift(models, {"image": "sha256:1"}, images={"vllm:1": "sha256:1"}) == []
    assert drift(models, {"image": "sha256:1"}, images={"vllm:1": "sha256:2"}) == [
        "model qwq: runs an older image of the name vllm:1; playbooks/restart.yml -e model=qwq starts the newer one"
    ]


def test_a_launch_that_contradicts_itself_is_no_file(models: list[dict[str, Any]]) -> None:
    with pytest.raises(InputError, match="qwq: port: the launch has 30001, and the plan 30002"):
        service.vllm_container({**models[0], "port": 30002})
