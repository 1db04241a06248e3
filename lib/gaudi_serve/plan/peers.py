"""The other hosts of a host's models: their names, their requested state, and the models that stay unchanged."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from ..catalog.files import BUILTIN, Catalog, catalog_folder, sound_entries
from ..core.checks import is_true
from ..core.errors import Finding
from ..core.words import some_names
from ..gateway.fleet import behind_gateway
from ..inventory.facts import INSTEAD, Unread, checked_facts, checked_variables, rendered, rendered_of, saved_facts
from ..inventory.variables import INPUTS
from ..model.between import NICS
from ..model.distributed import GROUP, HOSTS, Groups, entries_of, host_models, is_counted
from ..stages.accelerator_network import between_of
from .assembly import Peer
from .choice import Candidates, Choice, choose_hosts, refusal_text
from .wanted import Wanted

Known = Mapping[str, Any]
Catalogs = Callable[[Sequence[str]], tuple[Catalog, list[str]]]
DISTRIBUTED = "vllm_distributed_models"


@dataclass(frozen=True)
class Tied:
    """The models over several hosts of which a host has, or may get, a part.

    chosen: by model, its hosts if they are not those of its entry: chosen by the plan, or empty if this run plans no
    part of it. left: by model, why its parts stay unchanged. findings: why no hosts can be chosen. peers: the hosts of
    its models, including itself; hosts that could not be read are missing.
    """

    chosen: Mapping[str, Sequence[str]] = field(default_factory=dict)
    left: Mapping[str, str] = field(default_factory=dict)
    findings: Sequence[Finding] = ()
    peers: Mapping[str, Peer] = field(default_factory=dict)


def catalogs_of(common: Collection[str]) -> Catalogs:
    """Return a function that reads the catalog of a host from its own folders, each only once."""
    folder = cache(catalog_folder)

    def catalog(own: Sequence[str]) -> tuple[Catalog, list[str]]:
        entries: Catalog = {}
        problems: dict[str, None] = {}
        for path in (*common, *own):
            found, wrong = folder(path)
            entries.update(found)
            problems.update(dict.fromkeys(wrong))
        return entries, list(problems)

    return catalog


@dataclass(frozen=True)
class Fleet:
    """The inputs of planning for the hosts of an inventory.

    hostvars: variables by host. gateways: the gateway hosts. run: the hosts of this run, including unreachable ones.
    facts_dir: the folder of saved facts; empty for live facts. catalogs: reads the catalog of a host from its own
    folders. only_reads: the run changes nothing, so that --limit may leave out hosts of a model.
    """

    hostvars: Mapping[str, Known]
    gateways: Sequence[str]
    run: Collection[str] = ()
    facts_dir: str = ""
    catalogs: Catalogs = field(default_factory=lambda: catalogs_of([BUILTIN]))
    only_reads: bool = False
    _choices: dict[str, dict[str, Choice]] = field(default_factory=dict)
    _given: dict[str, tuple[Known, dict[str, list[Unread]]]] = field(default_factory=dict)

    def is_saved(self, name: str) -> bool:
        """Return whether a host is planned from saved facts. A playbook reads no host if plan_facts_dir is set."""
        return bool(self.facts_dir) or "plan_facts_dir" in self.hostvars[name]

    def groups(self, name: str) -> Groups | None:
        """Return the hosts of each inventory group, from a host's variables."""
        found = self.hostvars[name].get("groups")
        return found if isinstance(found, Mapping) else None

    def given(self, name: str) -> tuple[Known, dict[str, list[Unread]]]:
        """Return the rendered variables of a host, for its own plan and for those of its peers, and what is unread."""
        if name not in self._given:
            self._given[name] = rendered(self.hostvars[name], facts=not self.is_saved(name), more=INPUTS)
        return self._given[name]

    def facts(self, name: str, known: Known) -> tuple[Known, str | None]:
        """Return the facts of a host, and why there are none.

        Args:
            name: The host.
            known: Its rendered variables, including its facts.
        """
        if self.is_saved(name):
            return saved_facts(self.facts_dir, name)
        if "gaudi_host" in known:
            return known, None
        if "preflight_unread" in self.hostvars[name]:
            return {}, str(self.hostvars[name]["preflight_unread"]["text"])
        return {}, "could not be read; see above, or plan it from saved facts (plan_facts_dir)"

    def live(self, name: str) -> Known | None:
        """Return ``gaudi_host`` as it was read from a host; None if it was not read or is invalid."""
        known = {} if self.is_saved(name) else rendered_of(self.hostvars[name], ("gaudi_host",))[0]
        host = self.facts(name, known)[0].get("gaudi_host")
        return host if isinstance(host, Mapping) else None

    def over_nics(self, name: str) -> bool:
        """Return whether the inventory lets the cards of a host use RDMA network cards to other hosts."""
        values, _ = rendered_of(self.hostvars[name], ("accelerator_network_between",))
        return between_of(values).kind == NICS

    def choices(self, entries: Sequence[Known], offered: Mapping[str, Sequence[str]]) -> dict[str, Choice]:
        """Return the choice for each entry with a number of hosts. Hosts with the same entries share one choice.

        Args:
            entries: The entries of ``vllm_distributed_models``.
            offered: By model, the hosts from which to choose.
        """
        key = json.dumps([entries, offered], sort_keys=True, default=str)
        if key not in self._choices:
            self._choices[key] = _chosen(entries, offered, self)
        return self._choices[key]

    def peer(self, name: str, chosen: Mapping[str, Sequence[str]], left: Mapping[str, str]) -> Peer | None:
        """Return the requested state and the facts of a host; None if either is invalid.

        Args:
            name: The host.
            chosen: See Tied.
            left: See Tied.
        """
        known, unread = self.given(name)
        given, problem = self.facts(name, known)
        facts, wrong = checked_facts(given) if not problem else ({}, [])
        values, _, unsound = checked_variables(known, unread)
        if problem or wrong or not unsound <= set(INSTEAD):
            return None
        whole = values["preflight_catalog"]
        catalog = sound_entries(whole)[0] if whole else self.catalogs(values["vllm_catalog_dirs"])[0]
        return Peer(self.wanted(name, known, facts, values, catalog, Tied(chosen, left)), facts)

    def wanted(
        self, name: str, known: Known, facts: Known, values: Known, catalog: Mapping[str, Any], tied: Tied
    ) -> Wanted:
        """Return the requested state of a host, from its variables and its facts."""
        address = str(known.get("fleet_address") or facts["gaudi_host"]["ip"])
        models, distributed = values["vllm_models"], values[DISTRIBUTED]
        return Wanted(
            models=host_models(models, distributed, name, tied.chosen, self.groups(name)),
            catalog=catalog,
            images=values["vllm_images"],
            secrets=known.get("vllm_secrets"),
            defaults=behind_gateway(values["vllm_model_defaults"], self.gateways, name, address),
            accelerator=values["accelerator"],
            cards=int(values["accelerator_cards"]),
            release=values["accelerator_release"],
            host_nics=is_true(values["gaudi_host_nics"]),
            device_family=values["gaudi_device_family"],
            move_allowed=is_true(values["fleet_move_allowed"]),
            cards_excluded=values["accelerator_cards_excluded"] or [],
            cards_accepted=values["accelerator_cards_accepted"] or [],
            gateway=known.get("fleet_gateway"),
            cluster_address=str(known.get("vllm_cluster_address") or ""),
            between=between_of(known),
            port_notes=known.get("accelerator_network_warnings") or (),
            offline=is_true(known.get("gaudi_offline")),
            left=tied.left,
        )


