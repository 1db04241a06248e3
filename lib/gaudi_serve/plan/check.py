"""Checks of a model's request against its host: (key, value, what is allowed), before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import ip_address

from ..catalog.keys import OWN_KEYS
from ..core.errors import Problem, one_line
from ..core.versions import comparable
from ..engines import ENGINES, Engine, engine_of
from ..memory.shape import shape_problems
from ..model.adapters import ADAPTERS, adapter_problems, adapters_of, names_of
from ..model.draft import draft_problems
from ..model.fetches import offline_problems
from ..model.host import Host
from ..model.paths import on_host, spec_paths
from ..model.shared import named_key
from ..model.spec import Spec
from ..model.vllm_options import AUTO_LENGTH, AUTO_LENGTH_SINCE, OPTION_NAMES
from ..model.vocabulary import ENCODINGS, FILE, folder_of
from ..model.weights import WeightsFacts, here
from ..platforms import PLATFORMS, Platform, platform_of
from ..platforms.releases import made_for, rows_of
from .loads import load_problems
from .request import Mistake, ResolvedModel, Site
from .sharing import kind_problems, sharing_problems, smoke_problems
from .version import served_by, stated_version, version_problems


def checked(requests: Sequence[ResolvedModel], site: Site, weights_come: bool) -> list[Mistake]:
    """Return the mistakes of each model on its host, and record them in the models."""
    found = [
        (
            request,
            host_problems(request.spec, site.host, request.weights, site.release, weights_come)
            + (_fetched(request, site.host, weights_come) if site.offline else []),
        )
        for request in requests
    ]
    return [mistake for request, problems in found for mistake in request.mistakes(problems)]


def _fetched(request: ResolvedModel, host: Host, come: bool) -> list[Problem]:
    """Return the problems with what the server would fetch from the internet, where there is none."""
    problems: list[Problem] = []
    for place, (one, weights) in enumerate(zip(request.spec.served, request.weights, strict=False)):
        found = offline_problems(one, weights.architecture)
        if not come and here(one, host).vocabulary is False and one["env"].get(ENCODINGS) == folder_of(one.weights):
            allowed = f"has no {FILE} on this host; playbooks/weights.yml fetches it"
            found.append((f"env: {ENCODINGS}", folder_of(one.weights), allowed))
        for key, value, allowed in found:
            name, whose = named_key(request.spec, place, key)
            problems.append((name, value, whose + allowed))
    return problems


def host_problems(
    spec: Spec, host: Host, weights: Sequence[WeightsFacts], release: str, weights_come: bool
) -> list[Problem]:
    """Return the problems with a model before its cards are chosen; ``weights`` has one item per served model."""
    problems: list[Problem] = []
    # Another program may use a stopped model's port now.
    own_ports = {service.port for service in host.services.values() if service.runs}
    program = host.ports.get(spec.port)
    if program and spec.answers and spec.port not in own_ports:
        problems.append(("port", spec.port, f"is taken on this host by {program}; end it or choose another port"))
    problems += _address_problems(spec, host) if spec.answers else []
    platform = platform_of(host.accelerator)
    if not spec.get("image"):
        allowed = "is required: the serving image, here or as vllm_model_defaults.image"
        problems.append(("image", None, allowed))
    problems += platform.problems(spec) + platform.image_problems(spec, release) + _foreign_image(spec, platform)
    problems += [(key, spec[key], text) for key, text in platform.lacks.items() if spec.get(key) not in (None, False)]
    problems += _engine_problems(spec, engine_of(spec), platform, release) + _length_problems(spec)
    problems += _file_problems(spec, host) + adapter_problems(spec, host, stated_version(spec), weights_come)
    # An engine that cannot share a card is refused above, and it has no defaults for the other models.
    for place, one in enumerate(spec.served if engine_of(spec).share else spec.served[:1]):
        found = weights[place]
        problems_here = _model_problems(one, host, found, release, weights_come) or kind_problems(one, found)
        for key, value, allowed in problems_here:
            name, whose = named_key(spec, place, key)
            problems.append((name, value, whose + allowed))
    return problems


def _file_problems(spec: Spec, host: Host) -> list[Problem]:
    """Return the problems with the files and folders that the model mounts, or reads in addition to its weights."""
    engine, mounts = engine_of(spec), spec.get("mounts") or []
    own = {engine.seen_at(one).rstrip("/") for one in spec.served} | {one.folder for one in adapters_of(spec)}
    problems: list[Problem] = [
        ("mounts", mount["target"], "is where the plan mounts the weights or an adapter; choose another target")
        for mount in mounts
        if mount["target"].rstrip("/") in own
    ]
    # A run fetches these folders before it starts the model.
    fetched = [f"{folder.rstrip('/')}/" for folder, found in host.weights.items() if not found]
    missing = [path for path, exists in host.files.items() if not exists]
    missing = [path for path in missing if not f"{path}/".startswith(tuple(fetched))]
    problems += [
        ("mounts", mount["source"], "does not exist on this host; create it, or mount an existing folder or file")
        for mount in mounts
        if mount["source"] in missing and mount.get("read_only", True)
    ]
    return problems + [
        (key, path, f"is {here} on this host, which does not exist")
        for key, path in spec_paths(spec)
        if (here := on_host(path, mounts)) in missing
    ]


def _length_problems(spec: Spec) -> list[Problem]:
    """Return the problem if a model's vLLM is too old to choose its context length itself."""
    stated = stated_version(spec)
    if spec.get("max_model_len") != AUTO_LENGTH or not stated or comparable(stated) >= comparable(AUTO_LENGTH_SINCE):
        return []
    allowed = f"(auto) needs vLLM {AUTO_LENGTH_SINCE} or newer, and this image has {stated}; set a number of tokens"
    return [("max_model_len", AUTO_LENGTH, allowed)]


