"""Every host has the image that one of them built, and serves from it."""

from __future__ import annotations

from typing import Any

NAME = "gaudi-serve/vllm-gaudi"


def test_the_model_answers_from_the_built_image(host: Any, ask: Any) -> None:
    tags = host.check_output(f"docker image ls --format '{{{{.Tag}}}}' {NAME}").split()
    name, _, tag = host.check_output("docker inspect --format '{{.Config.Image}}' vllm-small").partition(":")
    assert name == NAME
    assert tag in tags
    assert tag.startswith("1.21.3-")
    assert "Paris" in ask(30002, "small")["choices"][0]["message"]["content"]
