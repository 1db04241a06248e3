"""The assembly of a host's plan: models, findings and warnings, from the request and the facts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..core.errors import Finding, near, shown
from ..gateway.fleet import gateway_left, is_remote, removes_gateway, unreached
from ..host.secret import BESIDE, given_secrets
from ..model.distributed import hosts_of
from ..stages.container_runtime import engine_stopped
from ..stages.gateway import gateway_ports
from ..stages.image import images_of, with_official_images
from .host import HostPlan, plan_models, with_peers
from .meeting import Reach
from .refusal import host_findings
from .wanted import Wanted

Known = Mapping[str, Any]


@dataclass(frozen=True)
class Assembled:
    """The plan of a host: ``models`` as filter vllm_plan returns them, all findings, and the warnings."""

    models: dict[str, Any]
    findings: list[Finding]
    warnings: list[str]


@dataclass(frozen=True)
class Peer:
    """Another host of a model: its requested state and its facts."""

    wanted: Wanted
    facts: Known

    @property
    def reach(self) -> Reach:
        """Return how the other hosts of a model reach this host."""
        return Reach.of(self.wanted.cluster_address, self.facts["gaudi_host"])


def assemble(
    name: str,
    wanted: Wanted,
    facts: Known,
    runtime: Known | None,
    gateways: Sequence[str],
    peers: Mapping[str, Peer] | None = None,
) -> Assembled:
    """Return the plan of a host.

    Args:
        name: The name of the host in messages.
        wanted: The requested state of the host.
        facts: ``gaudi_host``, and if known ``gaudi_system`` and ``gaudi_services``.
        runtime: ``gaudi_runtime``; None if unknown.
        gateways: The gateway hosts of the inventory.
        peers: The hosts of its models over several hosts, including itself, each with its own facts. Hosts that
            could not be read are missing.
    """
    host, models = facts["gaudi_host"], wanted.models
    images, findings = _images(name, wanted)
    planned = _planned(name, Peer(wanted, facts), peers or {})
    plan = planned.as_dict()
    services = facts.get("gaudi_services")
    findings += _of_host(name, wanted, facts, runtime, plan, images)
    findings += planned.findings
    if models is None and host["services"]:
        findings.append(Finding(name, "vllm_models", unset_models(name, host["services"])))
    ports = gateway_ports({"fleet_gateway": wanted.gateway}, plan["models"], name)
    findings += [Finding(name, "fleet_gateway", text) for text in ports]
    warnings = [
        *_without_cores(name, host),
        *_strange_secrets(name, given_secrets(wanted.secrets), models or []),
        *_kept_secrets(name, given_secrets(wanted.secrets), plan["models"], services, gateways),
        *unreached(plan["models"], gateways, name),
        *plan["warnings"],
        *gateway_left(services, [*gateways, name] if removes_gateway(wanted.gateway) else gateways, name),
        *_left_hosts(name, host, plan["models"]),
    ]
    return Assembled(plan, findings, warnings)


def _planned(name: str, own: Peer, peers: Mapping[str, Peer]) -> HostPlan:
    """Return the plan of a host, with the parts of its models on other hosts."""
    hosts = {host: one.reach for host, one in peers.items()}
    plans = {host: planned_alone(host, one, hosts) for host, one in peers.items()}
    mine = planned_alone(name, own, hosts)
    return with_peers(mine, plans, hosts, {host: _kept_images(one) for host, one in peers.items()})


def planned_alone(name: str, peer: Peer, hosts: Mapping[str, Reach]) -> HostPlan:
    """Return the plan of a host, without the parts of its models on other hosts.

    Args:
        name: The host.
        peer: Its requested state and its facts.
        hosts: How to reach each host of its models over several hosts.
    """
    wanted = replace(peer.wanted, models=peer.wanted.models or [])
    return plan_models(name, wanted, peer.facts["gaudi_host"], _images(name, peer.wanted)[0] or [], hosts)


def _kept_images(peer: Peer) -> dict[str, str]:
    """Return the ids of the images on a host, without the images that the run fetches."""
    images = (peer.facts.get("gaudi_services") or {}).get("images")
    if not isinstance(images, Mapping):
        return {}
    come = {one["name"] for one in _images("", peer.wanted)[0] or []} if peer.wanted.images_come else set()
    return {str(name): str(known) for name, known in images.items() if name not in come}


def _left_hosts(name: str, host: Known, models: Sequence[Known]) -> list[str]:
    """Return a warning for each model with hosts that it leaves. Its parts stay there until a run removes them."""
    planned = {str(one["name"]): hosts_of(one) for one in models}
    warnings = []
    for model, live in host["services"].items():
        left = [other for other in hosts_of(live.get("launch")) if other not in (name, *planned.get(model, []))]
        if left:
            warnings.append(
                f"{name}: model {model} also runs on {', '.join(left)}; its part stays there until a run with these "
                "hosts removes it"
            )
    return warnings


def _of_host(
    name: str, wanted: Wanted, facts: Known, runtime: Known | None, plan: Known, images: Sequence[Any] | None
) -> list[Finding]:
    services = facts.get("gaudi_services")
    there = None if services is None or engine_stopped(runtime) else list(services["images"])
    come = images is not None and wanted.images_come
    brought = with_official_images(images or [], plan["models"]) if come else images and []
    return host_findings(
        plan,
        facts.get("gaudi_system"),
        facts["gaudi_host"],
        host_name=name,
        wanted=wanted.accelerator,
        cards=wanted.cards,
        release=wanted.release,
        device_family=wanted.device_family,
        images=None if brought is None or there is None else [*brought, *there],
        daemon=_text(runtime, "daemon_json"),
        secrets=given_secrets(wanted.secrets),
        habana=_text(runtime, "habana_config"),
    )


def unset_models(name: str, services: Mapping[str, Any]) -> str:
    """Return the message for a host that serves models while its inventory names none."""
    return (
        f"{name}: vllm_models is not set, but this host serves {', '.join(services)}; set vllm_models: [] to remove "
        "them all"
    )


def _images(name: str, wanted: Wanted) -> tuple[list[dict[str, Any]] | None, list[Finding]]:
    """Return the images, or None if one is wrong, because the allowed names are then unknown."""
    images, problems = images_of(wanted.images or [], wanted.release)
    findings = [Finding(name, "vllm_images", f"{name}: {text}") for text in problems]
    return None if wanted.images is None or findings else images, findings


def _text(runtime: Known | None, key: str) -> str | None:
    text = runtime.get(key) if isinstance(runtime, Mapping) else None
    return text if isinstance(text, str) else None


def _without_cores(name: str, host: Known) -> list[str]:
    """Return a warning if the facts have no cores for the cards."""
    bound = any(module["cpus"] and module["numa_node"] >= 0 for module in host["modules"])
    text = f"{name}: facts: no card has cpus and a numa_node, so no model is bound to cores"
    return [text] if host["modules"] and not bound else []


def _kept_secrets(
    name: str, secrets: Any, models: Sequence[Known], services: Known | None, gateways: Sequence[str]
) -> list[str]:
    """Return a warning for each model whose stored secrets stay without an entry in ``vllm_secrets``, or go with one.

    A gateway on another host gives every model its key.
    """
    if not isinstance(secrets, Mapping | None):
        return []
    units, warnings = (services or {}).get("units") or {}, []
    for model in [str(one["name"]) for one in models]:
        stored = (units.get(model) or {}).get("secret_names") or []
        own = (secrets or {}).get(model)
        entry = {*(own if isinstance(own, Mapping) else [BESIDE]), *["VLLM_API_KEY"] * is_remote(gateways, name)}
        names = [one for one in stored if one not in entry]
        if names and BESIDE in entry:
            warnings.append(
                f"{name}: vllm_secrets: has no entry for {model}, which keeps its stored {', '.join(names)}"
                f"{', also in the gateway' * (name in gateways)}; set vllm_secrets: {{{model}: {{}}}} to withdraw all "
                "secrets of the model"
            )
        elif names:
            warnings.append(
                f"{name}: vllm_secrets: lacks {', '.join(names)} of {model}, so a run withdraws what the host stores"
            )
    return warnings


def _strange_secrets(name: str, secrets: Any, models: Sequence[Any]) -> list[str]:
    """Return warnings for names in ``vllm_secrets`` that are no model, but similar to a model without secrets."""
    if not isinstance(secrets, Mapping):
        return []
    named = [str(model["name"]) for model in models if isinstance(model, Mapping) and "name" in model]
    lacking = [model for model in named if model not in secrets]
    warnings = []
    for key in secrets:
        hint = near(key, lacking, 1) if key not in named else ""
        if hint:
            warnings.append(f"{name}: vllm_secrets: {shown(str(key))} is not a model of this host{hint}")
    return warnings
