"""From a plan to the files of its units, and from what is live to what is left to do."""

from __future__ import annotations

import hashlib
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
from ..core.served import served_models, served_names
from ..core.templates import file_of, rendered_text, template_of
from ..engines import engine_of
from ..host.secret import given_secrets, secret_changed, secret_text
from ..model.distributed import answers, hosts_of
from ..model.host import LiveModel
from ..model.shared import members
from .base import Given, Pending, Stage
from .launch_view import differences, launch_view
from .reset import recipe_caches, vllm_service_reset

# Bytes that must be free where small files are written.
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
    *("start_timeout_s", "hang_timeout_s", "digest"),
)


# What a model may need.
VERDICTS = ("stop", "start", "restart", "secret", "smoke")


@dataclass(frozen=True)
class Changes:
    """What is left to do for the models of a host; models by their names.

    write: files, with path, model, content and mode. absent: files that no model needs any more. orphans: containers
    without a unit. secret: those of restart whose secret has changed. adopt: go on under a new supervisor. wait: are
    waited for. smoke: not asked since their start. tokens: whose hosts do not share a secret yet. anew: those of start
    that a boot may have begun since they were looked at, with what is changed now: they must begin once more.
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
    adopt: list[str]
    secret: list[str]
    smoke: list[str]
    reload: bool
    wait: list[str]
    tokens: list[dict[str, str]]

    def as_dict(self) -> dict[str, Any]:
        """Return it as filters do, with ``due``: whether there is anything to do."""
        found = asdict(self)
        return {**found, "due": any(found.values())}


def vllm_container(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the supervisor of a planned model reads: everything but environment and secrets.

    Raises:
        InputError: where the command names another host or port than the file, by which the server is asked.
    """
    args = list(model["args"])
    for key in ("host", "port"):
        told = [now for option, now in itertools.pairwise(args) if option == f"--{key}"]
        told += [one.partition("=")[2] for one in args if one.startswith(f"--{key}=")]
        if any(one != str(model[key]) for one in told):
            raise InputError(f"{model['name']}: {key}: the launch has {', '.join(told)}, and the plan {model[key]}")
    numactl = ["numactl", *model["numactl"]] if model["numactl"] else []
    engine = engine_of(model)
    probe = {"probe": _probe(model)}
    command = [*numactl, *engine.command, *args]
    if ray := (model.get("group") or {}).get("ray"):
        settings = json.dumps(ray, sort_keys=True)
        command = ["python3", RAY_MEMBER, settings, *(command if ray["role"] == "head" else [])]
    own = {"command": command, **probe, "progress": [list(one) for one in engine.progress]}
    # The runtime stands beside it too: supervisors before this block read it there, and a plan compares it.
    own["device_access"] = model["device_access"]
    group = {key: value for key, value in (model.get("group") or {}).items() if key not in ("ray", "tokens")}
    between = {"group": group} if group else {}
    return {**{key: model[key] for key in LAUNCH_KEYS}, **own, **between}


def _probe(model: Mapping[str, Any]) -> dict[str, Any]:
    """Return the smallest question to a server, by which its supervisor tells a frozen engine from an idle one."""
    first = served_models(model)[0]
    served = first["served_model_name"]
    if "embedding" in first["smoke"]:
        return {"path": "/v1/embeddings", "body": {"model": served, "input": "a"}}
    if "rerank" in first["smoke"]:
        return {"path": "/v1/rerank", "body": {"model": served, "query": "a", "documents": ["a"]}}
    # A prompt of one token, by its number: no client sends one, so that traffic can be told from it.
    return {"path": "/v1/completions", "body": {"model": served, "prompt": [1], "max_tokens": 1}}


def same_launch(digest: str | None, command: Sequence[str] | None, model: Mapping[str, Any]) -> bool:
    """Tell whether a server was launched as it is planned now.

    Args:
        digest: the one that its container carries.
        command: program and arguments that its container has; empty where they are not known.
        model: a model of a plan.
    """
    # The digest alone is a text that this toolkit wrote; the command is what runs.
    return digest == model["digest"] and (not command or list(command) == vllm_container(model)["command"])


