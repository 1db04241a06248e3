"""container_runtime: a daemon.json that keeps what a user has, and no restart without need."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from gaudi_serve import container_runtime as runtime
from gaudi_serve.errors import InputError

USERS = '{\n    "log-opts": {"max-size": "10m"},\n    "runtimes": {"other": {"path": "/usr/bin/other"}}\n}\n'


def merged(text: str | None, **more: Any) -> str:
    """Merge as on a Gaudi host."""
    wanted = {"habana": True, "live_restore": True, "data_root": "", "host_name": "gaudi01", **more}
    return runtime.daemon_json(text, **wanted)


def test_everything_of_a_user_stays_in_its_order() -> None:
    found = json.loads(merged(USERS, data_root="/data/docker"))
    assert list(found) == ["log-opts", "runtimes", "live-restore", "data-root"]
    assert found["log-opts"] == {"max-size": "10m"}
    assert found["runtimes"] == {"other": {"path": "/usr/bin/other"}, "habana": runtime.HABANA}


def test_a_file_that_holds_all_is_left_to_the_letter() -> None:
    text = '{"live-restore":true,   "runtimes": {"habana": ' + json.dumps(runtime.HABANA) + "}}"
    assert merged(text) == text
    assert merged(merged(None)) == merged(None)
    assert json.loads(merged(None, habana=False)) == {"live-restore": True}
    assert merged("  \n") == merged(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1,\n}', "gaudi01: /etc/docker/daemon.json: line 3, column 1: "),
        ("[]", "gaudi01: /etc/docker/daemon.json: the whole must be a JSON object"),
        ('{"runtimes": []}', "gaudi01: /etc/docker/daemon.json: runtimes must be a JSON object"),
    ],
)
def test_an_invalid_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as problem:
        merged(text)
    assert str(problem.value).startswith(message)
    assert str(problem.value).endswith("The file is as it was; mend it and run again.")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, "[habana-container-runtime]\nvisible_devices_all_as_default = false\n"),
        (
            "# c\n[habana-container-runtime]\na = 1\n#visible_devices_all_as_default = true\n[x]\n",
            "# c\n[habana-container-runtime]\na = 1\nvisible_devices_all_as_default = false\n[x]\n",
        ),
        (
            "visible_devices_all_as_default = false\n[habana-container-runtime]\n[x]\n",
            "visible_devices_all_as_default = false\n[habana-container-runtime]\n"
            "visible_devices_all_as_default = false\n[x]\n",
        ),
    ],
)
def test_habana_config(text: str | None, expected: str) -> None:
    assert runtime.habana_config(text) == expected
    assert runtime.habana_config(expected) == expected


def live(**more: Any) -> dict[str, Any]:
    """Return an engine that is all that is wanted."""
    info = {"runtimes": {"habana": runtime.HABANA}, "live_restore": True, "data_root": "/var/lib/docker"}
    base = {
        "packages": {"docker.io": "20", "habanalabs-container-runtime": "1.21.3-57"},
        "daemon_json": "D",
        "habana_config": "C",
        "proxies_sha256": None,
        "proxies_newer": False,
        "info": {**info, "default_runtime": "runc"},
        "reason": None,
        "enabled": True,
    }
    return {**base, **more}


def wanted(**more: Any) -> dict[str, Any]:
    """Return what the role asks for."""
    base = {"engine": "distribution", "habana": True, "habana_version": "", "live_restore": True, "data_root": ""}
    texts = {"daemon_json": "D", "habana_config": "C", "proxies": ""}
    return {**base, **texts, **more}


def due(state: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return what differs, without what does not."""
    found = runtime.container_runtime_changes(state, wanted(**more))
    assert found.pop("due") == any(found.values())
    return {key: value for key, value in found.items() if value}


def test_nothing_to_do() -> None:
    assert due(live()) == {}


def test_only_the_running_engine_counts() -> None:
    info = live()["info"]
    assert due(live(info={**info, "runtimes": {}})) == {"reload": ["the running engine lacks the habana runtime"]}
    assert due(live(info={**info, "live_restore": False})) == {"reload": ["live-restore: False -> True"]}
    assert due(live(), data_root="/data") == {"restart": ["data-root: /var/lib/docker -> /data"]}
    assert due(live(info=None, reason="refused"))["restart"] == ["the engine does not answer: refused"]
    assert due(live(daemon_json="x", habana_config="y")) == {"write": ["daemon.json", "config.toml"]}
    assert due(live(enabled=False)) == {"restart": ["docker.service does not start at boot"]}


def test_proxies() -> None:
    restart = ["proxies: the running engine has others"]
    assert due(live(), proxies="text") == {"write": ["proxy"], "restart": restart}
    assert due(live(proxies_sha256="other"), proxies="text") == {"write": ["proxy"], "restart": restart}
    assert due(live(proxies_sha256="other")) == {"write": ["proxy"], "restart": restart}
    # A run cut off between the file and the restart.
    same = hashlib.sha256(b"text").hexdigest()
    assert due(live(proxies_sha256=same), proxies="text") == {}
    assert due(live(proxies_sha256=same, proxies_newer=True), proxies="text") == {"restart": restart}


def test_packages() -> None:
    assert due(live(packages={}))["install_engine"] == ["install docker.io"]
    assert "install_engine" not in due(live(packages={"docker-ce": "27"}))
    newer = due(live(), habana_version="1.22.0-100")
    assert newer["install_habana"] == ["habanalabs-container-runtime: 1.21.3-57 -> 1.22.0-100"]
    assert "install_habana" not in due(live(packages={"docker.io": "1"}), habana=False)


def test_habana_as_the_default_runtime_is_told() -> None:
    assert runtime.container_runtime_notes(live(), "gaudi01") == []
    info = {**live()["info"], "default_runtime": "habana"}
    assert "habana is the engine's default runtime" in runtime.container_runtime_notes(live(info=info), "g")[0]
