"""From a plan to the files of its units, and from the live state to the pending changes."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from ipaddress import ip_address
from typing import Any

from ..catalog.keys import VARIABLE
from ..core.checks import is_true
from ..core.errors import InputError, is_number, near, readable, shown
from ..core.images import vllm_image_id
from ..core.paths import CONFIG, RAY_MEMBER, UNITS, vllm_unit_paths
from ..core.run import sha256_text
from ..core.served import served_models, served_names, smallest_request
from ..core.templates import file_of, rendered_text, template_of
from ..engines import engine_of
from ..host.permissions import mode_of
from ..host.secret import BESIDE, given_secrets, secret_changed, secret_text
from ..model.distributed import answers, hosts_of
from ..model.host import LiveModel
from ..model.shared import members
from .base import Given, Pending, Stage
from .launch_view import differences, launch_view
from .reset import recipe_caches, vllm_service_reset

# Bytes that must be free in folders for small files.
ROOM = 1024 * 1024
LAUNCH_KEYS = (
    *(
        "name",
        "launch_profile",
        "image",
        "host",
        "port",
        "module_ids",
        "runtime",
        "cap_add",
        "read_only",
        "ulimits",
        "mounts",
    ),
    *("start_timeout_s", "hang_timeout_s", "hang_least_s", "digest"),
)


# Keys of a launch file that only the supervisor reads, so that their changes restart no server.
SETTINGS = ("start_timeout_s", "hang_timeout_s")
# Possible actions on a model.
VERDICTS = ("stop", "start", "restart", "secret", "unpause", "smoke")
WAITED = ("start", "restart", "unpause")


@dataclass(frozen=True)
class Changes:
    """The pending changes to the models of a host; models by their names.

    write: files, with path, model, content and mode. absent: files that no model needs any more. orphans: containers
    that no unit runs. unpause: their containers were paused by hand. secret: those of restart whose secret has changed.
    adopt: continue under a new supervisor. wait: the run waits for them. smoke: not smoke-tested since their start.
    tokens: their hosts do not share a secret yet. ``anew``: those of start that a boot may have started since the last
    look, with old files: they must start again.
    """

    supervisor: bool
    write: list[dict[str, Any]]
    absent: list[str]
    remove: list[str]
    orphans: list[str]
    stop: list[str]
    start: list[str]
    anew: list[str]
    restart: list[str]
    unpause: list[str]
    adopt: list[str]
    secret: list[str]
    smoke: list[str]
    reload: bool
    wait: list[str]
    tokens: list[dict[str, str]]

    def as_dict(self) -> dict[str, Any]:
        """Return the changes as filters return them, with ``due``: whether any change is pending."""
        found = asdict(self)
        return {**found, "due": any(found.values())}


def vllm_container(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container file of a planned model for its supervisor, without environment and secrets.

    Raises:
        InputError: if the command names another host or port than the file, which is used to query the server.
    """
    args = list(model["args"])
    for key in ("host", "port"):
        told = [now for option, now in itertools.pairwise(args) if option == f"--{key}"]
        told += [one.partition("=")[2] for one in args if one.startswith(f"--{key}=")]
        if any(one != str(model[key]) for one in told):
            raise InputError(f"{model['name']}: {key}: the launch has {', '.join(told)}, and the plan {model[key]}")
    numactl = ["numactl", *model["numactl"]] if model["numactl"] else []
    engine = engine_of(model)
    # Its supervisor distinguishes a hung engine from an idle one by it.
    probe = {"probe": smallest_request(served_models(model)[0])}
    command = [*numactl, *engine.command, *args]
    if ray := (model.get("group") or {}).get("ray"):
        settings = json.dumps(ray, sort_keys=True)
        command = ["python3", RAY_MEMBER, settings, *(command if ray["role"] == "head" else [])]
    own = {"command": command, **probe, "progress": [list(one) for one in engine.progress]}
    # Also keep the runtime at the top level: older supervisors read it there, and a plan compares it.
    own["device_access"] = model["device_access"]
    group = {key: value for key, value in (model.get("group") or {}).items() if key not in ("ray", "tokens")}
    between = {"group": group} if group else {}
    return {**{key: model[key] for key in LAUNCH_KEYS}, **own, **between}