def _foreign_image(spec: Spec, platform: Platform) -> list[Problem]:
    """Return the problem if the image is vLLM's own for another platform, which would find no devices here."""
    other = made_for(str(spec.get("image") or ""))
    if other in (None, platform.name):
        return []
    allowed = f"is vLLM's image for {PLATFORMS[str(other)].title} hosts, and this is a {platform.title} host"
    return [("image", spec["image"], allowed)]


def _model_problems(spec: Spec, host: Host, weights: WeightsFacts, release: str, weights_come: bool) -> list[Problem]:
    """Return the problems with the weights of one model, and with its keys compared with them."""
    missing = _weights_problems(spec, host, weights_come)
    if missing:
        return missing
    wrong = weights.architecture.problems
    if wrong:
        # A model cannot be checked against a wrong description.
        key, value, where = weights.said(spec)
        return [(key, value, where + text) for text in wrong]
    problems = load_problems(spec, host, weights, release) + smoke_problems(spec, weights)
    # A catalog entry has only some keys of a config.json.
    problems += draft_problems(spec, weights.architecture) if weights.on_host else []
    return problems + shape_problems(spec, weights.architecture, even_heads=platform_of(host.accelerator).even_heads)


def _address_problems(spec: Spec, host: Host) -> list[Problem]:
    """Return the problem if a server could not listen on its address. Its old server would be stopped for nothing.

    Facts of an older version, or written by hand, have no addresses and no names. Then only the format is checked.
    """
    name, addresses = str(spec.get("host", "127.0.0.1")), host.addresses
    own = f"those of this host are 0.0.0.0, {', '.join(addresses)}" if addresses else "it must be one such as 127.0.0.1"
    if not re.fullmatch(r"[\d.]+|.*:.*", name):
        found = host.names.get(name)
        if found is None or any(_is_own(address, addresses) for address in found):
            return []
        behind = f"is {', '.join(found)} here" if found else "is not a name that this host can resolve"
        return [("host", name, f"{behind}; it must be an address of this host: {own}")]
    try:
        return [] if _is_own(name, addresses) else [("host", name, f"is not an address of this host; {own}")]
    except ValueError:
        return [("host", name, f"is not an address; {own}")]


def _is_own(text: str, addresses: Sequence[str] | None) -> bool:
    address = ip_address(text)
    if address.is_unspecified or address.is_loopback or not addresses:
        return True
    return address in {ip_address(one) for one in addresses}


def _engine_problems(spec: Spec, engine: Engine, platform: Platform, release: str) -> list[Problem]:
    row = platform.release(release)
    if row and engine.serves(platform) and engine.name not in row.engines:
        belongs = ", ".join(one.about for one in rows_of(engine.name))
        engines = ", ".join(name for name in row.engines if name in ENGINES)
        allowed = f"belongs to release {belongs}; accelerator_release is {release}, which starts {engines}"
        return [("launch_profile", engine.name, allowed)]
    if engine.serves(platform):
        wrong = version_problems(spec, row)
        # The options depend on the version, so a wrong version makes further checks meaningless.
        own = [] if wrong else sharing_problems(spec, engine, platform, release)
        own = own if wrong or own else engine.problems(served_by(spec, row)[0])
        own += [(ADAPTERS, names_of(spec)[0], engine.no_adapters)] if engine.no_adapters and spec.get(ADAPTERS) else []
        return own + _option_problems(spec, engine, platform, release) + wrong
    wanted = PLATFORMS[engine.platforms[0]]
    others = ", ".join(one.name for one in ENGINES.values() if one.serves(platform))
    allowed = f"needs {wanted.devices or f'a {wanted.title} host'}; a {platform.title} host takes {others}"
    return [("launch_profile", engine.name, allowed)]


def _option_problems(spec: Spec, engine: Engine, platform: Platform, release: str) -> list[Problem]:
    # An engine with its own launch uses the toolkit's keys itself. Another engine passes all options to vLLM.
    # If the host's release does not determine the version of vLLM, the model's image may.
    stated = None if platform.release(release) else stated_version(spec)
    own = OWN_KEYS if engine.own_options else OWN_KEYS - OPTION_NAMES
    known, newest = (platform.options(text) | own for text in (stated or release, release))
    return [
        (key, value, f"is not an option of {platform.software(release)}{f' {stated}' if key in newest else ''}")
        for key, value in spec.items()
        if key in OPTION_NAMES and key not in known
    ]


def _weights_problems(spec: Spec, host: Host, come: bool) -> list[Problem]:
    path = spec.weights
    # Weights with a source are downloaded and completed before the model is served.
    if path not in host.weights or (spec.get("source") and come):
        return []
    found = host.weights[path]
    if found is not None and found.adapter is not None and not found.config:
        return [("weights", path, "is a LoRA adapter, not a model; name it in adapters of its base model")]
    if found is None:
        bring = "playbooks/weights.yml fetches it from its source"
        remedy = bring if spec.get("source") else "put the model there first"
        why = f": {one_line(str(host.weights_unread[path]))}" if path in host.weights_unread else ""
        return [("weights", path, f"has no readable config.json on this host{why}; {remedy}")]
    if found.damaged:
        more = f" and {len(found.damaged) - 3} more" if len(found.damaged) > 3 else ""
        return [("weights", path, f"is damaged: {'; '.join(found.damaged[:3])}{more}. Copy these files again")]
    if not found.bytes:
        return [("weights", path, "has no *.safetensors files on this host; is the download complete?")]
    return []
