"""The assignment of cards and cores to models: one ledger per host.

Strict rules: a card belongs to one model; cards that other programs use are not touched; no model is placed on a sick
or excluded card; the cards of a model are of one kind; on Gaudi2E (HL-288) a model stays within one group of four
unless host NICs are declared. Preferences, in this order: a running model keeps its cards and moves only if a user
allows it, its cards are linked directly, they are on one NUMA node, large gaps stay free for large models.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import NamedTuple

from ..core.errors import Problem
from ..core.words import counted
from ..model.host import Host
from ..model.spec import Spec
from ..platforms import platform_of
from ..platforms.links import islands

# Kinds of links between sockets, as vendors' tools name them.
FAR = ("SYS",)
Cards = dict[str, list[int]]
Counts = tuple[int, ...]

MOVE = "-e fleet_move_allowed=true lets running models move"
ALONE = "a card serves one server at a time, so every model needs cards of its own"
NICS = "declare host NICs (gaudi_host_nics: true) if the machine has them"


class Region(NamedTuple):
    """Cards that are equally near to each other.

    bound: a model cannot have cards of two bounds: they are of two kinds, in two unconnected groups, or work alone.
    island: cards with direct links. node: the NUMA node.
    """

    bound: tuple[int, ...]
    island: int
    node: int


@dataclass(frozen=True)
class Placed:
    """The assignment of a host's cards.

    cards: by model. refused: by model, why it gets none. moved: the present cards of running models that get others.
    """

    cards: Mapping[str, list[int]]
    refused: Mapping[str, Problem]
    moved: Mapping[str, list[int]]


class Ledger:
    """The current user of each card of a host."""

    def __init__(self, host: Host) -> None:
        """Read the cards, their regions, and the cards that other programs use."""
        self.cards = {card.module_id: card for card in host.cards}
        self.holders: dict[int, str] = {
            number: card.problem or card.held_by or "another program"
            for number, card in self.cards.items()
            if card.in_use and number not in host.held
        }
        self.foreign = frozenset(self.holders)
        self.held = host.held
        self.avoided = {number: card.avoided for number, card in self.cards.items() if card.avoided}
        self.unusable = host.unusable
        platform = platform_of(host.accelerator)
        self.group = platform.group(host)
        self.islands = islands(host.cards, platform.near)
        kinds = list(dict.fromkeys(card.name for card in host.cards))
        self.kinds = {card.module_id: kinds.index(card.name) for card in host.cards}

    def region(self, number: int) -> Region:
        """Return the region of a card. If all cards are linked, they are one group."""
        card = self.cards[number]
        group = number // self.group if self.group else 0
        bound = (self.kinds[number], group, *((number,) if card.alone else ()))
        return Region(bound, self.islands.get(number, 0), card.numa_node)

    def give(self, name: str, cards: Sequence[int]) -> None:
        """Record that a model has these cards."""
        self.holders.update(dict.fromkeys(cards, name))

    def free(self, but: frozenset[int] = frozenset()) -> dict[Region, list[int]]:
        """Return the free cards by region; ``but`` counts as free."""
        found: dict[Region, list[int]] = {}
        for number in sorted(self.cards):
            if (number not in self.holders or number in but) and number not in self.avoided:
                found.setdefault(self.region(number), []).append(number)
        return dict(sorted(found.items()))

    def refusal(self, spec: Spec, requested: Sequence[int]) -> Problem | None:
        """Return why a model cannot have exactly these cards, or None."""
        missing = [number for number in requested if number not in self.cards]
        if missing:
            return "module_ids", missing, f"not on this host, which has {sorted(self.cards)}"
        if len(requested) != spec.cards:
            count = counted(len(requested), "card")
            return "module_ids", requested, f"give {count}, but {spec.cards_said}"
        for number in requested:
            if number in self.foreign:
                problem = self.cards[number].problem
                held = f"is used by {self.holders[number]}; end it or"
                why = f"cannot be used: {problem};" if problem else held
                return "module_ids", requested, f"card {number} {why} choose another card"
            if number in self.holders:
                why = f"card {number} already belongs to model {self.holders[number]}; {ALONE}"
                return "module_ids", requested, why
            if why := self._why_avoided(spec, number):
                return "module_ids", requested, f"{why}; choose another card"
        apart = self._apart(requested)
        return ("module_ids", requested, apart) if apart else None

    def _why_avoided(self, spec: Spec, number: int) -> str:
        """Return why a model must not be on a card; empty if it may. A model may stay on its sick card."""
        card = self.cards[number]
        if spec.stopped or not card.avoided:
            return ""
        if card.excluded:
            return f"{card.title} is excluded (accelerator_cards_excluded)"
        accept = f"; accelerator_cards_accepted: ['{card.serial}'] allows models on it" if card.serial else ""
        return "" if self.held.get(number) == spec.name else f"{card.title} is sick: {card.sick}{accept}"

    def excluded_under(self, spec: Spec, cards: Sequence[int]) -> Problem | None:
        """Return why a model cannot stay on the cards on which it runs; None if it can."""
        wrong = [self.cards[number] for number in cards if number in self.cards and self.cards[number].excluded]
        if spec.stopped or not wrong:
            return None
        text = (
            f"the model runs on {' and '.join(card.title for card in wrong)}: stop it (playbooks/stop.yml -e "
            f"model={spec.name}), and it gets other cards; {MOVE}, which restarts them"
        )
        return "accelerator_cards_excluded", [card.serial for card in wrong], text

    def _apart(self, requested: Sequence[int]) -> str:
        """Return why cards cannot work together; empty if they can."""
        alone = [number for number in requested if self.cards[number].alone]
        if alone and len(requested) > 1:
            return f"card {alone[0]} is a part of a divided card, which cannot work with other cards"
        groups = sorted({number // self.group for number in requested}) if self.group else []
        if self.group and len(groups) > 1:
            size = self.group
            named = " and ".join(f"{group * size}-{group * size + size - 1}" for group in groups)
            return f"lie in the groups {named}, which only host NICs connect; {NICS}"
        return ""


def place(specs: Sequence[Spec], host: Host, reserved: Collection[str] = (), move_allowed: bool = False) -> Placed:
    """Return the cards of every model.

    Models that name their ``module_ids`` get exactly those. A running model keeps its cards, and another model that
    names one of them is refused. With ``move_allowed`` it keeps them only if no other model names them. If another
    model cannot be placed otherwise, the fewest running models move. The other models get free cards, on one NUMA node
    if possible. Models named in ``reserved`` are not placed and keep the cards on which they run.
    """
    ledger = Ledger(host)
    present = _present(host)
    stuck = {} if move_allowed else _stuck(specs, present, ledger)
    for name in sorted({*reserved, *stuck} & set(present)):
        ledger.give(name, [number for number in present[name] if number in ledger.cards])
    specs = [spec for spec in specs if spec.name not in stuck]
    floating = [spec for spec in specs if not spec.module_ids]
    standing = {} if move_allowed else _standing(floating, present, ledger)
    placed, refused = _named(specs, ledger, standing)
    kept = _kept(floating, host, ledger)
    for spec in floating:
        ledger.give(_holder(spec), kept.get(spec.name, []))
    new = [spec for spec in floating if spec.name not in kept]
    arranged, unplaced = _arrange_all(new, floating, kept, ledger, standing)
    moving = bool(unplaced and standing) and not _arrange_all(new, floating, kept, ledger)[1]
    now = {_holder(spec): arranged[spec.name] for spec in floating if spec.name in arranged}
    for spec in unplaced:
        key, value, text = _no_room(spec, ledger, now)
        refused[spec.name] = (key, value, f"{text}; {MOVE}" if moving else text)
    found = {**placed, **kept, **arranged}
    return Placed(found, {**refused, **stuck}, _moved(floating, found, present))


def _stuck(specs: Sequence[Spec], present: Cards, ledger: Ledger) -> dict[str, Problem]:
    """Return the models that run on excluded cards and have no permission to move."""
    running = [(spec, present[spec.name]) for spec in specs if spec.name in present and not spec.module_ids]
    return {spec.name: problem for spec, cards in running if (problem := ledger.excluded_under(spec, cards))}


def _standing(floating: Sequence[Spec], present: Cards, ledger: Ledger) -> Cards:
    """Return the running models that can keep their cards. A move is a restart."""
    started = {spec.name: spec for spec in floating if not spec.stopped}
    both = {name: cards for name, cards in present.items() if name in started}
    return {name: cards for name, cards in both.items() if not ledger.refusal(started[name], cards)}


def _named(specs: Sequence[Spec], ledger: Ledger, standing: Cards) -> tuple[Cards, dict[str, Problem]]:
    """Place the models that name their cards."""
    holders = {number: name for name, cards in standing.items() for number in cards}
    wanted = {number for spec in specs for number in spec.module_ids}
    placed: Cards = {}
    refused: dict[str, Problem] = {}
    for spec in specs:
        if requested := list(spec.module_ids):
            problem = ledger.refusal(spec, requested)
            taken = next((number for number in requested if number in holders), None)
            if not problem and taken is not None:
                free = sorted(set(ledger.cards) - set(ledger.holders) - set(holders) - wanted)
                text = f"card {taken} is used by model {holders[taken]}, which runs; free are {free}; {MOVE}"
                problem = ("module_ids", requested, text)
            if problem:
                refused[spec.name] = problem
            else:
                placed[spec.name] = requested
                ledger.give(_holder(spec), requested)
    return placed, refused


def _moved(floating: Sequence[Spec], found: Cards, present: Cards) -> Cards:
    """Return the running models that get other cards, but as many as before."""
    both = sorted({spec.name for spec in floating} & set(found) & set(present))
    changed = [name for name in both if sorted(present[name]) != sorted(found[name])]
    return {name: present[name] for name in changed if len(present[name]) == len(found[name])}


def _holder(spec: Spec) -> str:
    """Return the name in messages of a card's model. It explains that a stopped model keeps its cards."""
    return f"{spec.name} (stopped; it keeps its cards)" if spec.stopped else spec.name


