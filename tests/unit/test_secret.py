"""Secrets: what is compared, what is shown of it, and that nothing set changes nothing."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.host import observe_services
from gaudi_serve.host.secret import (
    BESIDE,
    own_api_key,
    secret_differs,
    secret_text,
    stored_names,
    vllm_secret_marks,
    with_stored_secrets,
)
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.changes import vllm_plan_changes
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.stages import service
from helpers.plans import known, live_of, model, planned
from helpers.services import changes, live

SECRETS = {"qwq": {"VLLM_API_KEY": "s3cret", "HF_TOKEN": "t"}}


def secret_file(folder: Path, text: str = "HF_TOKEN=t\nVLLM_API_KEY=s3cret\n") -> Path:
    """Write a secret file as the toolkit does."""
    path = folder / "qwq.secret"
    path.write_text(text)
    return path


def test_nothing_reported_of_secrets_withdraws_none() -> None:
    models = planned(model())["models"]
    with_secret = {"running": True, "digest": models[0]["digest"], "secret_mtime": "5.0"}
    state = live(models, secret_mtime=5.0, container=with_secret)
    for nothing in ({}, {"another": {"A": "b"}}):
        assert service.vllm_withdrawn_secrets(state, nothing) == []
    assert changes(models, state)["restart"] == []
    assert service.vllm_withdrawn_secrets(state, {"qwq": {}}) == ["/etc/gaudi-serve/qwq.secret"]
    gone = live(models, container=with_secret)
    found = changes(models, gone)
    assert (found["restart"], found["secret"]) == (["qwq"], ["qwq"])
    assert service.vllm_service_drift(found, gone) == ["model qwq: runs with other secrets"]


def test_a_host_reports_whether_its_secrets_are_these(tmp_path: Path) -> None:
    path = secret_file(tmp_path)
    marks = vllm_secret_marks(SECRETS)
    assert not secret_differs(path, marks["qwq"])
    assert not secret_differs(path, marks.get("unsaid"))
    for other in ({"qwq": {"VLLM_API_KEY": "n3w", "HF_TOKEN": "t"}}, {"qwq": {}}):
        assert secret_differs(path, vllm_secret_marks(other)["qwq"])
    assert not secret_differs(tmp_path / "none.secret", vllm_secret_marks({"qwq": {}})["qwq"])
    assert own_api_key(path) == "s3cret"
    assert (stored_names(path), stored_names(tmp_path / "none.secret")) == (["HF_TOKEN", "VLLM_API_KEY"], [])
    # A key for a gateway is compared alone, and written beside what the host stores.
    for key, differs in (("s3cret", False), ("n3w", True)):
        variables = {"VLLM_API_KEY": key, BESIDE: True}
        assert secret_differs(path, vllm_secret_marks({"qwq": variables})["qwq"]) is differs
        assert with_stored_secrets(path.read_text(), secret_text(variables)) == f"HF_TOKEN=t\nVLLM_API_KEY={key}\n"
    assert with_stored_secrets("", "VLLM_API_KEY=n3w\n") == "VLLM_API_KEY=n3w\n"
    # Two runs have two marks, and none has a secret in it.
    assert marks != vllm_secret_marks(SECRETS)
    assert "s3cret" not in str(marks)


@pytest.mark.parametrize("wrong", [None, "s3cret", ["a"], {"qwq": "s3cret"}, {"qwq": None}])
def test_what_is_no_mapping_of_secrets_has_no_marks(wrong: Any) -> None:
    assert vllm_secret_marks(wrong) == {}


def test_a_changed_secret_is_reported_before_it_restarts_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret_file(tmp_path)
    units = tmp_path / "units"
    units.mkdir()
    (units / "vllm-qwq.service").write_text("X-Gaudi-Serve=qwq\n")
    monkeypatch.setattr(observe_services, "CONFIG", tmp_path)
    monkeypatch.setattr(observe_services, "UNITS", units)
    for secrets, expected in ((SECRETS, False), ({"qwq": {"VLLM_API_KEY": "n3w"}}, True), ({}, False)):
        seen = observe_services.observe(vllm_secret_marks(secrets))["units"]["qwq"]
        assert seen["secret_differs"] is expected
    plan = planned(model())
    services = live_of(plan)
    assert vllm_plan_changes(plan["models"], services) == []
    services["qwq"]["secret_changed"] = True
    assert vllm_plan_changes(plan["models"], services) == ["~ qwq: restart (secret changed)"]
    services["qwq"]["digest"] = "old"
    assert vllm_plan_changes(plan["models"], services)[0] == "~ qwq: restart (secret changed)"
    # The same from a check of the role, whose facts were read before anything was written.
    models = plan["models"]
    container = {"running": True, "digest": models[0]["digest"], "secret_mtime": "5.0"}
    state = live(models, secret_mtime=5.0, container=container, secret_differs=True)
    assert "restart qwq (secret changed)" in service.vllm_service_summary(changes(models, state))


def test_a_restart_has_no_line_of_a_root_that_did_not_change() -> None:
    before, after = planned(model()), planned(model(max_num_seqs=8))
    services = live_of(before)
    launch = services["qwq"]["launch"]
    services["qwq"]["launch"] = {key: launch[key] for key in observe_services.LAUNCH if key in launch}
    assert not any("root" in line for line in vllm_plan_changes(after["models"], services))
    # Facts that were saved by an older version do not have it.
    del services["qwq"]["launch"]["read_only"]
    assert not any("root" in line for line in vllm_plan_changes(after["models"], services))
    writable = planned(model(read_only=False))["models"]
    assert "    ~ root: read-only -> writable" in vllm_plan_changes(writable, live_of(before))


@pytest.mark.parametrize(
    ("value", "allowed"),
    [
        (123456, "quoted: YAML reads 0123456 and 1_000 as other numbers"),
        (1.5, "quoted: YAML reads 0123456 and 1_000 as other numbers"),
        ("geheim\N{EURO SIGN}", "of characters that an HTTP header can carry (Latin-1)"),
        (True, "a quoted text"),
        (datetime.date(2024, 1, 1), "a quoted text"),
        (["s3cret"], "a quoted text"),
        (None, "not empty; to withdraw all secrets of a model, give it {}"),
        ("", "not empty; to withdraw all secrets of a model, give it {}"),
        ("two\nlines", "one line of printable text"),
    ],
)
def test_secrets_that_would_break_a_run_are_refused_by_their_key(value: Any, allowed: str) -> None:
    found = service.secrets_refusal({"qwq": {"VLLM_API_KEY": value}}, "g")
    assert found == [f"g: vllm_secrets: qwq: VLLM_API_KEY must be {allowed}"]


def test_the_text_of_a_credential_that_reports_one_model_twice_is_none() -> None:
    text = "qwq: {VLLM_API_KEY: canary}\nqwq: {VLLM_API_KEY: other}"
    assert service.secrets_refusal(text, "g") == ["g: vllm_secrets: must be a mapping of models"]
    assert service.secrets_refusal("a: &a {VLLM_API_KEY: x}\nb: {<<: *a}", "g") == []


def test_secrets_of_a_model_that_no_host_has_are_refused() -> None:
    hosts: dict[str, Any] = {
        "a": {"vllm_models": [model()], "vllm_secrets": {"qwq": {}, "other": {}, "qwk": {}}},
        "b": {"vllm_models": [model(name="other")]},
    }
    sentence = "a: vllm_secrets: qwk is not a model of any host; did you mean qwq?"
    assert inventory_refusal({**hosts["a"], "hostvars": hosts}, "a") == [sentence]
    fleet = vllm_fleet_plan({"a": known(**hosts["a"]), "b": known(**hosts["b"])}, ["a", "b"], [])
    assert [(error["key"], error["message"]) for error in fleet["errors"]] == [("vllm_secrets", sentence)]
    del hosts["a"]["vllm_secrets"]["qwk"]
    assert inventory_refusal({**hosts["a"], "hostvars": hosts}, "a") == []
    # Where nobody has set any models, nothing is known of them.
    assert inventory_refusal({"vllm_secrets": {"qwk": {}}}, "a") == []
