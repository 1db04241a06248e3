"""Checks whether a model's engine can load its weights: their quantisation and their architecture."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..core.errors import Problem, shown
from ..core.versions import comparable
from ..engines import ENGINES, engine_of
from ..engines.architectures import SERVED, architecture
from ..engines.quantisations import SAME, Loads, Stored, stored
from ..model.host import Host
from ..model.spec import Spec
from ..model.weights import WeightsFacts
from ..platforms import Platform, platform_of
from ..platforms.releases import PLUGIN, RELEASES, Release
from .version import stated_version


@dataclass(frozen=True)
class _Asked:
    """A quantisation that a server must load: key, value, start of the message, and method."""

    key: str
    value: object
    said: str
    stored: Stored


def load_problems(spec: Spec, host: Host, weights: WeightsFacts, release: str) -> list[Problem]:
    """Return the problems with quantisations that no image of the release can load with this engine."""
    platform, loads, row = _known(spec, host, release)
    if loads is None:
        return []
    return [
        (
            asked.key,
            asked.value,
            f"{asked.said}is not loaded by {_here(spec, platform, row)}; {_others(spec, asked, platform)}",
        )
        for asked in _asked(spec, weights)
        if _refused(asked.stored, loads, row, _version(spec))
    ]


def load_notes(spec: Spec, host: Host, weights: WeightsFacts, release: str) -> list[str]:
    """Return notes about quantisations that some images cannot load, and about unlisted architectures."""
    platform, loads, row = _known(spec, host, release)
    notes = []
    for asked in _asked(spec, weights) if loads else ():
        since = loads.method(asked.stored.method) if loads else None
        name = asked.said.removesuffix(" ") or f"quantization {shown(asked.value)}"
        if since is None:
            notes.append(f"{name} may not load with {_here(spec, platform, row)}; try it on one host first")
        elif since and row and not _version(spec) and not row.has(since, all_of_it=True):
            notes.append(f"{name} needs an image with vLLM {since} or newer; release {row.name} has {_vllm(row)}")
    kind = architecture(weights.architecture)
    if kind and platform.name in SERVED and kind[0] not in SERVED[platform.name]:
        notes.append(
            f"architecture {shown(kind[1])} of its config.json is on no list of architectures for {platform.title}; "
            "try it on one host first"
        )
    return notes


def _known(spec: Spec, host: Host, release: str) -> tuple[Platform, Loads | None, Release | None]:
    platform, engine = platform_of(host.accelerator), engine_of(spec)
    row = platform.release(release)
    # If the release does not have the engine, only that is reported.
    known = engine.serves(platform) and (row is None or engine.name in row.engines)
    return platform, engine.loads.get(platform.name) if known else None, row


def _asked(spec: Spec, weights: WeightsFacts) -> Iterator[_Asked]:
    """Yield the quantisation of the weights, and another one that the user requests."""
    found = stored(weights.architecture)
    if found:
        key, value, where = weights.said(spec)
        yield _Asked(key, value, f"{where}{found.said} ", found)
    wanted = spec.get("quantization")
    # With modelopt the weights name the method. The engine reports options that it converts to others.
    if isinstance(wanted, str) and wanted and wanted not in ("modelopt", found and found.method):
        yield _Asked("quantization", wanted, "", Stored(SAME.get(wanted, wanted), wanted, False))


def _refused(asked: Stored, loads: Loads, row: Release | None, version: str | None = None) -> bool:
    """Return whether a release, or one version of vLLM, cannot load a quantisation."""
    since = loads.method(asked.method)
    if since is None:
        return loads.refused is None or asked.method in loads.refused
    if version and since:
        return (asked.floats and not loads.floats) or comparable(version) < comparable(since)
    return (asked.floats and not loads.floats) or bool(since and row and not row.has(since))


def _version(spec: Spec) -> str | None:
    """Return the version of vLLM in the model's image, or None."""
    return stated_version(spec) if spec.launch_profile == PLUGIN else None


def _vllm(row: Release) -> str:
    return " and ".join(row.vllm)


def _here(spec: Spec, platform: Platform, row: Release | None) -> str:
    name = engine_of(spec).name
    return f"{name} of release {row.name}" if row else f"{name} on a {platform.title} host"


def _others(spec: Spec, asked: _Asked, platform: Platform) -> str:
    """Return the releases and engines that can load it, or else the methods that this platform loads."""
    found = []
    for row in RELEASES if platform.release(RELEASES[-1].name) else ():
        names = [
            name
            for name in row.engines
            if name in ENGINES
            and not ENGINES[name].share  # It has the same fork as the engine for one model.
            and platform.name in ENGINES[name].loads
            and not _refused(asked.stored, ENGINES[name].loads[platform.name], row)
        ]
        found += [f"{row.name} ({', '.join(names)})"] if names else []
    if found:
        return f"releases that load it: {', '.join(found)}"
    methods = sorted(
        name if one.loads[platform.name].floats or name != "compressed-tensors" else f"{name} with integers"
        for one in {engine_of(spec).name: engine_of(spec)}.values()
        for name in one.loads[platform.name].since
    )
    return f"nothing on {platform.title} does; use weights that are not quantised, or one of {', '.join(methods)}"