def runs_as_planned(live: LiveModel, model: Mapping[str, Any]) -> bool:
    """Tell whether a server was launched as it is planned now, with the weights that are there now.

    Args:
        live: the model on its host.
        model: a model of a plan.
    """
    return not live.stale and same_launch(live.digest, live.command, model)


def vllm_service_files(
    models: Sequence[Mapping[str, Any]], unit_template: str, ray_member: str = ""
) -> dict[str, dict[str, Any]]:
    """Return ``{path: {model, content, mode}}`` of every file that the planned models need.

    Args:
        models: the models of a plan.
        unit_template: Jinja text of the unit, rendered with ``model``.
        ray_member: the program of containers of Ray.

    Raises:
        InputError: when the template cannot be rendered.
    """
    files: dict[str, dict[str, Any]] = {}
    for model in models:
        name = model["name"]
        unit = rendered_text(unit_template, f"{name}: the unit's template cannot be rendered", model=model)
        env = "".join(f"{key}={value}\n" for key, value in sorted(model["env"].items()))
        launch = json.dumps(vllm_container(model), indent=2, sort_keys=True) + "\n"
        for path, content, mode in (
            (f"{UNITS}/vllm-{name}.service", unit, "0644"),
            (f"{CONFIG}/{name}.env", env, "0640"),
            (f"{CONFIG}/{name}.json", launch, "0640"),
            # The server reads it without the capabilities of root.
            (f"{CONFIG}/{name}.buckets", model.get("bucket_file"), "0644"),
            (f"{CONFIG}/{name}.ray", ray_member if (model.get("group") or {}).get("ray") else None, "0644"),
        ):
            if content is not None:
                files[path] = {"model": name, "content": content, "mode": mode}
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
        files: what vllm_service_files returned.
        supervisor: text of the supervisor program.

    Returns:
        Changes as a mapping, with ``due``.
    """
    planned, version = {model["name"]: model for model in models}, _sha256(supervisor)
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
        orphans=[box for box in live.get("orphans", []) if box.removeprefix("vllm-") not in lost],
        **by_kind,
        anew=_anew(by_kind["start"], units, write),
        adopt=adopted,
        reload=bool(removed) or _reload(units, write),
        tokens=_tokens(models, units),
        wait=sorted({*by_kind["start"], *by_kind["restart"], *adopted, *waiting} - {*stopped}),
    ).as_dict()


def _anew(started: Sequence[str], units: Mapping[str, Any], write: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the models to start whose files or secrets change, so that a start that began meanwhile is an old one."""
    changed = {str(file["model"]) for file in write}
    changed |= {name for name, unit in units.items() if unit.get("secret_differs")}
    runs = {name for name, unit in units.items() if unit.get("state") in ("active", "activating")}
    return [name for name in started if name in changed - runs]


def _reload(units: Mapping[str, Any], write: Sequence[Mapping[str, Any]]) -> bool:
    """Tell whether systemd must read its units again."""
    stale = any(unit.get("need_reload") for unit in units.values())
    return stale or any(file["path"].endswith(".service") for file in write)


