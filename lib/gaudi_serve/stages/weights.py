"""Sources of the weights of models, and the pending steps on a host."""

from __future__ import annotations

import posixpath
import re
import urllib.parse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

from ..catalog.merge import merged
from ..catalog.source import EXTRAS, source_problem
from ..core.checks import is_true
from ..core.errors import refusal
from ..core.run import sha256_text
from ..core.templates import file_of
from ..host.weights_names import OLD, PARTIAL, refused
from ..model.adapters import adapters_of
from ..model.architecture import Architecture
from ..model.host import Host
from ..model.shared import members
from ..model.vocabulary import SOURCE, missing_folder
from ..platforms.hl_smi import GENERATION
from .base import Given, Known, Pending, Stage
from .reset import model_weights_reset

# Cards whose FP8 format differs from that of published weights; Gaudi3 serves the originals.
GAUDI2, GAUDI3 = (tuple(name for name, kind in GENERATION.items() if kind == one) for one in ("GAUDI2", "GAUDI3"))
CONVERTED = "-G2"
# Kinds of sources that have mirrors.
MIRRORED = ("hub", "modelscope", "file")
# Addresses to which a token may be sent in clear text: the host itself only.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# Reasons of steps that replace an existing folder.
REPLACES = re.compile(r"is not there|comes from another|has \d+ missing or changed")
UNRECORDED = "exists without a record of its content"


def weights_sources(
    models: Any,
    catalog: Mapping[str, Any],
    defaults: Mapping[str, Any],
    endpoints: Mapping[str, str] | None = None,
    here: Mapping[str, Any] | None = None,
    images: Sequence[Mapping[str, Any]] = (),
    host: Mapping[str, Any] | None = None,
    release: str | None = None,
    downloads: str | None = None,
) -> list[dict[str, Any]]:
    """Return the models whose weights must be fetched, with their catalog entries and mirrors merged.

    Args:
        models: the user's list of models.
        catalog: known models; their ``source`` applies only if no folder was put there by hand.
        defaults: default keys of every model.
        endpoints: mirrors, by kind.
        here: ``gaudi_host.weights`` of the host.
        images: the result of filter vllm_images; a model may name a built image without its tag.
        host: ``gaudi_host``; with the release, it selects the engine, which decides on conversions.
        release: such as 1.24.1.
        downloads: the mirror's folder of single files; empty for their own addresses; None if servers fetch them.

    Returns:
        One ``{name, weights, image, source}`` for each folder; models that share a folder share it.
    """
    found: dict[str, dict[str, Any]] = {}
    names = {entry["alias"]: entry["name"] for entry in images if "alias" in entry}
    for full in _to_bring(models, catalog, defaults, here or {}, Host.of(host or {}), release, downloads is not None):
        source = _mirrored(full["source"], {**(endpoints or {}), "file": downloads or ""})
        name, path = str(full.get("name")), str(full["weights"]).rstrip("/")
        if path in found and found[path]["source"] != source:
            allowed = f"differs from that of model {found[path]['name']}, which has the same weights {path}"
            raise refusal(f"model {name}", "source", full["source"], allowed)
        image = full.get("image")
        # The plan refuses a value that is not a text.
        image = names.get(image, image) if isinstance(image, str) else None
        found.setdefault(path, {"name": name, "weights": path, "image": image, "source": source})
    return list(found.values())


def _to_bring(
    models: Any,
    catalog: Mapping[str, Any],
    defaults: Mapping[str, Any],
    here: Mapping[str, Any],
    host: Host,
    release: str | None,
    vocabulary: bool,
) -> Iterator[dict[str, Any]]:
    """Yield the complete models that have a source; the plan reports errors in the others."""
    for given in models if isinstance(models, list) else []:
        if not isinstance(given, Mapping):
            continue
        full = merged(given, catalog, defaults, host, release)
        image = {"image": full.get("image")}
        for written, one in ((given, full), *zip(members(given), members(full), strict=False)):
            if one.get("source") and one.get("weights") and not _by_hand(written, one, here):
                yield {**image, **one}
        for adapter in adapters_of(full):
            if isinstance(adapter.source, Mapping):
                yield {"name": full.get("name"), "weights": adapter.folder, "source": adapter.source}
        if vocabulary and (folder := _vocabulary(full, here)):
            yield {"name": full.get("name"), "weights": folder, "source": SOURCE}


