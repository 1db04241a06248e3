"""Wishes and inventories mutated at random, through ansible-playbook: an error that names the key, no traceback."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).parents[1] / "unit"))
from test_fuzz import SEED, mutated, wishes
from test_fuzz_inventory import BASE, KEYS, bent
from test_plan_playbook import plan


def case(chance: random.Random, number: int) -> tuple[Any, dict[str, Any]]:
    """Return models and other variables, of which in turn one or the other are mutated."""
    if number % 2:
        return mutated(chance), {}
    return wishes(), {key: bent(chance, BASE.get(key)) for key in chance.sample(KEYS, 2)}


def test_twenty_wishes_through_a_run(tmp_path: Path) -> None:
    chance = random.Random(SEED + 1)  # noqa: S311 - reproducible, not secret
    tried = 0
    while tried < 20:
        models, more = case(chance, tried)
        try:
            if yaml.safe_load(yaml.safe_dump([models, more]))[0] is None:
                continue
        except yaml.YAMLError:
            continue  # YAML itself cannot carry it
        tried += 1
        folder = tmp_path / str(tried)
        folder.mkdir()
        status, text = plan(folder, models, "--check", **more)
        assert status in (0, 2), text
        assert "Traceback" not in text, text
        assert ("ERRORS (" in text) == (status == 2), text
