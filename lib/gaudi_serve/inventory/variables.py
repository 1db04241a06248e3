"""The checks of all variables of an inventory, before any of them reaches a host.

Pure functions. The rule for each key is here only once, for all stages of a run and for the plan of a fleet.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from ..bench.loads import site_profiles
from ..bios.client import FINGERPRINT
from ..bios.profiles import ALLOWED, is_profiles, is_settings
from ..catalog.files import catalog_folder, model_catalog, sound_entries
from ..catalog.keys import OWN_KEYS, VARIABLE
from ..catalog.merge import adapter_names, client_names
from ..core.checks import (
    Check,
    Rule,
    empty_or,
    is_address,
    is_line,
    list_of,
    mapping_of,
    matching,
    one_of,
)
from ..core.errors import InputError, Problem, has_login, is_whole, near, one_line, readable, seen, shown
from ..core.images import IS_MIRROR, IS_NAME
from ..core.options import FOLDER, OPTIONS, Range, rule_of
from ..core.tiers import rank
from ..core.words import some_names
from ..gateway.clients import ClientNames, not_read
from ..gateway.inputs import BY_MODEL
from ..model.distributed import entry_problems, host_models
from ..model.vllm_options import OPTION_NAMES
from ..platforms import runtimes
from ..stages.accelerator_network import FORMS as NETWORK_FORMS
from ..stages.accelerator_network import network_problems
from ..stages.apt_access import access
from ..stages.gateway import gateway_problems
from ..stages.host_tuning import kernel_arguments_wanted
from ..stages.image import LOGINS, are_logins, images_of
from ..stages.monitoring import monitoring_problems
from ..stages.offline import FORMS as OFFLINE_FORMS
from ..stages.registry import BY_ROLE, EVERYTHING, OBJECTS, REPORTED, tags_refusal
from ..stages.service import named, nobodys_secrets, secrets_refusal
from .facts import HIDDEN, OTHERS, VARIABLES, checked_variables, rendered, rendered_of
from .rendered import UNRENDERED
from .written import doubled, misread

Known = Mapping[str, Any]
MOST = 10**9
DRAIN = rule_of({"type": "int"}, Range(1, 86_400, "seconds"))
COMES = "preflight_weights_come"
# The keys of mappings that a user writes.
APT_SOURCE = ("uris", "suites", "components", "signed_by")
ENVIRONMENT_IMAGE = ("name", "archive")
MEASURES = ("bandwidth", "latency")
ENDPOINTS = ("hub", "modelscope")


def _arguments(value: Any) -> bool:
    try:
        kernel_arguments_wanted({}, "off", value)
    except InputError:
        return False
    return True


def _environment(value: Any) -> bool:
    name = matching(VARIABLE.pattern)
    return mapping_of(name, lambda text: is_line(text) or is_whole(text, -MOST, MOST))(value)


def _signed_by(value: Any) -> bool:
    block = isinstance(value, str) and value.lstrip().startswith("-----BEGIN PGP PUBLIC KEY BLOCK-----")
    return is_line(value) or (block and all(line.isprintable() for line in str(value).splitlines()))


def _repository(value: Any) -> bool:
    lists = (value[key] for key in ("uris", "suites", "components") if value.get(key) is not None)
    if not all(_word(one) or list_of(_word)(one) for one in lists) or not _signed_by(value.get("signed_by") or ""):
        return False
    uris = value.get("uris") or []
    return all(map(_readable, [uris] if isinstance(uris, str) else uris)) and not has_login(
        value.get("signed_by") or ""
    )


def _source(value: Any) -> bool:
    fits = isinstance(value, Mapping) and {"uris", "suites"} <= set(value) <= {*APT_SOURCE}
    return fits and _repository(value)


def _readable(address: str) -> bool:
    """Return whether apt can read an address, including credentials in it."""
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


def _size(value: Any) -> bool:
    return matching(r"\d{1,9}[kmgKMG]?")(value) or is_whole(value, 1, 10**12)


def _hccl_options(value: Any) -> bool:
    return all(key in HCCL_OPTIONS and HCCL_OPTIONS[key](one) for key, one in value.items())


def _environment_image(value: Any) -> bool:
    known = isinstance(value, Mapping) and not {*value} - {*ENVIRONMENT_IMAGE}
    return not value or (known and IS_NAME(value.get("name")) and empty_or(is_line)(value.get("archive") or ""))


HCCL_OPTIONS: dict[Any, Check] = {
    "size": _size,
    "size_range": lambda value: isinstance(value, list) and len(value) == 2 and all(map(_size, value)),
    "loop": rule_of({"type": "int"}, Range(1, MOST)).good,
    "test": matching(r"[a-z][a-z_]*"),
    "measure": one_of(*MEASURES),
}
WEB = Rule(_web, "must be an address such as https://mirror.example/x")
NO_WEB = Rule(empty_or(WEB.good), f"{WEB.allowed}, or ''")
BUILD_WEB = Rule(
    lambda value: NO_WEB.good(value) and not has_login(value),
    f"{NO_WEB.allowed}, without a user and password, which would stay in the image's history",
)
NO_FOLDER = Rule(empty_or(FOLDER.good), f"{FOLDER.allowed}, or ''")
PACKAGE = r"[a-z0-9][a-z0-9+.-]+(=[\w.+:~-]+)?"
NAMES = Rule(list_of(matching(r"[a-z0-9][a-z0-9+.-]+")), "must be a list of names of packages")
PACKAGES = Rule(list_of(matching(PACKAGE)), "must be a list of packages, such as [docker.io]")
VERSION = Rule(empty_or(matching(r"\d[\w.+:~-]*")), "must be a quoted version such as '1.21.3-57'; '' for none")
RELEASE = Rule(VARIABLES["accelerator_release"].good, VARIABLES["accelerator_release"].allowed)
REPOSITORY = Rule(
    _repository,
    "must be a mapping of uris, suites, components and signed_by; {} for none; credentials are allowed only in uris, "
    "as https://user:password@host/path",
)
ENVIRONMENT = Rule(_environment, "must be a mapping of environment variables to texts of one line")
HOSTS = Rule(list_of(matching(r"[\w.-]+")), "must be a list of hosts of the inventory")
BANDWIDTH = rule_of({"type": "float"}, Range(0, 10**6))
SECONDS, PORT = Range(1, 10**7, "seconds"), Range(1, 65535)
TIMES = (
    "host_tuning_reboot_timeout",
    *("vllm_image_build_timeout", "vllm_image_build_poll", "vllm_image_serve_timeout"),
    *("model_weights_progress", "model_weights_timeout", "model_weights_poll"),
    *("vllm_service_smoke_timeout", "vllm_service_wait_interval", "vllm_service_report_every"),
    *("link_validation_timeout", "qualification_poll"),
)
GIT = matching(r"([a-z]+://[^\s'\"\\`$<>|;]+|/[\w./@+-]+|[\w.-]+@[\w.-]+:[\w./~-]+)")
KINDS = ("hub", "modelscope", "git")

# Rules of role options in addition to their type in argument_specs. The other options follow the usual rules.
SIGNER = Rule(
    empty_or(lambda value: isinstance(value, str) and matching("[0-9A-Fa-f]{40}")(re.sub(r"[\s:]", "", value))),
    "must be the fingerprint of a key: 40 hexadecimal digits",
)
FORMS: dict[str, Rule | Range] = {
    **dict.fromkeys(TIMES, SECONDS),
    **dict.fromkeys(("vllm_image_serve_port", "model_weights_serve_port", "link_validation_port"), PORT),
    "host_tuning_kernel_args": Rule(
        _arguments, "must be a list of quoted texts such as ['iommu=pt'], without blanks or quotes, each once"
    ),
    "host_tuning_governor": Rule(empty_or(matching(r"[a-z][a-z_]{0,31}")), "must be a governor such as performance"),
    "host_tuning_hugepages": Range(0, MOST, "pages"),
    "host_tuning_hugepages_max_fraction": Range(0, 1),
    **NETWORK_FORMS,
    "accelerator_network_mtu": Rule(
        lambda value: is_whole(value, 0, 0) or is_whole(value, 1280, 9600),
        "must be an integer of bytes from 1280 to 9600; 0 leaves the ports' own",
    ),
    "bios_bmc_address": Rule(
        empty_or(
            matching(r"(?!-)([\w.-]{1,253}|\[[0-9a-fA-F:.]+\]|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F:.]*)(:\d{1,5})?")
        ),
        "must be the address of the host's BMC, as host or host:port, without https://; '' for none",
    ),
    "bios_bmc_ca": Rule(
        empty_or(lambda value: is_line(value) or (isinstance(value, str) and value.lstrip().startswith("-----BEGIN"))),
        "must be a file on the control node, or certificates as PEM text",
    ),
    "bios_bmc_fingerprint": Rule(
        empty_or(matching(FINGERPRINT.pattern)),
        "must be a SHA-256 fingerprint: 64 hexadecimal digits, with or without colons",
    ),
    "bios_bmc_timeout": SECONDS,
    "bios_values_dir": Rule(empty_or(is_line), "must be a path on the controller, or ''"),
    "bios_settle_timeout": Range(0, 7200, "seconds"),
    "bios_boot_minutes": Range(1, 600, "minutes"),
    "bios_profiles": Rule(is_profiles, ALLOWED),
    "bios_settings": Rule(
        is_settings, "must be a mapping of attributes to values, which are quoted texts, integers, true or false"
    ),
    "driver_release": RELEASE,
    "driver_version": VERSION,
    "driver_packages": NAMES,
    "driver_optional_packages": NAMES,
    "driver_modules": Rule(list_of(matching(r"[a-z]\w*")), "must be a list of kernel modules"),
    "driver_repository": REPOSITORY,
    "driver_ports_may_be_down": Rule(
        list_of(lambda port: is_whole(port, 0, 1023)), "must be a list of numbers of ports"
    ),
    "container_runtime_distribution_packages": PACKAGES,
    "container_runtime_vendor_packages": PACKAGES,
    "container_runtime_vendor_uri": WEB,
    "container_runtime_vendor_key_url": NO_WEB,
    "container_runtime_vendor_key_checksum": Rule(
        matching(r"sha(256|384|512):([0-9a-fA-F]{64,128}|https?://[!-~]+)"), "must be a digest such as sha256:1500..."
    ),
    **{f"container_runtime_{one.name}_version": VERSION for one in runtimes()},
    **{f"container_runtime_{one.name}_repository": REPOSITORY for one in runtimes()},
    "container_runtime_data_root": NO_FOLDER,
    "vllm_image_archives": Rule(
        lambda value: is_line(value) and bool(value.strip()), "must be a path on the controller"
    ),
    "vllm_image_pip_index_url": BUILD_WEB,
    "vllm_image_mirror": Rule(
        empty_or(IS_MIRROR),
        "must be the name of a registry without https://, with a dot or a port, such as mirror.site:8443 or "
        "mirror.site/images; '' for none",
    ),
    "site_mirror_address": Rule(
        empty_or(matching(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}")),
        "must be the name or IPv4 address of the mirror",
    ),
    "site_mirror_fingerprint": SIGNER,
    "site_mirror_listen": Rule(empty_or(matching(r"[0-9.]+")), "must be an IPv4 address of the mirror's host, or ''"),
    **dict.fromkeys(("site_mirror_port", "site_mirror_registry_port"), PORT),
    "offline_mirror_url": OFFLINE_FORMS["gaudi_mirror_url"],
    "vllm_image_proxies": ENVIRONMENT,
    "vllm_image_registries": Rule(are_logins, LOGINS),
    "vllm_image_serve_address": Rule(
        empty_or(matching(r"(?!-)[A-Za-z0-9.-]{1,253}")),
        "must be an IPv4 address or a name of the host that serves images, or '' for the address of its default route",
    ),
    "model_weights_serve_address": Rule(empty_or(matching(r"[\w.:%-]+")), "must be an address such as 10.0.0.1, or ''"),
    "model_weights_tokens": Rule(
        mapping_of(one_of(*KINDS), lambda one: one is None or is_line(one)),
        f"must be a mapping of {', '.join(KINDS)} to tokens of one line",
    ),
    "model_weights_parallel": Range(1, 256, "files"),
    "model_weights_retries": Range(0, 10_000, "tries"),
    "model_weights_pause": Range(0, 3600, "seconds"),
    "model_weights_convert_env": ENVIRONMENT,
    "model_weights_calibrate_env": ENVIRONMENT,
    "model_weights_calibrate_endpoint": NO_WEB,
    "link_validation_image": Rule(empty_or(is_line), "must be the name of an image, or ''"),
    "link_validation_env": ENVIRONMENT,
    "link_validation_max_age_days": Range(0, 100_000, "days"),
    "link_validation_thresholds": Rule(
        mapping_of(matching(r"[a-z][a-z0-9-]*"), lambda one: one is None or BANDWIDTH.good(one)),
        "must be a mapping of measurements, such as all, to GB/s",
    ),
    "link_validation_hccl_options": Rule(
        _hccl_options, "must be a mapping of size or size_range, loop, test, and measure (bandwidth or latency)"
    ),
    "link_validation_nodes": HOSTS,
    "link_validation_nccl_tests": Rule(
        empty_or(matching(r"/[\w./+-]+")), "must be a path in the image, such as /opt/nccl-tests/build/all_reduce_perf"
    ),
    "link_validation_hccl_repository": Rule(
        lambda value: GIT(value) and not has_login(value),
        "must be an address of a git repository without user and password, which all users of the host would see while "
        "git runs; if it needs them, clone it into link_validation_hccl_checkout first",
    ),
    "link_validation_hccl_commit": Rule(
        empty_or(matching(r"[0-9a-f]{7,40}")), "must be a quoted commit; '' for the newest"
    ),
    "vllm_service_journal_lines": Range(1, 10_000, "lines"),
    "vllm_service_max_restarts": Range(1, 10_000, "restarts"),
}
OF_PLAYBOOKS = {
    "gaudi_offline": rule_of({"type": "bool"}),
    **OFFLINE_FORMS,
    "gaudi_mirror_trust": Rule(is_line, "must be a folder on the control node"),
    "vllm_weights_endpoints": Rule(
        mapping_of(one_of(*ENDPOINTS), lambda one: one is None or NO_WEB.good(one)),
        "must be a mapping of hub and modelscope to addresses",
    ),
    **dict.fromkeys(("bundle_fetch", "bundle_verify", "bundle_allow_unpinned"), rule_of({"type": "bool"})),
    "bundle_apt_sources": Rule(
        lambda value: (
            isinstance(value, Mapping)
            and all(isinstance(name, str) and list_of(_source)(entries) for name, entries in value.items())
        ),
        "must be a mapping of systems, such as debian 12, each to a list of package sources with uris, suites, "
        "components and signed_by",
    ),
    "bundle_execution_environment": Rule(
        _environment_image,
        "must be a mapping of name, such as gaudi-serve-ee:1, and archive (a file here)",
    ),
    "bundle_signing_key": Rule(empty_or(is_line), "must be the id of a secret key of this user's keyring, or ''"),
    "bundle_key_dir": Rule(empty_or(is_line), "must be a folder of the control node, or ''"),
    "bundle_leave_out": Rule(
        list_of(lambda one: is_line(one) and bool(one)), "must be a list of patterns, such as [package habanalabs-*]"
    ),
    "bundle_fingerprint": SIGNER,
    **dict.fromkeys(("fleet_stop_on_errors", "fleet_lock_break", "fleet_all_at_once"), rule_of({"type": "bool"})),
    "fleet_lock_lease_s": rule_of({"type": "int"}, SECONDS),
    # Every run that reboots a host behind a gateway reads this.
    "rollout_drain_timeout": Rule(
        lambda value: value in (None, "") or DRAIN.good(value), f"{DRAIN.allowed}, or '' for 600"
    ),
    "benchmark_dir": Rule(empty_or(is_line), "must be a path on the controller, or ''"),
    "benchmark_on_serving": rule_of({"type": "bool"}),
    "benchmark_timeout": rule_of({"type": "int"}, Range(10, 86_400, "seconds")),
    "benchmark_profiles": Rule(
        lambda value: not site_profiles(value)[1],
        "must be a mapping of names to loads (docs/guides/benchmark.md)",
    ),
    "benchmark_api_key": Rule(empty_or(is_line), "must be a quoted text of one line; '' for none"),
    "vllm_cluster_address": Rule(
        empty_or(matching(r"[0-9a-fA-F.:]+")),
        "must be the address at which the other hosts of a model reach this host, or ''",
    ),
    "fleet_address": Rule(
        empty_or(matching(r"[\w.:-]+")), "must be the address or name at which gateways reach this host, or ''"
    ),
}


# Prefixes of the toolkit's own variables. An unknown variable with one of them is a mistake.
PREFIXES = (
    *(
        "accelerator_",
        "benchmark_",
        "bios_",
        "bundle_",
        "fleet_",
        "gaudi_",
        "vllm_",
        "preflight_",
        "host_tuning_",
        "container_runtime_",
        "model_weights_",
        "driver_",
        "site_mirror_",
    ),
    *("link_validation_", "qualification_"),
    # No variable begins with it any more. It stays, so that inventories from before 1.1 get a message.
    "hccl_validation_",
)
# Role options that playbooks set in every run, with the source of each value. Roles that are used alone read them. In a
# playbook, setting them in the inventory has no effect.
HANDED = {
    "preflight_models": "vllm_models and vllm_distributed_models",
    "preflight_images": "vllm_images",
    "preflight_secrets": "vllm_secrets and fleet_gateway_secret",
    "preflight_catalog_dirs": "vllm_catalog_dirs",
    "preflight_model_defaults": "vllm_model_defaults",
    "preflight_accelerator": "accelerator",
    "preflight_cards": "accelerator_cards",
    "preflight_cards_excluded": "accelerator_cards_excluded",
    "preflight_cards_accepted": "accelerator_cards_accepted",
    "preflight_release": "accelerator_release",
    "preflight_host_nics": "gaudi_host_nics",
    "preflight_device_family": "gaudi_device_family",
    "preflight_for": "the stages of the playbook, --tags and --skip-tags",
    "preflight_move_allowed": "fleet_move_allowed",
    **{name: one.given[kind] for one in OBJECTS for kind in one.given for name in one.names(kind)},
}
# Role options that an inventory may set, in the order of their stages, and variables that playbooks read themselves.
INPUTS: dict[str, Rule] = {
    **OF_PLAYBOOKS,
    **{
        name: rule_of(OPTIONS[name], FORMS.get(name))
        for role in (*BY_ROLE, "preflight", "site_mirror")
        for name in OPTIONS
        if name.startswith(f"{role}_") and name not in (*HANDED, *VARIABLES)
    },
}
# Facts, and the roles' results of a run.
SAID = frozenset(
    """
    gaudi_observed_at gaudi_permissions gaudi_left gaudi_weights gaudi_haproxy gaudi_boot_id
    preflight_packages_reset preflight_passed preflight_plan preflight_rest_reset preflight_status preflight_inventory
    preflight_observed preflight_stages preflight_refusal preflight_lines preflight_warnings preflight_gateways
    preflight_monitors preflight_chosen gaudi_metrics
    preflight_sources preflight_left_alone preflight_unread
    gaudi_stage gaudi_stages gaudi_images_to_convert gaudi_plan gaudi_status gaudi_tune
    gaudi_rollout gaudi_benchmark gaudi_bundle fleet_awx gaudi_approval bundle_items bundle_problems
    """.split()
) | {
    *REPORTED,
    *(f"gaudi_{subset}" for subset in EVERYTHING),
    *(name for one in OBJECTS for name in one.names("notes", "status", "reset")),
}
# Variables that playbooks/reset.yml passes to the roles.
TAKEN = frozenset(
    ("preflight_reset_names", "preflight_reset_packages", *(name for one in OBJECTS for name in one.names(*one.taken)))
)
KNOWN = frozenset((*VARIABLES, *OTHERS, *INPUTS, *HANDED, *SAID, *TAKEN))
SETTABLE = KNOWN - SAID - HANDED.keys() | {"fleet_awx"}
READ = frozenset((*VARIABLES, *INPUTS))
# Keys of a model that other software also has, so that a variable of this name can be meant for it.
COMMON = re.compile(
    r"(ssl|log|allow|master|fingerprint|watermark|watchdog|tool)_.*|(extra_args|cap_add|read_only|download_dir|root_path"
    r"|block_size|swap_space|node_rank|grpc_port|shutdown_timeout|performance_mode|optimization_level|device_ids"
    r"|input_range|output_range|code_revision|response_role|chat_template|logging_config)"
)
MODEL_KEYS = sorted(
    key
    for key in (OWN_KEYS | OPTION_NAMES) - KNOWN
    if "_" in key and not COMMON.fullmatch(key) and not key.startswith(PREFIXES)
)


def input_problems(variables: Known) -> list[Problem]:
    """Return the problems with the variables of the roles, as (key, value, what is allowed)."""
    return [
        (
            key,
            "(empty)" if variables[key] is None else seen(variables[key]) if key in HIDDEN else variables[key],
            rule.allowed,
        )
        for key, rule in INPUTS.items()
        if key in variables and not rule.good(variables[key])
    ]


def problem_text(key: str, value: Any, allowed: str) -> str:
    """Return the message for a problem with one variable."""
    if value is None:
        return f"{key} is missing: it {allowed}"
    return one_line(f"{key} {value if value in ('(hidden)', '(empty)') else shown(value)}: {allowed}")


def inventory_refusal(variables: Known, host_name: str) -> list[str]:
    """Return the problems with the variables of a host. Its plan reports the problems of its models.

    Args:
        variables: The host's variables as a task sees them.
        host_name: The name of the host in messages.
    """
    values, unread = rendered(variables, facts=False, more=INPUTS)
    checked, problems, wrong = checked_variables(values, unread)
    # An inventory can contain the complete catalog as a variable. Otherwise a role's default has read the folders.
    whole = checked["preflight_catalog"]
    folders = [] if whole else checked["vllm_catalog_dirs"]
    lost = sound_entries(whole or {})[1] + [text for folder in folders for text in catalog_folder(folder)[1]]
    if lost or "vllm_catalog_dirs" in wrong:
        # The role's default has already failed with the same message.
        unread.pop("preflight_catalog", None)
    reasons = [f"{host_name}: {one.text}" for found in unread.values() for one in found]
    # Playbooks take the release of the driver from that of the host.
    same = "accelerator_release" in wrong and values.get("driver_release") == values["accelerator_release"]
    problems += [one for one in input_problems(values) if not (same and one[0] == "driver_release")]
    reasons += [f"{host_name}: {problem_text(*problem)}" for problem in problems]
    reasons += [f"{host_name}: {one_line(text)}" for text in lost]
    release = "" if "accelerator_release" in wrong else checked["accelerator_release"]
    reasons += [f"{host_name}: {one_line(text)}" for text in images_of(checked["vllm_images"] or [], release)[1]]
    # Only playbooks with stages have checked tags.
    if "preflight_for" in variables and "ansible_run_tags" in variables:
        reasons += [f"{host_name}: {text}" for text in tags_refusal(list(variables["ansible_run_tags"]))]
    if "vllm_secrets" in values and values["vllm_secrets"] is not None:
        reasons += [one_line(text) for text in secrets_refusal(values["vllm_secrets"], host_name)]
    reasons += _of_fleet(values, unread, host_name, variables)
    reasons += network_problems(values, host_name, variables.get("hostvars"))
    more = written_problems(values, host_name, variables.get("inventory_dir")) + strange_secrets(
        values, host_name, variables.get("hostvars") or {}
    )
    more += _of_entries(values, host_name, variables)
    return reasons + [one_line(text) for text in unknown_variables(variables, host_name) + more]


def _of_fleet(values: Known, unread: Known, host_name: str, variables: Known) -> list[str]:
    """Return the problems with a host's settings for gateways and monitoring."""
    reasons: list[str] = []
    if "fleet_gateway" not in unread and "fleet_gateway_secret" not in unread:
        gateways = list(variables.get("preflight_gateways") or [])
        reasons += of_gateways(values, gateways, host_name, variables.get("hostvars") or {host_name: values})
    if "fleet_monitoring" not in unread:
        reasons += monitoring_problems(values.get("fleet_monitoring"), variables.get("hostvars"), host_name)
    return reasons


