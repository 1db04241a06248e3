"""The keys of mappings that a user writes: in a variable, a key of a model, or an option of a playbook.

The code that checks a mapping gives the names of its keys, their choices, rules and defaults. The data file gives the
rest. A path such as ``fleet_gateway.clients.CLIENT`` has an uppercase word for a name of the user's choice; a path such
as ``mounts[]`` stands for each entry of a list.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gaudi_serve.awx import settings as awx
from gaudi_serve.bench import loads
from gaudi_serve.bios import profiles
from gaudi_serve.buckets.plan_limits import PADDINGS
from gaudi_serve.catalog import keys, source
from gaudi_serve.core.checks import Rule
from gaudi_serve.core.options import OPTIONS
from gaudi_serve.gateway import chat, clients, inputs
from gaudi_serve.gateway.objects import Chat, Gateway
from gaudi_serve.inventory import variables
from gaudi_serve.model.objectives import Objectives
from gaudi_serve.model.shared import OWN, TAKEN
from gaudi_serve.monitoring import settings as monitoring
from gaudi_serve.monitoring.thresholds import Thresholds
from gaudi_serve.stages import accelerator_network, image
from gaudi_serve.tune.trace_file import NAMES

from .entries import Entry, data_of
from .roles import text_of


@dataclass(frozen=True)
class Mapped:
    """What the code knows about a mapping.

    names: its keys. rules: of some keys. choices: by key. defaults: an object with the defaults as attributes.
    options: the options of a role, which have types, choices and descriptions.
    """

    names: Collection[str]
    rules: Mapping[str, Rule] = field(default_factory=dict)
    choices: Mapping[str, Collection[str]] = field(default_factory=dict)
    defaults: object = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def _names(kind: type) -> tuple[str, ...]:
    return tuple(one.name for one in fields(kind))  # type: ignore[arg-type]  # every kind here is a dataclass


def _above_zero(names: Iterable[str]) -> dict[str, Rule]:
    ends = {name: ", 1 at most" if name.endswith("_ratio") else "" for name in names}
    return {name: Rule(bool, f"a number above 0{end}") for name, end in ends.items()}


def _of_role(options: Mapping[str, Mapping[str, Any]], rules: Mapping[str, Rule] | None = None) -> Mapped:
    return Mapped(options, rules or {}, options=options)


GATEWAY, MONITORING, AWX, IMAGE = "fleet_gateway", "fleet_monitoring", "fleet_awx", "vllm_images[]"
RATE = {"requests_per_minute": clients.RATE}
KINDS = {"kind": tuple(source.KINDS)}
CODE: dict[str, Mapped] = {
    GATEWAY: Mapped(inputs.KEYS, inputs.RULES, {"balance": inputs.BALANCES}, Gateway()),
    f"{GATEWAY}.clients.CLIENT": Mapped(clients.CLIENT, RATE),
    f"{GATEWAY}.chat": Mapped(chat.KEYS, chat.RULES, defaults=Chat()),
    f"{GATEWAY}.chat.users.USER": Mapped(chat.USER, RATE),
    MONITORING: Mapped(
        monitoring.KEYS, monitoring.RULES, {"state": monitoring.STATES}, defaults=monitoring.Monitoring()
    ),
    f"{MONITORING}.alertmanager": Mapped(monitoring.ALERTMANAGER),
    f"{MONITORING}.thresholds": Mapped(_names(Thresholds), _above_zero(_names(Thresholds)), defaults=Thresholds()),
    IMAGE: _of_role(image.ENTRY, image.ENTRY_RULES),
    f"{IMAGE}.recipe": Mapped(image.KEYS),
    f"{IMAGE}.recipe.vllm": Mapped(image.GIT),
    f"{IMAGE}.recipe.libfabric": Mapped(image.DOWNLOAD),
    "vllm_weights_endpoints": Mapped(variables.ENDPOINTS),
    "model_weights_tokens": Mapped(variables.KINDS),
    "vllm_image_registries.REGISTRY": Mapped(image.LOGIN),
    "driver_repository": _of_role(OPTIONS["driver_repository"]["options"]),
    "bundle_apt_sources.SYSTEM[]": Mapped(variables.APT_SOURCE),
    "bundle_execution_environment": Mapped(variables.ENVIRONMENT_IMAGE),
    "benchmark_profiles.PROFILE": Mapped(loads.RULES, loads.RULES),
    "bios_profiles.PROFILE[]": Mapped(profiles.KEYS),
    "accelerator_network_ports[]": Mapped(accelerator_network.PORT_KEYS),
    "link_validation_hccl_options": Mapped(variables.HCCL_OPTIONS, choices={"measure": variables.MEASURES}),
    "source": Mapped(source.KEYS | source.EXTRAS, choices={**KINDS, "convert": source.CONVERSIONS}),
    "source.measurement": Mapped(source.OF_MEASUREMENT, choices=KINDS),
    "bucketing": Mapped(keys.BUCKETING, choices={"strategy": keys.STRATEGIES}),
    "bucketing.prompt_bs": Mapped(keys.BUCKET_PARTS),
    "reduce_warmup": Mapped(keys.REDUCE),
    "adapters[]": Mapped(keys.ADAPTER),
    "mounts[]": Mapped(keys.MOUNT),
    "slo": Mapped(_names(Objectives), defaults=Objectives()),
    "shares_card_with[]": Mapped((*OWN, *TAKEN), choices={"smoke": keys.SMOKE_KINDS}),
    AWX: Mapped(awx.KEYS),
    f"{AWX}.execution_environment": Mapped(awx.ENVIRONMENT, choices={"pull": awx.PULL}),
    f"{AWX}.execution_environment.credential": Mapped(awx.FIELDS[awx.REGISTRY]),
    f"{AWX}.project": Mapped(awx.PROJECT),
    f"{AWX}.project.credential": Mapped(awx.FIELDS[awx.GIT]),
    f"{AWX}.inventory": Mapped(awx.INVENTORY),
    f"{AWX}.machine": Mapped(awx.FIELDS[awx.MACHINE]),
    f"{AWX}.vault": Mapped(awx.FIELDS[awx.VAULT]),
    f"{AWX}.controller": Mapped(awx.FIELDS[awx.CONTROLLER]),
    f"{AWX}.teams": Mapped(awx.TEAMS),
    f"{AWX}.notifications[]": Mapped(awx.NOTIFICATION, choices={"type": awx.NOTIFICATIONS, "events": awx.EVENTS}),
    f"{AWX}.schedules": Mapped(awx.SCHEDULES),
    "trace_columns": Mapped(NAMES),
    "tune_max_padding": Mapped(PADDINGS),
}
# Variables and options with the keys of another mapping.
LIKE = {
    **{name: "driver_repository" for name in OPTIONS if name.endswith("_repository") and "options" in OPTIONS[name]},
    "objectives": "slo",
}
OF_PLAYBOOKS = ("trace_columns", "tune_max_padding")
DATA: Mapping[str, Mapping[str, Any]] = data_of("mappings")
ROW = "| key | type | default | tier | meaning |\n|---|---|---|---|---|\n"


def entries(path: str) -> list[Entry]:
    """Return the keys of a mapping in the order of its data."""
    code = CODE[path]
    return [
        _entry(f"{path}.{name}", name, {**_of_option(code.options.get(name)), **one}, code)
        for name, one in DATA[path].items()
    ]


def _of_option(option: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the type, help and default of an option of a role."""
    if option is None:
        return {}
    default = "required" if option.get("required") else _text(option.get("default")) or "none"
    found = {"type": option["type"], "help": text_of(dict(option)), "default": default}
    return {**found, "choices": option["choices"]} if "choices" in option else found


