#!/usr/bin/python
"""Ansible module: reads all facts of a host that the toolkit needs, in one call."""

from __future__ import annotations

DOCUMENTATION = r"""
---
module: gaudi_facts
short_description: Reads the live state of a host that serves models
description:
  - Reads files, the kernel, packages, Docker, accelerator cards, units, containers and weights.
  - Changes nothing, needs only python3 on the host, and works in check mode.
  - Every subset becomes one fact, so that a single role reads only its own subset.
options:
  gather:
    description:
      - Subsets to read. C(host) reads the cards, the services and the weights together. C(driver) is omitted if
        C(system) is also read and shows no Gaudi cards. C(apt) makes C(left) also query apt. C(haproxy) is the state of
        a gateway, and C(metrics) that of monitoring.
    type: list
    elements: str
    choices: [system, tuning, runtime, services, hccl, host, driver, network, qualification, bios, mirror,
        weights_store, haproxy, metrics, left, apt]
    default: [system, tuning, runtime, services, hccl, host, driver, network, qualification, bios, mirror]
  weights:
    description: Folders of models whose config.json and size (bytes of safetensors files), or record, are returned.
    type: list
    elements: path
    default: []
  files:
    description: Files and folders that the servers of models need; the module returns which of them exist.
    type: list
    elements: path
    default: []
  names:
    description: Names on which models listen. The module returns the addresses to which the host resolves them.
    type: list
    elements: str
    default: []
  accelerator:
    description: Platform to serve on a host with devices of several platforms. C(auto) takes the first.
    type: str
    default: auto
  controller_time:
    description: Unix time on the controller. The module returns how far the host's clock is ahead of it.
    type: float
  secrets:
    description: Result of filter vllm_secret_marks. The module returns only whether the secrets of a model differ from
      it.
    type: dict
    default: {}
  packages:
    description: Packages that the toolkit has installed, for the subset C(apt).
    type: list
    elements: str
    default: []
  weights_venv:
    description: Virtual environment of the clients of the hubs, for the subset C(weights_store).
    type: path
    default: /opt/gaudi-serve/weights-clients
author:
  - The gaudi-serve developers (@gaudi-serve)
"""

EXAMPLES = r"""
- name: Read what host_tuning compares
  gaudi_facts:
    gather: [system, tuning]
"""

RETURN = r"""
ansible_facts:
  description: One fact for each subset.
  returned: always
  type: dict
  contains:
    gaudi_observed_at:
      description: When the host was read, in seconds since its boot.
      type: float
    gaudi_boot_id:
      description: Identifier of the boot of this time.
      type: str
    gaudi_permissions:
      description: How modes and owners of the toolkit's files differ from its table, lines by role; always read.
      type: dict
    gaudi_system:
      description: Operating system, kernel, memory (KiB), accelerator, and all accelerators of the host.
      type: dict
    gaudi_tuning:
      description: Kernel arguments, GRUB, governor, sysctl values.
      type: dict
    gaudi_runtime:
      description: Packages, daemon.json and the running Docker engine.
      type: dict
    gaudi_services:
      description: The toolkit's units, their containers and the images of Docker.
      type: dict
    gaudi_driver:
      description: Packages and modules of the vendor's driver, and ports of the cards that are down.
      type: dict
    gaudi_network:
      description: Ports of Gaudi cards that lead to other hosts, network cards with RDMA, and files of the role.
      type: dict
    gaudi_left:
      description: What a reset would remove, with the baseline; on request only.
      type: dict
    gaudi_hccl:
      description: The last measurement of the links between the cards; empty without one.
      type: dict
    gaudi_qualification:
      description: Results of the acceptance tests of the cards, and the installed tools for them.
      type: dict
    gaudi_bios:
      description: BIOS settings that the BIOS did not keep in an earlier run.
      type: dict
    gaudi_mirror:
      description: Files that configure the site's mirror, and what apt last read from it.
      type: dict
    gaudi_weights:
      description: Folders of weights with their records and free bytes, and the tools that fetching needs.
      type: dict
    gaudi_haproxy:
      description: The gateway of this host, its files, its servers and their state; on request only.
      type: dict
    gaudi_metrics:
      description: Units, files, certificates and packages of monitoring; on request only.
      type: dict
    gaudi_host:
      description: Facts for planning - device, driver, modules, services, ports, weights.
      type: dict
"""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gaudi_serve.core.run import boot_id, since_boot
from ansible.module_utils.gaudi_serve.gateway import haproxy
from ansible.module_utils.gaudi_serve.host import (
    observe_bios,
    observe_driver,
    observe_host,
    observe_left,
    observe_metrics,
    observe_mirror,
    observe_network,
    observe_runtime,
    observe_services,
    observe_tuning,
    observe_weights,
    permissions,
    qualification,
)
from ansible.module_utils.gaudi_serve.host.secret import secret_changed
from ansible.module_utils.gaudi_serve.platforms import Platform, platform_of

SUBSETS = (
    *("system", "tuning", "runtime", "services", "hccl", "host", "driver"),
    *("network", "qualification", "bios", "mirror"),
)
# Subsets of one role, and of a reset: read only on request.
OTHERS = ("weights_store", "haproxy", "metrics", "left", "apt")

