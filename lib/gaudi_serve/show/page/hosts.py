"""The hosts of a page: their cards and users, their models with memory, and their pending changes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...core.table import model_cell

Known = Mapping[str, Any]
TONES = 8  # number of model colours; further models reuse them, and each card also shows the model's name
MEMORY = {
    "weights_gib": "weights",
    "kv_cache_gib": "KV cache",
    "graphs_gib": "graphs",
    "reserved_gib": "reserved",
    "left_gib": "free",
}
# The worst state first.
STATES = {
    "refused": "refused",
    "unread": "not read",
    "drift": "differs from the plan",
    "changes": "would change",
    "good": "as planned",
    "idle": "no models",
}


def host_rows(plan: Known, status: Known, rollout: Known) -> list[dict[str, Any]]:
    """Return a row for each host of the plan and the status, in their order."""
    planned, live = plan.get("hosts") or {}, status.get("hosts") or {}
    wrong: dict[str, list[Known]] = {}
    for error in plan.get("errors") or ():
        wrong.setdefault(str(error["host"]), []).append(error)
    names = dict.fromkeys([*live, *planned, *wrong])
    waves = {name: number for number, wave in enumerate(rollout.get("waves") or [], 1) for name in wave}
    tones = _tones(planned, live)
    return [
        _host(name, planned.get(name) or {}, live.get(name) or {}, wrong.get(name, []), tones)
        | {"wave": waves.get(name, 0), "outcome": ((rollout.get("hosts") or {}).get(name) or {}).get("outcome", "")}
        for name in names
    ]


def _tones(*fleets: Known) -> dict[str, int]:
    """Return the colour number of each model of the fleets."""
    models = [model["name"] for hosts in fleets for host in hosts.values() for model in host.get("models") or ()]
    return {name: number % TONES for number, name in enumerate(dict.fromkeys(models))}


def _host(name: str, plan: Known, live: Known, wrong: Sequence[Known], tones: Mapping[str, int]) -> dict[str, Any]:
    by_name = {model["name"]: model for model in live.get("models") or ()}
    planned = plan.get("models") or ()
    models = [_model(model, by_name.get(model["name"]), tones) for model in planned] or [
        _model(model, model, tones) for model in by_name.values()
    ]
    down = {one["model"]: one["minutes"] for one in plan.get("down") or ()}
    return {
        "name": name,
        "state": (state := _state(plan, live, wrong)),
        "title": STATES[state],
        "facts": plan.get("facts") or "",
        "problem": live.get("problem") or " ".join(str(one["message"]) for one in wrong if one["key"] == "facts"),
        "cards": _cards(plan.get("cards") or live.get("cards") or (), models, wrong),
        "models": [model | {"down": down.get(model["name"], 0)} for model in models],
        "changes": changes(plan),
        "down": max((minutes or 0 for minutes in down.values()), default=0),
        "gateway": live.get("gateway"),
        "monitoring": live.get("monitoring"),
        "links": plan.get("links") or live.get("links"),
    }


def changes(host: Known) -> list[str]:
    """Return the changes that a run would make on a host, as lines."""
    due = [f"{stage}: {text}" for stage, texts in (host.get("due") or {}).items() for text in texts]
    return [*due, *map(str, host.get("changes") or ())]


def _state(plan: Known, live: Known, wrong: Sequence[Known]) -> str:
    if any(one["key"] != "facts" for one in wrong):
        return "refused"
    if wrong or (live and not live["read"]):
        return "unread"
    if changes(plan) or plan.get("down") or plan.get("reboot"):
        return "changes"
    if live.get("drift"):
        return "drift"
    return "good" if plan.get("models") or live.get("models") or live.get("gateway") else "idle"


def _cards(cards: Sequence[Known], models: Sequence[Known], wrong: Sequence[Known]) -> list[dict[str, Any]]:
    """Return the cards by NUMA node: ``node`` (None if unknown) and ``cards``, each with its use.

    ``wrong``: errors of the host, which no run changes then.
    """
    refused = {str(one.get("model")) for one in wrong}
    after = {True: ", not planned", False: " until the run"}[bool(wrong)]
    users = {number: model for model in models for number in model["module_ids"]}
    nodes: dict[Any, list[dict[str, Any]]] = {}
    for card in cards:
        nodes.setdefault(card["numa_node"], []).append(_card(card, users.get(card["card"]), refused, after))
    # A status without cards still names the cards of its models.
    if not cards and users:
        nodes[None] = [_card({"card": number}, users[number], refused, after) for number in sorted(users)]
    return [{"node": node, "cards": found} for node, found in nodes.items()]


def _card(card: Known, model: Known | None, refused: Collection[str], after: str) -> dict[str, Any]:
    kind, text, tone = "free", "free", 0
    if model:
        kind, text, tone = ("stopped" if model["state"] == "stopped" else "model"), model["name"], model["tone"]
    elif card.get("held_by"):
        kind, text = "foreign", str(card["held_by"])
    elif card.get("model"):
        kind, text = "foreign", f"{card['model']}{', refused' if card['model'] in refused else after}"
    if card.get("problem"):
        kind, text = "problem", f"{text}: {card['problem']}" if model else str(card["problem"])
    number = card["card"]
    return {"number": "?" if number is None else str(number), "kind": kind, "text": text, "tone": tone}


def _model(model: Known, live: Known | None, tones: Mapping[str, int]) -> dict[str, Any]:
    buckets = model.get("buckets") or {}
    graphs = model.get("graphs")
    return {
        "name": model["name"],
        "title": model_cell(model),
        "tone": tones[model["name"]],
        "state": model.get("state") if "wanted" not in model else model["wanted"],
        "module_ids": list(model["module_ids"]),
        "cards": ", ".join(map(str, model["module_ids"])) or "processor",
        "port": model.get("port"),
        "url": (live or {}).get("url") or _url(model),
        "serves": [str(one["served_model_name"]) for one in model.get("served") or ()],
        "dtype": model.get("dtype"),
        "context": model.get("max_model_len"),
        "sequences": model.get("max_num_seqs"),
        "image": model.get("image"),
        "digest": model.get("digest"),
        "graphs": graphs,
        "graphs_text": "-" if graphs is None else f"{'about ' if buckets.get('approximate') else ''}{graphs}",
        "warmup_s": model.get("warmup_s"),
        "warmup_cached_s": model.get("warmup_cached_s"),
        "memory": _memory(model.get("memory")),
        "live": _live(live) if live else None,
    }


def _url(model: Known) -> str:
    """Return where a planned model listens on its host; empty if the plan has no port."""
    return f"{model.get('host', '127.0.0.1')}:{model['port']}" if model.get("port") else ""


def _live(model: Known) -> dict[str, Any]:
    keys = ("state", "status", "restarts", "answers", "problem", "url")
    return {key: model.get(key) for key in keys}


def _memory(memory: Known | None) -> dict[str, Any] | None:
    """Return the parts of a card's memory with their positions on a bar of 100; None without a memory estimate."""
    if not memory:
        return None
    parts = list(_parts(memory))
    text = ", ".join(f"{part['gib']:g} {part['label']}" for part in parts)
    return {
        "device_gib": memory["device_gib"],
        "fits": memory["fits"],
        "short_by_gib": memory.get("short_by_gib") or 0,
        "sequences": memory.get("sequences"),
        "parts": parts,
        "text": f"{text} of {memory['device_gib']:g} GiB",
    }


def _parts(memory: Known) -> Iterator[dict[str, Any]]:
    sizes = {key: max(0.0, float(memory.get(key) or 0)) for key in MEMORY}
    # If the parts exceed the card's memory, the bar shows their sum, so that all parts stay inside it.
    whole, start = max(float(memory["device_gib"]), sum(sizes.values())) or 1, 0.0
    for key, label in MEMORY.items():
        width = 100 * sizes[key] / whole
        if width:
            yield {"key": key.removesuffix("_gib"), "label": label, "gib": round(sizes[key], 1)} | {
                "x": round(start, 2),
                "width": round(width, 2),
            }
        start += width
