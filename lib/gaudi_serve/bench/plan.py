"""The plan of a benchmark on each host: what it sends, why it cannot run, and its duration."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..catalog.files import model_catalog
from ..catalog.merge import merged_all
from ..core.errors import InputError
from ..core.words import counted
from ..gateway.fleet import fleet_address, is_gateway
from ..gateway.inputs import read_gateway
from ..host.smoke import EVERYWHERE
from ..model.distributed import host_models
from ..model.objectives import Objectives, read_objectives
from .ask import DIRECT, GATEWAY, Ask
from .loads import Load, digest
from .sweep import percentile
from .tool import Endpoint, Tool

CHAT = {"text", "any", "image", "audio", "video", "tools"}
TOKEN_S = 0.05  # seconds between two tokens, if a server has no statistics yet
START_S = 10.0  # start of the tool for each run
LOOPBACK = "127.0.0.1"
Known = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """One model on one host with all options of its measurement.

    about: the model's data for saved results. key: the key that a gateway requires; a server's own key is not stored
    here. seqs: concurrent requests of the server. objectives: of a sweep. notes: for the user.
    """

    host: str
    about: Known
    ask: Ask
    load: Load
    tool: Tool
    endpoint: Endpoint
    through: str
    key: str = ""
    seqs: int | None = None
    objectives: Objectives | None = None
    token_s: float = TOKEN_S
    notes: tuple[str, ...] = ()

    def argv(self, load: Load, seed: int) -> list[str]:
        """Return the command line of one run."""
        more = [percentile(self.objectives)] if self.objectives else []
        return self.tool.argv(load, self.endpoint, seed, more)

    def case(self, load: Load) -> dict[str, Any]:
        """Return the values that must be equal for two runs to be compared."""
        return load.case(self.through)

    def seconds(self, load: Load, kept: Sequence[Known] = ()) -> float:
        """Return the seconds of one run of a load: from saved runs of the same case, or estimated from its tokens."""
        same = digest(self.case(load))
        took = [float(one["seconds"]) for one in kept if one.get("case") == same and one.get("seconds")]
        if took:
            return statistics.median(took)
        if load.trace:
            return START_S + max(one.arrival_s for one in load.trace)
        if load.request_rate:
            return START_S + load.requests / load.request_rate
        return START_S + load.requests / (load.concurrency or 1) * load.output_tokens * self.token_s

    def lines(self, kept: Sequence[Known]) -> list[str]:
        """Return the planned measurement as lines for the user."""
        where = f"{self.host}: model {self.about['served']}"
        tool = f"by {' '.join(self.tool.command[:3])} of its image (vLLM {self.tool.version}), {self.through}"
        if self.ask.sweep:
            end = self.limit
            to = f"up to {end:g}" if end else "until they break"
            what = f"{self.load.input_tokens} tokens in and {self.load.output_tokens} out"
            return [f"{where}: sweep of {self.ask.sweep} {to}, {what}, until its objectives break, {tool}", *self.notes]
        runs = self.ask.repetitions + self.ask.warmup
        minutes = max(1, round(runs * self.seconds(self.load, kept) / 60))
        first = " after a warm-up that is not counted" if self.ask.warmup else ""
        times = f"{counted(self.ask.repetitions, 'time')}{first}; about {counted(minutes, 'minute')}"
        return [f"{where}: {self.load.profile}: {self.load.text}; {times}; {tool}", *self.notes]

    @property
    def limit(self) -> float | None:
        """Return the highest load of a sweep; None without a limit."""
        ends = [self.ask.most, self.seqs if self.ask.sweep == "concurrency" else None]
        return min((float(one) for one in ends if one), default=None)


@dataclass(frozen=True)
class Entry:
    """The destination of a load: its address, and the key if one is required."""

    url: str
    key: str = ""


def targets_of(host: str, ask: Ask, probed: Known, hostvars: Mapping[str, Known]) -> tuple[list[Target], list[str]]:
    """Return the measurements of a host, and messages on why there are none.

    Args:
        host: its name.
        ask: options with a load.
        probed: the result of module vllm_bench.
        hostvars: variables by host, for objectives and gateways.
    """
    where = f"{host}: model {ask.model}"
    load = ask.load
    if load is None:
        return [], [f"{where}: the short profile has no load"]
    try:
        tool = Tool.of(probed["tool"])
    except InputError as problem:
        return [], [f"{where}: {problem}"]
    wrong, notes = [], [f"{where}: {load.note}"] if load.note else []
    wrong += [f"{where}: {text}"] if (text := tool.refusal(load)) else []
    load, refused, told = _beside_others(ask, load, probed)
    wrong += [f"{where}: {text}" for text in refused]
    notes += [f"{where}: {text}" for text in told]
    objectives, text = _objectives(host, ask, hostvars)
    wrong += [f"{where}: {text}"] if text else []
    asked = [one for one in probed["models"] if CHAT & set(one["kinds"])]
    if not asked:
        return [], [*wrong, f"{where}: generates no text, and such loads are of text; measure it with profile short"]
    found = []
    for one in asked:
        wrong += [f"{host}: model {one['served']}: {text}" for text in _unfit(ask, load, one, probed)]
        try:
            entry = _entry(host, ask, str(one["served"]), str(probed["url"]), hostvars)
        except InputError as problem:
            wrong.append(f"{where}: {problem}")
            continue
        target = _target(host, ask, load, tool, one, entry, probed)
        found.append(replace(target, objectives=objectives, notes=tuple(notes)))
    return found, wrong


def _target(host: str, ask: Ask, load: Load, tool: Tool, one: Known, entry: Entry, probed: Known) -> Target:
    mode, trusts = str(probed["tokenizer_mode"]), bool(probed["trust_remote_code"])
    endpoint = Endpoint(entry.url, str(one["served"]), str(one["tokenizer"]), mode, trusts)
    target = Target(host, one, ask, load, tool, endpoint, _named(ask.through), entry.key)
    return replace(target, seqs=probed["max_num_seqs"], token_s=float(probed["mean_token_s"] or TOKEN_S))


def _named(through: str) -> str:
    return through if through in (DIRECT, GATEWAY) else "address"


def _unfit(ask: Ask, load: Load, one: Known, probed: Known) -> list[str]:
    """Return messages on parts of a load that the server does not accept."""
    prompt, answer = load.longest
    most, seqs, wrong = one["max_model_len"], probed["max_num_seqs"], []
    if most and prompt + answer > most:
        wrong.append(
            f"{load.profile} has requests of {prompt} tokens in and {answer} out, and the server takes max_model_len "
            f"{most} together; give a profile of your own in benchmark_profiles whose lengths fit"
        )
    if seqs and load.concurrency and load.concurrency > seqs and ask.through == DIRECT and not ask.sweep:
        wrong.append(
            f"{load.profile} sends {load.concurrency} requests at a time, and the server works on max_num_seqs {seqs}: "
            f"give -e concurrency={seqs}, or fewer"
        )
    return wrong


def _beside_others(ask: Ask, load: Load, probed: Known) -> tuple[Load, list[str], list[str]]:
    """Return the load adapted to other requests on the server, messages on why it may not be sent, and notes."""
    notes = []
    if others := {name: count for name, count in (probed.get("others") or {}).items() if count}:
        said = ", ".join(f"{name} has {count}" for name, count in others.items())
        notes.append(f"other models of the host have requests ({said}), which share its processors")
    if probed["running"] is None:
        busy = f"it is not known whether it serves others ({probed['unread']})"
    elif count := int(probed["running"] + probed["waiting"]):
        busy = f"it has {counted(count, 'request')} of others ({probed['running']:g} run, {probed['waiting']:g} wait)"
    else:
        return load, [], notes
    if ask.sweep:
        return load, [f"{busy}, and a sweep loads it to its limit; try again when it is idle, or drained"], notes
    slots = max(1, (probed["max_num_seqs"] or 4) // 4)
    if not ask.on_serving:
        how = f"-e benchmark_on_serving=true measures it beside them, {slots} at a time at most"
        return load, [f"{busy}; {how}; figures of two runs can be compared only if it is idle"], notes
    if load.concurrency and load.concurrency > slots:
        load = load.with_concurrency(slots)
    elif not load.concurrency:
        load = load.but(concurrency=slots)
    return (
        load,
        [],
        [*notes, f"{busy}: {slots} at a time at most are sent beside them, and the result is not comparable"],
    )


def busy_refusal(host: str, ask: Ask, probed: Known) -> list[str]:
    """Return messages on why a host may not be measured together with others; empty if it may."""
    load = ask.load
    return [f"{host}: model {ask.model}: {text}" for text in (_beside_others(ask, load, probed)[1] if load else [])]


def _objectives(host: str, ask: Ask, hostvars: Mapping[str, Known]) -> tuple[Objectives | None, str]:
    """Return the objectives of a sweep, and a message if there are none."""
    if not ask.sweep or ask.objectives:
        return ask.objectives, ""
    known = hostvars[host]
    catalog = model_catalog(known.get("vllm_catalog_dirs") or [], strict=False, builtin=True)
    entries = known.get("vllm_distributed_models")
    models = host_models(known.get("vllm_models"), entries, host, groups=known.get("groups"))
    for spec in merged_all(models, catalog, known.get("vllm_model_defaults") or {}):
        if spec.get("name") == ask.model and spec.get("slo"):
            try:
                return read_objectives(ask.model, spec["slo"]), ""
            except InputError as problem:
                return None, str(problem)
    return (
        None,
        'has no objectives (slo) that a sweep could break; give -e \'objectives={"ttft_s": 2.5, "itl_s": 0.1}\'',
    )


def _entry(host: str, ask: Ask, served: str, own: str, hostvars: Mapping[str, Known]) -> Entry:
    """Return the destination of a load.

    Raises:
        InputError: if there is no gateway, or no key for it.
    """
    key = str(hostvars[host].get("benchmark_api_key") or "")
    if ask.through == DIRECT:
        return Entry(own)
    if ask.through != GATEWAY:
        return Entry(ask.through.rstrip("/"), key)
    gateways = [name for name in hostvars if is_gateway(hostvars[name])]
    if not gateways:
        raise InputError("through: gateway: no host of the inventory has fleet_gateway; leave through out")
    # Prefer a gateway on the same host.
    name = host if host in gateways else gateways[0]
    settings = hostvars[name]["fleet_gateway"]
    gateway = read_gateway(settings)
    address = _address(name, host, gateway.virtual_address.partition("/")[0] or gateway.address, hostvars)
    if gateway.clients and not key:
        allowed = [one for one in gateway.clients if not one.models or served in one.models]
        given = [settings["clients"][one.name].get("key") for one in allowed]
        key = next((str(one) for one in given if one), "")
        if not key:
            raise InputError(
                f"through: gateway: {name} asks for a key, and the inventory has none in plain for {served}: "
                "set benchmark_api_key in a vault"
            )
    scheme = "https" if gateway.certificate else "http"
    shown = f"[{address}]" if ":" in address else address
    return Entry(f"{scheme}://{shown}:{gateway.port}", key)


def _address(name: str, host: str, address: str, hostvars: Mapping[str, Known]) -> str:
    """Return the address at which a host reaches a gateway."""
    if name == host:
        return EVERYWHERE.get(address, address)
    if address in EVERYWHERE:
        address = fleet_address(hostvars[name])
    if not address or address.startswith("127.") or address in ("::1", "localhost"):
        raise InputError(
            f"through: gateway: {name} listens on loopback, or its address is not known: {host} cannot reach it; run "
            f"with it, or give through its address"
        )
    return address


__all__ = ["Target", "busy_refusal", "targets_of"]
