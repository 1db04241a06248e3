"""Validates ``fleet_awx``, the settings of an AWX, before anything is changed; each mistake gives one message."""

from __future__ import annotations

import json
import re
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from ..core.checks import is_flag_text, is_true
from ..core.errors import InputError, has_login, known, mapping, one_line, readable, refusal, shown, whole
from ..gateway.fleet import secret_problem
from ..host.secret import given_secrets
from ..model.shared import with_name
from ..stages.image import are_logins

Known = Mapping[str, Any]
TEAMS = ("viewer", "operator", "admin")
# Required fields of a notification, by its type, with their types.
NOTIFICATIONS: dict[str, dict[str, type]] = {
    "email": {
        **dict.fromkeys(("host", "username", "password", "sender"), str),
        **{"port": int, "use_tls": bool, "use_ssl": bool, "recipients": list},
    },
    "webhook": {"url": str, "headers": dict},
    "slack": {"token": str, "channels": list},
    "mattermost": {"mattermost_url": str, "mattermost_no_verify_ssl": bool},
    "rocketchat": {"rocketchat_url": str, "rocketchat_no_verify_ssl": bool},
    "grafana": {"grafana_url": str, "grafana_key": str},
    "pagerduty": dict.fromkeys(("subdomain", "token", "service_key", "client_name"), str),
    "twilio": {**dict.fromkeys(("account_sid", "account_token", "from_number"), str), "to_numbers": list},
    "irc": {
        **dict.fromkeys(("server", "nickname", "password"), str),
        **{"port": int, "use_ssl": bool, "targets": list},
    },
    "awssns": {},
}
OF_TYPE = {str: "a text", int: "an integer", bool: "true or false", list: "a list", dict: "a mapping"}
STATES = ("present", "absent")
EVENTS = ("error", "success", "started", "approval")
PULL = ("always", "missing", "never")
# The keys of these mappings of the settings.
ENVIRONMENT = ("image", "pull", "credential")
PROJECT = ("url", "branch", "credential")
INVENTORY = ("path", "project", "hosts")
NOTIFICATION = ("name", "type", "configuration", "events")
SCHEDULES = {
    "status": "DTSTART:20260101T000700Z RRULE:FREQ=HOURLY;INTERVAL=1",
    "validate": "DTSTART:20260104T030000Z RRULE:FREQ=WEEKLY;INTERVAL=1;BYDAY=SU",
}
RRULE = re.compile(
    r"DTSTART(;TZID=[\w/+-]+)?:\d{8}T\d{6}Z? "
    r"RRULE:FREQ=(MINUTE|HOUR|DAI|WEEK|MONTH|YEAR)LY;INTERVAL=[1-9]\d*(;[A-Z]+=[\w,:+-]+)*",
    re.ASCII,
)
KEYS = (
    *("organization", "prefix", "collections", "execution_environment", "project", "inventory", "forks"),
    *("approval_timeout", "teams", "rollout_approvers", "notifications", "schedules", "machine", "vault"),
    *("vllm_secrets", "model_weights_tokens", "vllm_image_registries", "fleet_gateway_secret", "controller"),
)
# AWX's own credential types; and for each, the keys of the settings with AWX's field names.
MACHINE, VAULT, GIT, REGISTRY, CONTROLLER = (
    *("Machine", "Vault", "Source Control", "Container Registry"),
    "Red Hat Ansible Automation Platform",
)
LOGIN = {"username": "username", "password": "password"}
SSH = {"ssh_key": "ssh_key_data", "ssh_key_passphrase": "ssh_key_unlock"}
FIELDS: dict[str, dict[str, str]] = {
    MACHINE: {**LOGIN, **SSH, "become_username": "become_username", "become_password": "become_password"},
    VAULT: {"password": "vault_password", "id": "vault_id"},
    GIT: {**LOGIN, **SSH},
    REGISTRY: {"host": "host", **LOGIN, "verify_ssl": "verify_ssl"},
    CONTROLLER: {"host": "host", **LOGIN, "token": "oauth_token", "verify_ssl": "verify_ssl"},
}
# Fields that AWX requires.
NEEDED = {VAULT: ("password",), REGISTRY: ("host",), CONTROLLER: ("host",)}
PRIVATE_KEY = re.compile(r"-----BEGIN ([A-Z ]*)PRIVATE KEY-----\n.*\n-----END \1PRIVATE KEY-----", re.DOTALL)
SECRET: dict[str, Any] = {"type": "string", "secret": True}
# Characters that a request header allows; a YAML text after | ends with a line break, which it does not.
TOKEN = re.compile(r"[!-~]+")
WEIGHTS = ("hub", "modelscope", "git")
TOKENS = ("token", *WEIGHTS)
UNSENDABLE = "has a blank, the end of a line, or a character that is not ASCII"


