"""The merge of a model's keys from the defaults, the catalog, its user and its engine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..core.errors import shown
from ..engines import ENGINES, profile_of, with_executor
from ..model.adapters import adapters_of, names_of
from ..model.draft import draft_model
from ..model.host import Host
from ..model.paths import host_paths
from ..model.shared import OWN, SHARED, TAKEN, members, with_name
from ..model.spec import Spec
from ..platforms import platform_of

# This is generous: DeepSeek-R1 warms up in 15 minutes. A longer warm-up usually has a range that is too wide.
WARMUP_BUDGET_MINUTES = 240
# Keys of a catalog entry that are only for a number of cards, by this number, such as INC's measurements.
BY_SIZE = "by_tensor_parallel_size"


def entry_of(catalog: Any, name: Any) -> Mapping[str, Any]:
    """Return the catalog entry of a name; empty if there is none or it is not a mapping."""
    entry = catalog.get(name) if isinstance(name, str) and isinstance(catalog, Mapping) else None
    return entry if isinstance(entry, Mapping) else {}


def merged(
    given: Mapping[str, Any],
    catalog: Any,
    defaults: Mapping[str, Any],
    host: Host | None = None,
    release: str | None = None,
) -> dict[str, Any]:
    """Return the unchecked keys of a model: the user's own override the catalog's, and those override the defaults.

    The variables of ``env`` are merged one by one. Keys under the name of the model's engine in a catalog entry
    override the entry's common keys, and between them are those for its tensor_parallel_size. Without a host and its
    release, the engine is that of the first release.
    """
    given, entry = with_name(given), entry_of(catalog, given.get("model"))
    common = {key: value for key, value in entry.items() if key not in (*ENGINES, BY_SIZE)}
    offered = [name for name in ENGINES if name in entry]
    plain = _layered(defaults, common, given)
    engine = _engine(plain, offered, host or Host(), release) if offered else ""
    own = entry.get(engine) or {}
    size = str({**plain, **own, **given}.get("tensor_parallel_size"))
    # AWX stores variables as JSON, whose keys are texts.
    of_size = {str(cards): keys for cards, keys in (entry.get(BY_SIZE) or {}).items()}.get(size, {})
    full = _layered(defaults, common, of_size, own, given) | ({"launch_profile": engine} if engine else {})
    return _with_members(full, catalog)


def _with_members(spec: dict[str, Any], catalog: Any) -> dict[str, Any]:
    """Return a model whose card others share, with the catalog's keys for each of them."""
    if not isinstance(spec.get(SHARED), list):
        return spec
    return {**spec, SHARED: [_member(one, catalog) for one in spec[SHARED]]}


def _member(given: Any, catalog: Any) -> Any:
    if not isinstance(given, Mapping):
        return given
    entry = entry_of(catalog, given.get("model"))
    return {**{key: value for key, value in entry.items() if key in (*OWN, *TAKEN)}, **with_name(given)}


def _engine(plain: Mapping[str, Any], offered: list[str], host: Host, release: str | None) -> str:
    return profile_of(plain, host.accelerator, release, host.services.get(str(plain.get("name"))), offered)


def _layered(*layers: Mapping[str, Any]) -> dict[str, Any]:
    spec = {key: value for layer in layers for key, value in layer.items()}
    environments = [layer["env"] for layer in layers if layer.get("env") is not None]
    if environments and all(isinstance(env, Mapping) for env in environments):
        spec["env"] = {name: value for env in environments for name, value in env.items()}
    return spec


def completed(sound: Mapping[str, Any], host: Host, release: str, images: Mapping[str, str] | None = None) -> Spec:
    """Return a checked model with the defaults of its engine.

    Args:
        sound: The merged keys, without the wrong ones.
        host: Its host.
        release: The release of its software, which has an engine for models that name none.
        images: Names by alias, for an image without its tag.
    """
    known = {key: value for key, value in sound.items() if value is not None}
    profile = _engine(known, [], host, release)
    base = ENGINES[profile].defaults_of(known)
    if "module_ids" in known:
        base = {**base, "tensor_parallel_size": len(known["module_ids"])}
    own = {"state": "started", "warmup_budget_minutes": WARMUP_BUDGET_MINUTES, "served_model_name": known["name"]}
    live = host.services.get(str(known.get("name")))
    serving = str(live.launch.get("image") or "") if live else ""
    image = known["image"] if "image" in known else platform_of(host.accelerator).image(host, release, serving)
    named = {"image": (images or {}).get(str(image), str(image))} if image else {}
    spec = Spec({**own, **base, **known, "launch_profile": profile, **named})
    return with_executor(spec, platform_of(host.accelerator), release)


def emptied(given: Mapping[str, Any], below: Mapping[str, Any]) -> tuple[str, ...]:
    """Return notes about empty keys that remove a value of the catalog or the defaults, perhaps by mistake."""
    lost = [key for key, value in given.items() if value is None and below.get(key) is not None]
    return tuple(f"{key} is empty, which removes {shown(below[key])}; leave it out to use that" for key in lost)


def model_weights(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the folders of weights, draft models and adapters that the models name. Other problems do not matter."""
    specs = [one for spec in merged_all(models, catalog, defaults) for one in (spec, *members(spec))]
    folders = [one.folder for spec in specs for one in adapters_of(spec)]
    paths = [*(path for spec in specs for path in (spec.get("weights"), draft_model(spec))), *folders]
    return sorted({path for path in paths if isinstance(path, str) and path.startswith("/")})


def model_files(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the paths on the host that the models' servers need, except weights. Other problems do not matter."""
    return sorted({path for spec in merged_all(models, catalog, defaults) for path in host_paths(spec)})


def model_hosts(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> list[str]:
    """Return the names, not the addresses, on which the models listen. Other problems do not matter."""
    names = (spec.get("host") for spec in merged_all(models, catalog, defaults))
    return sorted({name for name in names if isinstance(name, str) and _is_name(name)})


def served_names(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, str]:
    """Return ``{model: its name for clients}``. Other problems do not matter."""
    specs = [spec for spec in merged_all(models, catalog, defaults) if isinstance(spec.get("name"), str)]
    return {spec["name"]: str(spec.get("served_model_name") or spec["name"]) for spec in specs}


def client_names(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> set[str]:
    """Return all names of the models for clients. Other problems do not matter."""
    shared = [one.get("name") for spec in merged_all(models, catalog, defaults) for one in members(spec)]
    return {*served_names(models, catalog, defaults).values(), *(name for name in shared if isinstance(name, str))}


def adapter_names(models: Any, catalog: Mapping[str, Any], defaults: Mapping[str, Any]) -> set[str]:
    """Return all names of the models' adapters for clients. Other problems do not matter."""
    return {name for spec in merged_all(models, catalog, defaults) for name in names_of(spec)}


def _is_name(text: str) -> bool:
    return bool(re.fullmatch(r"(?![\d.]+$)[\w.-]{1,253}", text))


def merged_all(models: Any, catalog: Any, defaults: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the models, once for each engine for which their catalog entry has keys."""
    below = defaults if isinstance(defaults, Mapping) else {}
    for given in models if isinstance(models, list) else []:
        if isinstance(given, Mapping):
            offered = [name for name in ENGINES if name in entry_of(catalog, given.get("model"))]
            for engine in offered:
                yield merged({"launch_profile": engine, **given}, catalog, below)
            if not offered:
                yield merged(given, catalog, below)