def _of_entries(values: Known, host_name: str, variables: Known) -> list[str]:
    """Return the problems with the hosts of models over several hosts. A role used alone knows no other hosts."""
    hosts = list(variables.get("hostvars") or {})
    entries = values.get("vllm_distributed_models")
    found = entry_problems(entries, host_name, hosts, variables.get("groups")) if hosts else []
    return [f"{host_name}: {text}" for text in found]


def meant(name: str, prefix: str) -> str:
    """Return what a user may have meant by an unknown name, as a part of a sentence; empty if nothing is similar.

    vLLM's options are keys of a model, and many names that began with gaudi_ have another beginning now.
    """
    rest = name.removeprefix(prefix)
    if prefix == "vllm_" and rest in OPTION_NAMES:
        return f"; {rest} is a key of a model in vllm_models"
    same = [one for one in sorted(SETTABLE) if one == rest or one.endswith(f"_{rest}")]
    return f"; did you mean {min(same, key=rank)}?" if prefix == "gaudi_" and same else near(name, SETTABLE, 1)


def unknown_variables(variables: Iterable[Any], host_name: str) -> list[str]:
    """Return a message for each unknown variable with a prefix of the toolkit. It would silently have no effect."""
    return [
        f"{host_name}: {readable(name)} is not a variable of this toolkit{meant(name, prefix)}"
        + f"; names that begin with {prefix} are its own"
        for name in variables
        for prefix in PREFIXES
        if isinstance(name, str) and name.startswith(prefix) and name not in KNOWN
    ]


