"""container_runtime: a daemon.json that keeps what a user has, and no restart without need."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import tomllib
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import Result
from gaudi_serve.host import observe_runtime
from gaudi_serve.host.observe_runtime import device_runtime
from gaudi_serve.plan.refusal import host_findings
from gaudi_serve.platforms import cuda
from gaudi_serve.platforms.gaudi import RUNTIME
from gaudi_serve.platforms.habana_config import habana_config, habana_config_problems
from gaudi_serve.stages import container_runtime as runtime
from helpers.container_engine import USERS, live, wanted
from helpers.plans import gaudi_host


def merged(text: str | None, **more: Any) -> str:
    """Merge as on a Gaudi host."""
    wanted = {"runtime": True, "live_restore": True, "data_root": "", "host_name": "gaudi01", **more}
    return runtime.daemon_json(text, **wanted)


def test_everything_of_a_user_stays_in_its_order() -> None:
    found = json.loads(merged(USERS, data_root="/data/docker"))
    assert list(found) == ["log-opts", "runtimes", "live-restore", "data-root"]
    assert found["log-opts"] == {"max-size": "10m"}
    assert found["runtimes"] == {"other": {"path": "/usr/bin/other"}, "habana": RUNTIME.entry}


def test_a_file_that_holds_all_is_left_to_the_letter() -> None:
    text = '{"live-restore":true,   "runtimes": {"habana": ' + json.dumps(RUNTIME.entry) + "}}"
    assert merged(text) == text
    assert merged(merged(None)) == merged(None)
    assert json.loads(merged(None, runtime=False)) == {"live-restore": True}
    assert merged("  \n") == merged(None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1\n  "b": 2\n}', "gaudi01: /etc/docker/daemon.json: line 3, column 3: "),
        ("[]", "gaudi01: /etc/docker/daemon.json: the whole must be a JSON object"),
        ("\ufeff{}", "gaudi01: /etc/docker/daemon.json: line 1, column 1: "),
        ('{"runtimes": []}', "gaudi01: /etc/docker/daemon.json: runtimes must be a JSON object"),
    ],
)
def test_an_invalid_file_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as problem:
        merged(text)
    assert str(problem.value).startswith(message)
    assert str(problem.value).endswith("The file is unchanged; fix it and run again.")


def test_the_users_indent_and_letters_stay() -> None:
    text = merged('{\n\t"labels": ["k=Köln"]\n}')
    assert '\n\t"labels"' in text
    assert "Köln" in text


@pytest.mark.parametrize(
    "own",
    [
        {"path": "/opt/habana/habana-container-runtime"},
        {"path": "/usr/bin/habana-container-runtime", "runtimeArgs": ["--debug"]},
        {"runtimeArgs": [], "path": "/usr/bin/habana-container-runtime"},
    ],
)
def test_a_runtime_habana_of_the_user_stays(own: dict[str, Any]) -> None:
    text = json.dumps({"live-restore": True, "runtimes": {"habana": own}})
    assert merged(text) == text
    told = {"path": own["path"], "runtimeArgs": own.get("runtimeArgs", [])}
    info = {**live()["info"], "runtimes": {"habana": told}}
    assert due(live(daemon_json=text, info=info), daemon_json=merged(text)) == {}
    stale = {"reload": ["the running engine lacks the habana runtime"]} if told != RUNTIME.entry else {}
    assert due(live(daemon_json=text), daemon_json=text) == stale
    # What names nothing that an engine can start is not a runtime of a user.
    for broken in ({}, {"runtimeArgs": ["--debug"]}, None):
        text = json.dumps({"runtimes": {"habana": broken}})
        assert json.loads(merged(text))["runtimes"]["habana"] == RUNTIME.entry


def test_a_data_root_is_a_path_and_its_last_slash_means_nothing() -> None:
    assert json.loads(merged(None, data_root="/data/docker/"))["data-root"] == "/data/docker"
    with pytest.raises(InputError) as problem:
        merged(None, data_root="data")
    assert str(problem.value) == "gaudi01: container_runtime_data_root: 'data': must be an absolute path"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[habana-container-runtime] # ours\n#visible_devices_all_as_default = true\n"
            "visible_devices_all_as_default = true\n",
            "[habana-container-runtime] # ours\n#visible_devices_all_as_default = true\n"
            "visible_devices_all_as_default = false\n",
        ),
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
    assert habana_config(text) == expected
    assert habana_config(expected) == expected


SECTION = "[habana-container-runtime]\n"
WANTED = "visible_devices_all_as_default = false\n"
DOTTED = "habana-container-runtime."


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[ habana-container-runtime ]\na = 1\n", f"[ habana-container-runtime ]\n{WANTED}a = 1\n"),
        ('["habana-container-runtime"]\na = 1', f'["habana-container-runtime"]\n{WANTED}a = 1'),
        (f'{SECTION}"visible_devices_all_as_default" = true\n', f"{SECTION}{WANTED}"),
        (f"{DOTTED}mode = 'oci'\n", f"{DOTTED}{WANTED}{DOTTED}mode = 'oci'\n"),
        (
            "'habana-container-runtime' . 'visible_devices_all_as_default' = true\n[x]\n",
            f"{DOTTED}{WANTED}[x]\n",
        ),
        # What looks like the section inside a text of several lines is none.
        (f"a = '''\n{SECTION}'''\n", f"a = '''\n{SECTION}'''\n{SECTION}{WANTED}"),
        ("[habana-container-runtime.sub]\na = 1\n", f"[habana-container-runtime.sub]\na = 1\n{SECTION}{WANTED}"),
        ("[x]\r\na = 1", f"[x]\r\na = 1\n{SECTION}{WANTED}"),
        # The runtime reads names in any letter case, and of two lines takes the last.
        (
            "[Habana-Container-Runtime]\nVisible_Devices_All_As_Default = true\n",
            f"[Habana-Container-Runtime]\n{WANTED}",
        ),
        (f"{SECTION}Visible_Devices_All_As_Default = false\n", None),
        # What is so already stays to the letter, whatever its form.
        ("habana-container-runtime = {visible_devices_all_as_default = false}", None),
        (f"  {SECTION}  visible_devices_all_as_default=false # ours", None),
    ],
)
def test_habana_config_in_every_form_of_toml(text: str, expected: str | None) -> None:
    assert habana_config(text) == (text if expected is None else expected)
    read = tomllib.loads(habana_config(text).lower())
    assert read["habana-container-runtime"]["visible_devices_all_as_default"] is False
    assert habana_config_problems(text) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no toml\n", "is not TOML, and the runtime starts no container with it: Expected '=' after a key"),
        (
            f"{SECTION}a = 1\n{SECTION}b = 2\n",
            "is not TOML, and the runtime starts no container with it: Cannot declare",
        ),
        ("habana-container-runtime = 1\n", "habana-container-runtime must be a table, it is 1"),
        (
            "habana-container-runtime = {mode = 'oci'}\n",
            "section habana-container-runtime is written in a way that cannot be edited safely, such as an inline table"
            "; set visible_devices_all_as_default = false there",
        ),
        ("mount_accelerators = false\n", "mount_accelerators = false gives no container a card; take the line out"),
        (
            "accept-habana-visible-devices-envvar-when-unprivileged = false\n",
            "accept-habana-visible-devices-envvar-when-unprivileged = false refuses every container without CAP_SYS_AD",
        ),
    ],
)
def test_a_config_toml_with_which_no_server_starts_is_refused_before_anything_is_changed(
    text: str, reason: str
) -> None:
    (said,) = refusal(live(habana_config=text))
    assert said.startswith(f"gaudi01: /etc/habana-container-runtime/config.toml: {reason}")
    assert said.endswith("The file is unchanged; fix it and run again.")
    assert refusal(live(habana_config=text), habana=False) == []
    plan: dict[str, Any] = {"models": [], "errors": []}
    (error,) = host_findings(plan, None, gaudi_host(driver_version="1.21.3"), host_name="gaudi01", habana=text)
    assert (error.key, error.message) == ("config.toml", said)


FIXED = ". The file is unchanged; fix it and run again."


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        *[
            (
                f"{SECTION}log_level = {level}\n",
                f"habana-container-runtime.log_level = {said} lets no container start; take the line out, or set it to "
                "debug, info, warn or error",
            )
            for level, said in (('"warning"', "'warning'"), ('""', "''"), ('"info "', "'info '"), ("1", "1"))
        ],
        (
            '[Habana-Container-Runtime]\nMode = "legacy"\n',
            "habana-container-runtime.mode = 'legacy' gives no container the uverbs of its cards; take the line out, "
            "or set it to oci",
        ),
        (
            f"{SECTION}mode = 1\n",
            "habana-container-runtime.mode = 1 lets no container start; take the line out, or set it to oci",
        ),
        (
            f'{SECTION}debug = ""\n',
            "habana-container-runtime.debug = '' lets no container start; take the line out, or set it to a path",
        ),
        (
            '[habana-container-cli]\nroot = "/run/habana/driver"\n',
            "habana-container-cli.root = '/run/habana/driver' becomes an option that the hook's program does not know; "
            "take the line out",
        ),
        (
            '[habana-container-cli]\nenvironment = ["A=s3cret", 1]\n',
            "habana-container-cli.environment = (hidden) lets no container start; take the line out, or set it to a "
            "list of texts",
        ),
        (
            "mount_uverbs = 0\n",
            "mount_uverbs = 0 lets no container start; take the line out, or set it to true or false",
        ),
        ("network-layer-routes = 1\n", "network-layer-routes must be a table, it is 1"),
    ],
)
def test_a_value_with_which_no_server_starts_is_named_with_what_is_allowed(text: str, reason: str) -> None:
    (said,) = refusal(live(habana_config=text))
    assert said == f"gaudi01: /etc/habana-container-runtime/config.toml: {reason}{FIXED}"


def test_every_setting_that_stops_servers_is_named_in_one_run() -> None:
    text = (
        "mount_accelerators = false\nhabana-container-runtime = {log_level = 'verbose', mode = 'legacy'}\n"
        "[habana-container-cli]\nroot = '/x'\n"
    )
    told = refusal(live(habana_config=text))
    keys = [one.removeprefix("gaudi01: /etc/habana-container-runtime/config.toml: ").split(" = ")[0] for one in told]
    assert keys == [
        "section habana-container-runtime is written in a way that cannot be edited safely, such as an inline table; "
        "set visible_devices_all_as_default",
        "mount_accelerators",
        "habana-container-cli.root",
        "habana-container-runtime.log_level",
        "habana-container-runtime.mode",
    ]
    plan: dict[str, Any] = {"models": [], "errors": []}
    errors = host_findings(plan, None, gaudi_host(driver_version="1.21.3"), host_name="gaudi01", habana=text)
    assert [error.message for error in errors] == told


@pytest.mark.parametrize(
    "text",
    [
        *[f"{SECTION}log_level = '{level}'\n" for level in ("debug", "WARN", "Info+2", "error")],
        # Names that the runtime does not read, and modes that it takes for oci.
        f"{SECTION}loglevel = 'verbose'\nmode = 'cdi'\nsystemd_cgroup = true\n",
        "disable-require = 1\n[habana-container-cli]\nenvironment = ['A=1']\nmount_accelerators = false\n",
        "[other]\nmode = 'legacy'\n",
    ],
)
def test_a_value_with_which_servers_start_is_left(text: str) -> None:
    assert refusal(live(habana_config=text)) == []
    assert runtime.container_runtime_notes(live(habana_config=text)) == []


def test_uverbs_that_an_owner_has_switched_off_are_reported() -> None:
    state = live(habana_config="Mount_Uverbs = false\n")
    assert refusal(state) == []
    assert runtime.container_runtime_notes(state) == [
        "/etc/habana-container-runtime/config.toml: mount_uverbs = false: containers get no uverbs of their cards"
    ]
    assert runtime.container_runtime_notes(live(habana_config="no toml")) == []


def test_a_runtime_that_does_not_run_or_lacks_a_program_has_drifted() -> None:
    here = {"habana-container-hook": True, "habana-container-cli": True}
    assert due(live(habana_programs=here, habana_problem=None)) == {}
    lacking = live(habana_programs={**here, "habana-container-cli": False})
    assert due(lacking) == {
        "install_habana": ["habanalabs-container-runtime: habana-container-cli missing, install it again"]
    }
    assert runtime.container_runtime_drift(lacking, wanted()) == [
        "habanalabs-container-runtime: its habana-container-cli is missing"
    ]
    assert due(lacking, habana=False) == {}
    broken = live(habana_problem="ERROR: open /nowhere/x: no such file or directory")
    assert runtime.container_runtime_drift(broken, wanted()) == [
        "habana-container-runtime does not run: ERROR: open /nowhere/x: no such file or directory"
    ]


def test_programs_of_the_runtime_as_the_host_has_them(tmp_path: Path) -> None:
    programs, config = tmp_path / "usr/bin", tmp_path / "etc/habana-container-runtime/config.toml"
    programs.mkdir(parents=True)
    for name in ("habana-container-hook", "habana-container-runtime"):
        (programs / name).write_text("#!/bin/sh\necho 'ERROR: toml: no' >&2; exit 1\n", encoding="ascii")
        (programs / name).chmod(0o755)
    assert device_runtime(RUNTIME, root=str(tmp_path)) == {
        "habana_config": None,
        "habana_programs": {"habana-container-hook": True, "habana-container-cli": False},
        "habana_problem": "ERROR: toml: no",
    }
    # Where its owner reports that it lies elsewhere, nobody looks for it.
    config.parent.mkdir(parents=True)
    config.write_text("[Habana-Container-CLI]\n#path = 'a'\nPath = '/opt/cli'\n", encoding="ascii")
    assert device_runtime(RUNTIME, root=str(tmp_path))["habana_programs"]["habana-container-cli"]
    (programs / "habana-container-runtime").unlink()
    assert device_runtime(RUNTIME, root=str(tmp_path))["habana_problem"] is None


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
    assert due(live(info={**info, "live_restore": False})) == {
        "reload": ["the running engine has live-restore false, planned true"]
    }
    assert due(live(), data_root="/data") == {"restart": ["data-root: /var/lib/docker -> /data"]}
    assert due(live(info=None, reason="refused"))["restart"] == ["the engine does not answer: refused"]
    assert due(live(daemon_json="{}", habana_config="y")) == {"write": ["daemon.json", "config.toml"]}


@pytest.mark.parametrize(
    ("now", "then", "changed", "order"),
    [
        (True, True, {"restart": ["x"]}, [("restarted", True)]),
        (False, True, {"restart": ["x"]}, [("reloaded", True), ("restarted", True)]),
        (True, False, {"restart": ["x"]}, [("restarted", True), ("reloaded", False)]),
        (False, False, {"restart": ["x"]}, [("restarted", False)]),
        (None, True, {"restart": ["x"]}, [("restarted", True)]),
        (True, False, {"reload": ["x"]}, [("reloaded", False)]),
        (False, True, {"reload": ["x"]}, [("reloaded", True)]),
        (True, True, {}, []),
    ],
)
def test_an_engine_has_live_restore_whenever_it_restarts(
    now: bool | None, then: bool, changed: dict[str, Any], order: list[tuple[str, bool]]
) -> None:
    state = live(info=None if now is None else {**live()["info"], "live_restore": now})
    texts = {"daemon_json": f"live-restore {then}", "daemon_json_until": "live-restore True"}
    steps = runtime._steps(state, {**wanted(), "live_restore": then, **texts}, {"restart": [], "reload": [], **changed})
    assert [(one["state"], one["live_restore"]) for one in steps] == order
    assert [one["daemon_json"] for one in steps] == [f"live-restore {restores}" for _, restores in order]
    assert runtime._survive(state, {"live_restore": then}) == ((now, then) != (False, False))


def test_packages() -> None:
    assert due(live(packages={}, info=None))["install_engine"] == ["install docker.io"]
    assert "install_engine" not in due(live(packages={"docker-ce": "27"}))
    newer = due(live(), habana_version="1.22.0-100")
    assert newer["install_habana"] == ["habanalabs-container-runtime: 1.21.3-57 -> 1.22.0-100"]
    assert "install_habana" not in due(live(packages={"docker.io": "1"}), habana=False)


def test_habana_as_the_default_runtime_is_reported() -> None:
    assert runtime.container_runtime_notes(live()) == []
    info = {**live()["info"], "default_runtime": "habana"}
    assert "habana is the engine's default runtime" in runtime.container_runtime_notes(live(info=info))[0]


def test_an_engine_that_was_there_and_is_not_the_vendors_is_reported() -> None:
    assert "stays" in runtime.container_runtime_notes(live(), "vendor")[0]
    assert runtime.container_runtime_notes(live(packages={"docker-ce": "27"}), "vendor") == []
    assert runtime.container_runtime_notes(live(packages={}, info=None), "vendor") == []


def test_an_engine_from_no_package_stays_and_an_interrupted_one_is_finished() -> None:
    assert "install_engine" not in due(live(packages={"habanalabs-container-runtime": "1.21.3-57"}))
    cut_off = live(packages={"habanalabs-container-runtime": "1.21.3-57"}, interrupted=["docker.io"])
    assert due(cut_off)["install_engine"] == ["install docker.io"]


def test_what_dpkg_was_cut_off_in_is_finished_also_where_the_engine_is_whole() -> None:
    assert due(live(interrupted=["runc"])) == {"repair": ["dpkg was interrupted in runc"]}
    # Half unpacked, it must be installed again, which dpkg alone cannot.
    assert due(live(interrupted=["apparmor"]), packages=["docker.io", "apparmor"]) == {
        "repair": ["dpkg was interrupted in apparmor"],
        "install_engine": ["install docker.io, apparmor"],
    }
    vendors = live(packages={**live()["packages"], "docker-ce": "27"}, interrupted=["apparmor"])
    vendors["packages"].pop("docker.io")
    assert "install_engine" not in due(vendors, packages=["docker.io", "apparmor"])


def test_an_engine_that_is_only_not_enabled_is_not_restarted() -> None:
    assert due(live(enabled=False)) == {"enable": ["docker.service does not start at boot"]}


PROXIED = {"proxies": "P", "proxies_dropin": "U", "proxies_marker": "M2"}
OTHERS = ["the running engine was started with other proxies"]


def with_files(env: str, running: str | None) -> dict[str, Any]:
    """Return an engine whose files of proxies are there, and the marker that it was started with."""
    files = {"proxies_sha256": sha256(env.encode()).hexdigest(), "proxies_dropin_sha256": sha256(b"U").hexdigest()}
    return live(**files, proxies_running=running)


def test_proxies_are_compared_with_those_that_the_engine_was_started_with() -> None:
    assert due(with_files("P", "M2"), **PROXIED) == {}
    assert due(live(), **PROXIED) == {"write": ["proxy"], "restart": OTHERS}
    # A new value, and a run that was cut off between the file and the restart.
    assert due(with_files("old", "M1"), **PROXIED) == {"write": ["proxy"], "restart": OTHERS}
    assert due(with_files("P", "M1"), **PROXIED) == {"restart": OTHERS}
    assert due(with_files("P", None), **PROXIED) == {"restart": OTHERS}
    # Only the unit's part is missing.
    assert due({**with_files("P", "M2"), "proxies_dropin_sha256": None}, **PROXIED) == {"write": ["proxy"]}


def test_proxies_are_taken_back() -> None:
    assert due(with_files("P", "M2")) == {"write": ["proxy"], "restart": OTHERS}
    # Cut off before the restart.
    assert due(live(proxies_running="M2")) == {"restart": OTHERS}


def test_marker_of_a_running_process(tmp_path: Path) -> None:
    environ = tmp_path / "proc/7/environ"
    environ.parent.mkdir(parents=True)
    environ.write_bytes(b"PATH=/bin\0HTTPS_PROXY=http://user:secret@p\0GAUDI_SERVE_PROXIES=M1\0NO_PROXY=own\0")
    assert observe_runtime.running_proxies("7", str(tmp_path)) == "M1"
    environ.write_bytes(b"PATH=/bin\0HTTPS_PROXY=http://own\0")
    assert observe_runtime.running_proxies("7", str(tmp_path)) is None
    for pid in ("0", "", "8"):
        assert observe_runtime.running_proxies(pid, str(tmp_path)) is None


def refusal(state: dict[str, Any], **more: Any) -> list[str]:
    """Return why the role would not begin."""
    return runtime.container_runtime_refusal(state, wanted(**more), "gaudi01")


def test_an_engine_with_running_containers_is_not_moved() -> None:
    busy = live(info={**live()["info"], "containers_running": 2})
    assert refusal(busy) == []
    assert refusal(busy, data_root="/var/lib/docker/") == []
    assert refusal(live(), data_root="/data/docker") == []
    assert refusal(live(info=None), data_root="/data/docker") == []
    assert refusal(busy, data_root="/data/docker") == [
        "gaudi01: container_runtime_data_root: '/data/docker': 2 containers run from /var/lib/docker, and the engine "
        "loses them when its data root moves; stop them first, or leave the variable empty"
    ]


@pytest.mark.parametrize("state", ["active", "pending", "locked", "error", "not running"])
def test_an_engine_of_a_swarm_gets_no_live_restore(state: str) -> None:
    assert refusal(live(swarm=state)) == [
        f"gaudi01: container_runtime_live_restore: true: the engine belongs to a swarm ({state}), and in a "
        "swarm it does not start with live-restore; set container_runtime_live_restore: false, or leave the swarm"
    ]
    assert refusal(live(swarm=state), live_restore=False) == []
    assert refusal(live(swarm="inactive")) == refusal(live(swarm=None)) == []


def test_the_state_of_a_swarm_is_read_also_where_the_engine_has_died_of_it(tmp_path: Path) -> None:
    daemon = json.dumps({"data-root": str(tmp_path)})
    assert observe_runtime.swarm_state({"swarm": "active"}, daemon) == "active"
    assert observe_runtime.swarm_state(None, daemon) is None
    (tmp_path / "swarm").mkdir()
    (tmp_path / "swarm/docker-state.json").write_text("{}")
    assert observe_runtime.swarm_state(None, daemon) == "not running"


def unit(tmp_path: Path, line: str, dropin: str, environment: str = "") -> dict[str, list[str]]:
    """Return the engine's unit as systemd shows it, whose drop-in and file of variables are real files."""
    (tmp_path / "docker.service").write_text("[Service]\nExecStart=/usr/sbin/dockerd -H fd:// $DOCKER_OPTS\n")
    (tmp_path / "own.conf").write_text(dropin)
    (tmp_path / "docker").write_text(environment)
    return {
        "ExecStart": [
            f"{{ path=/usr/sbin/dockerd ; argv[]={line} ; ignore_errors=no ; start_time=[n/a] ; stop_time=[n/a] ; "
            "pid=0 ; code=(null) ; status=0/0 }"
        ],
        "Environment": ["'A=x y' OPTS=--live-restore"],
        "EnvironmentFiles": [f"{tmp_path}/docker (ignore_errors=yes)"],
        "FragmentPath": [f"{tmp_path}/docker.service"],
        "DropInPaths": [f"{tmp_path}/own.conf"],
    }


