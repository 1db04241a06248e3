"""What a reset undoes on a host, role by role, from the live state and the recorded baseline.

Every ``*_reset`` filter returns ``due`` (something is pending), ``did`` (what a run undoes, as sentences), ``left``
(what stays, and why), ``packages`` (those that the role has installed), and the values that its tasks need.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from ..catalog.keys import RESERVED
from ..core.checks import is_flag_text
from ..core.errors import BROKE, connection_broke, shown
from ..core.images import image_name
from ..core.paths import vllm_unit_paths
from ..core.table import table
from ..host.baseline import RECORDS, text_of
from ..model.distributed import hosts_of

Known = Mapping[str, Any]
STATE = "/var/lib/gaudi-serve"
ON_REQUEST = ("weights", "images", "packages", "caches", "metrics", "bios")
ROLES = (
    *("monitoring", "gateway", "vllm_service", "model_weights", "link_validation", "vllm_image"),
    *("container_runtime", "accelerator_network", "qualification", "driver", "host_tuning", "bios", "offline"),
    *("preflight_packages", "preflight_rest"),
)
ENGINES = ("docker.io", "docker-ce", "docker-ce-cli", "containerd.io", "containerd", "runc")


def reset_refusal(options: Known, confirm: Any, check: bool = False) -> list[str]:
    """Return why a reset must not begin; empty if it may.

    Args:
        options: values of ``reset_weights`` and the like, as they were given.
        confirm: the confirmation that was typed or given.
        check: check mode, in which nothing is changed.
    """
    reasons = [
        f"{key}: {shown(value)} is neither true nor false" for key, value in options.items() if not is_flag_text(value)
    ]
    if not check and confirm != "reset":
        reasons.append(
            "playbooks/reset.yml removes what the toolkit did on these hosts, and stops their models: "
            "type reset, or set -e reset_confirm=reset. Nothing has been changed."
        )
    return reasons


def reset_failure(result: Known) -> str:
    """Return why a task failed: the reason of its first failed item, or else the output of its command."""
    failed = [one for one in result.get("results") or [] if isinstance(one, Mapping) and one.get("failed")]
    one = failed[0] if failed else result
    texts = [one.get(key) or "" for key in ("msg", "stderr", "stdout")]
    said = [
        "; ".join(map(str, text)).replace(":; ", ": ") if isinstance(text, list) else str(text).strip()
        for text in texts
    ]
    if said[0] in ("", "non-zero return code"):
        said = [*said[1:], said[0]]
    if connection_broke(said[0], one):
        return BROKE
    item = f"{one['item']}: " if failed and isinstance(one.get("item"), str) else ""
    return item + (next((text for text in said if text), "") or "it has no message")


def record_of(left: Known, role: str) -> dict[str, Any]:
    return dict(left["records"].get(role) or {})


def found_of(left: Known, role: str) -> dict[str, Any]:
    """Return the baseline that a role recorded before its first change; empty if unknown."""
    found = record_of(left, role).get("found") or {}
    return {} if found.get("late") else dict(found)


def touched_by(left: Known, role: str) -> bool:
    """Return whether the toolkit may have changed this host, as far as the role can see."""
    return "found" in record_of(left, role) or "broken" in record_of(left, role) or bool(left["traces"])


def brought_of(left: Known, role: str, kind: str) -> dict[str, Any]:
    return dict((record_of(left, role).get("brought") or {}).get(kind) or {})


def there_of(left: Known, paths: Mapping[str, str]) -> list[str]:
    """Return which of the installed paths exist; an empty folder that existed before does not count."""
    known = {path: left["brought"].get(path) or {} for path in paths}
    return [path for path, one in known.items() if one.get("exists") and (paths[path] or not one.get("empty"))]


def others_of(paths: Mapping[str, str]) -> list[str]:
    """Return the empty folders that existed before the toolkit filled them."""
    return [path for path, made in paths.items() if not made]


def made_for(paths: Mapping[str, str]) -> list[str]:
    """Return the folders that the toolkit created for paths, the innermost first; folders of users are excluded."""
    made = set()
    for path, outermost in paths.items():
        made |= {str(one) for one in PurePosixPath(path).parents if len(str(one)) >= len(outermost) > 1}
    return sorted(made, key=len, reverse=True)


def new_packages(left: Known, role: str, names: Sequence[str]) -> list[str]:
    before = record_of(left, role).get("installed")
    here = set(left["installed"])
    return sorted({name for name in names if name in here and name not in before}) if before is not None else []


def vllm_service_reset(services: Known, left: Known, caches: bool = False) -> dict[str, Any]:
    """Return how the units of all models are removed.

    Args:
        services: ``gaudi_services`` of the host.
        left: ``gaudi_left`` of the host.
        caches: remove the recipe caches too.
    """
    names = sorted(services["units"])
    # Other files of a model may exist although its unit is missing.
    every = sorted({*names, *services.get("without_unit", {})})
    boxes = [f"vllm-{name}" for name in names if services["units"][name]["container"]] + services["orphans"]
    # Secrets are written before the units: an interrupted run may leave secrets without a unit.
    strays = [f"/etc/gaudi-serve/{name}" for name in left["own"]["/etc/gaudi-serve"] or [] if name.endswith(".secret")]
    states = [name for name in left["own"][STATE] or [] if name in {*every, *left["states"]} - {*RESERVED}]
    supervisor = "vllm-supervisor" in (left["own"]["/usr/local/lib/gaudi-serve"] or [])
    brought = brought_of(left, "vllm_service", "caches")
    kept = there_of(left, brought)
    plan: dict[str, Any] = {
        "units": names,
        "containers": boxes,
        # The states first: after an interruption, the next run finds them through the unit file.
        "paths": [f"{STATE}/{name}" for name in states]
        + strays
        + vllm_unit_paths(every)
        + (["/usr/local/lib/gaudi-serve/vllm-supervisor"] if supervisor else [])
        + (kept if caches else []),
        "empty": made_for(brought) if caches else [],
        "stay": others_of(brought),
        "did": [f"model {name}: unit, settings, secrets, container{_elsewhere(services, name)}" for name in names]
        + [f"container {name}" for name in services["orphans"]]
        + ([f"recipe cache {path}" for path in kept] if caches else []),
        "left": ([] if caches else [f"recipe cache {path}: kept (reset_caches)" for path in kept])
        + [f"{path}: yours" for path in left["dropins"]],
        "packages": [],
    }
    plan["due"] = bool(names or boxes or states or strays or supervisor or (caches and kept))
    return plan


def _elsewhere(services: Known, name: str) -> str:
    """Return the effect of removing a model here on the other hosts that serve it."""
    hosts = hosts_of(services["units"][name].get("launch"))
    return f"; it serves on {', '.join(hosts)} together, and ends on all" if hosts else ""


def model_weights_reset(left: Known, packages: Sequence[str] = (), weights: bool = False) -> dict[str, Any]:
    """Return how the programs for weights are removed and, on request, the weights.

    Args:
        left: ``gaudi_left`` of the host.
        packages: packages that the role installs for fetching.
        weights: remove the weights that the toolkit has fetched too.
    """
    brought = brought_of(left, "model_weights", "weights")
    venv = brought_of(left, "model_weights", "venv")
    # The record of a user's own folder has the kind adopted.
    own = [path for path in brought if left["brought"].get(path, {}).get("source") not in (None, "adopted")]
    begun = [one for path in brought for one in left["brought"].get(path, {}).get("beside", [])]
    foreign = [path for path in there_of(left, brought) if path not in own]
    programs = ["/usr/local/lib/gaudi-serve/weights"]
    programs = programs if "weights" in (left["own"]["/usr/local/lib/gaudi-serve"] or []) else []
    states = [f"{STATE}/weights"] if "weights" in (left["own"][STATE] or []) else []
    paths = programs + states + there_of(left, venv)
    boxes = [one["name"] for one in left["containers"] if one["kind"] == "weights"]
    return {
        "containers": boxes,
        "paths": paths + (begun if weights else []),
        "weights": own if weights else [],
        "stay": others_of(brought),
        "empty": made_for(venv) + (made_for(brought) if weights else []),
        "due": bool(paths or boxes or (weights and (own or begun))),
        "did": [f"container {name}" for name in boxes]
        + (["programs that fetch and convert weights"] if programs else [])
        + [f"clients of the hubs in {path}" for path in there_of(left, venv)]
        + ([f"weights {path}" for path in own + begun] if weights else []),
        "left": ([] if weights else [f"weights {path}: kept (reset_weights)" for path in own + begun])
        + [f"weights {path}: not those that the toolkit provided" for path in foreign],
        "packages": new_packages(left, "model_weights", packages),
    }


def link_validation_reset(left: Known) -> dict[str, Any]:
    """Return how the results of measurements are removed; ``left`` is ``gaudi_left`` of the host."""
    results = [f"{STATE}/{name}" for name in left["own"][STATE] or [] if name.startswith("hccl") and "json" in name]
    boxes = [one["name"] for one in left["containers"] if one["kind"] == "hccl"]
    did = [f"container {name}" for name in boxes] + (["results of the measurements of links"] if results else [])
    return {
        "containers": boxes,
        "paths": results,
        "due": bool(results or boxes),
        "did": did,
        "left": [],
        "packages": [],
    }


def qualification_reset(left: Known) -> dict[str, Any]:
    """Return how the results of acceptance tests are removed; ``left`` is ``gaudi_left`` of the host."""
    here = "qualification" in (left["own"][STATE] or [])
    return {
        "paths": [f"{STATE}/qualification"] if here else [],
        "due": here,
        "did": ["results and logs of acceptance tests"] if here else [],
        "left": [],
        "packages": [],
    }


def vllm_image_reset(
    services: Known,
    left: Known,
    spool: str,
    images: bool = False,
    packages: Sequence[str] = (),
    remove: bool = False,
) -> dict[str, Any]:
    """Return how the programs for loading images are removed and, on request, the images.

    Args:
        services: ``gaudi_services`` of the host.
        left: ``gaudi_left`` of the host.
        spool: the role's folder for archives.
        images: remove the images that the toolkit has loaded too.
        packages: packages of the role. remove: a later step of the run removes them.
    """
    brought, live = images_of(brought_of(left, "vllm_image", "images")), services["images"]
    here = {name: live[name] for name in brought if name in live}
    other = [name for name in here if brought[name] not in (None, here[name])]
    # A container may have been started by an image's name or by its ID.
    foreign = [one for one in left["containers"] if not one["own"]]
    used = {one[key]: one["name"] for one in foreign for key in ("image", "image_id")}
    in_use = {name: used.get(name) or used[here[name]] for name in here if name in used or here[name] in used}
    gone = [name for name in here if name not in other and name not in in_use]
    # Elsewhere the spool folder belongs to a user: the toolkit only left copies of interrupted runs in it.
    ours = ("images-build", "registry", *(["images"] if spool.startswith(STATE) else []))
    inside = [f"{STATE}/{name}" for name in left["own"][STATE] or [] if name in ours]
    # The file that keeps the packaged registry service from starting stays until the package is removed.
    inside += there_of(left, brought_of(left, "vllm_image", "paths")) if remove else []
    return {
        "images": gone if images else [],
        "paths": inside,
        "due": bool(inside or (images and gone)),
        "did": [f"image {name}" for name in gone] if images else [],
        "left": ([] if images else [f"image {name}: kept (reset_images)" for name in gone])
        + [f"image {name}: not the one that the toolkit provided" for name in other]
        + [f"image {name}: container {user} uses it" for name, user in in_use.items()],
        "packages": new_packages(left, "vllm_image", packages),
    }


def images_of(brought: Known) -> dict[str, Any]:
    """Return images in the form in which the engine lists them."""
    return {image_name(name): one for name, one in brought.items()}


def recipe_caches(models: Sequence[Known]) -> list[str]:
    """Return the folders on the host in which planned models store their recipes."""
    found = set()
    for model in models:
        cache = str(model["env"].get("PT_HPU_RECIPE_CACHE_CONFIG", "")).partition(",")[0]
        found |= {mount["source"] for mount in model["mounts"] if mount["target"] == cache and not mount["read_only"]}
    return sorted(found)


def driver_reset(
    driver: Known, left: Known, packages: Sequence[str], unload: Sequence[str], remove: bool = False
) -> dict[str, Any]:
    """Return how the driver's holds and repository are removed, and what removing its packages requires.

    Args:
        driver: ``gaudi_driver`` of the host; empty for a host without cards.
        left: ``gaudi_left`` of the host.
        packages: the packages that the role installs.
        unload: its kernel modules, in the order of unloading.
        remove: the packages that were not installed before are removed later in this run.
    """
    found, touched = found_of(left, "gaudi_driver"), touched_by(left, "gaudi_driver")
    before = found.get("held", [])
    holds = [name for name in packages if name in left["held"] and name not in before] if touched else []
    ours = "/etc/apt/sources.list.d/gaudi-serve-driver.sources"
    files = [path for path in left["files"] if "/gaudi-serve-driver." in path]
    files = [*files, ours] if ours in left["traces"] else files
    new = new_packages(left, "gaudi_driver", packages)
    live = driver.get("modules", {})
    loaded = [name for name in unload if name in live and name not in found.get("modules", [])]
    gone = loaded if remove and any("-dkms" in name or name.startswith("nvidia-") for name in new) else []
    services = [name for name, one in driver.get("services", {}).items() if one["enabled"] or one["runs"]]
    units = [name for name in services if touched and name not in found.get("services", services)]
    return {
        "holds": holds,
        "paths": files,
        "unload": gone,
        "stop": units,
        "due": bool(holds or files or gone or units),
        "did": [f"hold of {', '.join(holds)}" for _ in holds[:1]]
        + [f"package source {path}" for path in files if path == ours or "/auth.conf.d/" in path]
        + [f"service {unit}" for unit in units]
        + [f"kernel modules {', '.join(gone)} unloaded" for _ in gone[:1]],
        "left": [],
        "packages": new,
    }


def packages_reset(left: Known, names: Sequence[str], remove: bool = False) -> dict[str, Any]:
    """Return the packages to remove: those that the toolkit has installed and nothing else needs.

    Args:
        left: ``gaudi_left`` of the host.
        names: packages that the roles have installed.
        remove: remove them.

    Returns:
        The keys of all filters here, and ``release`` (to be marked as installed automatically), ``purge``.
    """
    stay = [one["name"] for one in left["containers"] if not one["own"]]
    bound = [name for name in names if name in ENGINES and stay]
    wanted = [name for name in names if name not in bound]
    lists = [set(record["installed"]) for record in left["records"].values() if record.get("installed") is not None]
    before = set.intersection(*lists) if lists else None
    keep = set(ENGINES) if stay else set()
    # apt appends a foreign architecture to the name after a colon.
    gone = [name for name in left["unneeded"] if before is not None and name.partition(":")[0] not in before | keep]
    release = [name for name in wanted if name in left["asked_for"]]
    needed = [name for name in wanted if name not in release and name not in gone]
    said = ", ".join(wanted)
    return {
        "release": release if remove else [],
        "purge": gone if remove else [],
        "due": remove and bool(release or gone),
        "did": [f"packages {', '.join(sorted({*release, *gone}))}"] if remove and (release or gone) else [],
        "left": ([f"packages {said}: kept (reset_packages)"] if said and not remove else [])
        + ([f"packages {', '.join(needed)}: others need them"] if needed and remove else [])
        + (
            [f"packages {', '.join(bound)}: your containers are still there ({', '.join(stay)})"]
            if bound and remove
            else []
        ),
        "packages": [],
    }


def rest_reset(left: Known, images: Known, packages: Sequence[str] = ()) -> dict[str, Any]:
    """Return how the toolkit's own folders are removed after all roles.

    Args:
        left: ``gaudi_left`` of the host, after all roles.
        images: ``gaudi_services.images`` of the host.
        packages: packages that the toolkit has installed and that are still installed.

    Returns:
        The keys of all filters here, and ``files`` and ``absent`` for module gaudi_files: records are removed, except
        for entries of installed things that stay on the host.
    """
    files, absent, foreign = [], [], []
    for role, record in left["records"].items():
        smaller = _smaller(record, left, images, packages)
        path = f"{RECORDS}/{role}.json"
        if not smaller:
            absent.append(path)
        elif smaller != record:
            files.append({"path": path, "content": text_of(smaller), "mode": "0600", "hide": True})
    for name in left["own"][STATE] or []:
        if name not in (*RESERVED, "hccl.json", "bios.json"):
            foreign.append(f"{STATE}/{name}")
    foreign += [f"{folder}/{name}" for folder, names in left["own"].items() if folder != STATE for name in names or []]
    here = [folder for folder, names in left["own"].items() if names is not None]
    empty = [f"{STATE}/found", *here] if here else []
    kept = bool(files) or len(absent) < len(left["records"])
    gone = [folder for folder in here if not any(one.startswith(f"{folder}/") for one in foreign)]
    gone = [folder for folder in gone if not (kept and folder == STATE)]
    return {
        "files": files,
        "absent": absent,
        "empty": empty,
        "due": bool(files or absent or gone),
        "did": [f"folder {folder}" for folder in gone],
        "left": [f"{path}: not the toolkit's" for path in foreign]
        + ([f"{RECORDS}: what was provided and stays"] if kept else []),
        "packages": [],
    }


def _smaller(record: Known, left: Known, images: Known, packages: Sequence[str]) -> dict[str, Any]:
    """Return a record without the baseline, but with the installed things that stay on the host."""
    brought = record.get("brought") or {}
    result: dict[str, Any] = {}
    for kind in ("weights", "caches"):
        some = {path: made for path, made in (brought.get(kind) or {}).items() if _remains(left, path, made)}
        if some:
            result.setdefault("brought", {})[kind] = some
    some = {name: one for name, one in images_of(brought.get("images") or {}).items() if images.get(name) == one}
    if some:
        result.setdefault("brought", {})["images"] = some
    if set(packages) - set(record.get("installed", packages)):
        result["installed"] = record["installed"]
        # A package source is removed together with the packages that came from it.
        if brought.get("paths"):
            result.setdefault("brought", {})["paths"] = dict(brought["paths"])
    return result


def _remains(left: Known, path: str, made: str) -> bool:
    return bool(there_of(left, {path: made}) or (left["brought"].get(path) or {}).get("beside"))


def reset_lines(hostvars: Mapping[str, Known], hosts: Sequence[str], check: bool = False) -> list[str]:
    """Return the result of a reset as text: a table of hosts, then what was undone and what stays, host by host.

    Args:
        hostvars: variables by host; the facts ``<role>_reset`` and ``reset_problem`` are read.
        hosts: the hosts to show.
        check: nothing was changed.
    """
    rows, lines = [["HOST", "UNDONE" if not check else "WOULD BE UNDONE", "STAYS", "STATE"]], []
    for host in hosts:
        # In check mode nothing was removed, so the last step of a reset has nothing to report.
        roles = [role for role in ROLES if not (check and role == "preflight_rest")]
        plans = [hostvars[host][f"{role}_reset"] for role in roles if f"{role}_reset" in hostvars[host]]
        did = list(dict.fromkeys(text for plan in plans for text in plan["did"]))
        left = list(dict.fromkeys(text for plan in plans for text in plan["left"]))
        problem = " ".join(str(hostvars[host].get("reset_problem", "")).split())
        reached = "reset_done" in hostvars[host] or problem
        state = "done" if "reset_done" in hostvars[host] else "failed" if problem else "cannot be reached"
        rows.append([host, str(len(did)), str(len(left)), state if not check or state != "done" else "nothing changed"])
        verb = "would undo" if check else "undone" if "reset_done" in hostvars[host] else "begun"
        lines += [f"{host}: {verb}: {text}" for text in did]
        lines += [f"{host}: stays: {text}" for text in left]
        lines += [f"{host}: {problem if reached else 'cannot be reached'}"] if state in ("failed",) else []
    return [*table(rows), *lines]
