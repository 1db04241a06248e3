"""The variables of an inventory: everything that is wrong with them, before any of them reaches a host.

Pure functions. What one key may hold is said here once, for all stages of a run and for the plan of a fleet.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ..catalog.files import catalog_folder, model_catalog, sound_entries
from ..catalog.keys import VARIABLE
from ..catalog.merge import client_names, merged_all
from ..core.checks import Check, is_address, is_flag_text, matching, one_of
from ..core.errors import InputError, is_number, is_whole, near, one_line, readable, shown
from ..core.redact import has_login
from ..gateway.fleet import adapter_names
from ..stages.apt_access import access
from ..stages.gateway import gateway_problems
from ..stages.host_tuning import kernel_arguments_wanted
from ..stages.image import LOGINS, are_logins, vllm_images
from ..stages.registry import OBJECTS, TOLD, tags_refusal
from ..stages.service import nobodys_secrets, secrets_refusal
from .facts import HIDDEN, OTHERS, VARIABLES, Problem, checked_variables, rendered
from .written import octals

Known = Mapping[str, Any]
MOST = 10**9


class Input(NamedTuple):
    """What is allowed as the value of a variable of a role; ``allowed`` completes a sentence."""

    good: Check
    allowed: str


def _line(value: Any) -> bool:
    return isinstance(value, str) and value.isprintable()


def _folder(value: Any) -> bool:
    fits = isinstance(value, str) and re.fullmatch(r"(/[\w.@+-]+)+/?", value)
    return bool(fits) and ".." not in str(value).split("/")


def _arguments(value: Any) -> bool:
    try:
        kernel_arguments_wanted({}, "off", value)
    except InputError:
        return False
    return True


def _kernel_arguments(value: Any) -> bool:
    return value is None or _arguments(value)


def _list_of(good: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(good, value))


def _number_text(value: Any, pattern: str) -> Any:
    return float(value) if isinstance(value, str) and re.fullmatch(pattern, value, re.ASCII) else value


def _whole(low: int, high: int, what: str = "") -> Input:
    def good(value: Any) -> bool:
        number = int(value) if isinstance(value, str) and re.fullmatch(r"\d{1,18}", value, re.ASCII) else value
        return is_whole(number, low, high)

    return Input(good, f"must be a whole number{what and ' of '}{what} from {low} to {high}")


def _real(low: float, high: float, what: str = "") -> Input:
    def good(value: Any) -> bool:
        return is_number(_number_text(value, r"\d{1,9}(\.\d{1,9})?"), low, high)

    return Input(good, f"must be a number{what and ' of '}{what} from {low:g} to {high:g}")


def _empty_or(good: Check) -> Check:
    return lambda value: value == "" or good(value)


def _choice(*allowed: str) -> Input:
    return Input(one_of(*allowed), f"must be {', '.join(allowed[:-1])} or {allowed[-1]}, as a quoted text")


def _environment(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str)
        and VARIABLE.fullmatch(name)
        and (_line(text) or is_whole(text, -MOST, MOST))
        and not isinstance(text, bool)
        for name, text in value.items()
    )


def _mapping_of(names: Check, values: Check) -> Check:
    return lambda value: isinstance(value, Mapping) and all(names(key) and values(one) for key, one in value.items())


def _signed_by(value: Any) -> bool:
    block = isinstance(value, str) and value.lstrip().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    return _line(value) or (block and all(line.isprintable() for line in str(value).splitlines()))


def _repository(value: Any) -> bool:
    if not isinstance(value, Mapping) or not set(value) <= {"uris", "suites", "components", "signed_by"}:
        return False
    lists = (value[key] for key in ("uris", "suites", "components") if value.get(key) is not None)
    if not all(_word(one) or _list_of(_word)(one) for one in lists) or not _signed_by(value.get("signed_by") or ""):
        return False
    uris = value.get("uris") or []
    return all(map(_readable, [uris] if isinstance(uris, str) else uris)) and not has_login(
        value.get("signed_by") or ""
    )


def _readable(address: str) -> bool:
    """Tell whether apt can read an address, and the credentials that may be in it."""
    try:
        access(address)
    except InputError:
        return False
    return True


def _web(value: Any) -> bool:
    fits = isinstance(value, str) and re.fullmatch(r"https?://[!-~]+", value) and not re.search(r"['\"\\`$<>|;]", value)
    return bool(fits) and is_address(value) and _readable(value)


def _word(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[!-~]+", value) is not None


def _hccl_options(value: Any) -> bool:
    size = matching(r"\d{1,9}[kmgKMG]?")
    checks: dict[Any, Check] = {
        "size": lambda one: size(one) or is_whole(one, 1, 10**12),
        "size_range": lambda one: isinstance(one, list) and len(one) == 2 and all(map(checks["size"], one)),
        "loop": _whole(1, MOST).good,
        "test": matching(r"[a-z][a-z_]*"),
        "measure": one_of("bandwidth", "latency"),
    }
    return isinstance(value, Mapping) and all(key in checks and checks[key](one) for key, one in value.items())


TEXT = Input(_line, "must be a quoted text of one line; '' for none")
FLAG = Input(is_flag_text, "must be true or false")
FOLDER = Input(_folder, "must be an absolute path of letters, digits and . _ - / @ +, without ..")
ON_CONTROLLER = Input(lambda value: _line(value) and bool(value.strip()), "must be a path on the controller")
WEB = Input(_web, "must be an address such as https://mirror.example/x")
NO_WEB = Input(_empty_or(WEB.good), f"{WEB.allowed}, or ''")
BUILD_WEB = Input(
    lambda value: NO_WEB.good(value) and not has_login(value),
    f"{NO_WEB.allowed}, without a user and password, which would stay in the image's history",
)
NO_FOLDER = Input(_empty_or(_folder), f"{FOLDER.allowed}, or ''")
WORDS = Input(_list_of(lambda word: _line(word) and word != ""), "must be a list of quoted texts of one line each")
PACKAGE = r"[a-z0-9][a-z0-9+.-]+(=[\w.+:~-]+)?"
NAMES = Input(_list_of(matching(r"[a-z0-9][a-z0-9+.-]+")), "must be a list of names of packages")
PACKAGES = Input(_list_of(matching(PACKAGE)), "must be a list of packages, such as [docker.io]")
VERSION = Input(_empty_or(matching(r"\d[\w.+:~-]*")), "must be a quoted version such as '1.21.3-57'; '' for none")
RELEASE = Input(VARIABLES["gaudi_release"].good, VARIABLES["gaudi_release"].allowed)
REPOSITORY = Input(
    _repository,
    "must be a mapping of uris, suites, components and signed_by; {} for none; credentials stand in uris alone, as "
    "https://user:password@host/path",
)
ENVIRONMENT = Input(_environment, "must be a mapping of environment variables to texts of one line")
HOSTS = Input(_list_of(matching(r"[\w.-]+")), "must be a list of hosts of the inventory")
SECONDS, PORT = _whole(1, 10**7, "seconds"), _whole(1, 65535)
GIT = matching(r"([a-z]+://[^\s'\"\\`$<>|;]+|/[\w./@+-]+|[\w.-]+@[\w.-]+:[\w./~-]+)")
KINDS = ("hub", "modelscope", "git")

INPUTS: dict[str, Input] = {
    "vllm_weights_endpoints": Input(
        _mapping_of(one_of("hub", "modelscope"), lambda one: one is None or NO_WEB.good(one)),
        "must be a mapping of hub and modelscope to addresses",
    ),
    "gaudi_stop_on_errors": FLAG,
    "gaudi_lock_break": FLAG,
    "gaudi_all_at_once": FLAG,
    "gaudi_lock_lease_s": SECONDS,
    "gaudi_fleet_address": Input(
        _empty_or(matching(r"[\w.:-]+")), "must be the address or name at which gateways reach this host, or ''"
    ),
    "host_tuning_kernel_args": Input(
        _kernel_arguments,
        "must be a list of quoted texts such as ['iommu=pt'], without blanks or quotes, each once",
    ),
    "host_tuning_iommu": _choice("auto", "on", "off"),
    "host_tuning_governor": Input(_empty_or(matching(r"[a-z][a-z_]{0,31}")), "must be a governor such as performance"),
    "host_tuning_hugepages": _whole(0, MOST, "pages"),
    "host_tuning_hugepages_max_fraction": _real(0, 1),
    "host_tuning_take_over": FLAG,
    "host_tuning_reboot_allowed": FLAG,
    "host_tuning_reboot_timeout": SECONDS,
    "gaudi_driver_release": RELEASE,
    "gaudi_driver_version": VERSION,
    "gaudi_driver_packages": NAMES,
    "gaudi_driver_optional_packages": NAMES,
    "gaudi_driver_modules": Input(_list_of(matching(r"[a-z]\w*")), "must be a list of kernel modules"),
    "gaudi_driver_kernel_headers": FLAG,
    "gaudi_driver_upgrade_allowed": FLAG,
    "gaudi_driver_manage": FLAG,
    "gaudi_driver_repository": REPOSITORY,
    "gaudi_driver_ports_may_be_down": Input(
        _list_of(lambda port: is_whole(port, 0, 1023)), "must be a list of numbers of ports"
    ),
    "container_runtime_engine": _choice("distribution", "vendor"),
    "container_runtime_distribution_packages": PACKAGES,
    "container_runtime_vendor_packages": PACKAGES,
    "container_runtime_vendor_uri": WEB,
    "container_runtime_vendor_key_url": NO_WEB,
    "container_runtime_vendor_key_checksum": Input(
        matching(r"sha(256|384|512):([0-9a-fA-F]{64,128}|https?://[!-~]+)"), "must be a digest such as sha256:1500..."
    ),
    "container_runtime_habana": _choice("auto", "always", "never"),
    "container_runtime_habana_version": VERSION,
    "container_runtime_habana_repository": REPOSITORY,
    "container_runtime_data_root": NO_FOLDER,
    "container_runtime_live_restore": FLAG,
    "container_runtime_http_proxy": TEXT,
    "container_runtime_https_proxy": TEXT,
    "container_runtime_no_proxy": TEXT,
    "vllm_image_archives": ON_CONTROLLER,
    "vllm_image_pip_index_url": BUILD_WEB,
    "vllm_image_proxies": ENVIRONMENT,
    "vllm_image_registries": Input(are_logins, LOGINS),
    "vllm_image_build_timeout": SECONDS,
    "vllm_image_build_poll": SECONDS,
    "vllm_image_spool": FOLDER,
    "vllm_image_from_host": TEXT,
    "vllm_image_serve_address": Input(
        _empty_or(matching(r"(?!-)[A-Za-z0-9.-]{1,253}")),
        "must be an IPv4 address or a name of the host that gives images, or '' for the address of its default route",
    ),
    "vllm_image_serve_port": PORT,
    "vllm_image_serve_timeout": SECONDS,
    "model_weights_verify": _choice("quick", "full"),
    "model_weights_from_host": TEXT,
    "model_weights_serve_address": Input(
        _empty_or(matching(r"[\w.:%-]+")), "must be an address such as 10.0.0.1, or ''"
    ),
    "model_weights_serve_port": PORT,
    "model_weights_tokens": Input(
        _mapping_of(one_of(*KINDS), lambda one: one is None or _line(one)),
        f"must be a mapping of {', '.join(KINDS)} to tokens of one line",
    ),
    "model_weights_http_proxy": TEXT,
    "model_weights_https_proxy": TEXT,
    "model_weights_no_proxy": TEXT,
    "model_weights_venv": FOLDER,
    "model_weights_index_url": TEXT,
    "model_weights_wheels": TEXT,
    "model_weights_parallel": _whole(1, 256, "files"),
    "model_weights_retries": _whole(0, 10_000, "tries"),
    "model_weights_pause": _real(0, 3600, "seconds"),
    "model_weights_progress": SECONDS,
    "model_weights_timeout": SECONDS,
    "model_weights_poll": SECONDS,
    "model_weights_convert_command": WORDS,
    "model_weights_convert_env": ENVIRONMENT,
    "model_weights_convert_options": WORDS,
    "model_weights_calibrate_command": WORDS,
    "model_weights_calibrate_workdir": FOLDER,
    "model_weights_calibrate_output": FOLDER,
    "model_weights_calibrate_env": ENVIRONMENT,
    "model_weights_calibrate_options": WORDS,
    "hccl_validation_asked": FLAG,
    "hccl_validation_drain": FLAG,
    "hccl_validation_max_age_days": _whole(0, 100_000, "days"),
    "hccl_validation_thresholds": Input(
        _mapping_of(matching(r"[a-z][a-z0-9-]*"), lambda one: one is None or _real(0, 10**6).good(one)),
        "must be a mapping of measurements, such as all, to GB/s",
    ),
    "hccl_validation_options": Input(
        _hccl_options, "must be a mapping of size or size_range, loop, test, and measure (bandwidth or latency)"
    ),
    "hccl_validation_nodes": HOSTS,
    "hccl_validation_port": PORT,
    "hccl_validation_checkout": FOLDER,
    "hccl_validation_repository": Input(
        lambda value: GIT(value) and not has_login(value),
        "must be an address of a git repository without user and password, which all users of the host would see while "
        "git runs; with them, clone it into hccl_validation_checkout first, which is used as it is",
    ),
    "hccl_validation_commit": Input(
        _empty_or(matching(r"[0-9a-f]{7,40}")), "must be a quoted commit; '' for the newest"
    ),
    "hccl_validation_timeout": SECONDS,
    "vllm_service_smoke_timeout": SECONDS,
    "vllm_service_journal_lines": _whole(1, 10_000, "lines"),
    "vllm_service_max_restarts": _whole(1, 10_000, "restarts"),
    "vllm_service_wait_interval": SECONDS,
    "vllm_service_report_every": SECONDS,
    "preflight_weights_come": FLAG,
}


# Variables whose names begin so are the toolkit's own: one that it does not know is a slip.
PREFIXES = (
    *("gaudi_", "vllm_", "preflight_", "host_tuning_", "container_runtime_", "model_weights_", "hccl_validation_"),
)
# What the playbooks hand to roles, which may be used alone too, under names of the roles' own.
HANDED = frozenset(
    """
    preflight_models preflight_images preflight_secrets preflight_catalog_dirs preflight_model_defaults
    preflight_accelerator preflight_cards preflight_release preflight_host_nics preflight_device_family
    preflight_move_allowed preflight_for
    """.split()
) | {name for one in OBJECTS for name in one.names(*one.given)}
# Facts, and what roles say of a run.
SAID = frozenset(
    """
    gaudi_observed_at gaudi_system gaudi_tuning gaudi_runtime gaudi_services gaudi_driver gaudi_left gaudi_hccl
    gaudi_weights gaudi_host gaudi_haproxy gaudi_boot_id
    preflight_packages_reset preflight_passed preflight_plan preflight_rest_reset preflight_status preflight_inventory
    preflight_observed preflight_stages preflight_refusal preflight_lines preflight_warnings preflight_gateways
    preflight_sources preflight_left_alone preflight_unread
    gaudi_stage gaudi_stages gaudi_images_to_convert gaudi_plan gaudi_status gaudi_tune
    gaudi_rollout gaudi_benchmark gaudi_awx gaudi_approval
    """.split()
) | {*TOLD, *(name for one in OBJECTS for name in one.names("notes", "status", "reset"))}
# Of resets: what playbooks/reset.yml hands to the roles.
TAKEN = frozenset(
    ("preflight_reset_names", "preflight_reset_packages", *(name for one in OBJECTS for name in one.names(*one.taken)))
)
KNOWN = frozenset((*VARIABLES, *OTHERS, *INPUTS, *HANDED, *SAID, *TAKEN))
READ = frozenset((*VARIABLES, *INPUTS))


def input_problems(variables: Known) -> list[Problem]:
    """Return what is wrong with the variables of the roles, as (key, value, what is allowed)."""
    return [
        (key, "(empty)" if variables[key] is None else "(hidden)" if key in HIDDEN else variables[key], rule.allowed)
        for key, rule in INPUTS.items()
        if key in variables and not rule.good(variables[key])
    ]


def problem_text(key: str, value: Any, allowed: str) -> str:
    """Return what is wrong with one variable, for a reader."""
    if value is None:
        return f"{key} is missing: it {allowed}"
    return one_line(f"{key} {value if value in ('(hidden)', '(empty)') else shown(value)}: {allowed}")


def inventory_refusal(variables: Known, host_name: str) -> list[str]:
    """Return everything that is wrong with the variables of a host; empty where nothing is.

    What is wrong with its models by themselves, its plan says.

    Args:
        variables: those of the host, as a task of it sees them.
        host_name: how messages call the host.
    """
    values, unread = rendered(variables, facts=False, more=INPUTS)
    checked, problems, wrong = checked_variables(values, unread)
    # An inventory may bring the whole catalog as a variable; without it, a role's default has read the folders.
    whole = checked["preflight_catalog"]
    folders = [] if whole else checked["vllm_catalog_dirs"]
    lost = sound_entries(whole or {})[1] + [text for folder in folders for text in catalog_folder(folder)[1]]
    if lost or "vllm_catalog_dirs" in wrong:
        # That default has failed with the same words.
        unread.pop("preflight_catalog", None)
    reasons = [f"{host_name}: {one.text}" for found in unread.values() for one in found]
    problems += input_problems(values)
    reasons += [f"{host_name}: {problem_text(*problem)}" for problem in problems]
    reasons += [f"{host_name}: {one_line(text)}" for text in lost]
    release = "" if "gaudi_release" in wrong else checked["gaudi_release"]
    for entry in checked["vllm_images"] or []:
        try:
            vllm_images([entry], release)
        except InputError as problem:
            reasons.append(f"{host_name}: {one_line(str(problem))}")
    # Playbooks with stages only: other ones have tags of nobody's business.
    if "preflight_for" in variables and "ansible_run_tags" in variables:
        reasons += [f"{host_name}: {text}" for text in tags_refusal(list(variables["ansible_run_tags"]))]
    if "vllm_secrets" in values and values["vllm_secrets"] is not None:
        reasons += [one_line(text) for text in secrets_refusal(values["vllm_secrets"], host_name)]
    if "gaudi_gateway" not in unread and "gaudi_gateway_secret" not in unread:
        gateways = list(variables.get("preflight_gateways") or [])
        reasons += of_gateways(values, gateways, host_name, variables.get("hostvars") or {host_name: values})
    more = octal_problems(values, host_name) + strange_secrets(values, host_name, variables.get("hostvars") or {})
    return reasons + [one_line(text) for text in unknown_variables(variables, host_name) + more]


def unknown_variables(variables: Iterable[Any], host_name: str) -> list[str]:
    """Return which variables with a prefix of the toolkit's own nobody knows: they would change nothing, in silence."""
    return [
        f"{host_name}: {readable(name)} is no variable of this toolkit{near(name, KNOWN - SAID, 1)}"
        + f"; names that begin with {prefix} are its own"
        for name in variables
        for prefix in PREFIXES
        if isinstance(name, str) and name.startswith(prefix) and name not in KNOWN
    ]


