"""Valid variables of an inventory, and variants with hostile values."""

from __future__ import annotations

import copy
import random
from typing import Any

import yaml
from gaudi_serve.inventory.facts import VARIABLES
from gaudi_serve.inventory.variables import INPUTS
from helpers.mutations import HOSTILE, ROOT

SPECS = {
    name: option
    for path in sorted(ROOT.glob("roles/*/meta/argument_specs.yml"))
    for name, option in yaml.safe_load(path.read_text())["argument_specs"]["main"]["options"].items()
}


DEFAULTS = {
    name: value
    for path in sorted(ROOT.glob("roles/*/defaults/main.yml"))
    for name, value in yaml.safe_load(path.read_text()).items()
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
GOOD: dict[str, Any] = {
    "vllm_images": [{"name": "vllm", "build": "gaudi", "recipe": {"vllm": {"commit": COMMIT}}}, {"name": "vllm:1"}],
    "vllm_secrets": {"qwq": {"VLLM_API_KEY": "k"}},
    "vllm_model_defaults": {"image": "vllm:1", "env": {"A": "1"}, "host": "127.0.0.1"},
    "vllm_weights_endpoints": {"hub": "http://127.0.0.1:9200"},
    "vllm_catalog_dirs": [],
    "accelerator_release": "1.21.3",
    "accelerator": "gaudi",
    "accelerator_cards": 8,
    "gaudi_host_nics": False,
    "gaudi_device_family": "HL-325",
    "host_tuning_kernel_args": ["quiet", "iommu=pt"],
    "container_runtime_data_root": "/data/docker",
    "container_runtime_http_proxy": 'http://user:pa"ss\\@proxy:1',
    "container_runtime_habana_repository": {"uris": ["https://x"], "suites": ["jammy"], "signed_by": "/etc/x.asc"},
    "driver_repository": {"uris": ["https://x"], "suites": ["jammy"]},
    "model_weights_tokens": {"hub": "t"},
    "link_validation_hccl_options": {"size_range": ["1m", "32m"], "loop": 5},
    "link_validation_thresholds": {"all": 100},
    "link_validation_nodes": ["a"],
}
BASE = {**{key: DEFAULTS[key] for key in INPUTS if key in DEFAULTS and "{{" not in str(DEFAULTS[key])}, **GOOD}
KEYS = sorted({*INPUTS, *VARIABLES, "vllm_secrets"} - {"vllm_models", "preflight_catalog"})


def bent(chance: random.Random, value: Any) -> Any:
    """Return a value that is replaced by, extended with, or contains something hostile."""
    hostile, kind = copy.deepcopy(chance.choice(HOSTILE)), chance.random()
    if isinstance(value, str) and value and kind < 0.5:
        return value + str(hostile)[:100]
    if isinstance(value, list) and kind < 0.7:
        place = chance.randrange(len(value) + 1)
        inner = [bent(chance, one) for one in value[place : place + 1]] if kind < 0.5 else [hostile]
        return [*value[:place], *inner, *value[place + 1 :]]
    if isinstance(value, dict) and value and kind < 0.6:
        key = chance.choice(sorted(value, key=str))
        return {**value, key: bent(chance, value[key])}
    if isinstance(value, dict) and kind < 0.8:
        return {**value, hostile if isinstance(hostile, (str, int)) else "x": hostile}
    return hostile
