"""One planned model: its request, its placement, its container, and its cost."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from ..buckets.base import BucketCounts, Buckets
from ..buckets.plugin_plan import PluginBucketing
from ..model.adapters import names_in
from ..model.spec import Spec
from ..model.vllm_options import AUTO_LENGTH, BLOCK
from ..platforms import DeviceAccess

# The parameters of a running server. It restarts if one of them differs.
OF_DIGEST = (
    *("image", "env", "args", "numactl", "runtime", "cap_add", "read_only", "ulimits", "mounts"),
    *("module_ids", "launch_profile"),
)


@dataclass(frozen=True)
class Placement:
    """The part of a model on one host: its cards, and its rank among the hosts of the model."""

    host: str
    module_ids: tuple[int, ...] = ()
    rank: int = 0


@dataclass(frozen=True)
class Container:
    """The parameters with which a server's container is started.

    env, args: of the server, complete. buckets: the shapes that it warms up, as the environment sets them; None if the
    server chooses them. numactl: its arguments; None: no core binding. access: its access to devices; None without
    devices. bucket_file: the text of a file that one of the mounts provides. tokens: the most in one step. notes:
    sentences.
    """

    env: Mapping[str, str]
    args: list[str]
    numactl: list[str] | None
    access: DeviceAccess | None
    cap_add: list[str]
    read_only: bool
    ulimits: list[str]
    mounts: list[dict[str, Any]]
    buckets: Buckets | None = None
    bucket_file: str | None = None
    tokens: int = 0
    notes: tuple[str, ...] = ()

    @property
    def runtime(self) -> str | None:
        """Return the runtime of Docker; None for its default."""
        return self.access.runtime if self.access else None

    def of_digest(self, spec: Spec, placement: Placement) -> str:
        """Return the digest of a model that is started with these parameters."""
        keys = {key: getattr(self, key) for key in OF_DIGEST if hasattr(self, key)}
        own = {"image": spec.get("image"), "launch_profile": spec.launch_profile}
        # The numbers of devices with permanent ids can change with a boot.
        devices = (self.access.ids if self.access else ()) or placement.module_ids
        return digest({**keys, **own, "module_ids": devices})


@dataclass(frozen=True)
class Cost:
    """The estimated cost of a model; None if unknown.

    weights_gib: per card; device_gib: memory of each card. read_gib: of all files that a start reads.
    memory: the result of plan_memory. graphs: warmed up in warmup_s seconds, or in warmup_cached_s with a filled
    recipe cache. hang_least_s: a frozen server may be restarted so soon, after ten times its longest step; None if
    only hang_timeout_s counts.
    """

    weights_gib: float
    read_gib: float
    device_gib: float | None
    memory: Mapping[str, Any] | None
    buckets: BucketCounts
    graphs: int | None
    warmup_s: int | None
    warmup_cached_s: int | None
    start_timeout_s: int
    hang_timeout_s: int
    hang_least_s: int | None

    @property
    def down_for(self) -> str:
        """Return the downtime of a model that restarts, as a sentence."""
        seconds = self.warmup_s if self.warmup_cached_s is None else self.warmup_cached_s
        reading = f"the time to read {self.read_gib:.0f} GiB of weights"
        return f"it is down for {reading}" + (
            "" if seconds is None else f" and about {max(1, round(seconds / 60))} min"
        )


@dataclass(frozen=True)
class ServedModel:
    """One of the models of a server: its name for clients, its folder, and its smoke requests after a start.

    sees: it accepts images.
    """

    served_model_name: str
    weights: str
    smoke: list[str]
    sees: bool = False


@dataclass(frozen=True)
class PlannedModel:
    """A model that can be started.

    placements: one per host; the first has the endpoint. precision: of the served model; None if unknown. numa_node:
    that of all its cards; None if they are on several. served: the models of its server, with their smoke requests
    after a start. rank: of the planned host among the hosts of the model. group: the data about the other hosts for
    its supervisor; None for one host.
    """

    spec: Spec
    placements: tuple[Placement, ...]
    container: Container
    cost: Cost
    precision: str | None = None
    numa_node: int | None = None
    warnings: tuple[str, ...] = field(default_factory=tuple)
    served: tuple[ServedModel, ...] = ()
    rank: int = 0
    group: Mapping[str, Any] | None = None

    @property
    def here(self) -> Placement:
        """Return the part on the planned host."""
        return self.placements[self.rank]

    @property
    def digest(self) -> str:
        """Return the digest. The model restarts if it changes."""
        own = self.container.of_digest(self.spec, self.here)
        # A change of one part restarts all of them.
        return hashlib.sha256(f"{own} {self.group['id']}".encode()).hexdigest()[:16] if self.group else own

    def as_dict(self) -> dict[str, Any]:
        """Return the model as filter ``vllm_plan`` returns it."""
        spec, container = self.spec, self.container
        numactl = container.numactl
        given = {key: spec.get(key) for key in ("max_model_len", "max_num_seqs")}
        if given["max_model_len"] == AUTO_LENGTH:
            given["max_model_len"] = (self.cost.memory or {}).get("max_model_len")
        keys = ("env", "args", "numactl", "runtime", "cap_add", "read_only", "ulimits", "mounts")
        return {
            **{key: spec[key] for key in ("name", "state", "launch_profile", "host", "port", "served_model_name")},
            **{"image": spec.get("image"), "weights": spec.weights, **given},
            "dtype": self.precision,
            "min_available": spec.get("min_available"),
            "slo": spec.get("slo"),
            "smoke": list(dict.fromkeys(kind for one in self.served for kind in one.smoke)) if spec.answers else [],
            "served": [asdict(one) for one in self.served],
            **({"adapters": list(names)} if spec.answers and (names := names_in(container.args)) else {}),
            "module_ids": list(self.here.module_ids),
            "placements": [{**asdict(one), "module_ids": list(one.module_ids)} for one in self.placements],
            "cpus": numactl[1].split(",") if numactl else None,
            "numa_node": self.numa_node,
            **{key: getattr(container, key) for key in keys},
            "device_access": container.access.as_dict() if container.access else None,
            "bucket_file": container.bucket_file,
            "bucket_limits": bucket_limits(spec, container),
            **asdict(self.cost),
            "buckets": {key: value for key, value in asdict(self.cost.buckets).items() if key != "notes"},
            "warnings": list(self.warnings),
            "digest": self.digest,
            **({"group": dict(self.group)} if self.group else {}),
        }


def bucket_limits(spec: Spec, container: Container) -> dict[str, Any] | None:
    """Return the limits for planned buckets, by the vendor's names; None if the server chooses its own.

    ``ranges``: the server accepts a range per dimension, not a list. ``unknown``: features of the model that such
    plans do not support, because its steps have other shapes.
    """
    buckets = container.buckets
    # Traffic of one model gives no buckets for several.
    if buckets is None or len(spec.served) > 1:
        return None
    limits = {key: int(spec[key]) for key in ("max_num_seqs", "max_model_len") if spec.get(key)}
    block = buckets.given.block_size if isinstance(buckets, PluginBucketing) else BLOCK
    limits |= {"max_num_batched_tokens": container.tokens, "block_size": block}
    if not isinstance(buckets, PluginBucketing):
        off = {"prefix_caching": False, "use_contiguous_pa": False}
        return {**limits, "max_num_prefill_seqs": 1, **off, "ranges": True, "unknown": []}
    given = buckets.given
    return {
        **limits,
        "max_num_prefill_seqs": max(1, given.max_num_prefill_seqs),
        "prefix_caching": buckets.prefix_caching and not given.settings.use_contiguous_pa,
        "use_contiguous_pa": given.settings.use_contiguous_pa,
        "ranges": False,
        "unknown": buckets.unknown,
    }


def digest(model: Mapping[str, Any]) -> str:
    """Return the digest of all parameters of a running server. If it differs, the server restarts.

    A test fixes its value: a new version of the toolkit restarts no server whose launch did not change.
    """
    text = json.dumps({key: model[key] for key in OF_DIGEST}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