def _tokens(models: Sequence[Mapping[str, Any]], units: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the models whose secret is missing here or another one, with the host that makes it, and the file."""
    return [
        {"model": str(model["name"]), "head": hosts_of(model)[0], "path": str(model["group"]["token"])}
        for model in models
        if model.get("group")
        and _token_due(model["group"]["tokens"], units.get(str(model["name"]), {}).get("token_sha256"))
    ]


def _token_due(planned: Mapping[str, Any], now: str | None) -> bool:
    """Tell whether a host takes over the head's secret; the head, of which both are the same, makes one it lacks."""
    return now is None or (planned["head"] != planned["here"] and now == planned["here"])


def _adoptable(planned: Mapping[str, Any], live: Mapping[str, Any]) -> dict[str, Any]:
    """Return the models of which only a container is left, and which the unit that is written again takes over."""
    left = live.get("without_unit", {})
    return {name: unit for name, unit in left.items() if planned.get(name, {}).get("state") == "started"}


def _superseded(
    planned: Mapping[str, Any], units: Mapping[str, Any], restarted: Sequence[str], version: str
) -> list[str]:
    """Return the models that go on under a supervisor of another version than the toolkit's."""
    go_on = [name for name, model in planned.items() if model["state"] == "started" and name not in restarted]
    runs = [name for name in go_on if units.get(name, {}).get("state") in ("active", "activating")]
    return [name for name in runs if units[name].get("supervisor") not in (None, version)]


def _unused(planned: Mapping[str, Any], units: Mapping[str, Any]) -> list[str]:
    """Return the files of models on their host that they are not served with any more."""
    return [path for name, model in planned.items() for path in _unused_of(model, units.get(name, {}))]


def _unused_of(model: Mapping[str, Any], unit: Mapping[str, Any]) -> list[str]:
    group = model.get("group") or {}
    used = {"buckets": model.get("bucket_file") is not None, "ray": bool(group.get("ray")), "token": bool(group)}
    return [
        f"{CONFIG}/{model['name']}.{kind}" for kind, wanted in used.items() if unit.get(f"{kind}_sha256") and not wanted
    ]


def _verdict(model: Mapping[str, Any], unit: Mapping[str, Any]) -> set[str]:
    """Return what is to be done with one model, of VERDICTS."""
    state = unit.get("state", "inactive")
    if model["state"] == "stopped":
        return {"stop"} if state not in ("inactive", "failed") or unit.get("enabled") else set()
    container = unit.get("container") or {}
    secret = secret_changed(unit)
    same = same_launch(container.get("digest"), container.get("command"), model) and not secret
    same = same and not container.get("stale")
    # Between two tries, with what was read before it: who runs again has mended something, and need not wait.
    pauses = not container.get("running") and str(unit.get("status", "")).startswith("failed before")
    # After a boot, a unit that has no container yet is about to make the one that its file told of until now.
    old = state == "activating" and not container.get("running") and unit.get("digest") != model["digest"]
    found = set()
    if state not in ("active", "activating"):
        found = {"start"}
    elif (container.get("running") and not same) or pauses or old:
        found = {"restart", "secret"} if secret else {"restart"}
    elif not unit.get("enabled"):
        found = {"start"}
    # What a container has answered that runs no more, as after a boot, says nothing of the one that its unit makes.
    asked = set((unit.get("smoke") or {}).get("kinds", [])) if container.get("running") else set()
    return found if not found and set(model["smoke"]) <= asked else {*found, "smoke"}


def _differs(path: str, file: Mapping[str, Any], units: Mapping[str, Any]) -> bool:
    return _sha256(file["content"]) != _live(path, units)


def _live(path: str, units: Mapping[str, Any]) -> str | None:
    folder, _, leaf = path.rpartition("/")
    stem, _, kind = leaf.rpartition(".")
    name = stem[len("vllm-") :] if folder == UNITS else stem
    key = {"service": "unit_sha256", "env": "env_sha256", "json": "launch_sha256"}.get(kind, f"{kind}_sha256")
    found = units.get(name, {}).get(key)
    return str(found) if found else None


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def vllm_secret_files(
    secrets: Mapping[str, Mapping[str, Any]], models: Sequence[Mapping[str, Any]]
) -> list[dict[str, str]]:
    """Return the secret environment file of every planned model, for module gaudi_files.

    Secrets of models that this host does not have are passed over: a group's hosts share one variable.
    """
    return [
        {
            "path": f"{CONFIG}/{model['name']}.secret",
            "content": secret_text(secrets[model["name"]]),
            "mode": "0600",
        }
        for model in models
        if secrets.get(model["name"])
    ]


def vllm_withdrawn_secrets(live: Mapping[str, Any], secrets: Mapping[str, Any]) -> list[str]:
    """Return the secret files on the host that the inventory takes back: of models with an entry that is empty.

    A model of which it says nothing keeps its secrets: a run that was started without them, as a job of AWX whose
    credential is missing, must not open its server.
    """
    return [
        f"{CONFIG}/{name}.secret"
        for name, unit in sorted(live["units"].items())
        if unit.get("secret_mtime") and name in secrets and not secrets[name]
    ]


def secrets_refusal(secrets: Any, host_name: str = "this host") -> list[str]:
    """Return what is wrong with the secrets, never with a value."""
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
            if not isinstance(name, str) or not VARIABLE.fullmatch(name):
                reasons.append(f"{host_name}: vllm_secrets: {model}: {shown(name)} is not a name of a variable")
            elif allowed := _secret_problem(value):
                reasons.append(f"{host_name}: vllm_secrets: {model}: {readable(name)} must be {allowed}")
    return reasons


def _secret_problem(value: Any) -> str | None:
    if is_number(value, -math.inf, math.inf):
        return "quoted: YAML makes another number of 0123456, and of 1_000"
    if value is None or value == "":
        return "not empty; to withdraw all secrets of a model, give it {}"
    if not isinstance(value, str):
        return "a quoted text"
    if not value.isprintable():
        return "one line of printable text"
    try:
        value.encode("latin-1")
    except UnicodeEncodeError:
        return "of signs that a header of HTTP can carry (Latin-1)"
    return None


def named(models: Any) -> list[dict[str, Any]]:
    """Return the names of models: of each its ``name``, and those of the models that share its card (``shares``)."""
    sound = [one for one in models or [] if isinstance(one, Mapping) and "name" in one]
    return [{"name": str(one["name"]), "shares": [str(other.get("name")) for other in members(one)]} for one in sound]


def nobodys_secrets(
    secrets: Any, host_name: str, models: Any, others: Iterable[Sequence[Mapping[str, Any]]]
) -> list[str]:
    """Return the names in ``vllm_secrets`` that no host has a model of: its server would run without its key.

    A group's hosts share the variable, so that a model may be another host's.

    Args:
        secrets: ``vllm_secrets`` of a host.
        host_name: how messages call the host.
        models: its ``vllm_models``; None where nobody has said any.
        others: what ``named`` returns of those of the other hosts, of which no more are looked at than it takes.
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
    """Return ``{model: key}`` of the models whose server asks for an API key."""
    return {
        model: str(variables["VLLM_API_KEY"]) for model, variables in secrets.items() if "VLLM_API_KEY" in variables
    }


def vllm_start_limits(models: Sequence[Mapping[str, Any]], names: Sequence[str]) -> dict[str, int]:
    """Return ``{model: seconds}`` that each of the named models may take to start."""
    return {model["name"]: int(model["start_timeout_s"]) for model in models if model["name"] in names}


def vllm_service_refusal(changes: Mapping[str, Any], live: Mapping[str, Any], host_name: str) -> list[str]:
    """Return why models must be left alone: no room for their files, which would be seen after a restart else.

    Args:
        changes: what vllm_service_changes returned; where nothing is due, nothing is written.
        live: ``gaudi_services`` of the host, with ``free`` (bytes by folder).
        host_name: how messages call the host.
    """
    return [
        f"{host_name}: {folder}: {free // 1024} KiB are free there, and {ROOM // 1024} must be: units, environments "
        "and results of smoke tests are written below it"
        for folder, free in live.get("free", {}).items()
        if changes["due"] and free < ROOM
    ]


def vllm_service_summary(changes: Mapping[str, Any]) -> list[str]:
    """Return what is to be done, one sentence a kind."""
    lines = [f"write {file['path']}" for file in changes["write"]]
    lines += [f"remove {path}" for path in changes["absent"]]
    lines += [f"write the secret that the hosts of {one['model']} share" for one in changes["tokens"]]
    if changes["supervisor"]:
        lines.append("write the supervisor")
    lines += [f"replace the supervisor of {name}: its server goes on" for name in changes["adopt"]]
    lines += [f"remove container {name}, which has no unit" for name in changes["orphans"]]
    lines += [f"{verb} {name}" for verb in ("remove", "stop", "start") for name in changes[verb]]
    lines += [f"restart {name}{' (secret changed)' * (name in changes['secret'])}" for name in changes["restart"]]
    return lines + [f"send a test request to {name}" for name in changes["smoke"]]


FILES = {"service": "unit", "env": "environment", "json": "launch", "buckets": "buckets", "ray": "program of Ray"}
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
        changes: what vllm_service_changes returned.
        live: ``gaudi_services`` of the host.
        models: the models of a plan, to be compared with what really listens, and with the arguments and the image
            of what runs.
    """
    lines = [] if not changes["supervisor"] else ["supervisor: is not there, or not of this release"]
    lines += [f"container {name}: runs without a unit" for name in changes["orphans"]]
    lines += [f"model {name}: is there, but not planned" for name in changes["remove"]]
    planned = {str(model["name"]): model for model in models}
    for name in dict.fromkeys([*(file["model"] for file in changes["write"]), *_named(changes)]):
        left = live.get("without_unit", {})
        unit = live["units"].get(name)
        if name in left and f"vllm-{name}" not in changes["orphans"]:
            lines.append(f"model {name}: has no unit; the next run writes it, and its container goes on")
            continue
        lines += [f"model {name}: {text}" for text in _unit_drift(name, unit, changes, planned.get(name))]
    for name, model in planned.items():
        unit = {**live.get("without_unit", {}), **live["units"]}.get(name, {})
        if model["state"] == "started" and unit.get("active"):
            lines += [f"model {name}: {text}" for text in _running_drift(model, unit.get("container") or {}, live)]
    return lines


def _running_drift(model: Mapping[str, Any], container: Mapping[str, Any], live: Mapping[str, Any]) -> list[str]:
    """Return where a server that is active is not what is planned: what it listens on, and its image."""
    found = []
    listens = container.get("listens") if answers(model) else None
    if container.get("running") and listens is not None and not any(_is_at(model, one) for one in listens):
        found.append(f"listens on {', '.join(listens) or 'no port'}, and the plan has {model['host']}:{model['port']}")
    image = vllm_image_id(live.get("images") or {}, str(model["image"]))
    if container.get("running") and image and container.get("image") not in (None, image):
        found.append(
            f"runs an older image of the name {model['image']}; playbooks/restart.yml -e model={model['name']} takes "
            "the newer one"
        )
    return found


def _is_at(model: Mapping[str, Any], listener: str) -> bool:
    """Tell whether a listener, such as 127.0.0.1:8000 or *:8000, is the one of a model; a name may be any address."""
    where, _, port = listener.rpartition(":")
    if int(port) != int(model["port"]):
        return False
    try:
        wanted = ip_address(str(model["host"]))
    except ValueError:
        return True
    return where == str(wanted) or (where == "*" and wanted.is_unspecified)


def _named(changes: Mapping[str, Any]) -> list[str]:
    return [name for key in ("stop", "start", "restart", "adopt", "smoke") for name in changes[key]]


def _unit_drift(
    name: str, unit: Mapping[str, Any] | None, changes: Mapping[str, Any], model: Mapping[str, Any] | None
) -> list[str]:
    if unit is None:
        return ["has no unit"]
    lost = [MISSING[kind] for kind in unit.get("lost", [])]
    lines = [f"its {' and its '.join(lost)} {'is' if len(lost) == 1 else 'are'} missing or empty"] if lost else []
    kinds = [FILES[file["path"].rpartition(".")[2]] for file in changes["write"] if file["model"] == name]
    kinds = [kind for kind in kinds if kind not in unit.get("lost", [])]
    lines += (
        [f"its {' and its '.join(kinds)} {'differs' if len(kinds) == 1 else 'differ'} from the plan"] if kinds else []
    )
    if name in changes["adopt"]:
        lines.append("its supervisor is of another version; the next run replaces it, and the server goes on")
    runs = unit.get("state") in ("active", "activating")
    if name in changes["stop"]:
        lines.append(f"{'runs' if runs else 'starts at boot'}, planned stopped")
    elif name in changes["start"]:
        lines.append("does not start at boot" if runs else unit.get("stopped") or "not running")
    elif name in changes["restart"]:
        status = str(unit.get("status", ""))
        before = "runs with other secrets" if name in changes["secret"] else _runs_other(unit, model)
        lines.append(f"does not run: {status}" if status.startswith("failed") else before)
    elif name in changes["smoke"] and runs:
        lines.append("has not answered its smoke test since its last start")
    return lines


def _runs_other(unit: Mapping[str, Any], model: Mapping[str, Any] | None) -> str:
    """Return that a server runs with an earlier launch, and which of its arguments differ, where that is known."""
    container = unit.get("container") or {}
    command = container.get("command")
    if container.get("stale"):
        return f"has {', '.join(container['stale'])} as it was at its start, and another folder is there since"
    now = vllm_container(model) if model and command else {}
    lines = differences(launch_view({**now, "command": command}, {}), launch_view(now, {})) if now else []
    return f"runs as it was planned before{': ' * bool(lines)}{'; '.join(lines)}"


def model_refusal(
    model: Any,
    hostvars: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[str],
    numbers: Mapping[str, Any] | None = None,
) -> list[str]:
    """Return why nothing can be done with one model of a fleet, a sentence each.

    Args:
        model: its name as it was given; None where nobody has given one.
        hostvars: variables by host; read is the fact gaudi_services.
        hosts: the hosts that take part.
        numbers: what else was given by the names of the variables, each an integer from 1 to 9999999.
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
    """Return why a model of a host must not be restarted: what is lost would be missing for its next start.

    Args:
        services: ``gaudi_services`` of the host.
        model: its name.
        host_name: how messages call the host.
    """
    unit = services["units"].get(model) or services.get("without_unit", {}).get(model) or {}
    lost = [MISSING[kind] for kind in unit.get("lost", [])]
    if not lost:
        return []
    verb = "is" if len(lost) == 1 else "are"
    return [
        f"{host_name}: model {model}: its {' and its '.join(lost)} {verb} missing or empty, so a restart would end its "
        "server and start none; run playbooks/models.yml, which writes it again and lets the server go on"
    ]


def kept_models(plan: Mapping[str, Any]) -> set[str | None]:
    """Return the models that a plan lacks and that are not to be removed: those with a mistake, those left alone."""
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
    # A mistake in a model's entry does not take it away, nor does a host of its that cannot be read.
    kept = kept_models(known["vllm_service_plan"])
    changes["remove"] = [name for name in changes["remove"] if name not in kept]
    withdrawn = vllm_withdrawn_secrets(services, secrets)
    left = known["vllm_service_plan"].get("left") or []
    differ = bool(withdrawn) or any(
        unit.get("secret_differs") for name, unit in services["units"].items() if name not in left
    )
    summary = vllm_service_summary(changes)
    return Pending(
        changes={
            **changes,
            **{"withdrawn": withdrawn, "limits": vllm_start_limits(models, changes["wait"])},
            **{"smoked": [model for model in models if model["name"] in changes["smoke"]], "summary": summary},
            "supervisor_sha256": sha256_text(supervisor),
            "caches": recipe_caches(models),
            "removed_paths": vllm_unit_paths(changes["remove"]),
        },
        due=[*(["update the secrets"] if differ else []), *summary],
        left=given.left(summary) if changes["due"] else [],
        refusal=vllm_service_refusal(changes, services, given.host),
        drift=vllm_service_drift(changes, services, models),
        stops={key: changes[key] for key in ("remove", "stop", "restart")},
    )


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