@pytest.mark.parametrize(
    ("line", "dropin", "environment", "option", "value", "file"),
    [
        ("dockerd --live-restore -H fd://", "ExecStart=dockerd --live-restore", "", "live-restore", "true", "own.conf"),
        ("dockerd --live-restore=false", "--live-restore=false", "", "live-restore", "false", "own.conf"),
        ("dockerd $DOCKER_OPTS", "", 'DOCKER_OPTS="--data-root /data -D"\n', "data-root", "/data", "docker"),
        ("dockerd ${DOCKER_OPTS}", "", "#A=\nDOCKER_OPTS=--data-root=/data\n", "data-root", "/data", "docker"),
        ("dockerd $OPTS", "Environment=OPTS=--live-restore", "", "live-restore", "true", "own.conf"),
        ("dockerd --add-runtime habana=/opt/h", "", "", "add-runtime", "habana=/opt/h", None),
        ("dockerd --config-file /etc/d.json", "# --config-file\n", "", "config-file", "/etc/d.json", None),
    ],
)
def test_options_of_the_engines_command_line_are_found_with_their_file(
    tmp_path: Path, line: str, dropin: str, environment: str, option: str, value: str, file: str | None
) -> None:
    path = f"{tmp_path}/{file}" if file else "docker.service"
    expected = [{"option": option, "value": value, "file": path}]
    assert observe_runtime.engine_options(unit(tmp_path, line, dropin, environment)) == expected
    assert observe_runtime.engine_options(unit(tmp_path, "dockerd -H fd:// --icc", dropin, environment)) == []
    assert observe_runtime.engine_options({}) == []


