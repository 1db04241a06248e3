"""From a model and a host to the exact launch of its vLLM server; engines/ has the rules of each engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.errors import label, mapping, refusal, whole
from ..engines import ENGINES, Engine, Launch, profile_of
from ..platforms import PLATFORMS
from ..platforms.hl_smi import LARGEST_NUMBER, is_cpu_range
from ..spec.keys import findings


def vllm_launch(spec: Mapping[str, Any], host: Mapping[str, Any]) -> dict[str, Any]:
    """Return how a model's server is started.

    Args:
        spec: a model as a user declares it (``weights``, ``tensor_parallel_size``, ...).
        host: host facts: ``device_name``, ``ip``, ``interface``, ``modules``, ``accelerator``.

    Returns:
        ``env`` (strings), ``args`` (after the server's module, or after ``vllm serve``),
        ``numactl`` (arguments or None), ``warnings`` (sentences).

    Raises:
        InputError: for keys and values that docs/models.md does not allow, a host without the facts that
            the profile reads, a profile that does not exist, cards that are not free, and buckets that are
            none or too many; the message names the model, the key and what is allowed.
    """
    found = launched(_checked(spec, host), host)
    return {"env": found.environment, "args": found.args, "numactl": found.numactl, "warnings": found.warnings}


def launched(spec: Mapping[str, Any], host: Mapping[str, Any]) -> Launch:
    """Return the launch of a model whose keys have been checked.

    Raises:
        InputError: for facts that the engine reads and the host lacks, and for what the engine refuses.
    """
    engine = ENGINES[profile_of(spec, host)]
    _check_host(spec, host, engine)
    return engine.launch(spec, host)


def _checked(given: Any, host: Any) -> dict[str, Any]:
    wish = mapping("vllm_launch", "model", given, "a mapping, such as {weights: /data/QwQ-32B}")
    spec = {key: value for key, value in wish.items() if value is not None}
    platform = mapping(label(spec), "host", host, "a mapping of host facts").get("accelerator")
    if platform not in (None, *PLATFORMS):
        raise refusal(label(spec), "host.accelerator", platform, f"is not one of {', '.join(PLATFORMS)}")
    profile = profile_of(spec, host)
    if profile not in ENGINES:
        raise refusal(label(spec), "launch_profile", profile, f"is not one of {', '.join(ENGINES)}")
    for key, value, allowed in findings({"name": "model", **spec}):
        error = refusal(label(spec), key, value, f"is refused: {allowed}" if value is not None else allowed)
        error.finding = (key, value, allowed)
        raise error
    return spec


def _check_host(spec: Mapping[str, Any], host: Mapping[str, Any], engine: Engine) -> None:
    for key in engine.reads:
        if not isinstance(host.get(key), str) or not host[key]:
            raise refusal(label(spec), f"host.{key}", host.get(key), "must be a text, as module gaudi_facts returns it")
    modules = host.get("modules") if engine.reads_cards else []
    if not isinstance(modules, list):
        raise refusal(label(spec), "host.modules", modules, "must be a list of cards")
    seen = set()
    for place, module in enumerate(modules):
        key = f"host.modules[{place}]"
        card = mapping(label(spec), key, module, "a mapping of module_id, numa_node and cpus")
        number = whole(label(spec), f"{key}.module_id", card.get("module_id"), 0, LARGEST_NUMBER)
        if number in seen:
            raise refusal(label(spec), f"{key}.module_id", number, "came before")
        seen.add(number)
        if spec.get("module_ids"):
            node = card.get("numa_node")
            whole(label(spec), f"{key}.numa_node", 0 if node == -1 else node, 0, LARGEST_NUMBER)
            cpus = card.get("cpus") or []
            if not isinstance(cpus, list) or not all(map(is_cpu_range, cpus)):
                raise refusal(label(spec), f"{key}.cpus", cpus, "are not ranges of cores, such as [0-39]")