def _vocabulary(full: Mapping[str, Any], here: Mapping[str, Any]) -> str | None:
    """Return the folder of the vocabulary that the server of a model needs, and that its user does not provide."""
    pairs = ((one.get("weights"), one.get("config")) for one in (full, *members(full)))
    found = [(str(path), (here.get(str(path)) or {}).get("config") or config) for path, config in pairs]
    return missing_folder(full, [(path, Architecture.of(one)) for path, one in found if isinstance(one, Mapping)])


def _by_hand(given: Mapping[str, Any], full: Mapping[str, Any], here: Mapping[str, Any]) -> bool:
    """Return whether the folder was put there by hand, and the source is only the catalog's."""
    there = here.get(str(full["weights"]))
    return not given.get("source") and bool(there) and not (there or {}).get("recorded")


def _mirrored(source: Mapping[str, Any], endpoints: Mapping[str, str]) -> dict[str, Any]:
    """Return a source, and its measurement files, with the mirror of its kind."""
    kind, told = source.get("kind"), dict(source)
    if isinstance(kind, str) and kind in MIRRORED and endpoints.get(kind) and not source.get("endpoint"):
        told["endpoint"] = endpoints[kind]
    if source.get("measurement"):
        told["measurement"] = _mirrored({"kind": "hub", **source["measurement"]}, endpoints)
    return told