# Each of these is read separately.
ALONE = {
    "tuning": observe_tuning.observe,
    "bios": observe_bios.observe,
    "hccl": observe_services.hccl_state,
    "network": observe_network.observe,
    "mirror": observe_mirror.observe,
    "haproxy": haproxy.observe,
}


def host_facts(
    platform: Platform, devices: dict[str, Any], services: dict[str, Any], given: dict[str, Any]
) -> dict[str, Any]:
    """Return ``gaudi_host``. With a saved copy of it, planning needs no host."""
    keep = ("module_ids", "port", "digest", "active", "launch", "env", "lost", "supervisor", "token_sha256")
    # Includes models of which only the container is left, because it uses cards and a port.
    units = {**services["without_unit"], **services["units"]}
    ports = observe_host.ports()
    holding = observe_services.holding(units)
    weights, unread = observe_host.weights_read(given["weights"])
    return {
        "accelerator": platform.name,
        "platforms": given["platforms"],
        **{key: given[key] for key in ("cdi", "engine_cdi")},
        **devices,
        **observe_host.network(),
        "addresses": observe_host.addresses(),
        "networks": observe_host.networks(),
        "verbs": observe_network.verbs_names(),
        "clock": observe_host.clock(given["controller_time"]),
        "ephemeral_ports": observe_host.ephemeral_ports(),
        "names": observe_host.resolved(given["names"]),
        "files": observe_host.existing(given["files"]),
        "services": {
            name: {
                **{key: unit[key] for key in keep},
                **{"holds": name in holding, "secret_changed": secret_changed(unit)},
                **{key: (unit["container"] or {}).get(key, []) for key in ("stale", "limits")},
                "env_sha256": (unit["container"] or {}).get("env_sha256"),
            }
            for name, unit in units.items()
        },
        "ports": ports,
        "weights": weights,
        "weights_unread": unread,
    }


def observe(given: dict[str, Any], aside: ThreadPoolExecutor) -> dict[str, Any]:
    """Return one fact for each subset."""
    gather = given["gather"]
    # Taken before reading, so that a change during the reading counts as a later change.
    facts: dict[str, Any] = {"gaudi_observed_at": since_boot(), "gaudi_boot_id": boot_id()}
    facts["gaudi_permissions"] = permissions.observe()
    if "system" in gather or "host" in gather:
        facts["gaudi_system"] = observe_host.system(wanted=given["accelerator"])
    # Reading the ports of every card takes as long as everything else together.
    platform = platform_of(facts.get("gaudi_system", {}).get("accelerator"))
    wanted = "driver" in gather and "driver" in platform.needs
    driver = aside.submit(observe_driver.observe, platform.driver) if wanted and platform.driver else None
    # Most of the time is spent waiting for other programs.
    devices = aside.submit(platform.observe) if "host" in gather else None
    runtime = aside.submit(observe_runtime.observe) if "runtime" in gather else None
    facts |= {f"gaudi_{subset}": look() for subset, look in ALONE.items() if subset in gather}
    if "left" in gather:
        facts["gaudi_left"] = observe_left.observe(given["packages"] if "apt" in gather else None)
    if "qualification" in gather:
        facts["gaudi_qualification"] = qualification.observe(platform.acceptance)
    if "services" in gather or "host" in gather:
        facts["gaudi_services"] = observe_services.observe(given["secrets"])
    # The remaining reads are cancelled when they are no longer needed.
    if "metrics" in gather or ("services" in gather and observe_metrics.is_here()):
        facts["gaudi_metrics"] = observe_metrics.observe()
    if "weights_store" in gather:
        facts["gaudi_weights"] = observe_weights.observe(given["weights"], given["weights_venv"])
    if runtime:
        facts["gaudi_runtime"] = runtime.result()
    if devices:
        known = {**given, "platforms": facts["gaudi_system"]["accelerators"]}
        engine = facts["gaudi_runtime"] if runtime else observe_runtime.observe()
        known |= {key: platform.cdi and engine[key] for key in ("cdi", "engine_cdi")}
        facts["gaudi_host"] = host_facts(platform, devices.result(), facts["gaudi_services"], known)
    if driver:
        facts["gaudi_driver"] = driver.result()
    return facts


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "gather": {"type": "list", "elements": "str", "choices": [*SUBSETS, *OTHERS], "default": list(SUBSETS)},
            "weights": {"type": "list", "elements": "path", "default": []},
            "files": {"type": "list", "elements": "path", "default": []},
            "names": {"type": "list", "elements": "str", "default": []},
            "accelerator": {"type": "str", "default": "auto"},
            "controller_time": {"type": "float"},
            "secrets": {"type": "dict", "default": {}, "no_log": True},
            "packages": {"type": "list", "elements": "str", "default": []},
            "weights_venv": {"type": "path", "default": "/opt/gaudi-serve/weights-clients"},
        },
        supports_check_mode=True,
    )
    with ThreadPoolExecutor(3) as aside:
        module.exit_json(changed=False, ansible_facts=observe(module.params, aside))


if __name__ == "__main__":
    main()