def _present(host: Host) -> Cards:
    """Return the cards of the running models."""
    found: Cards = {}
    for number, name in host.held.items():
        found.setdefault(name, []).append(number)
    return found


def _kept(floating: Sequence[Spec], host: Host, ledger: Ledger) -> Cards:
    """Return the cards of the models that can keep them."""
    kept: Cards = {}
    for spec in floating:
        cards = list(host.services[spec.name].module_ids) if spec.name in host.services else []
        taken = {number for others in kept.values() for number in others}
        if cards and not taken & set(cards) and not ledger.refusal(spec, cards):
            kept[spec.name] = cards
    return kept


def _arrange_all(
    new: list[Spec], floating: list[Spec], kept: Cards, ledger: Ledger, standing: Collection[str] = ()
) -> tuple[Cards, list[Spec]]:
    """Place the new models and move as few of the others as possible, and none in ``standing``."""
    by_name = {spec.name: spec for spec in floating}
    by_size = sorted(set(kept) - set(standing), key=lambda name: (len(kept[name]), name))
    most = sum(map(len, ledger.free(frozenset(number for name in by_size for number in kept[name])).values()))
    possible = sum(spec.cards for spec in new) + sum(len(kept[name]) for name in by_size) <= most
    for count in range(len(by_size) + 1 if possible else 1):
        for released in combinations(by_size, count):
            freed = frozenset(number for name in released for number in kept[name])
            found = _arrange([*new, *[by_name[name] for name in released]], ledger.free(freed))
            if found is not None:
                return found, []
    fitting: list[Spec] = []
    unplaced: list[Spec] = []
    for spec in new:
        fits = _arrange([*fitting, spec], ledger.free()) is not None
        (fitting if fits else unplaced).append(spec)
    return _arrange(fitting, ledger.free()) or {}, unplaced