def ignored_options(hosts: Iterable[Collection[str]], extra: Collection[str]) -> list[str]:
    """Return one sentence about the role options that playbooks set themselves; empty if no host sets one.

    Args:
        hosts: The variables of each host.
        extra: The names that -e sets, which override playbooks.
    """
    found = {name for known in hosts for name in HANDED if name in known and name not in extra}
    named = ", ".join(f"{name} (from {source})" for name, source in HANDED.items() if name in found)
    return [f"Playbooks set these options of roles and ignore the inventory's values: {named}"] if named else []


def misplaced_keys(hosts: Mapping[str, Known]) -> list[str]:
    """Return one sentence for each key of a model that hosts with models have as a variable, where nothing reads it.

    Only for names that no other software would use. env and image count only with values that a model could have.

    Args:
        hosts: The variables of each host.
    """
    found: dict[str, list[str]] = {}
    for host, known in hosts.items():
        if "vllm_models" not in known and "vllm_distributed_models" not in known:
            continue
        values = rendered_of(known, ("env", "image", "vllm_images"))[0]
        images = [one.get("name") for one in values.get("vllm_images") or [] if isinstance(one, Mapping)]
        likely = {"env": isinstance(values.get("env"), Mapping), "image": values.get("image") in images}
        for key in (*(key for key in MODEL_KEYS if key in known), *(key for key in likely if likely[key])):
            found.setdefault(key, []).append(host)
    where = "put it into the entry of vllm_models"
    return [f"{some_names(names)}: variable {key} is a key of a model: {where}" for key, names in found.items()]