def _of_one(key: str, name: str, description: str, as_yaml: bool = False) -> dict[str, Any]:
    """Return a credential type with one field that sets the variable of that name; the value may be multi-line YAML."""
    field = {"label": f"{key}, as YAML", "multiline": True} if as_yaml else {"label": key}
    return {
        "name": name,
        "description": f"{key}: {description}",
        "inputs": {"fields": [{"id": key, **field, **SECRET}], "required": [key]},
        "injectors": {"extra_vars": {key: f"{{{{ {key} }}}}"}},
    }


# The toolkit's own credential types. Each sets variables that nothing else sets, so that a job without it uses the
# inventory's values. AWX refuses changes of a type that is in use, so the types have no fields for single models.
TYPES: dict[str, dict[str, Any]] = {
    "vllm_secrets": _of_one(
        "vllm_secrets",
        "secrets of models",
        "secret environment variables by model, such as VLLM_API_KEY.",
        as_yaml=True,
    ),
    "model_weights_tokens": {
        "name": "tokens for weights",
        "description": "model_weights_tokens: credentials for the sources of weights.",
        "inputs": {
            "fields": [
                {"id": "hub", "label": "Token of the hub", **SECRET},
                {"id": "modelscope", "label": "Token of ModelScope", **SECRET},
                {"id": "git", "label": "Token of the git server", **SECRET},
            ]
        },
        "injectors": {
            "extra_vars": {
                "model_weights_tokens": {"hub": "{{ hub }}", "modelscope": "{{ modelscope }}", "git": "{{ git }}"}
            }
        },
    },
    "vllm_image_registries": _of_one(
        "vllm_image_registries",
        "logins of registries",
        "by registry the username and password with which hosts pull images.",
        as_yaml=True,
    ),
    "fleet_gateway_secret": _of_one(
        "fleet_gateway_secret",
        "secret of the gateways",
        "the keys between gateways and servers are computed from it.",
    ),
}


def is_token(text: str) -> bool:
    """Return whether a text is a valid token: one that fits into a request header."""
    return TOKEN.fullmatch(text) is not None


def is_address(text: str) -> bool:
    """Return whether a text is a server's address with its scheme, optionally with a port and a path."""
    try:
        parts = urllib.parse.urlsplit(text)
        return bool(is_token(text) and parts.hostname and parts.port != 0 and not parts.query and not parts.fragment)
    except ValueError:
        return False


