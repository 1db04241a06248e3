"""The speed of models: before and after the change of a host, and of all hosts as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.table import table

Known = Mapping[str, Any]
SLACK_S = 0.1


def slower_models(before: Mapping[str, Known], after: Mapping[str, Known], least_speed: float) -> list[str]:
    """Return the figures that are worse than before a host's change, below the required part, as sentences.

    A first token may always take ``SLACK_S`` longer, because ratios of short times mean little.

    Args:
        before: By model, ``first_token_s`` (seconds) and ``tokens_s`` (per second), from vllm_benchmark.
        after: The same after the change.
        least_speed: The required part of the earlier speed, from 0 to 1.
    """
    reasons = []
    for model in sorted(before.keys() & after.keys()):
        old, new = before[model], after[model]
        if new["tokens_s"] < old["tokens_s"] * least_speed:
            part = new["tokens_s"] / old["tokens_s"]
            reasons.append(
                f"{model}: {new['tokens_s']:.4g} tokens a second, {part:.2f} of {old['tokens_s']:.4g} before"
            )
        first, was = new["first_token_s"], old["first_token_s"]
        if first > max(was / least_speed, was + SLACK_S) if least_speed else False:
            reasons.append(f"{model}: first token after {first:.3g} s, {was:.3g} s before")
    return [f"{text} (rollout_least_speed {least_speed:g})" for text in reasons]


def verified_text(host: str, before: Mapping[str, Known], after: Mapping[str, Known]) -> str:
    """Return a report that a host passed its checks, with a line for each model. A person then decides on the others.

    Args:
        host: Its name.
        before: See ``slower_models``. A model that did not answer before has no figures here.
        after: See ``slower_models``.
    """
    lines = [
        f"{model}: {new['tokens_s']:.4g} tokens a second{_was(before, model, 'tokens_s', '.4g')}, "
        f"first token after {new['first_token_s']:.3g} s{_was(before, model, 'first_token_s', '.3g')}"
        for model, new in sorted(after.items())
    ]
    return "\n".join([f"{host} serves with the change, and passed its checks:", *(lines or ["it has no model"])])


def _was(before: Mapping[str, Known], model: str, key: str, form: str) -> str:
    return f" ({before[model][key]:{form}} before)" if model in before else ""


def benchmark_lines(measured: Mapping[str, Mapping[str, Known]]) -> list[str]:
    """Return the figures of all hosts as a table. Hosts without models and unreachable hosts have none.

    Args:
        measured: By host and model, ``first_token_s`` (seconds) and ``tokens_s`` (per second).
    """
    rows = [
        [host, model, f"{1000 * one['first_token_s']:.0f} ms", f"{one['tokens_s']:.4g}"]
        for host, models in measured.items()
        for model, one in sorted(models.items())
    ]
    head = ["HOST", "MODEL", "FIRST TOKEN", "TOKENS A SECOND"]
    return table([head, *rows]) if rows else ["no model answers on any host"]