def written_problems(values: Known, host_name: str, folder: Any) -> list[str]:
    """Return the numbers of an inventory that YAML reads as octal or in base 60, and the keys that stand twice.

    Args:
        values: the variables of the host.
        host_name: how messages call the host.
        folder: ``inventory_dir`` of the host.
    """
    read = {
        name: value for name, value in values.items() if name in (*READ, "fleet_gateway") and name != "vllm_secrets"
    }
    numbers = [
        f"{host_name}: {readable(one.key)} {one.text}: YAML reads this {one.notation.name}, {one.number}; "
        f"{one.notation.instead}"
        for one in misread(read, folder)
        # A client's own may be a number by mistake.
        if not (one.key.startswith("fleet_gateway") and one.key.endswith((": key", ": sha256")))
    ]
    return [*numbers, *(f"{host_name}: {text}" for text in doubled(folder))]


def of_gateways(values: Known, gateways: Sequence[str], host_name: str, hostvars: Mapping[str, Known]) -> list[str]:
    """Return the problems with a host's settings in a fleet with gateways.

    Args:
        values: The host's variables.
        gateways: The gateway hosts of the inventory.
        host_name: The name of the host in messages.
        hostvars: Variables of all hosts, for the models that clients may use.
    """
    given, serves = (
        (values.get("fleet_gateway"), values.get("fleet_gateway_secret")),
        bool(_models(values, host_name, hostvars)),
    )
    read = {name: rendered_of(hostvars[name], ("fleet_gateway_secret",)) for name in gateways if name in hostvars}
    theirs = {name: found.get("fleet_gateway_secret") for name, (found, unread) in read.items() if not unread}
    return gateway_problems(*given, gateways, host_name, serves, client_names_of(values, hostvars), theirs)


