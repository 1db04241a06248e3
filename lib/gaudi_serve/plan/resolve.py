"""The resolution of a user's models: complete, each with its own name and port, ready for further checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..catalog.keys import date_problem, findings
from ..catalog.merge import completed, emptied, entry_of, merged
from ..core.errors import Problem, near
from ..model.adapters import ADAPTERS, names_of, with_adapters
from ..model.host import Host
from ..model.shared import SHARED, key_of, members, with_name
from ..model.vllm_options import AUTO_LENGTH, AUTO_LENGTHS
from ..model.vocabulary import with_vocabulary
from ..model.weights import WeightsFacts
from ..platforms import platform_of
from ..platforms.base import OF_VLLM
from .distributed import distributed_problems, same_ports, spread
from .request import Mistake, ResolvedModel, Site, with_default
from .version import stated_version

# The port for a model that names none.
FIRST_PORT = 30001


def resolve(models: Sequence[Any], site: Site) -> tuple[list[ResolvedModel], list[Mistake]]:
    """Return the models of a user's list that can be checked further, and the mistakes in the list."""
    requests, found = [], []
    for given in models:
        request, mistakes = _resolved(given, site)
        requests += [request] if request else []
        found += mistakes
    return requests, found + _duplicates(requests, site.host) + _same_ports(requests)


def _resolved(given: Any, site: Site) -> tuple[ResolvedModel | None, list[Mistake]]:
    catalog, defaults = site.catalog, site.defaults
    if not isinstance(given, Mapping):
        return None, [(given, problem) for problem in findings(given)]
    own, given = {"model"} if given.get("name") else {"model", "name"}, with_name(given)
    entry, spec = entry_of(catalog, given.get("model")), merged(given, catalog, defaults, site.host, site.release)
    notes = emptied(given, {**defaults, **entry, **entry.get(str(spec.get("launch_profile")), {})})
    missing = given.get("model") is not None and not entry
    # Without its entry, a model has few of its keys.
    problems = [item for item in findings(spec) if not missing or (item[0] not in own and item[1] is not None)]
    problems += _unknown_lengths(spec, site.host)
    found: list[Mistake] = [(spec, problem) for problem in problems]
    if missing:
        many = f"; docs/guides/models.md lists its {len(catalog)} entries" if catalog else ", which is empty"
        known = date_problem(given["model"]) or f"is not in the catalog{near(given['model'], catalog) or many}"
        found.insert(0, (given, ("model", given["model"], known)))
    bad = {key for key, _, _ in problems} | ({"model"} if missing else set())
    absent = _absent_entries(spec, catalog)
    found += [(spec, problem) for problem in absent]
    if bad & {"name", "weights", "model"} or absent or any(key.startswith(SHARED) for key in bad):
        return None, found
    sound = {key: value for key, value in spec.items() if key not in bad}
    sound |= {"max_model_len": AUTO_LENGTH} if sound.get("max_model_len") in AUTO_LENGTHS else {}
    aliases = {entry["alias"]: entry["name"] for entry in site.images if "alias" in entry}
    complete = completed(sound, site.host, site.release, aliases)
    of_image = {entry["name"]: entry.get("vllm_version") for entry in site.images}.get(complete.get("image"))
    version = complete.get("vllm_version") or of_image
    full = complete.but(vllm_version=version)
    apart = distributed_problems(full, site.host, site.release, site.hosts)
    found += [(full, with_default(problem, spec)) for problem in apart]
    bad |= {key for key, _, _ in apart}
    full = spread(full, site.addresses(full))
    full = with_adapters(full, site.host, stated_version(full))
    weights = tuple(WeightsFacts.of(one, site.host) for one in full.served)
    # A server with internet fetches its vocabulary itself, and keeps the launch that it has.
    full = with_vocabulary(full, [one.architecture for one in weights]) if site.offline else full
    return ResolvedModel(full, frozenset(spec), bad, notes, weights), found