@pytest.mark.parametrize(
    ("option", "value", "more", "sentence"),
    [
        ("live-restore", "true", {}, "gets live-restore: the engine does not start with both"),
        ("live-restore", "false", {"live_restore": False}, "gets live-restore: the engine does not start with both"),
        ("data-root", "/data", {}, None),
        ("data-root", "/data", {"data_root": "/data"}, "gets data-root: the engine does not start with both"),
        ("add-runtime", "habana=/opt/h", {}, "gets runtime habana: two runtimes have one name"),
        ("add-runtime", "habana=/opt/h", {"habana": False}, None),
        ("add-runtime", "other=/opt/h", {}, None),
        ("config-file", "/etc/docker/daemon.json", {}, None),
    ],
)
def test_a_key_that_the_command_line_has_too_is_refused_before_it_is_written(
    option: str, value: str, more: dict[str, Any], sentence: str | None
) -> None:
    keys = {"runtime": more.get("habana", True), "live_restore": True, "data_root": "", **more}
    keys.pop("habana", None)
    state = live(options=[{"option": option, "value": value, "file": "/etc/default/docker"}])
    expected = (
        f"gaudi01: /etc/default/docker: the engine's command line has --{option} {value}, and /etc/docker/daemon.json "
        f"{sentence}; remove the option, and run systemctl daemon-reload"
    )
    assert refusal(state, **more, daemon_json=merged(None, **keys)) == ([expected] if sentence else [])


