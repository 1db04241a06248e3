"""On the host that builds: what is in the image, what is not, and what a change or a mistake does."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from runs import eventually

NAME = "gaudi-serve/vllm-gaudi"
PINS = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"]).parents[1] / ".molecule" / "image-sources" / "pins.json"


pytestmark = pytest.mark.on("mol-image-a")


def tags(host: Any) -> list[str]:
    """Return the tags of the built image on a host."""
    listed: str = host.check_output(f"docker image ls --format '{{{{.Tag}}}}' {NAME}")
    return sorted(listed.split())


def inside(host: Any, command: str) -> str:
    """Return what a command reports in a container of the built image."""
    text: str = host.check_output(f"docker run --rm --network none {NAME}:{tags(host)[0]} sh -c %s", command)
    return text


def serving(host: Any) -> str:
    """Return the image that the model runs from."""
    image: str = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-small")
    return image


def test_every_part_is_in_it_at_its_pin(host: Any) -> None:
    pins = json.loads(PINS.read_text(encoding="utf-8"))
    commits = inside(host, "cat /opt/*.commit").split()
    assert set(commits) == {value for key, value in pins.items() if key != "libfabric"}
    listed = inside(host, "pip list --format=freeze")
    for name in (
        "vllm==0.9.0",
        "neural-compressor-pt==3.4",
        "vllm-hpu-extension==1.0",
        "librosa==1.0",
        "tabulate==1.0",
    ):
        assert name in listed.replace("_", "-")
    assert "pillow-simd==9.5.0.post1" in listed
    # Plain Pillow, which vLLM asks for, does not lie over it.
    assert inside(host, "python -c 'import PIL; print(PIL.OWNER)'") == "pillow-simd"
    made = "$LIBFABRIC_ROOT/lib/libfabric.so /usr/lib/habanalabs/libhccl_ofi_wrapper.so /opt/hccl_demo/hccl_demo"
    found = inside(host, f"cat {made}")
    assert found.split() == ["fabric", "wrapper", "measurement"]
    assert inside(host, "echo $LD_LIBRARY_PATH").startswith("/opt/libfabric/lib:")


def test_proxies_are_not_in_it(host: Any) -> None:
    image = f"{NAME}:{tags(host)[0]}"
    for command in ("docker history --no-trunc", "docker inspect"):
        assert "canary-91ab" not in host.check_output(f"{command} {image}")
    assert host.run("grep -rl canary-91ab /var/lib/gaudi-serve /etc").stdout == ""


def test_a_build_that_fails_leaves_what_serves(host: Any, playbook: Any, started: Any, unit: Any) -> None:
    before = tags(host), started("small")
    run = playbook("playbooks/models.yml", image_commit="0" * 40)
    assert run.status != 0
    text = run.flat
    assert f"mol-image-a: image {NAME}:1.21.3-" in text
    assert "could not be built" in text
    assert "0" * 40 in text
    assert (tags(host), started("small")) == before
    assert unit("small", "ActiveState") == "active"
    assert host.run("ls -A /var/lib/gaudi-serve/images-build").stdout.strip() == ""


def test_a_changed_recipe_is_another_image_and_the_old_one_stays(host: Any, playbook: Any, started: Any) -> None:
    old = serving(host)
    run = playbook("playbooks/models.yml", image_audio=False)
    assert run.status == 0, run.text
    assert serving(host) != old
    # Both hosts lack it; it is built once, by its host, and fetched once, by the first that asks.
    built = re.findall(r"TASK \[vllm_image : Build \| Build the image\].*?(?=TASK)", run.text, re.DOTALL)
    assert re.findall(r"changed: \[(.*?)\]", "".join(built)) == ["mol-image-a"]
    assert len(tags(host)) == 2
    assert playbook("playbooks/models.yml", image_audio=False).changed_nothing
    back = playbook("playbooks/models.yml")
    assert back.status == 0, back.text
    assert "Build the image" not in back.text
    assert serving(host) == old


def test_the_links_can_be_measured_without_the_network(host: Any, playbook: Any, unit: Any) -> None:
    nowhere = "git://127.0.0.1:9/hccl_demo.git"
    run = playbook(
        "playbooks/validate.yml",
        "--limit=mol-image-a",
        link_validation_drain=True,
        link_validation_hccl_repository=nowhere,
    )
    assert run.status == 0, run.text
    result = json.loads(host.file("/var/lib/gaudi-serve/hccl.json").content_string)
    assert result["passed"]
    assert eventually(lambda: bool(unit("small", "ActiveState") == "active"))
