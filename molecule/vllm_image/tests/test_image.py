"""Every host has the image that one of them built, and serves from it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import testinfra

ARCHIVES = Path(os.environ["MOLECULE_SCENARIO_DIRECTORY"]).parents[1] / ".molecule" / "image-sources" / "built"
NAME = "gaudi-serve/vllm-gaudi"


def test_the_model_answers_from_the_built_image(host: Any, ask: Any) -> None:
    tags = host.check_output(f"docker image ls --format '{{{{.Tag}}}}' {NAME}").split()
    name, _, tag = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-small").partition(":")
    assert name == NAME
    assert tag in tags
    assert tag.startswith("1.21.3-")
    assert "Paris" in ask(30002, "small")["choices"][0]["message"]["content"]


@pytest.fixture
def builder() -> Any:
    """The host that builds for both."""
    return testinfra.get_host("docker://mol-image-a")


@pytest.mark.on("mol-image-b")
def test_it_comes_by_a_user_with_sudo_where_the_builder_needs_nothing(host: Any, playbook: Any, builder: Any) -> None:
    image = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-small")
    archive = ARCHIVES / (image.replace("/", "_").replace(":", "_") + ".tar")
    host.check_output(f"docker image rm --force {image}")
    archive.unlink()
    # What a run leaves that is killed while it fetches.
    archive.with_name(archive.name + ".partial").write_bytes(b"the beginning")
    run = playbook("playbooks/models.yml", "--limit=mol-image-b", "-vvv", ansible_user="ops")
    assert run.status == 0, run.text
    assert host.run(f"docker image inspect {image}").succeeded
    assert archive.is_file()
    assert not list(ARCHIVES.glob("*.partial"))
    # By the connection's own means; slurp would carry the file through Ansible's memory.
    assert "FETCH /var/lib/gaudi-serve/images-build/" in run.text
    assert "modules/slurp.py" not in run.text
    assert builder.check_output("ls -A /var/lib/gaudi-serve/images-build") == ""
    assert builder.check_output("docker inspect --format '{{.State.Running}}' vllm-small") == "true"