def tied_models(name: str, fleet: Fleet, waits: bool = False) -> Tied:
    """Return the models over several hosts of a host. All hosts of a model get the same result from the same facts.

    Without such models, it reads no variable of another host.

    Args:
        name: The host.
        fleet: The inputs of planning.
        waits: The host will be planned again after its driver is installed. No hosts are chosen before that.
    """
    own, _ = rendered_of(fleet.hostvars[name], (DISTRIBUTED,))
    entries = {str(one.get("name")): one for one in entries_of(own.get(DISTRIBUTED))}
    offered = {model: _offered(one, name, fleet) for model, one in entries.items()}
    if not any(name in hosts for hosts in offered.values()):
        return Tied()
    numbered = [one for one in entries.values() if is_counted(one)]
    choices = {} if waits else fleet.choices(numbered, offered)
    chosen: dict[str, Sequence[str]] = {str(one.get("name")): () for one in numbered}
    left = dict.fromkeys(chosen, "") if waits else {}
    chosen |= {model: one.names for model, one in choices.items()}
    findings: list[Finding] = []
    for model, entry in entries.items():
        if model in left:
            continue
        choice, hosts = choices.get(model), chosen.get(model) or offered[model]
        if text := _unread_text(choice, hosts, fleet, saved=fleet.is_saved(name)):
            chosen[model] = ()
            left[model] = text
        elif choice and not choice.names and name in hosts:
            text = refusal_text(entry, choice)
            findings.append(Finding(name, HOSTS, f"{name}: model {model}: {text}", model, entry[HOSTS], text))
            left[model] = ""
    mine = [hosts for model in entries if name in (hosts := chosen.get(model, offered[model]))]
    names = dict.fromkeys(other for hosts in mine for other in hosts if other in fleet.hostvars)
    peers = {other: one for other in names if (one := fleet.peer(other, chosen, left))}
    # Models that stay unchanged on other hosts keep their cards there, and do not concern this host.
    own = {model: text for model, text in left.items() if name in offered[model]}
    return Tied(chosen, own, findings, peers)