def client_names_of(values: Known, hostvars: Mapping[str, Known]) -> ClientNames | None:
    """Return the names of all hosts that clients may use, also of hosts outside the run, and the unreadable hosts.

    None if the host's gateway names no model.
    """
    settings = values.get("fleet_gateway")
    clients = settings.get("clients") if isinstance(settings, Mapping) else None
    each = clients.values() if isinstance(clients, Mapping) else ()
    by_model = isinstance(settings, Mapping) and any(settings.get(key) for key in BY_MODEL)
    if not by_model and not any(isinstance(one, Mapping) and "models" in one for one in each):
        return None
    models, adapters, unread = set[str](), set[str](), list[str]()
    for host in hostvars:
        try:
            found = _names_of(hostvars[host], host)
        except (*UNRENDERED, InputError) as problem:
            unread += _unread(host, hostvars[host], problem)
        else:
            models |= found[0]
            adapters |= found[1]
    return ClientNames(frozenset(models), frozenset(adapters), tuple(unread))


def _models(known: Known, host: str, hostvars: Mapping[str, Known]) -> Any:
    """Return the models of a host, including its parts of models over several hosts."""
    groups = (hostvars.get(host) or {}).get("groups")
    return host_models(known.get("vllm_models"), known.get("vllm_distributed_models"), host, groups=groups)


