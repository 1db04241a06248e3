"""Inputs mutated at random: an error that names the key, or files in which nothing was injected."""

from __future__ import annotations

import json
import os
import random

from gaudi_serve.catalog.files import model_catalog
from gaudi_serve.catalog.merge import model_weights
from gaudi_serve.plan.fleet import vllm_fleet_lines, vllm_fleet_plan
from helpers.mutations import ROOT, SEED, mutated, nothing_injected
from helpers.plans import gaudi_host

# A request takes ten milliseconds; a long run looks at more of them.
CASES = 1300 if os.environ.get("GAUDI_SERVE_LONG") else 300
CATALOG = model_catalog([str(ROOT / "roles/preflight/files/catalog")])


def test_requests_mutated_at_random() -> None:
    chance = random.Random(SEED)  # noqa: S311 - reproducible, not secret
    accepted = 0
    for number in range(CASES):
        models = mutated(chance)
        host = gaudi_host(driver_version="1.21.3-57")
        facts = {"gaudi_host": host, "gaudi_services": {"images": {"vllm:1": "x"}}, "preflight_catalog": CATALOG}
        model_weights(models, CATALOG, {})
        fleet = vllm_fleet_plan({"g": {**facts, "vllm_models": models, "accelerator_release": "1.21.3"}}, ["g"], [])
        text = "\n".join(vllm_fleet_lines(fleet))
        assert "Traceback" not in text
        for error in fleet["errors"]:
            assert isinstance(error["key"], str), (number, error)
            assert error["message"].startswith("g: ") and error["message"].isprintable(), (number, error)
            assert len(error["message"]) < 2000, (number, error)
        if not fleet["errors"]:
            accepted += 1
            nothing_injected(fleet["hosts"]["g"]["models"])
        json.dumps(fleet, allow_nan=False)
    # Some mutations are harmless; most are not.
    assert CASES // 40 < accepted < CASES // 2