def test_an_engine_that_reads_another_file_is_refused() -> None:
    state = live(options=[{"option": "config-file", "value": "/etc/d.json", "file": "docker.service"}])
    assert refusal(state) == [
        "gaudi01: docker.service: the engine's command line has --config-file /etc/d.json, so it does not read "
        "/etc/docker/daemon.json; remove the option"
    ]


def test_other_input_that_is_refused() -> None:
    assert refusal(live(), habana_repository={"uris": ["https://example.net"]}) == [
        "gaudi01: container_runtime_habana_repository: suites must be set"
    ]
    assert refusal(live(), http_proxy="http://a\nINJECTED=1") == [
        "gaudi01: container_runtime_http_proxy: must be one line; it has several"
    ]


def test_drift_is_what_is_live_against_what_is_planned() -> None:
    found = merged(USERS.replace("{", '{"live-restore": false, ', 1), runtime=False, live_restore=False)
    state = live(daemon_json=found, packages={}, info=None, reason="refused")
    lines = runtime.container_runtime_drift(state, wanted(daemon_json=merged(found, data_root="/d"), data_root="/d"))
    assert lines == [
        "engine: is not installed, planned docker.io",
        "habanalabs-container-runtime: is not installed, planned any version",
        "daemon.json: live-restore is false, planned true",
        "daemon.json: runtimes lack habana as planned",
        'daemon.json: data-root is not set, planned "/d"',
        "the engine does not answer: refused",
    ]
    assert runtime.container_runtime_drift(live(), wanted()) == []
    packages = {"docker.io": "1", "habanalabs-container-runtime": "1.20.0-1"}
    assert runtime.container_runtime_drift(live(packages=packages), wanted(habana_version="1.21.3-57")) == [
        "habanalabs-container-runtime: 1.20.0-1, planned 1.21.3-57"
    ]


