"""The serving images: the recipe of each, and the name derived from it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ..core.checks import Rule, is_line, is_true, matching, one_of
from ..core.errors import InputError, has_login, shown
from ..core.images import HUB, IS_NAME, IS_REGISTRY, NAMED, OLD_HUB, image_name, split_registry
from ..core.options import OPTIONS, rule_of
from ..core.templates import rendered
from ..host.secret import given_secrets
from ..platforms import PLATFORMS, served_names
from ..platforms.releases import DEFAULT, REGISTRY, RELEASES, is_official, release_of, vllm_of
from .base import Given, Pending, Stage
from .container_runtime import engine_stopped
from .reset import vllm_image_reset

Entry = dict[str, Any]

HABANA, PROJECT = "https://github.com/HabanaAI", "https://github.com/vllm-project"
# Default source and folder of each part. None has a commit, which the user must pin.
SOURCES = {
    "vllm": {"repository": f"{HABANA}/vllm-fork", "branch": "aice/v1.21.0", "folder": "/opt/vllm-fork"},
    "plugin": {"repository": f"{PROJECT}/vllm-gaudi", "folder": "/opt/vllm-gaudi"},
    "extension": {"repository": f"{HABANA}/vllm-hpu-extension", "folder": "/opt/extension"},
    "inc": {"repository": "https://github.com/intel/neural-compressor", "folder": "/opt/inc"},
    "hccl_ofi_wrapper": {
        "repository": f"{HABANA}/hccl_ofi_wrapper",
        "branch": "main",
        "folder": "/opt/hccl_ofi_wrapper",
    },
    "hccl_demo": {"repository": f"{HABANA}/hccl_demo", "branch": "main", "folder": "/opt/hccl_demo"},
}
# vLLM itself, which the plugin needs instead of the vendor's fork; the plugin's version determines its version.
UPSTREAM = {"repository": f"{PROJECT}/vllm", "folder": "/opt/vllm"}
LIBFABRIC = {
    "url": "https://github.com/ofiwg/libfabric/releases/download/v1.20.0/libfabric-1.20.0.tar.bz2",
    "sha256": "7fbbaeb0e15c7c4553c0ac5f54e4ef7aecaff8a669d4ba96fa04b0fc780b9ddc",
}
SOURCE = re.compile(r"(https?|git|file|ssh)://[\w.@:/~+-]+")
BRANCH, COMMIT, RELEASE = re.compile(r"[\w./+-]+"), re.compile(r"[0-9a-f]{40}"), re.compile(r"\d+\.\d+\.\d+")
LOGINS = (
    "must be a mapping of registries, such as registry.example.net:5000, each to a mapping of username and "
    "password, as quoted texts"
)
# Packages for serving images to other hosts.
REGISTRY_PACKAGES = ("docker-registry", "openssl")
ENTRY: Mapping[str, Any] = OPTIONS["vllm_image_images"]["options"]
_TEXT = Rule(lambda text: is_line(text) and text.strip() != "", "must be a quoted text of one line")
ENTRY_RULES = {
    key: rule_of(ENTRY[key], form)
    for key, form in {
        # How an image is built: from the recipe for cards, on a host; or as the CPU image, on the controller.
        "build": Rule(lambda _: True, f"must be {' or '.join(ENTRY['build']['choices'])}"),
        "accelerator": Rule(one_of(*PLATFORMS), f"must be {served_names()}"),
        **{"archive": _TEXT, "build_host": _TEXT, "archive_on_host": None},
        "vllm_version": Rule(matching(RELEASE.pattern), "must be a quoted version of vLLM, such as '0.26.0'"),
    }.items()
}
KEYS = {"base", "release", "libfabric", "multimodal", "audio", *SOURCES}
GIT = ("repository", "branch", "commit", "folder")
DOWNLOAD = ("url", "sha256")
LOGIN = ("username", "password")


def vllm_images(images: Sequence[Mapping[str, Any]], release: str = "1.21.3") -> list[Entry]:
    """Return the images with all values that are needed before a build.

    Args:
        images: entries of ``vllm_images``. One with ``build: gaudi`` and a name without a tag is made from its
            ``recipe``: ``release``, ``base``, ``vllm``, ``plugin``, ``extension``, ``inc``, ``hccl_ofi_wrapper``,
            ``hccl_demo`` (each ``repository``, ``branch``, ``commit``, ``folder``), ``libfabric`` (``url``,
            ``sha256``), ``multimodal``, ``audio``.
        release: release of driver and serving image, for recipes without one; empty if none is set.

    Returns:
        The entries; a built one with ``dockerfile``, ``alias`` (its name without a tag) and the name
        ``<alias>:<release>-<digest of the Dockerfile>``, so that a tag identifies a content.

    Raises:
        InputError: with the image, the key, the value and what is allowed.
    """
    if not isinstance(images, list):
        raise InputError(f"vllm_images: {shown(images)}: must be a list of images")
    entries, problems = images_of(images, release)
    if problems:
        raise InputError(problems[0])
    return entries


def images_of(images: Sequence[Any], release: str) -> tuple[list[Entry], list[str]]:
    """Return the valid ones of these images, as vllm_images does, and the problems with the others."""
    entries, problems, names = list[Entry](), list[str](), set[str]()
    for entry in images:
        try:
            _check(entry)
            entries.append(_built(entry, release or DEFAULT) if entry.get("build") == "gaudi" else dict(entry))
        except InputError as problem:
            problems.append(str(problem))
            continue
        name = image_name(entry["name"])
        if name in names:
            problems.append(f"vllm_images: name {shown(entry['name'])}: has another entry; leave one of them out")
        names.add(name)
    return entries, problems


def with_official_images(images: Sequence[Mapping[str, Any]], models: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """Return the entries of ``vllm_images`` and the official images that started models use without an entry.

    Args:
        images: entries of ``vllm_images``.
        models: those of a host's plan.
    """
    known = {image_name(str(entry.get("name"))) for entry in images if isinstance(entry, Mapping)}
    taken = [str(model["image"]) for model in models if model["state"] == "started"]
    missing = [image for image in dict.fromkeys(taken) if is_official(image) and image_name(image) not in known]
    return [*map(dict, images), *({"name": image} for image in missing)]


def images_shared(
    wanted: Sequence[Mapping[str, Any]],
    missing: Sequence[Mapping[str, Any]],
    source_host: str,
    host_name: str,
    hosts: Sequence[str],
) -> dict[str, list[Any]]:
    """Return which images a host pulls or builds itself, and which it gets from the common source host.

    Images that every host reads from a local path are not sent. Neither are images named by a digest: an engine assigns
    such a name only to images that it has pulled itself.

    Args:
        wanted: all images of the host, as filter vllm_images returned them.
        missing: those of them that its engine lacks.
        source_host: ``vllm_image_from_host``; empty if every host gets its images itself.
        host_name: the host.
        hosts: all hosts of the inventory.

    Returns:
        ``own`` and ``take``, entries of ``missing``; ``refusal``, the errors, for users.
    """
    if not source_host:
        return {"own": list(missing), "take": [], "refusal": []}
    said = f"{host_name}: vllm_image_from_host {shown(source_host)}"
    refusal = [] if source_host in hosts else [f"{said}: is not a host of the inventory, which has {', '.join(hosts)}"]
    refusal += [
        f"{said}: image {entry['name']} has build_host {shown(entry['build_host'])}: one host provides images for all; "
        "leave build_host out, or set the same host in both"
        for entry in wanted
        if entry.get("build") == "gaudi" and entry.get("build_host", source_host) != source_host
    ]
    every = source_host == host_name
    apart = [one for one in missing if every or "@" in one["name"] or is_true(one.get("archive_on_host"))]
    return {"own": apart, "take": [one for one in missing if one not in apart], "refusal": refusal}


def registry_login(registries: Any, image: str) -> dict[str, str]:
    """Return the login for pulling an image; empty if its registry has none.

    Args:
        registries: ``vllm_image_registries``: ``{registry: {username, password}}``, or its text in YAML.
        image: its name; one without a registry is of docker.io.

    Raises:
        InputError: if these are not logins.
    """
    if registries and not are_logins(registries):
        raise InputError(f"vllm_image_registries (hidden): {LOGINS}")
    logins, registry = given_secrets(registries) or {}, split_registry(image)[0]
    return dict(logins.get(registry) or (registry == HUB and logins.get(OLD_HUB)) or {})


def are_logins(value: Any) -> bool:
    """Return whether a value is valid for ``vllm_image_registries``."""
    logins = given_secrets(value)
    return isinstance(logins, Mapping) and all(
        isinstance(name, str)
        and IS_REGISTRY(name)
        and isinstance(login, Mapping)
        and set(login) == {*LOGIN}
        and all(isinstance(text, str) and text and _is_login_text(text) for text in login.values())
        for name, login in logins.items()
    )


def _is_login_text(text: str) -> bool:
    """Return whether a text has only characters of a login. A key file of Google is one of several lines."""
    return text.replace("\n", "").isprintable() and text.strip("\n") == text


def _check(entry: Any) -> None:
    """Refuse an invalid entry of an image; keys that only a build needs are checked there."""
    if not isinstance(entry, Mapping) or not entry.get("name"):
        raise InputError(f"vllm_images: {shown(entry)}: must be a mapping with the name of an image")
    if not IS_NAME(entry["name"]):
        raise InputError(f"vllm_images: name {shown(entry['name'])}: {NAMED}")
    wrong = sorted(map(str, set(entry) - set(ENTRY)))
    if wrong:
        raise _refusal(entry["name"], wrong[0], entry.get(wrong[0]), "must be one of " + ", ".join(sorted(ENTRY)))
    for key, rule in ENTRY_RULES.items():
        if entry.get(key) is not None and not rule.good(entry[key]):
            raise _refusal(entry["name"], key, entry[key], rule.allowed)


def _built(entry: Mapping[str, Any], release: str) -> Entry:
    alias = str(entry["name"])
    if ":" in alias.rpartition("/")[2] or "@" in alias:
        raise _refusal(
            alias, "name", alias, "must be a name without a tag: the tag identifies the content of a built image"
        )
    recipe = entry.get("recipe") or {}
    if not isinstance(recipe, Mapping) or set(recipe) - KEYS:
        # Keys alone: values may contain secrets, which must not reach a log.
        wrong = sorted(map(str, set(recipe) - KEYS)) if isinstance(recipe, Mapping) else recipe
        raise _refusal(alias, "recipe", wrong, "must be a mapping of " + ", ".join(sorted(KEYS)))
    used = str(recipe.get("release") or release)
    text = dockerfile(alias, recipe, used)
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    built = {**entry, "alias": alias, "name": f"{alias}:{used}-{digest}", "dockerfile": text, "accelerator": "gaudi"}
    branch = str((recipe.get("plugin") or {}).get("branch")).rpartition("/")[2]
    version = entry.get("vllm_version") or vllm_of(f"vllm:{branch}")
    return {**built, "vllm_version": version} if version else built


def dockerfile(alias: str, recipe: Mapping[str, Any], release: str) -> str:
    """Return the Dockerfile of a recipe, without mirrors and proxies, which do not change the content.

    Raises:
        InputError: for a release without a known base image, or a part that is not pinned.
    """
    return rendered("vllm_image", "Dockerfile.j2", **recipe_parts(alias, recipe, release))


def recipe_parts(alias: str, recipe: Mapping[str, Any], release: str) -> dict[str, Any]:
    """Return all parts of a recipe, with defaults for missing ones.

    Returns:
        ``base`` (the base image), ``libfabric`` (``url`` and ``sha256``, or None), ``sources`` (of each part
        ``repository``, ``branch``, ``commit``, ``folder``), ``upstream``, ``audio``, ``multimodal``.

    Raises:
        InputError: as for dockerfile.
    """
    wanted = "libfabric" in recipe or "hccl_ofi_wrapper" in recipe
    upstream = recipe.get("plugin") is not None
    usual = {**SOURCES, **({"vllm": UPSTREAM} if upstream else {})}
    given = {part: recipe.get(part) for part in SOURCES}
    given["vllm"] = {} if given["vllm"] is None else given["vllm"]
    for key in ("audio", "multimodal"):
        if not isinstance(recipe.get(key, False), bool):
            raise _refusal(alias, f"recipe.{key}", recipe[key], "must be true or false")
    return {
        "base": _base(alias, recipe, release),
        "libfabric": _download(alias, recipe.get("libfabric") or {}) if wanted else None,
        "sources": {part: _source(alias, part, one, usual[part]) for part, one in given.items() if one is not None},
        "upstream": upstream,
        "audio": recipe.get("audio", False),
        "multimodal": recipe.get("multimodal", False),
    }


def _base(alias: str, recipe: Mapping[str, Any], release: str) -> str:
    if recipe.get("base"):
        if not IS_NAME(recipe["base"]):
            raise _refusal(alias, "recipe.base", recipe["base"], NAMED)
        return str(recipe["base"])
    if not RELEASE.fullmatch(release):
        raise _refusal(alias, "recipe.release", release, "must be a quoted release such as '1.21.3'")
    row = release_of(release)
    if not row or not row.base:
        known = ", ".join(one.name for one in RELEASES if one.base)
        raise _refusal(
            alias,
            "recipe.release",
            release,
            f"has no known base image; releases {known} have one; for another, set base",
        )
    return f"{REGISTRY}/{release}/{row.base}:latest"


def _source(alias: str, part: str, given: Any, usual: Mapping[str, str]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise _refusal(alias, f"recipe.{part}", given, "must be a mapping of repository, branch, commit, folder")
    source = {**usual, **given}
    allowed = {
        "repository": (SOURCE, "must be the address of a git repository"),
        "branch": (BRANCH, "must be a branch or tag"),
        "commit": (COMMIT, f"must be 40 hexadecimal digits, such as 'git ls-remote {source.get('repository')}' shows"),
        "folder": (re.compile(r"/[\w./-]+"), "must be an absolute path"),
    }
    return _checked(alias, part, source, allowed)


def _download(alias: str, given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping):
        raise _refusal(
            alias, "recipe.libfabric", given, "must be a mapping of url and sha256, or {} for release 1.20.0"
        )
    allowed = {
        "url": (re.compile(r"https?://[\w.@:/~+-]+\.tar\.bz2"), "must be the address of a .tar.bz2"),
        "sha256": (re.compile(r"[0-9a-f]{64}"), "must be 64 hexadecimal digits: the checksum of what url gives"),
    }
    # A checksum belongs to its address: one without the other is a mistake.
    return _checked(alias, "libfabric", given or LIBFABRIC, allowed)


def _checked(
    alias: str, part: str, source: Mapping[str, Any], allowed: Mapping[str, tuple[re.Pattern[str], str]]
) -> dict[str, str]:
    for key in ("repository", "url"):
        if has_login(str(source.get(key))):
            fault = "an address without user and password, which would stay in the image's history"
            raise InputError(f"vllm_images: {alias}: recipe.{part}.{key}: must be {fault}")
    for key, (pattern, text) in allowed.items():
        if not isinstance(source.get(key), str) or not pattern.fullmatch(source[key]):
            raise _refusal(alias, f"recipe.{part}.{key}", source.get(key), text)
    if set(source) - set(allowed):
        raise _refusal(
            alias,
            f"recipe.{part}",
            sorted(map(str, set(source) - set(allowed))),
            "must have only the keys " + ", ".join(sorted(allowed)),
        )
    return {key: str(source[key]) for key in allowed}


def _refusal(alias: str, key: str, value: Any, allowed: str) -> InputError:
    return InputError(f"vllm_images: {alias}: {key} {shown(value)}: {allowed}")


def image_drift(missing: Sequence[Mapping[str, Any]], runtime: Mapping[str, Any]) -> list[str]:
    """Return the images that a host lacks, as sentences; if no engine answers, that this is unknown.

    Args:
        missing: the result of missing_images.
        runtime: ``gaudi_runtime`` of the host.
    """
    if not runtime["info"]:
        return ["not known, the Docker engine does not answer"]
    return [f"{image['name']} is missing" for image in missing]


def missing_images(wanted: Sequence[Mapping[str, Any]], images: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the wanted images that the host's engine lacks.

    Args:
        wanted: ``vllm_image_images``.
        images: ``gaudi_services.images`` of the host.
    """
    return [image for image in wanted if image_name(str(image["name"])) not in images]