def same_launch(digest: str | None, command: Sequence[str] | None, model: Mapping[str, Any]) -> bool:
    """Return whether a server's launch equals the planned one.

    Args:
        digest: the digest on its container.
        command: program and arguments of its container; empty if unknown.
        model: a model of a plan.
    """
    # The digest is only a label that this toolkit wrote; the command is what really runs.
    return digest == model["digest"] and (not command or list(command) == vllm_container(model)["command"])


def env_text(model: Mapping[str, Any]) -> str:
    """Return the environment file of a planned model."""
    return "".join(f"{key}={value}\n" for key, value in sorted(model["env"].items()))


def same_env(digest: str | None, model: Mapping[str, Any]) -> bool:
    """Return whether a container was started with the planned environment.

    Args:
        digest: of the file that it was given; None for containers of older versions, which count as the same.
        model: a model of a plan.
    """
    return digest is None or digest == sha256_text(env_text(model))


def runs_as_planned(live: LiveModel, model: Mapping[str, Any]) -> bool:
    """Return whether a server's launch equals the planned one and it runs with the present weights.

    Args:
        live: the model on its host.
        model: a model of a plan.
    """
    keys = ("digest", "command", "stale", "limits", "env_sha256")
    return not restart_reasons({key: getattr(live, key) for key in keys}, model)