@pytest.mark.parametrize("text", ["{half", "[]", "[" * 100_000, '{"runtimes": 7}'])
def test_a_broken_daemon_json_is_one_sentence_and_hides_nothing_else(text: str) -> None:
    found = live(daemon_json=text)
    asked = wanted(daemon_json=text)
    assert len(runtime.container_runtime_refusal(found, asked, "g")) == 1
    runtime.container_runtime_changes(found, asked)


def test_names_of_devices_by_cdi_are_a_feature_beside_the_owner_s() -> None:
    text = '{"features": {"buildkit": true}}'
    text = merged(text, runtime=False, cdi=True)
    assert json.loads(text) == {"features": {"buildkit": True, "cdi": True}, "live-restore": True}
    assert merged(text, runtime=False, cdi=True) == text
    with pytest.raises(InputError, match="features must be a JSON object"):
        merged('{"features": []}', cdi=True)


def test_an_engine_that_takes_no_cdi_names_yet_is_restarted() -> None:
    restart = runtime.container_runtime_changes(live(), wanted(cdi=True))["restart"]
    assert restart == ["features: the running engine accepts no CDI device names"]
    knows = live(info={**live()["info"], "cdi": True})
    assert runtime.container_runtime_changes(knows, wanted(cdi=True))["restart"] == []


