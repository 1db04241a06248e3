"""The shapes that a server runs for a trace: a small simulation of continuous batching.

It does not use buckets, so every strategy is compared over the same steps:

- Requests wait in the order of their arrival. One is admitted if fewer than max_num_seqs run and its prompt's blocks
  are free.
- A step has max_num_batched_tokens: one for each running sequence, the rest for prompts. Each prompt runs alone. One
  that does not fit continues in the next step, with its computed tokens as context.
- Then all running sequences decode one token. A sequence of t tokens that decodes one more has ceil((t + 1) /
  block_size) blocks. If the device has no free block, the sequence that came last loses its blocks. It waits at the
  front and computes its tokens again.
- A step's seconds depend on its real shape (see below). They matter only for how many sequences run together. They are
  not known well, so the same requests are simulated on servers of many speeds.
- Nothing is found in a prefix cache, and with contiguous blocks the highest block id is their number. A trace does not
  contain either.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from heapq import heappop, heappush
from typing import Any

from ..core.errors import known, mapping, number, refusal, whole
from .plan_limits import DECODE_S, PlanLimits
from .plugin_input import LARGEST

# Round numbers for an 8B model on one card.
PROMPT_S, PROMPT_TOKENS_A_S = 0.005, 20_000
DECODE_SEQUENCE_S, DECODE_BLOCK_S = 1e-4, 2e-6
# Multiples of the assumed speed: dense where a server is likely to be, and a factor of 1.26 apart further away.
SPEEDS = tuple(2.0 ** (power / 12) for power in (-24, -20, -16, *range(-12, 13, 3), 16, 20, 24))
ASSUMED = SPEEDS.index(1.0)
SLOWEST, FASTEST, HALVINGS = 1 / 64, 64.0, 8  # The bounds for the speed of running servers, and the halvings.
PARTS = 3  # Parts of a trace. The last one is held out.
# Attention to this many blocks of context costs as much per prompt token as the rest of the model.
CONTEXT_WORTH = 256
FIELDS = ("arrival_s", "input_tokens", "output_tokens")
FEWEST_PARTED = 60  # With fewer requests, none are held out.


@dataclass(frozen=True)
class Request:
    """One request: arrival in seconds since any start, tokens of its prompt, tokens of its answer."""

    arrival_s: float
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Shapes:
    """The number of steps of each shape.

    prompt: by (tokens, blocks of context), each of one sequence. decode: by (sequences, blocks).
    """

    prompt: Mapping[tuple[int, int], int]
    decode: Mapping[tuple[int, int], int]

    @property
    def steps(self) -> int:
        """Return the number of steps."""
        return sum(self.prompt.values()) + sum(self.decode.values())

    def with_(self, other: Shapes) -> Shapes:
        """Return these steps together with others."""
        return Shapes(Counter(self.prompt) + Counter(other.prompt), Counter(self.decode) + Counter(other.decode))


def read_trace(given: Any) -> list[Request]:
    """Return the requests of a list of mappings with arrival_s, input_tokens and output_tokens.

    Raises:
        InputError: The value is not a list with at least one item, or a row has an invalid key or value.
    """
    rows = "a list of {arrival_s, input_tokens, output_tokens}, at least one"
    if not isinstance(given, (list, tuple)) or not given:
        raise refusal("", "trace", given, f"is not {rows}" if given is not None else f"is required: {rows}")
    found = []
    for index, row in enumerate(given):
        at = f"trace[{index}]"
        parts = mapping("", at, row, "a mapping with arrival_s, input_tokens and output_tokens")
        known(at, parts, FIELDS)
        found.append(
            Request(
                number("", f"{at}.arrival_s", parts.get("arrival_s"), -LARGEST, LARGEST),
                whole("", f"{at}.input_tokens", parts.get("input_tokens"), 1, LARGEST),
                whole("", f"{at}.output_tokens", parts.get("output_tokens"), 0, LARGEST),
            )
        )
    return found


def fitting(requests: list[Request], limits: PlanLimits) -> tuple[list[Request], list[dict[str, Any]]]:
    """Return the requests that the server accepts, by arrival, and those that it refuses.

    An answer ends at max_model_len, or when the device has no free block. The server refuses a prompt that leaves no
    room for one token. For those, row, tokens and reason are returned.
    """
    most = min(limits.max_model_len, limits.num_hpu_blocks * limits.block_size)
    taken, refused = [], []
    for row, one in enumerate(requests):
        if one.input_tokens < most:
            room = most - one.input_tokens
            taken.append(Request(one.arrival_s, one.input_tokens, max(1, min(one.output_tokens, room))))
            continue
        name = "max_model_len" if most == limits.max_model_len else "num_hpu_blocks times block_size"
        reason = f"a prompt of {one.input_tokens} tokens leaves no room for an answer within {most}, {name}"
        refused.append({"row": row, "input_tokens": one.input_tokens, "reason": reason})
    return sorted(taken, key=lambda one: one.arrival_s), refused


@dataclass(frozen=True)
class Traffic:
    """The steps of the same requests at each of SPEEDS.

    parts: by speed, those of the parts of the trace in order of time; one part if there are too few requests.
    """

    parts: tuple[tuple[Shapes, ...], ...]

    @cached_property
    def shapes(self) -> tuple[Shapes, ...]:
        """Return all steps, by speed."""
        return tuple(reduce(Shapes.with_, parts) for parts in self.parts)

    @property
    def assumed(self) -> Shapes:
        """Return the steps at the assumed speed."""
        return self.shapes[ASSUMED]

    def held_out(self) -> tuple[Traffic, Traffic] | None:
        """Return all parts but the last, and the last part; None if there is only one."""
        if len(self.parts[0]) == 1:
            return None
        return Traffic(tuple(parts[:-1] for parts in self.parts)), Traffic(tuple(parts[-1:] for parts in self.parts))


def traffic_of(requests: list[Request], limits: PlanLimits, decode_step_s: float = DECODE_S) -> Traffic:
    """Return the steps of servers of all speeds for accepted requests, as ``fitting`` returns them.

    Args:
        requests: At least one request.
        limits: The limits of the server.
        decode_step_s: Seconds of a decode step of one sequence at the assumed speed.
    """
    count = len(requests)
    cuts = [count * part // PARTS for part in range(1, PARTS)] if count >= FEWEST_PARTED else []
    runs = [_Server(requests, limits, speed * DECODE_S / decode_step_s, cuts).run() for speed in SPEEDS]
    if not all(part.prompt and part.decode for parts in runs for part in parts):
        runs = [(reduce(Shapes.with_, parts),) for parts in runs]
    return Traffic(tuple(runs))


def shapes_of(requests: list[Request], limits: PlanLimits, speed: float = 1.0) -> Shapes:
    """Return the steps of a server with one speed for accepted requests, as ``fitting`` returns them."""
    return _Server(requests, limits, speed, []).run()[0]


def token_seconds(requests: list[Request], limits: PlanLimits, speed: float) -> float:
    """Return the mean seconds between two tokens of an answer; 0 if no answer has two."""
    server = _Server(requests, limits, speed, [])
    server.run()
    return server.token_s / server.tokens if server.tokens else 0.0


def decode_step_of(requests: list[Request], limits: PlanLimits, token_s: float) -> float:
    """Return the seconds of a decode step of one sequence with which tokens are ``token_s`` seconds apart."""
    slow, fast = SLOWEST, FASTEST
    for _ in range(HALVINGS):
        speed = (slow * fast) ** 0.5
        slow, fast = (speed, fast) if token_seconds(requests, limits, speed) > token_s else (slow, speed)
    return float(DECODE_S / (slow * fast) ** 0.5)


@dataclass
class _Sequence:
    prompt: int  # Tokens to compute before it decodes.
    answer: int  # Remaining tokens of its answer.
    computed: int = 0
    begin: int = 0  # Number of its first decode step.
    alive: int = 0  # Number of preemptions. Entries of earlier lives are ignored.

    def blocks(self, size: int, step: int) -> int:
        """Return its blocks after ``step`` decode steps of the server."""
        return -(-(self.prompt + step - self.begin) // size)


@dataclass
class _Server:
    """A running server. Steps between two events are all equal and are counted at once.

    speed: multiple of the speed above. cuts: in rising order, the requests whose arrival begins a part of the trace.
    """

    requests: list[Request]
    limits: PlanLimits
    speed: float
    cuts: Sequence[int]
    prompt: Counter[tuple[int, int]] = field(default_factory=Counter)
    decode: Counter[tuple[int, int]] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.now, self.step, self.next = 0.0, 0, 0  # Seconds; decode steps so far; index of the next arrival.
        self.waiting: deque[_Sequence] = deque()
        self.partial: _Sequence | None = None
        self.running: list[_Sequence] = []  # In order of admission.
        self.blocks = self.reserved = 0  # Blocks of decoding sequences, and of those that will decode.
        self.ends: list[tuple[int, int, _Sequence, int]] = []
        # By decode step modulo block_size: the sequences that begin a block there. The mask has a bit for each.
        self.growing = [0] * self.limits.block_size
        self.mask = 0
        self.serial = 0
        # For all answers together: seconds between their tokens, and the number of those tokens.
        self.token_s, self.tokens = 0.0, 0

    def run(self) -> tuple[Shapes, ...]:
        """Serve all requests and return the steps of each part of the trace."""
        parts: list[Shapes] = []
        while self.next < len(self.requests) or self.waiting or self.partial or self.running:
            if not (self.waiting or self.partial or self.running):
                self.now = max(self.now, self.requests[self.next].arrival_s)
            self._arrive()
            while len(parts) < len(self.cuts) and self.next > self.cuts[len(parts)]:
                parts.append(Shapes(self.prompt, self.decode))
                self.prompt, self.decode = Counter(), Counter()
            begin = self.now
            joining, blocked = self._prompts()
            if self.running:
                self._decodes(joining, blocked, self.now - begin)
            for one in joining:
                self._join(one)
        parts += [Shapes(self.prompt, self.decode)]
        return (*parts, *[Shapes({}, {})] * (len(self.cuts) + 1 - len(parts)))

    def _arrive(self) -> None:
        while self.next < len(self.requests) and self.requests[self.next].arrival_s <= self.now:
            one = self.requests[self.next]
            self.waiting.append(_Sequence(one.input_tokens, one.output_tokens))
            self.next += 1

    def _prompts(self) -> tuple[list[_Sequence], bool]:
        """Run the prompts of a step. Return those that decode from now on, and whether the first one has no room."""
        size = self.limits.block_size
        left = max(1, self.limits.max_num_batched_tokens - len(self.running))
        joining: list[_Sequence] = []
        while left and (self.partial or self.waiting):
            one = self.partial
            if one is None:
                one = self.waiting[0]
                need = one.prompt // size + 1
                seats = len(self.running) + len(joining) < self.limits.most_sequences
                if not seats or self.blocks + self.reserved + need > self.limits.num_hpu_blocks:
                    return joining, True
                self.waiting.popleft()
                self.reserved += need
            tokens = min(left, one.prompt - one.computed)
            context = -(-one.computed // size)
            self.prompt[tokens, context] += 1
            self.now += (PROMPT_S + tokens * (1 + context / CONTEXT_WORTH) / PROMPT_TOKENS_A_S) / self.speed
            one.computed += tokens
            left -= tokens
            self.partial = one if one.computed < one.prompt else None
            if self.partial is None:
                one.answer -= 1
                if one.answer:
                    joining.append(one)
                else:
                    self.reserved -= one.prompt // size + 1
        return joining, False

    def _decodes(self, joining: list[_Sequence], blocked: bool, waited: float) -> None:
        """Decode with all running sequences, which have waited for prompts, and repeat until another event."""
        size = self.limits.block_size
        at = self.step % size
        while self.blocks + self.reserved + self.growing[at] > self.limits.num_hpu_blocks and len(self.running) > 1:
            self._preempt()
        self.blocks += self.growing[at]
        count = len(self.running)
        seconds = (DECODE_S + DECODE_SEQUENCE_S * count + DECODE_BLOCK_S * self.blocks) / self.speed
        steps = 1
        if not joining and not self.partial and (blocked or not self.waiting):
            steps = self._quiet_steps(seconds, blocked)
        self.decode[count, self.blocks] += steps
        self.now += seconds * steps
        self.token_s += (waited + seconds * steps) * count
        self.tokens += steps * count
        self.step += steps
        while self.ends and self.ends[0][0] < self.step:
            _, _, one, alive = heappop(self.ends)
            if one.alive == alive:
                self._leave(one)

    def _quiet_steps(self, seconds: float, blocked: bool) -> int:
        """Return the number of equal steps: until a sequence ends or begins a block, or a request can be admitted."""
        size = self.limits.block_size
        at = (self.step + 1) % size
        turned = (self.mask >> at) | (self.mask << (size - at))
        until = (turned & -turned).bit_length()
        while self.ends[0][2].alive != self.ends[0][3]:
            heappop(self.ends)
        until = min(until, self.ends[0][0] - self.step + 1)
        if not blocked and self.next < len(self.requests):
            arrival = (self.requests[self.next].arrival_s - self.now) / seconds
            until = min(until, int(arrival) + 1) if arrival > 0 else 1
        return max(1, until)

    def _join(self, one: _Sequence) -> None:
        size = self.limits.block_size
        self.reserved -= one.prompt // size + 1
        one.begin = self.step
        self.running.append(one)
        self.blocks += -(-one.prompt // size)  # Its first step may begin a block, which counts with that step.
        self._grow(one, 1)
        self.serial += 1
        heappush(self.ends, (one.begin + one.answer - 1, self.serial, one, one.alive))

    def _grow(self, one: _Sequence, more: int) -> None:
        at = (one.begin - one.prompt) % self.limits.block_size
        self.growing[at] += more
        self.mask = self.mask | (1 << at) if self.growing[at] else self.mask & ~(1 << at)

    def _leave(self, one: _Sequence) -> None:
        self.running.remove(one)
        self.blocks -= one.blocks(self.limits.block_size, self.step)
        self._grow(one, -1)

    def _preempt(self) -> None:
        one = self.running[-1]
        self._leave(one)
        given = self.step - one.begin
        # The token of its last step is computed with the rest, and the end of that returns the next one.
        one.prompt, one.answer = one.prompt + given + 1, one.answer - given
        one.computed, one.alive = 0, one.alive + 1
        self.waiting.appendleft(one)


__all__ = [
    "ASSUMED",
    "SPEEDS",
    "Request",
    "Shapes",
    "Traffic",
    "decode_step_of",
    "fitting",
    "read_trace",
    "shapes_of",
    "token_seconds",
    "traffic_of",
]