def _arrange(specs: list[Spec], free: Mapping[Region, list[int]]) -> Cards | None:
    """Return cards for all models at once: with the fewest islands and NUMA nodes, then the largest free gaps."""
    regions = list(free)
    counts = [spec.cards for spec in specs]

    @cache
    def best(index: int, left: Counts) -> tuple[tuple[int, int, int], tuple[Counts, ...]] | None:
        if index == len(counts):
            return (0, 0, -sum(number * number for number in left)), ()
        found = None
        for take in _takes(counts[index], left, regions):
            rest = best(index + 1, tuple(had - taken for had, taken in zip(left, take, strict=True)))
            if rest is None:
                continue
            used = [region for region, taken in zip(regions, take, strict=True) if taken]
            apart = rest[0][0] + (len({region.island for region in used}) > 1)
            crossings = rest[0][1] + (len({region.node for region in used}) > 1)
            option = ((apart, crossings, rest[0][2]), (take, *rest[1]))
            found = option if found is None or option[0] < found[0] else found
        return found

    chosen = best(0, tuple(len(cards) for cards in free.values()))
    if chosen is None:
        return None
    pools = {region: list(cards) for region, cards in free.items()}
    placed = {}
    for spec, take in zip(specs, chosen[1], strict=True):
        cards = [pools[region].pop(0) for region, count in zip(regions, take, strict=True) for _ in range(count)]
        placed[spec.name] = sorted(cards)
    return placed