def _entry(path: str, name: str, one: Mapping[str, Any], code: Mapped) -> Entry:
    choices = code.choices.get(name) or one.get("choices") or ()
    rule = code.rules.get(name)
    allowed = one.get("allowed") or (rule.allowed if rule and one["type"] != "bool" else "")
    default = one["default"] if "default" in one else _text(getattr(code.defaults, name))
    return Entry.of(path, {**one, "default": default, "choices": tuple(choices)}, allowed, "")


def _text(value: Any) -> str:
    """Return a default as users write it."""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value or "")


def nested(root: str) -> list[str]:
    """Return the paths of the mappings in a variable, key or option, in the order of the data."""
    return [path for path in DATA if path.removeprefix(root)[:1] in ("", ".", "[") and path.startswith(root)]


def of_key(path: str, name: str) -> str:
    """Return the path of the mapping that is the value of a key; empty if its keys are free."""
    return value_of(DATA[path][name].get("like", f"{path}.{name}"))


def value_of(name: str) -> str:
    """Return the path of the mapping that is the value of a variable, or of a path; empty if its keys are free."""
    like = LIKE.get(name, name)
    return next((one for one in DATA if is_value(one, like)), "")


def is_value(path: str, of: str) -> bool:
    """Return whether a path is the value of another one, or what its names or list entries stand for."""
    rest = path.removeprefix(of) if path.startswith(of) else "?"
    return all(part.isupper() for part in rest.replace("[]", "").split(".") if part)


def sections(found: Iterable[Entry]) -> str:
    """Return a section as Markdown for each variable or key with a mapping of its own."""
    return "\n".join(
        f"### {one.name}\n\nTier: [{one.tier}]({one.tier}.md).\n\n{tables(one.name)}"
        for one in found
        if nested(one.name)
    )


def tables(root: str) -> str:
    """Return the tables of all mappings in a variable, key or option as Markdown."""
    return "\n".join(
        _heading(path, root)
        + ROW
        + "".join(one.row(keys_link(of_key(path, one.name)), one.tier) for one in entries(path))
        for path in nested(root)
    )


def _heading(path: str, root: str) -> str:
    if path == root:
        return ""
    return f"Keys of `{path}`:\n\n" if is_value(path, root) else f"#### {path}\n\n"


def keys_link(path: str) -> str:
    """Return a link to the table of a mapping; empty without a mapping."""
    return f"[{path}]({link(path)})" if path else ""


def link(path: str) -> str:
    """Return the page and the heading of a mapping."""
    root = path.partition(".")[0].partition("[")[0]
    page = "playbooks" if root in OF_PLAYBOOKS else "model-keys" if root in data_of("model_keys") else "inventory"
    heading = root if is_value(path, root) else path
    return f"{page}.md#" + "".join(letter for letter in heading.lower() if letter.isalnum() or letter in "_-")
