"""Hosts of a site without internet: what is missing is named before anything changes, and files come and go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forked
import pytest
from gaudi_serve.host.observe_mirror import APT_LIST, AUTHORITY, KEY
from gaudi_serve.stages.offline import ARMOUR, PEM
from helpers.plans import TINY
from helpers.simulated.fleet import ROOT, change, fleet, state_of

URL = "https://mirror.site:8443"
IMAGE = ["image", "vllm", "1", ""]
NOTHING = "Nothing has been changed"


@pytest.fixture
def trust(tmp_path: Path) -> Path:
    """What playbooks/mirror.yml leaves on the control node."""
    folder = tmp_path / "trust"
    folder.mkdir()
    (folder / "ca.crt").write_text(f"{PEM}\nx\n")
    (folder / "key.asc").write_text(f"{ARMOUR}\nx\n")
    return folder


def run(folder: Path, environment: dict[str, str], playbook: str, *options: str, status: int = 0) -> str:
    """Run a playbook, and return what it prints in one line."""
    argv = ["ansible-playbook", "-i", str(folder / "hosts.json"), playbook, *options]
    ended, text = forked.playbook(argv, ROOT, {**environment, "ANSIBLE_STDOUT_CALLBACK": "default"}, 300)
    assert ended == status, text
    return " ".join(text.split())


def site(folder: Path, trust: Path, items: list[list[str]], **variables: Any) -> dict[str, str]:
    """Make a site of one host, and return the environment of runs on it."""
    own = {"gaudi_offline": True, "gaudi_mirror_url": URL, "gaudi_mirror_trust": str(trust), **variables}
    environment = fleet(folder, 1, **own)
    change(folder, "h01", mirror={"items": items}, files={})
    return environment


@pytest.mark.parametrize("options", [(), ("--check", "--diff")])
def test_what_the_mirror_lacks_is_named_and_nothing_is_written(
    tmp_path: Path, trust: Path, options: tuple[str, ...]
) -> None:
    environment = site(tmp_path, trust, [])
    said = run(tmp_path, environment, "site.yml", *options, status=3)
    assert NOTHING in said
    assert f"h01: the mirror {URL} lacks image vllm:1; make the bundle again with this inventory" in said
    assert not state_of(tmp_path, "h01")["files"]
    change(tmp_path, "h01", mirror={"problem": "it cannot be reached: refused"})
    assert f"h01: the mirror {URL}: it cannot be reached" in run(tmp_path, environment, "site.yml", *options, status=3)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"gaudi_mirror_url": ""}, "h01: gaudi_mirror_url '': must be the address of the site's mirror"),
        ({"gaudi_mirror_url": f"{URL}/"}, f"h01: gaudi_mirror_url '{URL}/': must be the address of the site's mirror"),
        ({"gaudi_mirror_trust": "/nowhere"}, "h01: gaudi_mirror_trust '/nowhere': has no ca.crt that can be read"),
        ({"gaudi_offline": "perhaps"}, "h01: gaudi_offline 'perhaps': must be"),
        ({"gaudi_ofline": True}, "h01: gaudi_ofline is not a variable of this toolkit; did you mean gaudi_offline?"),
    ],
)
def test_wrong_variables_are_named_with_their_host(
    tmp_path: Path, trust: Path, given: dict[str, Any], said: str
) -> None:
    environment = site(tmp_path, trust, [IMAGE], **given)
    assert said in run(tmp_path, environment, "playbooks/images.yml", status=3)
    assert not state_of(tmp_path, "h01")["files"]


def test_what_a_server_would_fetch_is_refused_by_plan_and_run(tmp_path: Path, trust: Path) -> None:
    environment = site(tmp_path, trust, [IMAGE])
    path = tmp_path / "hosts.json"
    inventory = json.loads(path.read_text(encoding="utf-8"))
    inventory["all"]["vars"]["vllm_models"][0]["tokenizer"] = "org/name"
    path.write_text(json.dumps(inventory), encoding="utf-8")
    for playbook, status in (("playbooks/plan.yml", 2), ("site.yml", 3)):
        text = run(tmp_path, environment, playbook, status=status)
        assert "h01: model m: tokenizer 'org/name': give a folder of this host, which a mount" in text
    assert not state_of(tmp_path, "h01")["files"]


def test_files_come_with_a_run_and_go_where_internet_has_come(tmp_path: Path, trust: Path) -> None:
    environment = site(tmp_path, trust, [IMAGE], gaudi_offline="true")
    alone = run(tmp_path, environment, "playbooks/images.yml", status=3)
    assert "h01: the host does not match gaudi_offline" in alone and "run playbooks/offline.yml first" in alone
    checked = run(tmp_path, environment, "playbooks/offline.yml", "--check", "--diff")
    assert APT_LIST in checked and not state_of(tmp_path, "h01")["files"]
    run(tmp_path, environment, "playbooks/offline.yml")
    files = state_of(tmp_path, "h01")["files"]
    assert {AUTHORITY, KEY, APT_LIST} < set(files) and f"{URL}/apt/debian-12-amd64" in files[APT_LIST]
    assert "changed=0" in run(tmp_path, environment, "playbooks/offline.yml")
    run(tmp_path, environment, "playbooks/images.yml")
    assert "vllm:1" in state_of(tmp_path, "h01")["images"]
    # A run that was cut off after the files is completed by the next.
    change(tmp_path, "h01", mirror_release="")
    assert "changed=1" in run(tmp_path, environment, "playbooks/offline.yml")
    run(tmp_path, environment, "playbooks/offline.yml", "-e", "gaudi_offline=false")
    assert not [path for path in state_of(tmp_path, "h01")["files"] if "mirror" in path]
    assert "changed=0" in run(tmp_path, environment, "playbooks/offline.yml", "-e", "gaudi_offline=false")


def test_a_bundle_is_listed_from_outside_with_the_inventory_of_the_site(tmp_path: Path, trust: Path) -> None:
    vendor = {"uris": ["https://vendor.example/debian"], "suites": ["bookworm"]}
    lists = []
    for offline in (False, True):
        folder = tmp_path / str(offline)
        folder.mkdir()
        # The connected machine has nothing by which hosts trust the mirror, and does not reach it.
        own = {"gaudi_offline": offline, "gaudi_mirror_url": URL, "gaudi_mirror_trust": "/nowhere"}
        environment = fleet(folder, 1, driver_repository=vendor, **own)
        path = folder / "hosts.json"
        inventory = json.loads(path.read_text(encoding="utf-8"))
        source = {"kind": "hub", "repo": "openai/gpt-oss-20b", "revision": "0123456789" * 4}
        model = {"weights": "/data/gpt-oss", "config": {**TINY, "model_type": "gpt_oss"}, "source": source}
        inventory["all"]["vars"]["vllm_models"][0] |= {**model, "weight_bytes": 6_000_000}
        path.write_text(json.dumps(inventory), encoding="utf-8")
        run(folder, environment, "playbooks/bundle.yml", "-e", f"bundle={folder}/out")
        lists.append(json.loads((folder / "out/manifest.json").read_text())["items"])
    assert lists[0] == lists[1] and "mirror.site" not in json.dumps(lists)
    assert "o200k_base.tiktoken" in {one["name"] for one in lists[0] if one["kind"] == "download"}
