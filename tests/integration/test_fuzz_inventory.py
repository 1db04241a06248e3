"""Inventories mutated at random: one sentence that names the key, or files in which nothing was injected."""

from __future__ import annotations

import json
import random
import re
from functools import cache
from typing import Any

import jinja2
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.templates import rendered
from gaudi_serve.host.hccl import hccl_arguments
from gaudi_serve.inventory.variables import inventory_refusal
from gaudi_serve.plan.fleet import vllm_fleet_lines, vllm_fleet_plan
from gaudi_serve.stages import container_runtime, host_tuning
from gaudi_serve.stages.driver import driver_changes, driver_refusal
from gaudi_serve.stages.image import missing_images, vllm_images
from gaudi_serve.stages.links import link_note, link_refusal, link_validation_plan
from gaudi_serve.stages.service import vllm_api_keys, vllm_secret_files
from gaudi_serve.stages.weights import weights_changes, weights_refusal, weights_sources
from helpers.container_engine import USERS
from helpers.container_engine import live as engine
from helpers.driver import live as driver
from helpers.inventories import BASE, KEYS, SPECS, bent
from helpers.mutations import ROOT, SEED, nothing_injected
from helpers.plans import gaudi_host, known, model

ROLES = ("host_tuning", "driver", "container_runtime", "vllm_image", "model_weights", "link_validation")
INVENTORIES = 1200
CATALOG = model_catalog([str(ROOT / "roles/preflight/files/catalog")])
TUNING = {
    **{"mem_total_kib": 2**30, "hugepage_kib": 2048, "cmdline": ["quiet"], "sysctl_file_sha256": None},
    "sysctl": {"kernel.numa_balancing": "1", "vm.nr_hugepages": "0"},
    "sysctl_others": [{"path": "/etc/sysctl.conf", "line": 2, "key": "vm.nr_hugepages", "value": "1", "text": "x"}],
    "governor": {"values": {"cpu0": "powersave"}, "available": []},
    "grub": {
        **{"present": True, "dropin_sha256": None, "entries": [["ro", "quiet"]]},
        **{"cfg_mtime": 1, "dropin_mtime": None, "dropin_folder_mtime": 1},
    },
}
SYSTEM = {"kernel": "6.8.0-45-generic", "accelerator": "gaudi", "pretty_name": "Ubuntu 24.04"}
# As Ansible's template lookup has it.
TEMPLATES = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)  # noqa: S701 - no web page


@cache
def template(path: str) -> jinja2.Template:
    """Return a template of a role."""
    return TEMPLATES.from_string((ROOT / "roles" / path).read_text(encoding="utf-8"))


@cache
def validator(role: str) -> ArgumentSpecValidator:
    """Return what Ansible checks a role's inputs with when the role begins."""
    return ArgumentSpecValidator({name: plain(option) for name, option in SPECS.items() if name.startswith(f"{role}_")})


def plain(option: dict[str, Any]) -> dict[str, Any]:
    """Return an option without what is for readers, and without defaults that are templates."""
    kept = {key: option[key] for key in ("type", "elements", "choices", "required", "no_log") if key in option}
    if "options" in option:
        kept["options"] = {name: plain(part) for name, part in option["options"].items()}
    return kept


def bent_inventory(chance: random.Random) -> dict[str, Any]:
    """Return an inventory with one to three variables bent; the others are as the defaults of the roles."""
    keys = chance.sample(KEYS, chance.randint(1, 3))
    return {**BASE, **{key: bent(chance, BASE.get(key)) for key in keys}}


def test_inventories_mutated_at_random() -> None:
    chance = random.Random(SEED + 2)  # noqa: S311 - reproducible, not secret
    accepted = 0
    assert inventory_refusal(BASE, "g") == []
    for number in range(INVENTORIES):
        given = bent_inventory(chance)
        reasons = inventory_refusal(given, "g")
        for reason in reasons:
            assert reason.startswith("g: ") and reason.isprintable() and len(reason) < 600, (number, reason)
            assert re.match(r"g: [a-z_]+", reason), (number, reason)
        if not reasons:
            accepted += 1
            carried_out(given)
    assert INVENTORIES // 20 < accepted < INVENTORIES // 2