def weights_targets(sources: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the folders that the models need, in the order in which they can be made.

    Returns:
        Each ``{step, name, target, source}`` with step fetch, convert, measure or calibrate; a conversion and a
        calibration also have ``input``, the folder that they read.
    """
    targets = []
    for model in sources:
        source = model["source"]
        plain = {key: value for key, value in source.items() if key not in EXTRAS and value is not None}
        base = {"name": model["name"], "image": model.get("image")}
        original = model["weights"]
        if source.get("convert"):
            original = original_folder(model)
            told = {"kind": "convert", "convert": source["convert"], "of": plain}
            targets.append({**base, "step": "fetch", "target": original, "source": plain, "for": model["weights"]})
            step = {"step": "convert", "target": model["weights"], "source": told, "input": original}
            targets.append({**base, **step})
        else:
            targets.append({**base, "step": "fetch", "target": original, "source": plain})
        if source.get("measurement"):
            given = {key: value for key, value in source["measurement"].items() if value is not None}
            folder = str(given.pop("folder", f"{model['weights']}-measurement")).rstrip("/")
            targets.append({**base, "step": "measure", "target": folder, "source": given})
        if source.get("calibrate"):
            told = {"kind": "calibrate", "of": plain}
            step = {"step": "calibrate", "target": f"{model['weights']}-calibration", "source": told}
            targets.append({**base, **step, "input": model["weights"]})
    return targets


def original_folder(model: Mapping[str, Any]) -> str:
    """Return the folder of the original weights: by default next to the converted ones."""
    given = model["source"].get("folder")
    return str(given).rstrip("/") if given else model["weights"].removesuffix(CONVERTED)


def weights_folders(sources: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return every folder whose state is relevant."""
    return sorted({target["target"] for target in weights_targets(sources)})


def weights_refusal(
    sources: Sequence[Mapping[str, Any]],
    live: Mapping[str, Any],
    host_name: str,
    device: str | None = None,
    source_host: Mapping[str, Any] | None = None,
    tokens: Iterable[str] = (),
) -> list[str]:
    """Return why weights cannot be provided on a host; empty if they can.

    Args:
        sources: as weights_sources returns them.
        live: fact ``gaudi_weights``.
        host_name: name of the host in messages.
        device: the cards' name, such as HL-225; None on a host without cards.
        source_host: as for weights_changes; with ``absent`` it takes no part in the run, and must have all missing
            folders.
        tokens: the kinds of sources for which there is a token.
    """
    reasons = []
    for model in sources:
        label = f"{host_name}: model {model['name']}"
        told = None if _plain(model["source"]) == SOURCE else source_problem(model["source"])
        if told:
            reasons.append(f"{label}: source: {told}")
            continue
        reasons += _model_refusal(model, label, device, tokens)
        if not source_host:
            reasons += _own_folder_refusal(model, live, label)
    reasons = reasons or _collisions(sources, host_name)
    for target in weights_targets(sources) if not reasons else []:
        state = live["folders"].get(target["target"]) or {}
        if state.get("exists") and not (state.get("manifest") or _taken(target, state)):
            reasons.append(
                f"{host_name}: model {target['name']}: weights {target['target']!r}: holds files, but no config.json, "
                "no adapter_config.json and no record of where they came from; move it away, or complete it"
            )
    reasons = reasons or _in_the_way(sources, live, host_name, source_host)
    return reasons or _absent_refusal(sources, live, host_name, source_host or {})


def _in_the_way(
    sources: Sequence[Mapping[str, Any]], live: Mapping[str, Any], host_name: str, source_host: Mapping[str, Any] | None
) -> list[str]:
    """Return a user's files at paths of missing folders; some folders need no place of their own."""
    jobs = weights_changes(sources, live, source_host=source_host)["jobs"]
    states = [(job, live["folders"].get(job["target"]) or {}) for job in jobs]
    return [
        refused(f"{host_name}: model {job['name']}", state["in_the_way"])
        for job, state in states
        if state.get("in_the_way") and not state.get("exists") and not state.get("leftovers")
    ]


def _model_refusal(model: Mapping[str, Any], label: str, device: str | None, tokens: Iterable[str]) -> list[str]:
    """Return the errors in a model's request that do not depend on the host's state."""
    source = model["source"]
    reasons = _convert_refusal(model, label, device) if source.get("convert") else []
    reasons += _token_refusal(source, label, set(tokens))
    if source.get("calibrate") and not model.get("image"):
        reasons.append(f"{label}: source.calibrate: needs the model's image, whose script it runs")
    return reasons


def _own_folder_refusal(model: Mapping[str, Any], live: Mapping[str, Any], label: str) -> list[str]:
    """Return why a folder cannot be used as it is: it is missing here and on the source host."""
    source, state = model["source"], live["folders"].get(model["weights"]) or {}
    if source["kind"] != "path" or source["path"].rstrip("/") != model["weights"] or state.get("exists"):
        return []
    return [f"{label}: source.path {model['weights']!r}: is the model's own folder, and does not exist"]


def _token_refusal(source: Mapping[str, Any], label: str, tokens: set[str]) -> list[str]:
    """Return why a token is not sent: it would cross the network in clear text."""
    reasons = []
    for key, one in (("source", source), ("source.measurement", source.get("measurement") or {})):
        part = "url" if one.get("kind") == "git" else "endpoint"
        place = urllib.parse.urlsplit(str(one.get(part) or "")) if one.get("kind") in tokens else None
        if place and place.scheme == "http" and place.hostname not in LOOPBACK:
            told = f"{label}: {key}.{part} {one[part]!r}: model_weights_tokens.{one['kind']} is set"
            told += ", and a token is sent only over https, because everyone on the way can read http"
            reasons.append(f"{told}; use https, or remove the token")
    return reasons


def _collisions(sources: Sequence[Mapping[str, Any]], host_name: str) -> list[str]:
    """Return the folders that would overwrite one another."""
    keys = {"measure": "source.measurement.folder", "calibrate": "weights (its -calibration)"}
    wanted = []
    for target in weights_targets(sources):
        key = keys.get(target["step"], "source.folder" if target.get("for") else "weights")
        wanted.append((f"model {target['name']}: {key} {target['target']!r}", target))
    reasons = []
    for (label, one), (other_label, other) in combinations(wanted, 2):
        if one["target"] == other["target"] and one["source"] == other["source"]:
            continue  # models may share original weights
        if _over(one["target"], other["target"]) or _over(other["target"], one["target"]):
            told = f"{host_name}: {label}: overlaps {other_label}"
            reasons.append(f"{told}; choose separate folders, none inside another")
    return reasons + [
        f"{host_name}: {label}: overlaps its source.path {target['source']['path']!r}; choose another folder"
        for label, target in wanted
        if target["source"].get("path")
        and _place(target["target"]) != _place(target["source"]["path"])
        and (_over(target["target"], target["source"]["path"]) or _over(target["source"]["path"], target["target"]))
    ]


def _place(path: str) -> str:
    """Return a path as the file system resolves it, links aside."""
    return posixpath.normpath(path).replace("//", "/")


def _over(folder: str, other: str) -> bool:
    """Return whether changes to a folder affect another one: the same, a temporary copy of it, or one inside these."""
    place, inner = _place(folder), _place(other)
    outers = (place, f"{place}{PARTIAL}", f"{place}{OLD}")
    return any(inner == outer or inner.startswith(f"{outer}/") for outer in outers)


def _absent_refusal(
    sources: Sequence[Mapping[str, Any]], live: Mapping[str, Any], host_name: str, source_host: Mapping[str, Any]
) -> list[str]:
    """Return the folders that a source host lacks which takes no part in the run."""
    jobs = weights_changes(sources, live, source_host=source_host)["jobs"] if source_host.get("absent") else []
    return [
        f"{host_name}: model {job['name']}: model_weights_from_host {source_host['host']!r}: is not part of "
        f"this run (--limit), and has no complete folder"
        f" {job['target']}, or cannot be reached; include it"
        for job in jobs
        if not job.get("from") and not _is_adopted(job)
    ]


def _convert_refusal(model: Mapping[str, Any], label: str, device: str | None) -> list[str]:
    if device and device.startswith(GAUDI3):
        return [
            f"{label}: source.convert 'g2': is for Gaudi2; this host has {device} (Gaudi3), which serves the original "
            "weights: leave convert out, and let weights name their folder"
        ]
    if device and not device.startswith(GAUDI2):
        return [f"{label}: source.convert 'g2': is for Gaudi2 ({', '.join(GAUDI2)}), and this host has {device}"]
    if original_folder(model) == model["weights"]:
        return [f"{label}: source.convert 'g2': weights must end in {CONVERTED}, or source.folder name the original's"]
    if not model.get("image"):
        return [f"{label}: source.convert 'g2': needs the model's image, whose script converts"]
    return []


def _taken(target: Mapping[str, Any], state: Mapping[str, Any]) -> bool:
    """Return whether an existing folder without a record is used as it is."""
    return bool(state.get("config")) or target["step"] in ("measure", "calibrate")


def weights_changes(
    sources: Sequence[Mapping[str, Any]],
    live: Mapping[str, Any],
    verify: str = "quick",
    source_host: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Compare the desired weights with those on a host.

    Args:
        sources: as weights_sources returns them.
        live: fact ``gaudi_weights``.
        verify: quick compares sizes and times, full reads every byte.
        source_host: the host whose complete folders are copied: ``host``, ``models`` (its sources), and ``live``, its
            fact, or None if it will have them all; None if each host fetches its own.

    Returns:
        ``jobs``: the pending steps, each with ``reason``, and ``from`` (``host``, ``folder``, ``made``: not fetched
        there) if the source host has the folder, these first; ``due``; ``client``: whether one of them needs the
        clients of the hubs; ``git``: whether one needs git-lfs.
    """
    jobs = []
    for target in weights_targets(sources):
        reason = _reason(target, live["folders"].get(target["target"]) or {}, verify)
        if target["step"] == "fetch" and target.get("for"):
            final = {"step": "convert", "source": {"kind": "convert", "convert": "g2", "of": target["source"]}}
            if not _reason(final, live["folders"].get(target["for"]) or {}, "quick"):
                continue  # the original may be removed after its conversion
        if reason:
            jobs.append({**target, "reason": reason})
    # Copies come first: the source host serves only until no client has asked for a while, and copies need no missing
    # folder.
    if source_host:
        jobs = sorted(_with_source_host(jobs, source_host, verify), key=lambda job: "from" not in job)
    kinds = {job["source"]["kind"] for job in jobs if not job.get("from")}
    return {
        "jobs": jobs,
        "due": bool(jobs),
        "client": bool(kinds & {"hub", "modelscope"}),
        "git": "git" in kinds,
    }


def _with_source_host(jobs: list[dict[str, Any]], source_host: Mapping[str, Any], verify: str) -> list[dict[str, Any]]:
    """Return the steps with copies from another host; a folder that was converted there needs no original here."""
    result = []
    for job in jobs:
        folder = None if verify == "quick" and _is_adopted(job) else _folder_of(source_host, job)
        made = job["step"] in ("convert", "calibrate")
        result.append({**job, "from": {"host": source_host["host"], "folder": folder, "made": made}} if folder else job)
    converted = {job["target"] for job in result if job["step"] == "convert" and job.get("from")}
    return [job for job in result if job.get("for") not in converted]


def _is_adopted(job: Mapping[str, Any]) -> bool:
    """Return whether a folder only needs a record, without any other change."""
    return job["step"] in ("fetch", "measure") and job["reason"] == UNRECORDED


def _folder_of(source_host: Mapping[str, Any], job: Mapping[str, Any]) -> str | None:
    """Return the source host's folder from the same source, mirrors aside, if it is complete or will be."""
    for target in weights_targets(source_host["models"]):
        if target["step"] != job["step"] or _plain(target["source"]) != _plain(job["source"]):
            continue
        if source_host.get("live") is None:
            return str(target["target"])
        state = source_host["live"]["folders"].get(target["target"]) or {}
        known = (state.get("manifest") or {}).get("source") or {}
        same = known.get("kind") == "adopted" or _plain(known) == _plain(target["source"])
        if state.get("exists") and known and same and not state.get("damaged"):
            return str(target["target"])
    return None


def _plain(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source without its mirror."""
    told = {key: value for key, value in source.items() if key != "endpoint"}
    return {**told, "of": _plain(told["of"])} if "of" in told else told


def _reason(target: Mapping[str, Any], state: Mapping[str, Any], verify: str) -> str:
    manifest = state.get("manifest")
    if not state.get("exists"):
        return "is not there"
    if manifest is None:
        # A manual conversion or calibration took hours: its result is served as it is.
        return UNRECORDED if target["step"] in ("fetch", "measure") else ""
    if manifest["source"].get("kind") != "adopted" and manifest["source"] != target["source"]:
        return "comes from another source or revision"
    if state.get("damaged"):
        return f"has {len(state['damaged'])} missing or changed files: {', '.join(state['damaged'][:3])}"
    return _unfinished(state, verify) if target["step"] in ("fetch", "measure") else ""


def _unfinished(state: Mapping[str, Any], verify: str) -> str:
    if state.get("leftovers"):
        return "has leftovers of an interrupted run beside it"
    return "must be read and compared" if verify == "full" else ""


def weights_stops(changes: Mapping[str, Any], services: Mapping[str, Any]) -> list[str]:
    """Return the running models whose folder is replaced: their servers restart with the new weights.

    Args:
        changes: the result of weights_changes.
        services: ``gaudi_services`` of the host.
    """
    replaced = {job["target"] for job in changes["jobs"] if REPLACES.match(job["reason"])}
    return sorted(
        name
        for name, unit in services.get("units", {}).items()
        if (unit.get("container") or {}).get("running")
        and replaced & {mount.get("source") for mount in (unit.get("launch") or {}).get("mounts") or []}
    )


def weights_drift(changes: Mapping[str, Any]) -> list[str]:
    """Return how folders of weights differ from the desired ones, one sentence each."""
    return [f"model {job['name']}: {job['target']} {job['reason']}" for job in changes["jobs"]]


def weights_lines(changes: Mapping[str, Any], host_name: str) -> list[str]:
    """Return one sentence for every pending step."""
    verbs = {"fetch": "fetch", "convert": "convert", "measure": "fetch", "calibrate": "calibrate"}
    lines = []
    for job in changes["jobs"]:
        source = job["source"]
        place = source.get("repo") or source.get("url") or source.get("path") or job.get("input")
        revision = f" at {source['revision']}" if source.get("revision") else ""
        told = f"{verbs[job['step']]} {place}{revision} ({source['kind']})"
        if job.get("from"):
            told = f"copy {job['from']['folder']} from {job['from']['host']}"
        lines.append(f"{host_name}: model {job['name']}: {told} as {job['target']}: it {job['reason']}")
    return lines


# All packages that the role may install for fetching.
PACKAGES = ("git", "git-lfs", "python3-venv")


def _look(given: Given) -> tuple[str, dict[str, Any]] | None:
    """Return the module that reads the folders of weights, which follow from the models' sources."""
    models = given.known["model_weights_models"]
    folders = {"weights": weights_folders(models), "weights_venv": given.known["model_weights_venv"]}
    return ("gaudi_facts", {"gather": ["weights_store"], **folders}) if models else None


# The variable in which the role passes the state of the source host; a plan has none.
SOURCE_HOST = "__model_weights_source_host"
NOTHING: dict[str, Any] = {"folders": {}, "tools": {}}


def _pending(given: Given) -> Pending:
    """Return the pending changes to the weights of a host.

    A plan refuses nothing and does not read the source host, which may fetch in the same run: it assumes that each host
    fetches its own weights.
    """
    known = given.known
    models, name = known["model_weights_models"], known["model_weights_from_host"]
    facts, live = {"together": bool(name)}, known["gaudi_weights"] if models else NOTHING
    asked = known.get(SOURCE_HOST)
    source_host = _source_host(known, asked) if asked and name not in ("", given.host) else None
    refusal = _refusal(given, live, source_host) if asked and models else []
    if refusal:
        # A refused source may contain a token, which must not appear in the result of a task.
        return Pending(changes={"due": False, "source_missing": refusal}, refusal=refusal, facts=facts)
    changes = weights_changes(models, live, known["model_weights_verify"], source_host)
    # After a full verification, only differences count as pending.
    left = weights_changes(models, live)
    lines = weights_lines(changes, given.host)
    return Pending(
        changes={
            **_steps(changes, live["tools"]),
            **{"lines": lines, "left": left["due"], "folders": weights_folders(models)},
            "source_missing": _source_missing(given.host, source_host or {}),
        },
        due=lines,
        left=["Still to do after this run:", *weights_lines(left, given.host)] if left["due"] else [],
        drift=weights_drift(left),
        stops=weights_stops(changes, known.get("gaudi_services", {})),
        facts=facts,
    )


def _source_host(known: Known, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Return the source host as weights_changes takes it.

    Args:
        known: the variables of the client.
        asked: ``runs``: whether the source host takes part in the run; ``given``: the models whose weights it has
            fetched in the run, None before that; ``live``: its fact ``gaudi_weights``, or None; ``looked``: the facts
            read from a host that takes no part, None before that.
    """
    found = {"host": known["model_weights_from_host"]}
    if asked["runs"]:
        live = None if known["ansible_check_mode"] else asked["live"] or NOTHING
        return {**found, "models": asked["given"] or [], "live": live, "silent": asked["given"] is None}
    seen = asked["looked"] or {}
    live = seen.get("ansible_facts", {}).get("gaudi_weights", NOTHING)
    return {**found, "models": known["model_weights_models"], "live": live, "absent": asked["looked"] is not None}


def _source_missing(host_name: str, source_host: Mapping[str, Any]) -> list[str]:
    """Return why nothing can be copied from a source host that takes part in the run; empty if copying is possible."""
    if not source_host.get("silent"):
        return []
    return [
        f"{host_name}: model_weights_from_host {source_host['host']}: has fetched no weights in this run: it failed, "
        "cannot be reached, or has another model_weights_from_host"
    ]


def _refusal(given: Given, live: Mapping[str, Any], source_host: Mapping[str, Any] | None) -> list[str]:
    known, name = given.known, given.known["model_weights_from_host"]
    tokens = [kind for kind, token in (known["model_weights_tokens"] or {}).items() if token]
    device = known["model_weights_device"] or None
    reasons = weights_refusal(known["model_weights_models"], live, given.host, device, source_host, tokens)
    if name and name not in given.inventory:
        reasons.append(
            f"{given.host}: model_weights_from_host {name}: is not a host of the inventory, which has "
            f"{', '.join(given.inventory)}"
        )
    return reasons


def _steps(changes: Mapping[str, Any], tools: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values for the role's tasks: folders to copy or fetch, packages, clients of the hubs."""
    taken = [job for job in changes["jobs"] if job.get("from")]
    digest = sha256_text(file_of("model_weights", "requirements.txt"))
    clients = changes["client"] and tools.get("clients") != digest
    lacking = {
        "git": changes["git"] and not tools.get("git"),
        "git-lfs": changes["git"] and not tools.get("git_lfs"),
        "python3-venv": clients and not tools.get("venv_module"),
    }
    return {
        "due": changes["due"],
        "take": taken,
        "own": [job for job in changes["jobs"] if not job.get("from")],
        "asked": list(dict.fromkeys(job["from"]["folder"] for job in taken)),
        "targets": list(dict.fromkeys(job["target"] for job in changes["jobs"])),
        "packages": [name for name in PACKAGES if lacking[name]],
        "clients": {"due": clients, "digest": digest},
    }


def _reset(given: Given) -> dict[str, Any]:
    weights = is_true(given.known["model_weights_reset_weights"])
    return model_weights_reset(given.known["gaudi_left"], PACKAGES, weights)


STAGE = Stage(
    role="model_weights",
    tag="weights",
    planned=True,
    down=(0, "its weights are replaced"),
    reports=("together", "asked", "brought", "given"),
    given={"models": "source in vllm_models", "device": "the cards"},
    hosts={"model_weights_from_host": lambda value: [value]},
    waits=lambda known: bool(known.get("model_weights_together")),
    taken=("reset_weights",),
    look=_look,
    pending=_pending,
    reset=_reset,
)
