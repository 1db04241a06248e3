"""The list of what a site without internet must fetch, by its playbook, on simulated hosts and from saved facts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import forked
from helpers.simulated.fleet import ROOT, fleet, state_of

CANARY = "canary-of-a-password"
SECRETS: dict[str, Any] = {
    "vllm_image_registries": {"registry.example": {"username": "robot", "password": CANARY}},
    "model_weights_tokens": {"hub": CANARY},
    "model_weights_index_url": f"https://bot:{CANARY}@index.example/simple",
    "driver_repository": {"uris": [f"https://bot:{CANARY}@mirror.example/debian"], "suites": ["bookworm"]},
}
MODEL = {
    **{"name": "m", "weights": "/data/model", "port": 30001, "tensor_parallel_size": 1, "max_model_len": 4096},
    **{"image": "registry.example/vllm:1", "launch_profile": "vllm"},
}


def play(folder: Path, environment: dict[str, str], *options: str, status: int = 0) -> str:
    """Run the playbook, and return its output."""
    playbook = () if any(one.endswith(".yml") for one in options) else ("playbooks/bundle.yml",)
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), *playbook, *options]
    ended, text = forked.playbook(argv, ROOT, environment, 300)
    assert ended == status, text
    assert CANARY not in text
    return text


def test_the_list_is_written_once_and_compared(tmp_path: Path) -> None:
    images = [{"name": "registry.example/vllm:1"}]
    environment = fleet(tmp_path, 2, vllm_models=[MODEL], vllm_images=images, **SECRETS)
    bundle, path = tmp_path / "out/bundle", tmp_path / "out/bundle/manifest.json"
    given = ("-e", f"bundle={bundle}")
    checked = play(tmp_path, environment, *given, "--check", "--diff")
    assert '+   "name": "registry.example/vllm"' in checked and not bundle.exists()
    first = play(tmp_path, environment, *given)
    assert "linux-headers-6.1.0-1-amd64" in first and not state_of(tmp_path, "h01")["files"]
    assert "image registry.example/vllm:1: no digest: a tag may be moved" in first
    text = path.read_text(encoding="utf-8")
    assert CANARY not in text and path.stat().st_mode & 0o777 == 0o644
    items = {(one["kind"], one["name"]): one for one in json.loads(text)["items"]}
    image = items["image", "registry.example/vllm"]
    assert image["needed_by"] == {"hosts": ["h01", "h02"], "models": ["m"]} and not image["pinned"]
    assert items["package", "habanalabs-dkms"]["origin"] == "https://mirror.example/debian"
    again = play(tmp_path, environment, *given)
    assert ": nothing changed" in again and path.read_text(encoding="utf-8") == text
    assert "h01, h02: nothing changed" in again


def test_a_host_that_was_never_read_is_named_and_nothing_is_written(tmp_path: Path) -> None:
    adapter = {"name": "sql", "folder": "/data/sql", "source": {"kind": "hub", "repo": "owner/sql"}}
    model = {**MODEL, "source": {"kind": "hub", "repo": "owner/model"}, "adapters": [adapter]}
    environment = fleet(tmp_path, 2, vllm_models=[model], vllm_images=[{"name": MODEL["image"]}], **SECRETS)
    facts = tmp_path / "facts"
    facts.mkdir()
    # As playbooks/plan.yml -e plan_save_facts_dir=FOLDER saves them.
    cards = [{"module_id": number, "numa_node": number // 4} for number in range(8)]
    host = {"accelerator": "gaudi", "device_name": "HL-225", "driver_version": "1.21.3-57", "modules": cards}
    system = {"id": "debian", "version_id": "12", "kernel": "6.1.0-1-amd64", "accelerator": "gaudi"}
    (facts / "h01.json").write_text(json.dumps({"gaudi_host": host, "gaudi_system": system}), encoding="utf-8")
    away = {**environment, "GAUDI_SERVE_SIMULATED": os.devnull}
    given = ("-e", f"plan_facts_dir={facts}", "-e", f"bundle={tmp_path / 'out'}")
    refused = " ".join(play(tmp_path, away, *given, status=3).split())
    assert f"h02: no saved facts {facts}/h02.json; save them with playbooks/plan.yml" in refused
    assert refused.count("no saved facts") == 1 and "no facts of" not in refused
    limited = play(tmp_path, away, *given, "--limit", "h01", status=3)
    assert "bundle: --limit leaves out h02: the manifest is of all hosts" in " ".join(limited.split())
    assert not (tmp_path / "out").exists()
    (facts / "h02.json").write_text(json.dumps({"gaudi_host": host, "gaudi_system": system}), encoding="utf-8")
    play(tmp_path, away, *given)
    text = (tmp_path / "out/manifest.json").read_text(encoding="utf-8")
    items = {(one["kind"], one["name"]): one for one in json.loads(text)["items"]}
    for name in ("owner/model", "owner/sql"):
        assert items["weights", name]["problem"].startswith("no revision") and CANARY not in text
    assert items["package", "linux-headers-6.1.0-1-amd64"]["system"] == "debian 12 amd64"
    assert items["python", "huggingface_hub"]["origin"] == "https://***@index.example/simple"
