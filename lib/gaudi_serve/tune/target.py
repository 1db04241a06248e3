"""The model whose buckets are tuned: its hosts, the limits of its buckets, and its present buckets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..buckets.bucket_grid import Bucket
from ..buckets.compared import Compared, of_plugin, of_ranges
from ..buckets.linear import BucketRanges, bucket_rows
from ..buckets.plan_limits import DECODE_S, PlanLimits
from ..buckets.plugin_input import PluginInput, PluginSettings
from ..buckets.plugin_server import PluginServer
from ..buckets.traffic import Shapes
from ..core.errors import InputError, near, shown
from ..memory.autocalc import BANDWIDTH, DEVICE_GIB, GIB

# Limits that must be equal on every server of a model for one list of buckets. The list covers the most blocks of any.
ALIKE = (
    *("max_num_seqs", "max_num_prefill_seqs", "max_model_len", "max_num_batched_tokens", "block_size"),
    *("use_contiguous_pa", "prefix_caching"),
)


OVERHEAD_S = 0.0055  # Of a decode step, in addition to reading the weights: 12 ms in all for 8B in BF16 on one Gaudi2.


@dataclass(frozen=True)
class Today:
    """The present buckets of the servers.

    strategy: by name. compared: its padding, or the error if the server would not start with it. prompt: (tokens,
    blocks of context), decode: (sequences, blocks), for the picture.
    """

    strategy: str
    compared: Compared | InputError
    prompt: frozenset[tuple[int, int]]
    decode: frozenset[tuple[int, int]]


@dataclass(frozen=True)
class Target:
    """One model on its hosts, which all plan it with the same limits.

    planned: the model in each host's plan. limits: of its servers; num_hpu_blocks are those that running servers
    report, or else those of the plan. covered: the most blocks of any plan or server, which the list must also cover.
    """

    name: str
    planned: Mapping[str, Mapping[str, Any]]
    limits: PlanLimits
    covered: int

    @property
    def hosts(self) -> list[str]:
        """Return its hosts."""
        return list(self.planned)

    @property
    def model(self) -> Mapping[str, Any]:
        """Return the model in the plan of its first host."""
        return next(iter(self.planned.values()))

    @property
    def ranges(self) -> bool:
        """Return whether its servers accept only ranges, and no list."""
        return bool(self.model["bucket_limits"]["ranges"])

    def decode_step(self) -> tuple[float, str]:
        """Return the likely seconds of a decode step of one sequence, and the reason in words."""
        weights, device = self.model["weights_gib"], self.model["device_gib"]
        bandwidth = next((BANDWIDTH[name] for name, gib in DEVICE_GIB.items() if gib == device), None)
        if not weights or bandwidth is None:
            return DECODE_S, "as for a model of 8B, because the size of its weights is unknown"
        step = OVERHEAD_S + weights * GIB / bandwidth
        return step, f"{weights} GiB of weights a card, read at {bandwidth / 1e12:.2f} TB/s"

    def minutes(self, graphs: int) -> float | None:
        """Return the estimated minutes to warm up a number of graphs; None if the plan has no estimate."""
        known, seconds = self.model["graphs"], self.model["warmup_s"]
        return None if not known or seconds is None else seconds / known * graphs / 60

    def today(self, shapes: Shapes) -> Today:
        """Return the present buckets of its servers, and their padding."""
        env = self.model["env"]
        try:
            if self.ranges:
                ranges = BucketRanges.read(env)
                prompts, decodes, _ = bucket_rows(
                    ranges, self.limits.max_num_batched_tokens, self.limits.num_hpu_blocks
                )
                return Today(
                    "ranges",
                    of_ranges(ranges, self.limits, shapes),
                    frozenset((length, 0) for _, lengths in prompts for length in lengths),
                    frozenset((batch, length) for batch, lengths in decodes for length in lengths),
                )
            server = PluginServer(self._input(env))
            found = of_plugin(server, shapes)
            prompt, decode = _points(server.buckets.prompt), _points(server.buckets.decode, first=0)
            return Today(server.given.settings.strategy, found, prompt, decode)
        except InputError as problem:
            return Today(
                "ranges" if self.ranges else PluginSettings.read(env).strategy, problem, frozenset(), frozenset()
            )

    def _input(self, env: Mapping[str, Any]) -> PluginInput:
        given = self.limits.server("exp")
        return replace(given, settings=PluginSettings.read(env), file=self.model["bucket_file"])


def _points(buckets: Any, first: int = 1) -> frozenset[tuple[int, int]]:
    found: list[Bucket] = list(buckets)
    return frozenset((bucket[first], bucket[2]) for bucket in found)


def refused(fleet: Mapping[str, Any], name: Any) -> list[str]:
    """Return why the buckets of a model cannot be planned on a fleet, one sentence per reason.

    Args:
        fleet: The result of vllm_fleet_plan.
        name: The name of the model as the user set it, or None.
    """
    here = {host: [model["name"] for model in plan["models"]] for host, plan in fleet["hosts"].items()}
    names = sorted({one for models in here.values() for one in models})
    known = "; ".join(f"{host}: its models are {', '.join(models)}" for host, models in here.items() if models)
    unread = [error["message"] for error in fleet["errors"] if error["key"] == "facts"]
    if not name:
        return [f"-e model=NAME is missing: the name of one model; {known or 'no host has one'}", *unread]
    wrong = [error["message"] for error in fleet["errors"] if error["model"] == name]
    shared = [
        _unfit(host, model)
        for host, plan in fleet["hosts"].items()
        for model in plan["models"]
        if name in [one["served_model_name"] for one in (model.get("served") or ())[1:]]
    ]
    if shared:
        return wrong + shared
    if name not in names:
        absent = f"model {shown(name)}: no host has it; {known or 'no host has a model'}{near(name, names, 1)}"
        return wrong or [absent, *unread]
    return [
        text
        for host, plan in fleet["hosts"].items()
        for model in plan["models"]
        if model["name"] == name and (text := _unfit(host, model))
    ]


def _unfit(host: str, model: Mapping[str, Any]) -> str:
    where, limits = f"{host}: model {model['name']}", model["bucket_limits"]
    if len(model.get("served") or ()) > 1:
        return (
            f"{where}: shares its card with other models, and one environment has the buckets of all, so its buckets "
            "cannot be planned; set VLLM_PROMPT_*_BUCKET_* in its env by hand"
        )
    if limits is None:
        return (
            f"{where}: launch_profile {model['launch_profile']}: its server chooses its own buckets; "
            "use a profile of the plugin or of the vendor's fork, which accept them"
        )
    if limits["unknown"]:
        what = " and ".join(limits["unknown"])
        return f"{where}: {what}: buckets cannot be planned with it; use a strategy of the plugin (exp, lin, pad)"
    lacking = [key for key in ("max_num_seqs", "max_model_len") if key not in limits]
    if lacking:
        return f"{where}: {' and '.join(lacking)} must be set: buckets are planned within them"
    return ""


def target(fleet: Mapping[str, Any], name: str, measured: Mapping[str, int]) -> Target:
    """Return a model for which ``refused`` found no problem.

    Args:
        fleet: The result of vllm_fleet_plan.
        name: The model.
        measured: By host, the blocks that a running server reports.

    Raises:
        InputError: Its hosts have different limits for buckets, or the number of blocks is unknown.
    """
    planned = {
        host: model for host, plan in fleet["hosts"].items() for model in plan["models"] if model["name"] == name
    }
    first, *others = planned
    for host in others:
        for key in (*ALIKE, "launch_profile"):
            one, two = _value(planned[first], key), _value(planned[host], key)
            if one != two:
                raise InputError(
                    f"model {name}: {key} is {one} on {first} and {two} on {host}, and one list of buckets cannot be "
                    f"for both; select one host, such as --limit {first}"
                )
    estimated = [int(model["memory"]["num_hpu_blocks"]) for model in planned.values() if model["memory"]]
    known = [*measured.values()] or estimated
    if not known:
        raise InputError(
            f"{first}: model {name}: its KV-cache blocks are unknown, because its memory is; set config and "
            "weight_bytes, download its weights, or tune it while it serves"
        )
    limits = {key: planned[first]["bucket_limits"][key] for key in ALIKE}
    return Target(name, planned, PlanLimits(**limits, num_hpu_blocks=max(known)), max([*known, *estimated]))


def _value(model: Mapping[str, Any], key: str) -> Any:
    return model[key] if key == "launch_profile" else model["bucket_limits"][key]


__all__ = ["Target", "Today", "refused", "target"]