def restart_reasons(container: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return how a container differs from the planned one, a kind each; empty if its server may keep running.

    Args:
        container: as the host's facts have it; unknown values count as planned.
        model: a model of a plan.
    """
    found = {
        "stale": bool(container.get("stale")),
        "environment": not same_env(container.get("env_sha256"), model),
        "launch": not same_launch(container.get("digest"), container.get("command"), model),
        "limits": bool(container.get("limits")),
    }
    return [kind for kind, differs in found.items() if differs]


def setting_changes(launch: Mapping[str, Any], model: Mapping[str, Any]) -> list[str]:
    """Return how the settings of a model's supervisor change; empty if they are unknown.

    Args:
        launch: the model's launch file on its host.
        model: a model of a plan.
    """
    return [f"{key}: {launch[key]} -> {model[key]}" for key in SETTINGS if key in launch and launch[key] != model[key]]


def vllm_service_files(
    models: Sequence[Mapping[str, Any]], unit_template: str, ray_member: str = ""
) -> dict[str, dict[str, Any]]:
    """Return ``{path: {model, content, mode}}`` of every file that the planned models need.

    Args:
        models: the models of a plan.
        unit_template: Jinja text of the unit, rendered with ``model``.
        ray_member: the program for containers of Ray.

    Raises:
        InputError: if the template cannot be rendered.
    """
    files: dict[str, dict[str, Any]] = {}
    for model in models:
        name = model["name"]
        unit = rendered_text(unit_template, f"{name}: the unit's template cannot be rendered", model=model)
        env = env_text(model)
        launch = json.dumps(vllm_container(model), indent=2, sort_keys=True) + "\n"
        for path, content in (
            (f"{UNITS}/vllm-{name}.service", unit),
            (f"{CONFIG}/{name}.env", env),
            (f"{CONFIG}/{name}.json", launch),
            (f"{CONFIG}/{name}.buckets", model.get("bucket_file")),
            (f"{CONFIG}/{name}.ray", ray_member if (model.get("group") or {}).get("ray") else None),
        ):
            if content is not None:
                files[path] = {"model": name, "content": content, "mode": mode_of(path)}
    return files


def vllm_service_changes(
    models: Sequence[Mapping[str, Any]],
    live: Mapping[str, Any],
    files: Mapping[str, Mapping[str, Any]],
    supervisor: str,
) -> dict[str, Any]:
    """Compare planned models with the live units.

    Args:
        models: the models of a plan.
        live: ``gaudi_services`` of the host.
        files: the result of vllm_service_files.
        supervisor: text of the supervisor program.

    Returns:
        Changes as a mapping, with ``due``.
    """
    planned, version = {model["name"]: model for model in models}, sha256_text(supervisor)
    units: Mapping[str, Any] = {**(lost := _adoptable(planned, live)), **live["units"]}
    verdicts = {name: _verdict(model, units.get(name, {})) for name, model in planned.items()}
    by_kind = {kind: [name for name, found in verdicts.items() if kind in found] for kind in VERDICTS}
    write = [{"path": path, **file} for path, file in files.items() if _differs(path, file, units)]
    removed = sorted(set(live["units"]) - set(planned))
    adopted = _superseded(planned, units, by_kind["restart"], version)
    waiting = [name for name in planned if units.get(name, {}).get("state") == "activating"]
    stopped = [name for name, model in planned.items() if model["state"] == "stopped"]
    return Changes(
        supervisor=live["supervisor_sha256"] != version,
        write=write,
        absent=_unused(planned, units),
        remove=removed,
        orphans=[box for box in live.get("orphans", []) if box.removeprefix("vllm-") not in lost]
        + _left_running([name for name in stopped if name not in by_kind["stop"]], units),
        **by_kind,
        anew=_anew(by_kind["start"], units, write),
        adopt=adopted,
        reload=bool(removed) or _reload(units, write),
        tokens=_tokens(models, units),
        wait=sorted({*adopted, *waiting}.union(*(by_kind[kind] for kind in WAITED)) - {*stopped}),
    ).as_dict()


def _anew(started: Sequence[str], units: Mapping[str, Any], write: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the models to start whose files or secrets change: a boot may have started them with the old ones."""
    changed = {str(file["model"]) for file in write}
    changed |= {name for name, unit in units.items() if unit.get("secret_differs")}
    runs = {name for name, unit in units.items() if unit.get("state") in ("active", "activating")}
    return [name for name in started if name in changed - runs]


def _reload(units: Mapping[str, Any], write: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether systemd must read its units again."""
    stale = any(unit.get("need_reload") for unit in units.values())
    return stale or any(file["path"].endswith(".service") for file in write)


def _left_running(names: Sequence[str], units: Mapping[str, Any]) -> list[str]:
    """Return the containers of models that run although their units do not, as after a docker start by hand."""
    boxes = {name: units.get(name, {}).get("container") or {} for name in names}
    return [str(box.get("renamed") or f"vllm-{name}") for name, box in boxes.items() if box.get("running")]


def _tokens(models: Sequence[Mapping[str, Any]], units: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the models whose secret is missing or differs from the head's, with the head and the file."""
    return [
        {"model": str(model["name"]), "head": hosts_of(model)[0], "path": str(model["group"]["token"])}
        for model in models
        if model.get("group")
        and _token_due(model["group"]["tokens"], units.get(str(model["name"]), {}).get("token_sha256"))
    ]


def _token_due(planned: Mapping[str, Any], now: str | None) -> bool:
    """Return whether a host must get the head's secret or, on the head, whether it must make one."""
    return now is None or (planned["head"] != planned["here"] and now == planned["here"])


def _adoptable(planned: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models with only a container left, which the restored unit takes over."""
    left = live.get("without_unit", {})
    return {name: unit for name, unit in left.items() if planned.get(name, {}).get("state") == "started"}


def _superseded(
    planned: Mapping[str, Any], units: Mapping[str, Any], restarted: Sequence[str], version: str
) -> list[str]:
    """Return the models that continue under a supervisor of another version than the toolkit's."""
    go_on = [name for name, model in planned.items() if model["state"] == "started" and name not in restarted]
    runs = [name for name in go_on if units.get(name, {}).get("state") in ("active", "activating")]
    return [name for name in runs if units[name].get("supervisor") not in (None, version)]


def _unused(planned: Mapping[str, Any], units: Mapping[str, Any]) -> list[str]:
    """Return the files of models on their host that are no longer served."""
    return [path for name, model in planned.items() for path in _unused_of(model, units.get(name, {}))]


def _unused_of(model: Mapping[str, Any], unit: Mapping[str, Any]) -> list[str]:
    group = model.get("group") or {}
    used = {"buckets": model.get("bucket_file") is not None, "ray": bool(group.get("ray")), "token": bool(group)}
    return [
        f"{CONFIG}/{model['name']}.{kind}" for kind, wanted in used.items() if unit.get(f"{kind}_sha256") and not wanted
    ]


def _verdict(model: Mapping[str, Any], unit: Mapping[str, Any]) -> set[str]:
    """Return the actions for one model, out of VERDICTS."""
    state = unit.get("state", "inactive")
    if model["state"] == "stopped":
        return {"stop"} if state not in ("inactive", "failed") or unit.get("enabled") else set()
    container = unit.get("container") or {}
    secret = secret_changed(unit)
    same = not secret and not restart_reasons(container, model)
    # The model waits between two attempts with old input. A new run may have repaired the cause, so it restarts now.
    pauses = not container.get("running") and str(unit.get("status", "")).startswith("failed before")
    # After a boot, a unit without a container is about to create one from its old file.
    old = state == "activating" and not container.get("running") and unit.get("digest") != model["digest"]
    found = set()
    if state not in ("active", "activating"):
        found = {"start"}
    elif (container.get("running") and not same) or pauses or old:
        found = {"restart", "secret"} if secret else {"restart"}
    elif not unit.get("enabled"):
        found = {"start"}
    if container.get("paused") and "restart" not in found:
        found |= {"unpause"}
    # Smoke tests of a container that no longer runs, as after a boot, do not count for the next container.
    asked = set((unit.get("smoke") or {}).get("kinds", [])) if container.get("running") else set()
    return found if not found and set(model["smoke"]) <= asked else {*found, "smoke"}


def _differs(path: str, file: Mapping[str, Any], units: Mapping[str, Any]) -> bool:
    return sha256_text(file["content"]) != _live(path, units)


def _live(path: str, units: Mapping[str, Any]) -> str | None:
    folder, _, leaf = path.rpartition("/")
    stem, _, kind = leaf.rpartition(".")
    name = stem[len("vllm-") :] if folder == UNITS else stem
    key = {"service": "unit_sha256", "env": "env_sha256", "json": "launch_sha256"}.get(kind, f"{kind}_sha256")
    found = units.get(name, {}).get(key)
    return str(found) if found else None


def vllm_secret_files(
    secrets: Mapping[str, Mapping[str, Any]], models: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the secret environment file of every planned model, for module gaudi_files.

    Secrets of models that this host does not have are skipped: a group's hosts share one variable.
    """
    return [
        {
            **{"path": path, "content": secret_text(secrets[model["name"]]), "mode": mode_of(path)},
            "stored": BESIDE in secrets[model["name"]],
        }
        for model in models
        if secrets.get(model["name"]) and (path := f"{CONFIG}/{model['name']}.secret")
    ]


def vllm_withdrawn_secrets(live: Mapping[str, Any], secrets: Mapping[str, Any]) -> list[str]:
    """Return the secret files on the host to remove: those of models with an empty entry in the inventory.

    A model without an entry keeps its secrets: a run that was started without them, such as an AWX job whose credential
    is missing, must not remove the protection of its server.
    """
    return [
        f"{CONFIG}/{name}.secret"
        for name, unit in sorted(live["units"].items())
        if unit.get("secret_mtime") and name in secrets and not secrets[name]
    ]


def secrets_refusal(secrets: Any, host_name: str = "this host") -> list[str]:
    """Return the errors in the secrets, without their values."""
    secrets = given_secrets(secrets)
    if not isinstance(secrets, Mapping):
        return [f"{host_name}: vllm_secrets: must be a mapping of models"]
    reasons = []
    for key, variables in secrets.items():
        model = readable(key)
        if not isinstance(variables, Mapping):
            reasons.append(f"{host_name}: vllm_secrets: {model}: must be a mapping of environment variables")
            continue
        for name, value in variables.items():
            if name == BESIDE and value is True:
                continue
            if not isinstance(name, str) or not VARIABLE.fullmatch(name):
                reasons.append(f"{host_name}: vllm_secrets: {model}: {shown(name)} is not a name of a variable")
            elif allowed := _secret_problem(value):
                reasons.append(f"{host_name}: vllm_secrets: {model}: {readable(name)} must be {allowed}")
    return reasons


def _secret_problem(value: Any) -> str | None:
    if is_number(value, -math.inf, math.inf):
        return "quoted: YAML reads 0123456 and 1_000 as other numbers"
    if value is None or value == "":
        return "not empty; to withdraw all secrets of a model, give it {}"
    if not isinstance(value, str):
        return "a quoted text"
    if not value.isprintable():
        return "one line of printable text"
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return "of characters that an HTTP header can carry (Latin-1)"
    return None


def named(models: Any) -> list[dict[str, Any]]:
    """Return the names of models: for each its ``name``, and those of the models that share its card (``shares``)."""
    sound = [one for one in models or [] if isinstance(one, Mapping) and "name" in one]
    return [{"name": str(one["name"]), "shares": [str(other.get("name")) for other in members(one)]} for one in sound]


def nobodys_secrets(
    secrets: Any, host_name: str, models: Any, others: Iterable[Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Return the names in ``vllm_secrets`` without a model on any host: the intended server would have no key.

    A group's hosts share the variable, so the model may be on another host.

    Args:
        secrets: ``vllm_secrets`` of a host.
        host_name: name of the host in messages.
        models: its ``vllm_models``; None if not set.
        others: the result of ``named`` for each other host, read only as far as necessary.
    """
    secrets = given_secrets(secrets)
    if not isinstance(secrets, Mapping) or not isinstance(models, list):
        return []
    known: set[str] = set()
    entries: dict[str, str] = {}
    for some in itertools.chain([named(models)], others):
        known |= {one["name"] for one in some}
        entries |= {name: one["name"] for one in some for name in one["shares"]}
        if set(secrets) <= known:
            return []
    return [
        f"{host_name}: vllm_secrets: {readable(key)} "
        + (
            f"shares a server with {entries[key]}; write its secrets under {entries[key]}"
            if key in entries
            else f"is not a model of any host{near(key, known, 1)}"
        )
        for key in secrets
        if key not in known
    ]


def vllm_api_keys(secrets: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return ``{model: key}`` of the models whose server requires an API key."""
    return {
        model: str(variables["VLLM_API_KEY"]) for model, variables in secrets.items() if "VLLM_API_KEY" in variables
    }


def vllm_start_limits(models: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, int]:
    """Return ``{model: seconds}``: the start limit of each of the named models."""
    return {model["name"]: int(model["start_timeout_s"]) for model in models if model["name"] in names}


def vllm_service_refusal(changes: Mapping[str, Any], live: Mapping[str, Any], host_name: str) -> list[str]:
    """Return why models must not be changed: no space for their files, which would fail only after a restart.

    Args:
        changes: the result of vllm_service_changes; without pending changes nothing is written.
        live: ``gaudi_services`` of the host, with ``free`` (bytes by folder).
        host_name: name of the host in messages.
    """
    return [
        f"{host_name}: {folder}: {free // 1024} KiB are free there, and {ROOM // 1024} KiB are required: units, "
        "environments and results of smoke tests are written below it"
        for folder, free in live.get("free", {}).items()
        if changes["due"] and free < ROOM
    ]


def vllm_service_summary(changes: Mapping[str, Any]) -> list[str]:
    """Return the pending changes, one sentence a kind."""
    lines = [f"write {file['path']}" for file in changes["write"]]
    lines += [f"remove {path}" for path in changes["absent"]]
    lines += [f"write the secret that the hosts of {one['model']} share" for one in changes["tokens"]]
    if changes["supervisor"]:
        lines.append("write the supervisor")
    lines += [f"replace the supervisor of {name}: its server keeps running" for name in changes["adopt"]]
    lines += [f"remove container {name}, which no unit runs" for name in changes["orphans"]]
    lines += [f"resume the paused container of {name}" for name in changes["unpause"]]
    lines += [f"{verb} {name}" for verb in ("remove", "stop", "start") for name in changes[verb]]
    lines += [f"restart {name}{' (secret changed)' * (name in changes['secret'])}" for name in changes["restart"]]
    return lines + [f"send a test request to {name}" for name in changes["smoke"]]


def _settings_summary(models: Sequence[Mapping[str, Any]], units: Mapping[str, Any]) -> list[str]:
    """Return the settings of supervisors that change, a line each."""
    launches = {name: unit.get("launch") or {} for name, unit in units.items()}
    return [
        f"change {model['name']}: {text}"
        for model in models
        for text in setting_changes(launches.get(model["name"], {}), model)
    ]


FILES = {"service": "unit", "env": "environment", "json": "launch", "buckets": "buckets", "ray": "program of Ray"}
# The files in which the settings of a supervisor are.
OF_SETTINGS = ("unit", "launch")
MISSING = {
    "unit": "unit file",
    "environment": "environment file",
    "launch": "launch file",
    "buckets": "bucket file",
    "ray": "program of Ray",
}


def vllm_service_drift(
    changes: Mapping[str, Any], live: Mapping[str, Any], models: Sequence[Mapping[str, Any]] = ()
) -> list[str]:
    """Return how the live units differ from the planned ones, one sentence a difference.

    Args:
        changes: the result of vllm_service_changes.
        live: ``gaudi_services`` of the host.
        models: the models of a plan, to be compared with the live listeners, arguments and images.
    """
    lines = [] if not changes["supervisor"] else ["supervisor: is missing, or belongs to another release"]
    lines += [f"container {name}: runs without a unit" for name in changes["orphans"]]
    lines += [f"model {name}: exists, but is not planned" for name in changes["remove"]]
    planned = {str(model["name"]): model for model in models}
    for name in dict.fromkeys([*(file["model"] for file in changes["write"]), *_named(changes)]):
        left = live.get("without_unit", {})
        unit = live["units"].get(name)
        if name in left and f"vllm-{name}" not in changes["orphans"]:
            lines.append(f"model {name}: has no unit; the next run writes it, and its container keeps running")
            continue
        lines += [f"model {name}: {text}" for text in _unit_drift(name, unit, changes, planned.get(name))]
    for name, model in planned.items():
        unit = {**live.get("without_unit", {}), **live["units"]}.get(name, {})
        if model["state"] == "started" and unit.get("active"):
            lines += [f"model {name}: {text}" for text in _running_drift(model, unit.get("container") or {}, live)]
    return lines


def _running_drift(model: Mapping[str, Any], container: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Return how an active server differs from the plan: its listener and its image."""
    found = []
    if box := container.get("renamed"):
        found.append(f"its container was renamed {box}; its supervisor gives it its name again within seconds")
    listens = container.get("listens") if answers(model) else None
    if container.get("running") and listens is not None and not any(_is_at(model, one) for one in listens):
        found.append(f"listens on {', '.join(listens) or 'no port'}, and the plan has {model['host']}:{model['port']}")
    image = vllm_image_id(live.get("images") or {}, str(model["image"]))
    if container.get("running") and image and container.get("image") not in (None, image):
        found.append(
            f"runs an older image of the name {model['image']}; playbooks/restart.yml -e model={model['name']} starts "
            "the newer one"
        )
    return found


def _is_at(model: Mapping[str, Any], listener: str) -> bool:
    """Return whether a listener, such as 127.0.0.1:8000 or *:8000, is a model's; a host name matches any address."""
    where, _, port = listener.rpartition(":")
    if int(port) != int(model["port"]):
        return False
    try:
        wanted = ip_address(str(model["host"]))
    except ValueError:
        return True
    return where == str(wanted) or (where == "*" and wanted.is_unspecified)


def _named(changes: Mapping[str, Any]) -> list[str]:
    return [name for key in ("stop", "start", "restart", "unpause", "adopt", "smoke") for name in changes[key]]


def _unit_drift(
    name: str, unit: Mapping[str, Any] | None, changes: Mapping[str, Any], model: Mapping[str, Any] | None
) -> list[str]:
    if unit is None:
        return ["has no unit"]
    lost = [MISSING[kind] for kind in unit.get("lost", [])]
    lines = [f"its {' and its '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing or empty"] if lost else []
    kinds = [FILES[file["path"].rpartition(".")[2]] for file in changes["write"] if file["model"] == name]
    settings = setting_changes(unit.get("launch") or {}, model) if model else []
    lines += settings
    kinds = [kind for kind in kinds if kind not in unit.get("lost", []) and not (settings and kind in OF_SETTINGS)]
    lines += (
        [f"its {' and its '.join(kinds)} {'differs' if len(kinds) == 1 else 'differ'} from the plan"] if kinds else []
    )
    if name in changes["adopt"]:
        lines.append("its supervisor is of another version; the next run replaces it, and the server keeps running")
    if name in changes["unpause"]:
        lines.append("its container is paused")
    runs = unit.get("state") in ("active", "activating")
    if name in changes["stop"]:
        lines.append(f"{'runs' if runs else 'starts at boot'}, planned stopped")
    elif name in changes["start"]:
        lines.append("does not start at boot" if runs else unit.get("stopped") or "not running")
    elif name in changes["restart"]:
        status = str(unit.get("status", ""))
        before = "runs with other secrets" if name in changes["secret"] else _runs_other(unit, model)
        lines.append(f"does not run: {status}" if status.startswith("failed") else before)
    elif name in changes["smoke"] and runs and name not in changes["unpause"]:
        lines.append("has not answered its smoke test since its last start")
    return lines


def _runs_other(unit: Mapping[str, Any], model: Mapping[str, Any] | None) -> str:
    """Return that a server runs with an earlier launch and, if known, which of its arguments differ."""
    container = unit.get("container") or {}
    command = container.get("command")
    if container.get("stale"):
        return f"has {', '.join(container['stale'])} as it was at its start; another folder has replaced it since"
    reasons = restart_reasons(container, model) if model else []
    if "environment" in reasons and container.get("digest") == (model or {})["digest"]:
        return "runs with an environment that was edited on the host"
    if reasons == ["limits"]:
        return f"runs with limits that were set with docker update: {', '.join(container['limits'])}"
    now = vllm_container(model) if model and command else {}
    lines = differences(launch_view({**now, "command": command}, {}), launch_view(now, {})) if now else []
    return f"runs as it was planned before{': ' * bool(lines)}{'; '.join(lines)}"


def model_refusal(
    model: Any,
    hostvars: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[str],
    numbers: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return why an action on one model of a fleet is impossible, a sentence each.

    Args:
        model: its name as given; None if not given.
        hostvars: variables by host; the fact gaudi_services is read.
        hosts: the hosts that take part.
        numbers: further values by the names of their variables, each an integer from 1 to 9999999.
    """
    wrong = [
        f"{name} must be an integer from 1 to 9999999; it is {shown(value)}"
        for name, value in (numbers or {}).items()
        if not re.fullmatch("[1-9][0-9]{0,6}", str(value))
    ]
    found = {host: hostvars[host].get("gaudi_services", {}) for host in hosts}
    here = {
        host: sorted({*services.get("units", {}), *services.get("without_unit", {})})
        for host, services in found.items()
    }
    names = sorted({name for models in here.values() for name in models})
    known = "; ".join(f"{host}: its models are {', '.join(models)}" for host, models in here.items() if models)
    known = known or f"no model is served on {', '.join(hosts)}"
    if model is None or model == "":
        return [*wrong, f"-e model=NAME is missing: the name of one model; {known}"]
    if model in names:
        return wrong
    for host, services in found.items():
        for name, unit in services.get("units", {}).items():
            if model in served_names(name, (unit.get("launch") or {}).get("command") or ()):
                return [*wrong, f"model {shown(model)}: is served by {name} on {host}; write -e model={name}"]
    return [*wrong, f"model {shown(model)}: no host has it; {known}{near(model, names, 1)}"]


def restart_refusal(services: Mapping[str, Any], model: str, host_name: str = "this host") -> list[str]:
    """Return why a model of a host must not be restarted: its next start would lack something that is missing now.

    Args:
        services: ``gaudi_services`` of the host.
        model: its name.
        host_name: name of the host in messages.
    """
    unit = services["units"].get(model) or services.get("without_unit", {}).get(model) or {}
    lost = [MISSING[kind] for kind in unit.get("lost", [])]
    if not lost:
        return []
    verb = "is" if len(lost) == 1 else "are"
    return [
        f"{host_name}: model {model}: its {' and its '.join(lost)} {verb} missing or empty, so a restart would end its "
        "server and start none; run playbooks/models.yml, which writes it again without stopping the server"
    ]


def kept_models(plan: Mapping[str, Any]) -> set[str | None]:
    """Return the models that a plan lacks but that must not be removed: those with errors, those left unchanged."""
    return {error["model"] for error in plan.get("errors") or []} | {*(plan.get("left") or [])}


def _pending(given: Given) -> Pending:
    known = given.known
    services, secrets, models = (
        known["gaudi_services"],
        known["vllm_service_secrets"],
        known["vllm_service_plan"]["models"],
    )
    supervisor = file_of("vllm_service", "vllm-supervisor")
    files = vllm_service_files(
        models, template_of("vllm_service", "vllm.service.j2"), file_of("vllm_service", "ray-member")
    )
    changes = vllm_service_changes(models, services, files, supervisor)
    # A mistake in a model's entry does not remove the model, nor does an unreadable host of the model.
    kept = kept_models(known["vllm_service_plan"])
    changes["remove"] = [name for name in changes["remove"] if name not in kept]
    withdrawn = vllm_withdrawn_secrets(services, secrets)
    left = known["vllm_service_plan"].get("left") or []
    differ = bool(withdrawn) or any(
        unit.get("secret_differs") for name, unit in services["units"].items() if name not in left
    )
    summary = [*vllm_service_summary(changes), *_settings_summary(models, services["units"])]
    return Pending(
        changes={
            **changes,
            **{"withdrawn": withdrawn, "limits": vllm_start_limits(models, changes["wait"])},
            **{"smoked": [model for model in models if model["name"] in changes["smoke"]], "summary": summary},
            "supervisor_sha256": sha256_text(supervisor),
            "trials": _trials(changes["restart"], files),
            "caches": recipe_caches(models),
            "removed_paths": vllm_unit_paths(changes["remove"]),
        },
        due=[*(["update the secrets"] if differ else []), *summary],
        left=given.left(summary) if changes["due"] else [],
        refusal=vllm_service_refusal(changes, services, given.host),
        drift=vllm_service_drift(changes, services, models),
        stops={key: changes[key] for key in ("remove", "stop", "restart")},
    )


def _trials(names: Sequence[str], files: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the models that restart, with the files of their next containers."""
    return [
        {
            "name": name,
            "files": {
                path: file["content"]
                for path, file in files.items()
                if file["model"] == name and not path.endswith(".service")
            },
        }
        for name in names
    ]


def _reset(given: Given) -> dict[str, Any]:
    known = given.known
    caches = is_true(known["vllm_service_reset_caches"])
    return vllm_service_reset(known["gaudi_services"], known["gaudi_left"], caches)


STAGE = Stage(
    role="vllm_service",
    tag="models",
    planned=True,
    reports=("health",),
    given={"plan": "the plan", "secrets": "vllm_secrets and fleet_gateway_secret"},
    taken=("reset_caches",),
    pending=_pending,
    reset=_reset,
)