def test_all_packages_of_a_runtime_are_installed_in_its_version() -> None:
    names = ["nvidia-container-toolkit", "nvidia-container-toolkit-base", "libnvidia-container-tools"]
    names.append("libnvidia-container1")
    for version, expected in (("1.20.0-1", [f"{name}=1.20.0-1" for name in names]), ("", names[:1])):
        asked = {**wanted(), "nvidia": True, "nvidia_version": version}
        changes = runtime.container_runtime_changes(live(), asked)
        assert runtime._to_install(cuda.RUNTIME, changes, asked)["names"] == expected


@pytest.mark.parametrize(
    ("system", "packages"),
    [
        ({"id": "debian", "version_id": "12"}, ["docker.io"]),
        ({"id": "debian", "version_id": "13"}, ["docker.io", "docker-cli"]),
        ({"id": "ubuntu", "version_id": "24.04"}, ["docker.io"]),
    ],
)
def test_an_engines_client_is_installed_where_it_is_a_package_of_its_own(
    system: dict[str, str], packages: list[str]
) -> None:
    assert runtime.with_client(["docker.io"], system) == packages
    assert runtime.with_client(["docker-ce"], system) == ["docker-ce"]


def test_an_engine_without_its_client_is_not_whole() -> None:
    lacks = live(info=None, reason="docker: not found")
    asked = wanted(packages=["docker.io", "docker-cli"])
    assert runtime.container_runtime_changes(lacks, asked)["install_engine"] == ["install docker.io, docker-cli"]
    whole = live(packages={**live()["packages"], "docker-cli": "26"})
    assert runtime.container_runtime_changes(whole, asked)["install_engine"] == []