def awx_settings(given: Any) -> dict[str, Any]:
    """Return the complete settings of an AWX.

    Args:
        given: ``fleet_awx``, as explained in inventory/examples/mixed/awx.yml.

    Returns:
        ``organization``, ``prefix``, ``collections``, ``execution_environment``, ``project``, ``inventory``,
        ``forks``, ``approval_timeout``, ``teams``, ``rollout_approvers``, ``notifications``, ``schedules``;
        ``credentials``: key, name and type of each; ``types``: the toolkit's own credential types; ``runs``: the
        names of the credentials that jobs get; ``controller``: the name of the credential that writes approvals, or
        ``''``; ``told``: names of notifications by event.

    Raises:
        InputError: with all mistakes, one on each line. The message never contains a secret.
    """
    problems: list[str] = []
    given = _filled("fleet_awx", given, problems)
    names = mapping("", "fleet_awx", given, "a mapping with project, inventory, machine and so on")
    found: dict[str, Any] = {}
    wanted: list[tuple[str, Callable[[], Any]]] = [("", partial(known, "fleet_awx", names, KEYS))]
    wanted += [(key, partial(reader, names.get(key))) for key, reader in READERS.items()]
    wanted += [("", partial(awx_inputs, names, key)) for key in _credentials() if _said(names, key) is not None]
    for key, read in wanted:
        try:
            value = read()
        except InputError as problem:
            problems.append(str(problem))
        else:
            found |= {key: value} if key else {}  # the values of credentials are not stored
    problems += _own_approvers(found.get("teams", {}), found.get("rollout_approvers", []))
    if problems:
        raise InputError("\n".join(problems))
    told = {
        event: [found["prefix"] + one["name"] for one in found["notifications"] if event in one["events"]]
        for event in EVENTS
    }
    del found["machine"]
    return {**found, **_named(names, found["prefix"]), "told": told}


def _filled(path: str, value: Any, problems: list[str]) -> Any:
    """Return a value without the parts that Ansible cannot template, such as the content of a missing file.

    ``problems`` gets a message for each of these parts.
    """
    if not isinstance(value, (Mapping, list)):
        return value
    found = {}
    for key in value if isinstance(value, Mapping) else range(len(value)):
        where = f"{path}.{readable(key)}" if isinstance(value, Mapping) else f"{path}[{key}]"
        try:
            part = value[key]
        except Exception as problem:
            text = str(problem).rpartition(" marker was tripped: ")[2]  # removes Ansible's own prefix of the reason
            problems.append(f"{where}: cannot be read: {one_line(text)[:300]}")
        else:
            found[key] = _filled(where, part, problems)
    return found if isinstance(value, Mapping) else list(found.values())


def awx_refusal(given: Any, state: Any = "present", update_secrets: Any = False) -> list[str]:
    """Return messages on mistakes in the settings of an AWX and in the options of a run.

    Args:
        given: ``fleet_awx``.
        state: ``awx_state``.
        update_secrets: ``awx_update_secrets``.
    """
    reasons = [] if state in STATES else [f"awx_state: {shown(state)} is none of {', '.join(STATES)}"]
    if not is_flag_text(update_secrets):
        reasons.append(f"awx_update_secrets: {shown(update_secrets)} is not true or false")
    try:
        awx_settings(given)
    except InputError as problem:
        reasons += str(problem).split("\n")
    return reasons


def awx_inputs(given: Known, key: str) -> dict[str, Any]:
    """Return the inputs of one credential by AWX's field names, including secrets.

    Args:
        given: ``fleet_awx``.
        key: key of the credential, as ``awx_settings`` lists it.
    """
    return _inputs(key, _credentials()[key][0], _said(given, key))


def awx_models(of_hosts: Iterable[Any]) -> list[str]:
    """Return the names of the models of all hosts, each once, in their order; values that are not lists are ignored.

    Args:
        of_hosts: ``vllm_models`` of each host.
    """
    lists = (models for models in of_hosts if isinstance(models, list))
    models = (with_name(one) for models in lists for one in models if isinstance(one, Mapping))
    return list(dict.fromkeys(str(one["name"]) for one in models if isinstance(one.get("name"), str)))