def carried_out(given: dict[str, Any]) -> None:
    """Do with the inputs what a run does: check them as roles do, then make everything that reaches a host."""
    for role in ROLES:
        inputs = {key: value for key, value in given.items() if key.startswith(f"{role}_")}
        inputs |= {"vllm_image_images": given["vllm_images"] or []} if role == "vllm_image" else {}
        result = validator(role).validate(inputs)
        assert not result.error_messages, (inputs, result.error_messages)
    # What a filter refuses is one sentence too; roles compute before they change anything.
    for part in (tuned, engined, driven, imaged, weighed, kept_secret, measured, planned_and_served):
        try:
            part(given)
        except InputError as problem:
            assert str(problem).isprintable() and len(str(problem)) < 600


def tuned(given: dict[str, Any]) -> None:
    """The GRUB drop-in and the sysctl file."""
    wanted = host_tuning.kernel_arguments_wanted(SYSTEM, given["host_tuning_iommu"], given["host_tuning_kernel_args"])
    dropin = rendered("host_tuning", "grub.cfg.j2", arguments=wanted)
    assert dropin.isascii() and dropin == rendered("host_tuning", "grub.cfg.j2", arguments=["a"]).replace(
        '"a"', f'"{" ".join(wanted)}"'
    )
    assert re.search(r'^gaudi_serve_args="[A-Za-z0-9_.,:+@/= -]*"$', dropin, re.MULTILINE), dropin
    share = given["host_tuning_hugepages_max_fraction"]
    pages = host_tuning.hugepages_wanted(TUNING, given["host_tuning_hugepages"], share)["pages"]
    values = host_tuning.sysctl_wanted(TUNING, pages)
    text = rendered("host_tuning", "sysctl.conf.j2", sysctl=values)
    assert all(re.fullmatch(r"#.*|[a-z_.]+ = [0-9]+", line) for line in text.splitlines()), text
    governor = given["host_tuning_governor"]
    found = host_tuning.host_tuning_changes(TUNING, wanted, dropin, text, values, governor)
    assert all(line.isprintable() for lines in found.values() if isinstance(lines, list) for line in lines)
    assert re.fullmatch("[a-z_]*", governor)
    host_tuning.host_tuning_refusal(SYSTEM, TUNING, wanted, "g", governor)


def true(value: Any) -> bool:
    """Return what Ansible's filter bool makes of a value."""
    return str(value).lower() in ("true", "yes", "on", "1")


def engined(given: dict[str, Any]) -> None:
    """daemon.json, and the environment file of the engine."""
    restore, root = true(given["container_runtime_live_restore"]), given["container_runtime_data_root"]
    daemon = container_runtime.daemon_json(USERS, True, restore, root, "g")
    assert {"log-opts", "runtimes"} < set(json.loads(daemon)) <= {"log-opts", "runtimes", "live-restore", "data-root"}
    proxies = {f"{name}_proxy": given[f"container_runtime_{name}_proxy"] for name in ("http", "https", "no")}
    own = {name.upper(): value for name, value in proxies.items()}
    text = rendered("container_runtime", "docker-proxy.env.j2", marker="m", proxies=own)
    settings = text.splitlines()[2:]
    assert len(settings) == sum(bool(value) for value in proxies.values()), text
    # As systemd reads it: nothing ends the quotes before the line's end.
    assert all(re.fullmatch(r'[A-Z_]+="([^"\\\n]|\\["\\])*"', line) for line in settings), text
    wanted = {
        **{"packages": given["container_runtime_distribution_packages"], "habana": True, "live_restore": restore},
        **{"habana_version": given["container_runtime_habana_version"], "data_root": root, "daemon_json": daemon},
        **{"habana_repository": given["container_runtime_habana_repository"], "habana_config": "C", "proxies": text},
        **{"proxies_dropin": "d", "proxies_marker": "m", **proxies},
    }
    state = engine(daemon_json=USERS, packages={})
    container_runtime.container_runtime_refusal(state, wanted, "g")
    found = container_runtime.container_runtime_changes(state, wanted)
    lines = container_runtime.container_runtime_drift(state, wanted)
    assert all(line.isprintable() for line in [*lines, *found["install_engine"], *found["install_habana"]])
    for package in wanted["packages"]:
        assert re.fullmatch(r"[a-z0-9][\w.+:~=-]*", package, re.ASCII)