def octal_problems(values: Known, host_name: str) -> list[str]:
    """Return which numbers of an inventory are not what stands there, since YAML takes a leading zero for octal."""
    return [
        f"{host_name}: {readable(key)} {text}: YAML reads this as octal, {number}; write it without the zero in front"
        for name, value in values.items()
        if name in (*READ, "gaudi_gateway") and name != "vllm_secrets"
        for key, number, text in octals(value, name)
        # A client's own may be a number by mistake.
        if name != "gaudi_gateway" or not key.endswith((": key", ": sha256"))
    ]


def of_gateways(values: Known, gateways: Sequence[str], host_name: str, hostvars: Mapping[str, Known]) -> list[str]:
    """Return what is wrong with a host's part in a fleet with gateways.

    Args:
        values: the host's variables.
        gateways: hosts of the inventory that are gateways.
        host_name: how messages call the host.
        hostvars: variables of all hosts, for the models that clients may use.
    """
    given, serves = (values.get("gaudi_gateway"), values.get("gaudi_gateway_secret")), bool(values.get("vllm_models"))
    models, adapters = client_models(values, hostvars) or (None, ())
    return gateway_problems(*given, gateways, host_name, serves, models, adapters)


def client_models(values: Known, hostvars: Mapping[str, Known]) -> tuple[list[str], list[str]] | None:
    """Return the names for clients of the models and of the adapters of all hosts, whether a run is about them or not.

    None where the host's gateway names no model, or where a host's cannot be read, which is an error
    of its own.
    """
    settings = values.get("gaudi_gateway")
    clients = settings.get("clients") if isinstance(settings, Mapping) else None
    each = clients.values() if isinstance(clients, Mapping) else ()
    balance = isinstance(settings, Mapping) and settings.get("balance")
    if not balance and not any(isinstance(one, Mapping) and "models" in one for one in each):
        return None
    found, adapters = set[str](), set[str]()
    try:
        for known in (hostvars[name] for name in hostvars):
            folders = known.get("vllm_catalog_dirs") or []
            catalog = known.get("preflight_catalog") or model_catalog(folders, builtin=True)
            models = known.get("vllm_models")
            if models is not None and not isinstance(models, list):
                return None
            defaults = known.get("vllm_model_defaults") or {}
            found |= client_names(models, catalog, defaults)
            specs = merged_all(models, catalog, defaults)
            adapters |= {name for spec in specs for name in adapter_names(spec.get("lora_modules"))}
    # Of Ansible's and of Jinja's many errors.
    except Exception:
        return None
    return sorted(found), sorted(adapters)


def strange_secrets(values: Known, host_name: str, hostvars: Known) -> list[str]:
    """Return which names in a host's ``vllm_secrets`` are of no model of any host.

    Nothing is said where the models of a host cannot be read, which is an error of its own.
    """
    others = (hostvars[name].get("vllm_models") for name in hostvars if name != host_name)
    try:
        found = nobodys_secrets(values.get("vllm_secrets"), host_name, values.get("vllm_models"), others)
    # Of Ansible's and of Jinja's many errors.
    except Exception:
        return []
    return found