def test_a_reset_knows_which_keys_of_the_engine_a_run_has_set() -> None:
    planned = json.dumps({"features": {"cdi": True}})
    assert runtime._own_keys(live(), wanted(daemon_json=planned, data_root="/d")) == {"data-root": True, "cdi": True}
    assert runtime._own_keys(live(daemon_json=planned), wanted(daemon_json=planned)) == {}


@pytest.mark.parametrize(
    ("installed", "keeps"),
    [
        ({}, True),
        ({"nvidia-container-toolkit": "1.20.0-1"}, True),
        ({"nvidia-container-toolkit": "1.17.8-1"}, False),
        ({"habanalabs-container-runtime": "1.21.3-57"}, True),
    ],
)
def test_devices_are_given_by_cdi_only_where_their_file_is_kept_up_to_date(
    installed: dict[str, str], keeps: bool
) -> None:
    assert observe_runtime.keeps_cdi_files(installed) is keeps


@pytest.mark.parametrize(
    ("version", "codename", "takes"),
    [("20.10.24", "bookworm", False), ("26.1.5", "trixie", True), (None, "bookworm", False), (None, "noble", True)],
)
def test_an_engine_takes_cdi_names_by_its_version_or_before_it_is_there_by_its_system(
    version: str | None, codename: str, takes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Result(0, f"Docker version {version}, build x", "") if version else Result(127, "", "not found")
    monkeypatch.setattr(observe_runtime, "run", lambda _: told)
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(f"ID=x\nVERSION_CODENAME={codename}\n")
    assert observe_runtime.takes_cdi(root=str(tmp_path)) is takes
    assert observe_runtime.takes_cdi("25.0.3", str(tmp_path)) and not observe_runtime.takes_cdi(
        "20.10.1", str(tmp_path)
    )