def _names_of(known: Known, host: str) -> tuple[set[str], set[str]]:
    """Return the names for clients of a host's models, and those of its adapters."""
    catalog = known.get("preflight_catalog") or model_catalog(known.get("vllm_catalog_dirs") or [], builtin=True)
    models, defaults = _models(known, host, {host: known}), known.get("vllm_model_defaults") or {}
    if models is not None and not isinstance(models, list):
        raise InputError(f"vllm_models {shown(models)}: {VARIABLES['vllm_models'].allowed}")
    return client_names(models, catalog, defaults), adapter_names(models, catalog, defaults)


def _unread(host: str, known: Known, problem: Exception) -> list[str]:
    """Return why the models of a host cannot be read: its variables' problems, or else the error itself."""
    names = ("vllm_models", "vllm_distributed_models", "vllm_model_defaults", "vllm_catalog_dirs", "preflight_catalog")
    reasons = [one.text for found in rendered_of(known, names)[1].values() for one in found]
    return [f"{host}: {one_line(text)}" for text in reasons or [str(problem)]]


def strange_secrets(values: Known, host_name: str, hostvars: Known) -> list[str]:
    """Return the problems with names in ``vllm_secrets`` that are no model of any host, and the unreadable hosts."""
    unread = list[str]()

    def others() -> Iterator[Sequence[Known]]:
        for host in hostvars:
            try:
                if host != host_name:
                    yield named(_models(hostvars[host], host, hostvars))
            except UNRENDERED as problem:
                unread.extend(_unread(host, hostvars[host], problem))

    found = nobodys_secrets(values.get("vllm_secrets"), host_name, _models(values, host_name, hostvars), others())
    return [text + not_read(unread) for text in found]