def _unknown_lengths(spec: Mapping[str, Any], host: Host) -> list[Problem]:
    """Return the problems with models whose server chooses the context itself, if a plan cannot predict it here."""
    platform = platform_of(host.accelerator)
    if platform.memory == OF_VLLM:
        return []
    allowed = (
        f"is vLLM's own choice at its start, which a plan predicts only on NVIDIA and AMD hosts, and this is a "
        f"{platform.title} host; set a number of tokens: a refusal shows the largest that fits"
    )
    return [
        (key_of(place, "max_model_len"), one["max_model_len"], allowed)
        for place, one in enumerate([spec, *members(spec)])
        if one.get("max_model_len") in AUTO_LENGTHS
    ]


def _absent_entries(spec: Mapping[str, Any], catalog: Mapping[str, Any]) -> list[Problem]:
    """Return the problems with models on a shared card that name a missing entry of the catalog."""
    names = [(key_of(place, "model"), one.get("model")) for place, one in enumerate(members(spec), start=1)]
    return [
        (key, name, f"is not in the catalog{near(name, catalog)}")
        for key, name in names
        if name is not None and not entry_of(catalog, name)
    ]


def _duplicates(requests: Sequence[ResolvedModel], host: Host) -> list[Mistake]:
    found: list[Mistake] = []
    used = {request.spec.port for request in requests} | set(host.ports)
    for key in ("name", "port"):
        first: dict[Any, str] = {}
        for request in requests:
            if key in request.bad or (key == "port" and not request.spec.answers):
                continue
            value = request.spec[key]
            if value in first:
                free = f"already belongs to model {first[value]}"
                if key == "port":
                    default = "" if key in request.given else " (it is the default)"
                    free += f"{default}; {_free_port(used)} is free"
                request.bad.add(key)
                found.append((request.spec, (key, value, free)))
            else:
                first[value] = request.spec.name
    return found + _names_twice(requests) + _adapters_twice(requests)


def _same_ports(requests: Sequence[ResolvedModel]) -> list[Mistake]:
    by_name = {request.spec.name: request for request in requests}
    found = []
    for spec, problem in same_ports([request.spec for request in requests]):
        found += by_name[spec.name].mistakes([problem])
    return found


def _names_twice(models: Sequence[ResolvedModel]) -> list[Mistake]:
    """Return the mistakes of models on a shared card with a name that another model of the host has."""
    found: list[Mistake] = []
    taken: dict[str, str] = {}
    for model in models:
        for name in (model.spec.name, str(model.spec["served_model_name"])):
            taken.setdefault(name, f"model {model.spec.name}")
    for model in models:
        for place, one in enumerate(model.spec.served[1:], start=1):
            if one.name in taken:
                model.bad.add(SHARED)
                allowed = f"already belongs to {taken[one.name]}; clients find a model by its name"
                found.append((model.spec, (key_of(place, "name"), one.name, allowed)))
            taken.setdefault(one.name, f"a model on the card of {model.spec.name}")
    return found


def _adapters_twice(models: Sequence[ResolvedModel]) -> list[Mistake]:
    """Return the mistakes of adapters with the name of a model, or of another model's adapter, on the same host.

    Two servers of the same model may have the same adapters.
    """
    found: list[Mistake] = []
    served = {str(one["served_model_name"]): one.name for model in models for one in model.spec.served}
    taken: dict[str, str] = {}
    # vLLM itself checks the names of lora_modules.
    for model in sorted(models, key=lambda one: ADAPTERS in one.spec):
        base = str(model.spec["served_model_name"])
        for name in names_of(model.spec):
            other = taken.setdefault(name, base)
            whose = f"model {served[name]}" if name in served else f"an adapter of {other}"
            if ADAPTERS in model.spec and (name in served or other != base):
                model.bad.add(ADAPTERS)
                allowed = f"already belongs to {whose}; clients find a model by its name"
                found.append((model.spec, (ADAPTERS, name, allowed)))
    return found


def _free_port(used: set[int]) -> int:
    """Return a free port that no other message has suggested."""
    free = next((port for port in range(FIRST_PORT, 65536) if port not in used), 1024)
    used.add(free)
    return free