def _takes(count: int, left: Counts, regions: list[Region]) -> Iterator[Counts]:
    """Yield the ways to take ``count`` cards of one bound: from one region, or across its islands and NUMA nodes."""
    for bound in sorted({region.bound for region in regions}):
        most = [had if region.bound == bound else 0 for had, region in zip(left, regions, strict=True)]
        yield from _shares(count, tuple(most))


@cache
def _shares(count: int, most: Counts) -> tuple[Counts, ...]:
    """Return the ways to take ``count`` items from several heaps."""
    if not most:
        return ((),) if count == 0 else ()
    return tuple(
        (first, *rest)
        for first in range(min(count, most[0]), -1, -1)
        if count - first <= sum(most[1:])
        for rest in _shares(count - first, most[1:])
    )


def _no_room(spec: Spec, ledger: Ledger, placed: Cards) -> Problem:
    holders = {**ledger.avoided, **ledger.holders}
    holders |= {number: name for name, cards in placed.items() for number in cards}
    held = ", ".join(f"{number}: {name}" for number, name in sorted(holders.items()))
    free = sorted(set(ledger.cards) - set(holders))
    text = f"this host has {counted(len(ledger.cards), 'card')}, {len(free)} of them free" + (
        f" (held: {held})" if held else ""
    )
    if sick := [ledger.cards[number] for number, word in ledger.avoided.items() if word == "sick"]:
        text += f"; {', '.join(card.title for card in sick)}: sick; accelerator_cards_accepted allows models on them"
    text += "".join(f"; {name} is left out: {problem}" for name, problem in ledger.unusable)
    if ledger.group and (spec.cards > ledger.group or len(free) >= spec.cards):
        text += f"; no group of four has so many free, and only host NICs connect the groups; {NICS}"
    elif len(free) >= spec.cards:
        text += f"; they are {_kinds(ledger, free)}, and a model gets cards of one kind unless module_ids names them"
    return spec.size_problem(text)


def _kinds(ledger: Ledger, numbers: Sequence[int]) -> str:
    """Return the number of cards of each kind. Slices of divided cards are marked as alone."""
    names = [
        f"{card.name or 'card'}{' (alone)' if card.alone else ''}" for card in map(ledger.cards.get, numbers) if card
    ]
    return " and ".join(f"{count} {name}" for name, count in Counter(names).items())


def topology_notes(host: Host, module_ids: Sequence[int]) -> list[str]:
    """Return notes about links between a model's cards that make it slow or can stop it."""
    cards = [card for card in host.cards if card.module_id in module_ids]
    notes = []
    kinds = {str(card.name): card.module_id for card in cards if card.name}
    if len(kinds) > 1:
        named = " and ".join(f"{name} (card {number})" for name, number in kinds.items())
        notes.append(
            f"its cards are of different kinds, {named}: the smallest memory and the oldest kernels apply to all"
        )
    apart = [(one.module_id, other, kind) for one in cards for other, kind in one.links.items() if other in module_ids]
    far = [(one, other) for one, other, kind in apart if kind in FAR and one < other]
    if far:
        one, other = far[0]
        notes.append(
            f"its cards {one} and {other} are on different sockets: their traffic crosses the processors, which is "
            "slow; pipeline_parallel_size instead of tensor_parallel_size sends less"
        )
    blind = [(card.module_id, other) for card in cards for other in card.no_peer if other in module_ids]
    if blind:
        one, other = min(blind)
        notes.append(
            f"its cards {one} and {other} cannot read each other's memory: their traffic goes through the host's, "
            "and vLLM's own all-reduce is off; if a start hangs in NCCL, set env: {NCCL_P2P_DISABLE: '1'} and "
            "disable_custom_all_reduce: true"
        )
    return notes