def _pending(given: Given) -> Pending:
    known = given.known
    source_host = known["vllm_image_from_host"] or ""
    wanted = vllm_images(known["vllm_image_images"] or [], str(known["vllm_image_release"]))
    missing = missing_images(wanted, known["gaudi_services"]["images"])
    shared = images_shared(wanted, missing, source_host, given.host, given.inventory)
    # A mirror has images that were built outside.
    builds = [one for one in shared["own"] if one.get("build") == "gaudi" and not known["vllm_image_mirror"]]
    others = [one for one in builds if one.get("build_host", given.host) != given.host]
    unknown = image_drift(missing, known["gaudi_runtime"]) if missing and "gaudi_runtime" in known else []
    bring = [f"provide {one['name']}" for one in shared["own"]]
    bring += [f"take {one['name']} from {source_host}" for one in shared["take"]]
    names = ", ".join(one["name"] for one in missing)
    return Pending(
        changes={
            **{"take": shared["take"], "due": bool(missing)},
            "own": [one for one in shared["own"] if one not in builds],
            "builds": [one for one in builds if one not in others],
            "built_elsewhere": others,
        },
        due=unknown if "gaudi_runtime" in known and engine_stopped(known["gaudi_runtime"]) else bring,
        left=[f"{given.host}: {names} is missing after loading; the archive has another name, or loading failed."]
        if missing
        else [],
        refusal=shared["refusal"],
        drift=unknown,
    )


def _reset(given: Given) -> dict[str, Any]:
    known = given.known
    images, remove = (is_true(known[f"vllm_image_reset_{what}"]) for what in ("images", "packages"))
    services, left, spool = known["gaudi_services"], known["gaudi_left"], known["vllm_image_spool"]
    return vllm_image_reset(services, left, spool, images, REGISTRY_PACKAGES, remove)


STAGE = Stage(
    role="vllm_image",
    tag="images",
    planned=True,
    reports=("asked", "taken"),
    given={"images": "vllm_images", "release": "accelerator_release"},
    hosts={
        "vllm_image_from_host": lambda value: [value],
        "vllm_images": lambda value: [one.get("build_host") for one in value or [] if isinstance(one, Mapping)],
    },
    taken=("reset_images", "reset_packages"),
    pending=_pending,
    reset=_reset,
)