def awx_default(of_hosts: Iterable[Known], name: str, otherwise: Any) -> Any:
    """Return the default answer of a survey question: the inventory's value, so that users keep it by default.

    Args:
        of_hosts: variables of each host.
        name: name of the variable.
        otherwise: the toolkit's default, used if the hosts differ or do not set the variable; the answer has its type.
    """
    said = {
        json.dumps(value, default=str): value for one in of_hosts if (value := one.get(name, otherwise)) is not None
    }
    if len(said) != 1:
        return otherwise
    value = next(iter(said.values()))
    if otherwise in ("true", "false"):
        return ("true" if is_true(value) else "false") if is_flag_text(value) else otherwise
    if isinstance(otherwise, str):
        return str(value)
    # Ansible has its own number types; in Python, true is an integer.
    return otherwise if isinstance(value, bool) or not isinstance(value, (type(otherwise), int)) else value


def awx_report(plan: Any, rollout: Any) -> str:
    """Return the text for an approver: the waves and all pending changes; later the result of each host.

    AWX's page shows it without line breaks, so it consists of sentences.

    Args:
        plan, rollout: artifacts ``gaudi_plan`` and ``gaudi_rollout`` of the previous jobs; other values count as none.
    """
    waves, due = (one if isinstance(one, Mapping) else {} for one in (rollout, plan))
    hosts = [str(one.get("text", "")).replace("\n", " ") for one in (waves.get("hosts") or {}).values()]
    steps = [str(step) for step in waves.get("steps") or []]
    page = [f"The page: {waves['page']}"] if waves.get("page") else []
    if hosts:
        # The first wave, the canary, is what these hosts have done. There is a step for each host.
        first = (waves.get("waves") or [[]])[0]
        return "\n".join([*(f"{text.rstrip('.')}." for text in hosts), "The waves:", *steps[len(first) :], *page])
    changes = [
        f"{host}: {', '.join(' '.join(str(line).split()) for line in lines)}."
        for host, lines in (due.get("changes") or {}).items()
    ]
    return "\n".join([*steps, *(["Pending changes:", *changes] if changes else []), *page])


def awx_nothing_left(rollout: Any, node: str) -> str:
    """Return why no approval is needed; empty if a wave is left, or if no job has reported its waves.

    Args:
        rollout: artifact ``gaudi_rollout`` of the previous jobs.
        node: identifier of the approval; before the waves, the canary has already changed.
    """
    waves = rollout.get("waves") if isinstance(rollout, Mapping) else None
    if not isinstance(waves, list) or waves[1 if node == "approve the waves" else 0 :]:
        return ""
    what = "no host is left after the canary" if waves else "no host has pending changes"
    return f"No approval is needed: {what}. The workflow continues with its status."


def _credentials() -> dict[str, tuple[str, str]]:
    """Return the type and name of all possible credentials, by their key in the settings."""
    return {
        "machine": (MACHINE, "hosts"),
        "vault": (VAULT, "vault"),
        "project.credential": (GIT, "repository"),
        "inventory.project.credential": (GIT, "repository of the inventory"),
        "execution_environment.credential": (REGISTRY, "registry"),
        "controller": (CONTROLLER, "approvals"),
        **{key: (key, str(one["name"])) for key, one in TYPES.items()},
    }


def _said(names: Known, path: str) -> Any:
    value: Any = names
    for word in path.split("."):
        value = value.get(word) if isinstance(value, Mapping) else None
    return value


def _named(names: Known, prefix: str) -> dict[str, Any]:
    there = {key: one for key, one in _credentials().items() if _said(names, key) is not None}
    own = {key: {**TYPES[key], "name": prefix + TYPES[key]["name"]} for key in TYPES if key in there}
    credentials = [
        {"key": key, "name": prefix + name, "type": own[kind]["name"] if kind in own else kind}
        for key, (kind, name) in there.items()
    ]
    name_of = {one["key"]: one["name"] for one in credentials}
    return {
        "types": list(own.values()),
        "credentials": credentials,
        "runs": [name_of[key] for key in ("machine", "vault", *TYPES) if key in name_of],
        "controller": name_of.get("controller", ""),
        "registry": name_of.get("execution_environment.credential", ""),
        "repository": name_of.get("project.credential", ""),
        "inventory_repository": name_of.get("inventory.project.credential", ""),
    }


