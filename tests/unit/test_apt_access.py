"""Credentials in addresses of package sources: apt gets them, and no reader of a message or of a file does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import InputError, plain, shown
from gaudi_serve.host.permissions import mode_of
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.stages.apt_access import apt_access
from gaudi_serve.stages.reset import driver_reset
from gaudi_serve.stages.reset_host import container_runtime_reset
from helpers.leftovers import left, merged, runtime
from helpers.plans import gaudi_host

ROOT = Path(__file__).parents[2]
CANARY = "canary77"
MIRROR = f"https://bot-{CANARY}:{CANARY}@mirror.example/apt"
AUTH = "/etc/apt/auth.conf.d/gaudi-serve-"


def test_apt_gets_addresses_and_credentials_apart() -> None:
    given = ["https://bot:s%23%40cret@mirror.example:8443/apt", "http://b:p@m.example", "https://open.example/x@y"]
    assert apt_access(given) == {
        "uris": ["https://mirror.example:8443/apt", "http://m.example", "https://open.example/x@y"],
        "auth": "machine https://mirror.example:8443/apt login bot password s#@cret\n"
        "machine http://m.example login b password p\n",
        "logins": [{"user": user, "password": word} for user, word in (("bot", "s#@cret"), ("b", "p"), ("", ""))],
    }
    assert apt_access("https://open.example")["auth"] == ""


@pytest.mark.parametrize(
    "login", [CANARY, f":{CANARY}", f"bot:x/{CANARY}", f"bot:{CANARY}%20x", f"bot:{CANARY}%0Amachine"]
)
def test_credentials_that_apt_cannot_read_are_refused_without_their_value(login: str) -> None:
    with pytest.raises(InputError, match="user:password@ of an http or https address") as caught:
        apt_access(f"https://{login}@mirror.example")
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("driver_repository", {"uris": [MIRROR], "suites": 5}),
        ("driver_repository", {"uris": f"https://{CANARY}@mirror.example", "suites": "jammy"}),
        ("container_runtime_habana_repository", {"uris": "https://x", "suites": "jammy", "signed_by": MIRROR}),
        ("container_runtime_vendor_uri", f"{MIRROR}'"),
        ("container_runtime_vendor_key_url", f"https://bot:{CANARY}%0A@mirror.example"),
        ("vllm_image_pip_index_url", f"{MIRROR} "),
        ("vllm_weights_endpoints", {"hub": f"{MIRROR} ", "modelscope": ""}),
        ("link_validation_hccl_repository", f"{MIRROR}.git"),
        ("vllm_images", f"{MIRROR}, https://a/b:{CANARY}/c@d"),
    ],
)
def test_no_message_shows_the_credentials_of_an_address(key: str, value: Any) -> None:
    (reason,) = inventory_refusal({"vllm_models": [], key: value}, "g1")
    fleet = vllm_fleet_plan({"g1": {"gaudi_host": gaudi_host(), "vllm_models": [], key: value}}, ["g1"], [])
    (error,) = (one for one in fleet["errors"] if one["key"] == key)
    assert reason == error["message"] and reason.startswith(f"g1: {key} ")
    assert CANARY not in reason + json.dumps(fleet)
    assert "://***@mirror.ex" in reason


def test_where_addresses_may_have_credentials_they_are_no_mistake() -> None:
    repository = {"uris": [MIRROR], "suites": ["jammy"]}
    given = {"driver_repository": repository, "container_runtime_habana_repository": repository}
    given |= {"container_runtime_vendor_uri": MIRROR, "container_runtime_vendor_key_url": MIRROR}
    git = {"link_validation_hccl_repository": "ssh://git@host/hccl_demo.git"}
    assert inventory_refusal({"vllm_models": [], **given, **git}, "g1") == []


def test_a_value_is_shown_without_credentials_however_deep_it_lies() -> None:
    value = {"a": [f"x {MIRROR} y", {"b": f"https://u:{CANARY}/with@{CANARY}@h"}], "mail": "a@b", "n": 1}
    assert plain(value) == {"a": ["x https://***@mirror.example/apt y", {"b": "https://***@h"}], "mail": "a@b", "n": 1}
    assert CANARY not in shown(value) + shown(MIRROR) and "***" in shown(MIRROR)


def tasks(given: Any) -> list[dict[str, Any]]:
    return [one for task in given for one in ([task] if "block" not in task else tasks(task["block"]))]


def test_every_repository_is_written_after_its_credentials_and_without_them() -> None:
    """A source is readable for all users of the host; apt reads what only root may from elsewhere."""
    count = 0
    for path in ROOT.glob("roles/*/tasks/*.yml"):
        found = tasks(yaml.safe_load(path.read_text(encoding="utf-8")))
        for before, task in zip([{}, *found], found, strict=False):
            repository = task.get("ansible.builtin.deb822_repository")
            if repository is None:
                continue
            count += 1
            access = repository["uris"].removeprefix("{{ ").removesuffix(".uris }}")
            assert access.endswith("_access"), path
            # What was there before may have had them.
            assert task["diff"] is False
            assert f"{access}.auth" in before["gaudi_files"]["files"]
            # Their mode is in the table of permissions.
            assert "'mode'" not in before["gaudi_files"]["files"]
            assert before["gaudi_files"]["hide"] is True and before["no_log"] is True
            assert before.get("when") == task.get("when")
    assert count == 3
    assert {mode_of(f"/etc/apt/auth.conf.d/gaudi-serve-{name}.conf") for name in ("driver", "docker", "habana")} == {
        "0600"
    }


def test_a_reset_takes_the_credentials_back() -> None:
    driver = driver_reset({}, left(files=[f"{AUTH}driver.conf"]), [], [])
    assert driver["due"] and driver["paths"] == [f"{AUTH}driver.conf"]
    assert driver["did"] == [f"package source {AUTH}driver.conf"]
    record = {"found": {"daemon_json": None}, "brought": {"paths": {f"{AUTH}docker.conf": f"{AUTH}docker.conf"}}}
    here = left(records={"container_runtime": record}, files=[f"{AUTH}habana.conf", f"{AUTH}docker.conf"])
    plan = container_runtime_reset(runtime(merged(None)), here)
    assert f"{AUTH}habana.conf" in plan["paths"] and f"package source {AUTH}habana.conf" in plan["did"]
    # As its source, with the engine's packages.
    assert f"{AUTH}docker.conf" not in plan["paths"] + plan["empty"]
    assert f"{AUTH}docker.conf" in container_runtime_reset(runtime(merged(None)), here, remove=True)["paths"]