def _offered(entry: Known, name: str, fleet: Fleet) -> Sequence[str]:
    """Return the hosts of an entry, or the hosts from which the plan chooses, in the order of the inventory."""
    if not is_counted(entry):
        return list(entry[HOSTS])
    hosts = (fleet.groups(name) or {}).get(str(entry.get(GROUP)), ())
    return [one for one in hosts if one in fleet.hostvars]


def _chosen(entries: Sequence[Known], offered: Mapping[str, Sequence[str]], fleet: Fleet) -> dict[str, Choice]:
    """Return the choice for each entry with a number of hosts, in order. Each sees the choices before it."""
    names = dict.fromkeys(one for entry in entries for one in offered[str(entry.get("name"))])
    live = {one: host for one in names if (host := fleet.live(one)) is not None}
    earlier = (fleet.hostvars[host].get("preflight_chosen") for host in names)
    before: Mapping[str, Sequence[str]] = next(filter(None, earlier), {})
    none = {str(entry.get("name")): () for entry in entries}
    peer = cache(lambda host: fleet.peer(host, none, {}))
    found: dict[str, Choice] = {}
    parts: list[Known] = []
    for entry in entries:
        model = str(entry.get("name"))
        given = Candidates(offered[model], live, peer, fleet.over_nics, before.get(model) or (), tuple(parts))
        found[model] = choose_hosts(entry, given)
        parts += [{**entry, HOSTS: list(found[model].names)}] if found[model].names else []
    return found


def _unread_text(choice: Choice | None, hosts: Sequence[str], fleet: Fleet, saved: bool) -> str:
    """Return why the parts of a model stay unchanged in this run; empty if they are planned.

    Hosts of the run that could not be read prevent planning of the other parts. Hosts that --limit leaves out are
    reported as an error elsewhere, unless the run only reads.
    """
    if choice and choice.unread and not saved:
        return (
            f"it stays unchanged, because its hosts cannot be chosen: no facts were read of "
            f"{some_names(choice.unread)}, which may serve it already; run without --limit, or fix the "
            "connection to the host"
        )
    if choice and not choice.names:
        return ""
    away = [] if saved else [one for one in hosts if one in fleet.hostvars and fleet.live(one) is None]
    missing = [one for one in away if one in fleet.run]
    if away and not missing and fleet.only_reads:
        return f"it is shown as it runs, because this run does not read {some_names(away)}"
    return (
        f"it stays unchanged, because no facts could be read of {some_names(missing)}; the other changes of this run "
        "are planned without it"
        if missing
        else ""
    )