def _inputs(key: str, kind: str, given: Any) -> dict[str, Any]:
    label = f"fleet_awx.{key}"
    if kind == "vllm_secrets":
        if not isinstance(given, Mapping) or not all(isinstance(one, Mapping) for one in given.values()):
            raise InputError(f"{label}: (hidden) is not a mapping of models to their variables, as in an inventory")
        # JSON is valid YAML and has only one form for each value.
        try:
            return {"vllm_secrets": json.dumps(given, sort_keys=True)}
        except TypeError:
            text = "has a value that is neither a text nor a number, such as a date without quotes"
            raise InputError(f"{label}: (hidden) {text}") from None
    if kind == "vllm_image_registries":
        if not given or not are_logins(given):
            raise InputError(f"{label}: (hidden) is not a mapping of registries, each to username and password")
        return {"vllm_image_registries": json.dumps(given_secrets(given), sort_keys=True)}
    if kind == "fleet_gateway_secret":
        if problem := secret_problem(given):
            raise InputError(f"fleet_awx.{problem}")
        return {"fleet_gateway_secret": given}
    names = {name: name for name in WEIGHTS} if kind == "model_weights_tokens" else FIELDS[kind]
    if not isinstance(given, Mapping):
        raise InputError(f"{label}: (hidden) is not a mapping with {', '.join(names)}")
    known(label, given, names)
    said = {name: value for name, value in given.items() if value is not None}
    _check_fields(label, said, names, NEEDED.get(kind, ()))
    if kind == CONTROLLER and "token" not in said and not {"username", "password"} <= said.keys():
        raise InputError(f"{label}.token: is required, or username and password: who writes the texts of approvals")
    inputs = {awx: said[name] for name, awx in names.items() if name in said}
    # AWX gives a job false for a missing box, which would accept any certificate.
    return {"verify_ssl": True, **inputs} if kind == CONTROLLER else inputs


def _check_fields(label: str, said: Known, names: Iterable[str], needed: Sequence[str]) -> None:
    """Refuse a credential that AWX would refuse later, after other objects have been created."""
    if not said:
        raise InputError(f"{label}: is empty; leave it out, or set some of {', '.join(names)}")
    for name in needed:
        if name not in said:
            raise InputError(f"{label}.{name}: is required")
    for name, value in said.items():
        if not (isinstance(value, bool) if name == "verify_ssl" else isinstance(value, str) and value):
            wanted = "true or false" if name == "verify_ssl" else "a text; leave it out where there is none"
            raise InputError(f"{label}.{name}: (hidden) is not {wanted}")
        if name in TOKENS and not is_token(value):
            raise InputError(f"{label}.{name}: (hidden) {UNSENDABLE}")
        if name == "host" and ("@" in value or not is_token(value)):
            raise InputError(f"{label}.{name}: (hidden) is not an address of a server alone, without user and password")
        if name == "ssh_key" and not PRIVATE_KEY.fullmatch(value.strip()):
            raise InputError(f"{label}.{name}: (hidden) is not a private key: the text of its file, from BEGIN to END")


def _text(key: str, value: Any, default: str | None, *, empty: bool = False) -> str:
    if value is None and default is not None:
        return default
    if not isinstance(value, str) or not value.isprintable() or not (value.strip() or empty) or len(value) > 500:
        what = "a text of one line"
        raise refusal("", f"fleet_awx.{key}", value, f"is not {what}" if value is not None else f"is required: {what}")
    return value