def driven(given: dict[str, Any]) -> None:
    """What apt and modprobe are given."""
    packages = given["driver_packages"] + given["driver_optional_packages"]
    requested = {"release": given["accelerator_release"] or "1.21.3", "version": given["driver_version"]}
    state = driver(None)
    driver_refusal(state, gaudi_host(), host_name="g", packages=packages, **requested)
    ports = given["driver_ports_may_be_down"]
    modules = given["driver_modules"]
    found = driver_changes(state, packages=packages, modules=modules, ports_may_be_down=ports, **requested)
    for word in (*found["install"], *found["hold"], *found["load"]):
        assert re.fullmatch(r"[a-z0-9][\w.+:~=-]*", word, re.ASCII), word


def imaged(given: dict[str, Any]) -> None:
    """Dockerfiles, and what docker is given."""
    for entry in vllm_images(given["vllm_images"] or [], given["accelerator_release"] or "1.21.3"):
        assert re.fullmatch(r"\w[\w./:@-]*", entry["name"], re.ASCII)
        for line in entry.get("dockerfile", "").splitlines():
            assert re.match(r"(FROM|WORKDIR|ARG|RUN|ENV) |    && ", line), line
        assert missing_images([entry], {})
    assert all(str(value).isprintable() for value in given["vllm_image_proxies"].values())


def weighed(given: dict[str, Any]) -> None:
    """What the jobs of weights are given."""
    models = [{"name": "qwq", "model": "qwq-32b"}]
    defaults, endpoints = given["vllm_model_defaults"] or {}, given["vllm_weights_endpoints"]
    sources = weights_sources(models, CATALOG, defaults, endpoints, {}, [])
    tokens = [kind for kind, token in given["model_weights_tokens"].items() if token]
    assert all(line.isprintable() for line in weights_refusal(sources, {"folders": {}}, "g", "HL-225", None, tokens))
    json.dumps(weights_changes(sources, {"folders": {}}, given["model_weights_verify"]), allow_nan=False)
    for key in ("model_weights_convert_command", "model_weights_calibrate_options"):
        assert all(isinstance(word, str) and word.isprintable() for word in given[key])


def kept_secret(given: dict[str, Any]) -> None:
    """The files of secrets."""
    secrets = given["vllm_secrets"] or {}
    vllm_api_keys(secrets)
    for file in vllm_secret_files(secrets, [{"name": "qwq"}]):
        lines = file["content"].split("\n")
        assert len(lines) == len(secrets["qwq"]) + 1
        assert all(re.match(r"[A-Za-z_][A-Za-z0-9_]*=", line) and line.isprintable() for line in lines[:-1])


def measured(given: dict[str, Any]) -> None:
    """What hccl_demo is given."""
    options = given["link_validation_hccl_options"]
    found = link_validation_plan(
        gaudi_host(),
        {},
        image="vllm:1",
        image_id=None,
        max_age_days=int(given["link_validation_max_age_days"]),
        thresholds=given["link_validation_thresholds"],
        options=options,
        nodes=len(given["link_validation_nodes"]) or 1,
    )
    link_note(found, {})
    link_refusal(found, "g", drain=False)
    for run in found["runs"]:
        words = hccl_arguments(run, {"cards": 8, **options})
        assert all(re.fullmatch(r"[\w.,-]+", word, re.ASCII) for word in words), words
    assert re.fullmatch(r"/[\w./@+-]+", given["link_validation_hccl_checkout"])
    assert not given["link_validation_hccl_repository"].startswith("-")


def planned_and_served(given: dict[str, Any]) -> None:
    """Units, environments and launch files of a model that takes the defaults."""
    if all(given[key] == BASE.get(key) for key in BASE if key.startswith(("vllm_", "gaudi_"))):
        return
    own = {key: value for key, value in model().items() if key not in ("image", "env")}
    fleet = vllm_fleet_plan({"g": known(**{**given, "vllm_models": [own]})}, ["g"], [])
    assert all(error["message"].isprintable() for error in fleet["errors"])
    assert "Traceback" not in "\n".join(vllm_fleet_lines(fleet))
    if not fleet["errors"]:
        nothing_injected(fleet["hosts"]["g"]["models"])
