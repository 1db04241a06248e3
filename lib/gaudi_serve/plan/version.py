"""The version of vLLM that serves a model: from the model, from the image's name, or from its release."""

from __future__ import annotations

import re

from ..buckets.plugin_rules import rules_of
from ..core.errors import Finding, Problem
from ..core.versions import comparable
from ..engines import running_engine
from ..model.host import Host
from ..model.spec import Spec
from ..platforms import platform_of
from ..platforms.releases import DEFAULT, PLUGIN, RELEASES, Release, release_of, rows_of, stated_versions, vllm_of


def release_unset(host: Host, host_name: str) -> Finding | None:
    """Return the finding for an inventory without a release, if the host has another release than the default.

    A changed default must not change the engine or the driver of a serving host.
    """
    row = platform_of(host.accelerator).release(DEFAULT)
    if not row:
        return None
    driver = re.match(r"\d+\.\d+\.\d+", host.driver_version or "")
    served = {name: engine for name, service in host.services.items() if (engine := running_engine(service))}
    here = [f"driver {driver[0]}"] if driver and release_of(driver[0]) is not row else []
    here += [f"model {name}, served by {engine}" for name, engine in served.items() if engine not in row.engines]
    if not here:
        return None
    stays = f"'{driver[0]}'" if driver else "that of its software"
    allowed = f"must be set: its default {DEFAULT} is not what this host has ({', '.join(here)}); write {stays} to stay"
    message = f"{host_name}: accelerator_release {allowed}; see docs/guides/migrating.md"
    return Finding(host_name, "accelerator_release", message, None, None, allowed)


def served_by(spec: Spec, row: Release | None) -> tuple[Spec, list[str]]:
    """Return the model with the version of vLLM that the plan uses, or unchanged if no version matters.

    Also return notes: features that an image of the release may not have, and an assumed version.
    """
    if row is None or spec.launch_profile != PLUGIN or not row.vllm:
        return spec, []
    if stated := stated_version(spec):
        return spec.but(vllm_version=stated), []
    least, notes = spec.get("least_vllm"), []
    if least and not row.has(least, all_of_it=True):
        notes.append(f"needs an image with vLLM {least} or newer; release {row.name} has {_list(row)}")
    version = _assumed(spec, row)
    if not version:
        return spec, notes
    if rules_of(version) is not rules_of(str(row.newest)):
        which = f"the oldest vLLM of release {row.name} that serves it, which has {_list(row)}"
        notes.append(
            f"the plan assumes {version}, {which}; set vllm_version in the model, because the buckets depend on it"
        )
    return spec.but(vllm_version=version), notes


def version_problems(spec: Spec, row: Release | None) -> list[Problem]:
    """Return the problem if the release does not have the vLLM that the model or its image needs."""
    if row is None:
        return []
    here = f"accelerator_release is {row.name}, which has {' or '.join(row.vllm) or 'no plugin'}"
    least, said = spec.get("least_vllm"), stated_version(spec) if spec.launch_profile == PLUGIN else None
    if least and not row.has(least):
        fitting = " or ".join(one.name for one in RELEASES if one.has(least)) or "none that is known"
        return [("least_vllm", least, f"is the first vLLM with this model, of release {fitting}; {here}")]
    if said and not row.serves(said):
        named = "" if spec.get("vllm_version") else f" (from the name of image {spec.get('image')})"
        remedy = "use an image of this release, or, if the image has another vLLM, set vllm_version in the model"
        return [("vllm_version", said, f"belongs to {stated_versions(said)}{named}; {here}; {remedy}")]
    if said and least and comparable(said) < comparable(least):
        return [("vllm_version", said, f"is too old for this model, whose least_vllm is {least}; use a newer image")]
    return []


def stated_version(spec: Spec) -> str | None:
    """Return the version of vLLM from a model or from the name of its image; None if neither has one.

    A number in a name can mean anything if it is of no release and older than the newest known vLLM.
    """
    if spec.get("vllm_version"):
        return str(spec["vllm_version"])
    named = vllm_of(str(spec.get("image") or ""))
    rows = rows_of(PLUGIN)
    known = named and (any(row.serves(named) for row in rows) or comparable(named) > max(row.newest for row in rows))
    return named if known else None


def _assumed(spec: Spec, row: Release) -> str | None:
    """Return the oldest vLLM of a release that serves the model. Every newer one accepts the same options."""
    least = spec.get("least_vllm")
    for text in row.vllm:
        oldest, newest = text.split(" to ")[0], text.split(" to ")[-1]
        if not least or comparable(oldest) >= comparable(least):
            return oldest
        if comparable(newest) >= comparable(least):
            return str(least)
    return None


def _list(row: Release) -> str:
    return " and ".join(row.vllm)