def _name(key: str, value: Any, default: str | None = None) -> str:
    """Return a name or prefix; AWX strips blanks at its ends, and the next run would not find the object."""
    text = _text(key, value, default, empty=key == "prefix")
    where = ("begins", text != text.lstrip()) if key == "prefix" else ("begins or ends", text != text.strip())
    if where[1]:
        raise refusal("", f"fleet_awx.{key}", text, f"{where[0]} with a blank, which AWX removes")
    return text


def _texts(key: str, value: Any, default: Sequence[str]) -> list[str]:
    if value is None:
        return list(default)
    if not isinstance(value, list) or not all(isinstance(one, str) and one.isprintable() and one for one in value):
        raise refusal("", f"fleet_awx.{key}", value, "is not a list of names")
    return list(value)


def _one(key: str, value: Any, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise refusal("", f"fleet_awx.{key}", value, f"is none of {', '.join(allowed)}")
    return str(value)


def _whole(key: str, value: Any, default: int, *limits: int) -> int:
    return default if value is None else whole("", f"fleet_awx.{key}", value, *limits)


def _machine(value: Any) -> None:
    if value is None:
        raise InputError("fleet_awx.machine: is required: how hosts are reached, with username and ssh_key")


def _environment(value: Any) -> dict[str, Any]:
    names = mapping("", "fleet_awx.execution_environment", value, "a mapping with image")
    known("fleet_awx.execution_environment", names, ENVIRONMENT)
    pull = names.get("pull")
    return {
        "image": _text("execution_environment.image", names.get("image"), None),
        "pull": "missing" if pull is None else _one("execution_environment.pull", pull, PULL),
    }


def _project(key: str, value: Any) -> dict[str, Any]:
    names = mapping("", f"fleet_awx.{key}", value, "a mapping with url and branch")
    known(f"fleet_awx.{key}", names, PROJECT)
    url = _text(f"{key}.url", names.get("url"), None)
    if has_login(url):
        raise InputError(f"fleet_awx.{key}.url: (hidden) has a user or password; write them as {key}.credential")
    return {"url": url, "branch": _text(f"{key}.branch", names.get("branch"), "", empty=True)}


def _inventory(value: Any) -> dict[str, Any]:
    names = mapping("", "fleet_awx.inventory", value, "a mapping with path, or hosts")
    known("fleet_awx.inventory", names, INVENTORY)
    hosts = names.get("hosts") or {}
    # Host variables may contain passwords, so they are hidden.
    if not isinstance(hosts, Mapping) or not all(isinstance(one, str) and one for one in hosts):
        raise InputError("fleet_awx.inventory.hosts: (hidden) is not a mapping of hosts to their variables")
    for name, said in hosts.items():
        if said is not None and not isinstance(said, Mapping):
            raise InputError(f"fleet_awx.inventory.hosts.{one_line(name)}: (hidden) is not a mapping of variables")
    path = _text("inventory.path", names.get("path"), "", empty=True)
    if not path and not hosts:
        text = "is required: the folder of the inventory in its repository, such as inventory/mine; or hosts"
        raise refusal("", "fleet_awx.inventory.path", None, text)
    if path.startswith("/") or ".." in path.split("/"):
        raise refusal(
            "", "fleet_awx.inventory.path", path, "is not a path inside the repository, such as inventory/mine"
        )
    if names.get("project") is not None and not path:
        text = "is required with a project: the folder of the inventory in it, such as inventory/mine"
        raise refusal("", "fleet_awx.inventory.path", None, text)
    return {
        "path": path,
        "hosts": [{"name": name, "variables": dict(said or {})} for name, said in hosts.items()],
        "project": None if names.get("project") is None else _project("inventory.project", names["project"]),
    }


def _teams(value: Any) -> dict[str, list[str]]:
    names = mapping("", "fleet_awx.teams", {} if value is None else value, "a mapping of teams to their users")
    known("fleet_awx.teams", names, TEAMS)
    return {team: _texts(f"teams.{team}", names.get(team), []) for team in TEAMS}


def _approvers(value: Any) -> list[str]:
    if value is not None and not value:
        raise refusal(
            "", "fleet_awx.rollout_approvers", value, "names no user; leave it out, or name at least one user"
        )
    return _texts("rollout_approvers", value, [])


def _own_approvers(teams: Mapping[str, Sequence[str]], approvers: Sequence[str]) -> list[str]:
    """Return messages on approvers who could approve their own rollouts."""
    return [
        f"fleet_awx.rollout_approvers: {name} is in teams.{team} too, and could approve a rollout of their own; "
        "name users who are in neither operator nor admin"
        for name in approvers
        for team in ("operator", "admin")
        if name in teams.get(team, [])
    ]


def _notifications(value: Any) -> list[dict[str, Any]]:
    if value is not None and not isinstance(value, list):
        raise refusal("", "fleet_awx.notifications", None, "is not a list")
    found = []
    for index, one in enumerate(value or []):
        key = f"notifications[{index}]"
        names = mapping("", f"fleet_awx.{key}", one, "a mapping with name, type, configuration, events")
        known(f"fleet_awx.{key}", names, NOTIFICATION)
        kind = _one(f"{key}.type", names.get("type"), tuple(NOTIFICATIONS))
        _check_configuration(f"fleet_awx.{key}.configuration", names.get("configuration"), NOTIFICATIONS[kind])
        events = _texts(f"{key}.events", names.get("events"), ["error", "approval"])
        found.append(
            {
                "name": _name(f"{key}.name", names.get("name")),
                "type": kind,
                "events": [_one(f"{key}.events", event, EVENTS) for event in events],
                "index": index,
            }
        )
    known_names = [one["name"] for one in found]
    for name in dict.fromkeys(name for name in known_names if known_names.count(name) > 1):
        raise InputError(f"fleet_awx.notifications: two of them have the name {shown(name)}")
    return found


def _check_configuration(label: str, given: Any, needed: Mapping[str, type]) -> None:
    """Refuse a notification that AWX would refuse later, after other objects have been created."""
    if not isinstance(given, Mapping):
        raise InputError(f"{label}: (hidden) is not a mapping, as AWX has it for this type")
    wrong = [
        f"{label}.{name}: {'(hidden) is not' if name in given else 'is required:'} {OF_TYPE[kind]}"
        for name, kind in needed.items()
        if not isinstance(given.get(name), kind) or (kind is int and isinstance(given[name], bool))
    ]
    if wrong:
        raise InputError("\n".join(wrong))


def _schedules(value: Any) -> dict[str, str]:
    names = mapping("", "fleet_awx.schedules", {} if value is None else value, "a mapping of status and validate")
    known("fleet_awx.schedules", names, SCHEDULES)
    found = {key: default if names.get(key) is None else names[key] for key, default in SCHEDULES.items()}
    for key, rule in found.items():
        if rule is not False and (not isinstance(rule, str) or not RRULE.fullmatch(rule)):
            allowed = f"is not a rule such as {SCHEDULES[key]}; false keeps the schedule off"
            raise refusal("", f"fleet_awx.schedules.{key}", rule, allowed)
    return {key: rule or "" for key, rule in found.items()}


READERS: dict[str, Callable[[Any], Any]] = {
    "organization": lambda value: _name("organization", value, "gaudi-serve"),
    "prefix": lambda value: _name("prefix", value, "gaudi-serve "),
    "collections": lambda value: _texts("collections", value, ["Ansible Galaxy"]),
    "execution_environment": _environment,
    "project": lambda value: _project("project", value),
    "inventory": _inventory,
    "machine": _machine,
    "forks": lambda value: _whole("forks", value, 32, 1, 200),
    "approval_timeout": lambda value: _whole("approval_timeout", value, 86_400, 0, 30 * 86_400),
    "teams": _teams,
    "rollout_approvers": _approvers,
    "notifications": _notifications,
    "schedules": _schedules,
}
