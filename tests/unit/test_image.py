"""Recipes of serving images: what is in them is in their name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.core.errors import InputError
from gaudi_serve.plan.fleet import vllm_fleet_plan
from gaudi_serve.plan.host import vllm_plan
from gaudi_serve.stages.image import vllm_images
from helpers.plans import known, model

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CPU: dict[str, Any] = {"accelerator": "cpu", "modules": [], "services": {}, "ports": {}, "weights": {}}


def built(release: str = "1.21.3", **recipe: Any) -> dict[str, Any]:
    """Return one built image."""
    entry = {"name": "gaudi-serve/vllm", "build": "gaudi", "recipe": {"vllm": {"commit": COMMIT}, **recipe}}
    return vllm_images([entry], release)[0]


def test_images_that_are_not_built_stay_as_they_are() -> None:
    images = [{"name": "a:1"}, {"name": "b:2", "archive": "/x", "build": "cpu"}]
    assert vllm_images(images) == images


def test_the_manuals_image() -> None:
    one = built()
    lines = one["dockerfile"].splitlines()
    assert lines[0] == (
        "FROM vault.habana.ai/gaudi-docker/1.21.3/ubuntu22.04/habanalabs/pytorch-installer-2.6.0:latest"
    )
    assert "git clone --branch aice/v1.21.0 https://github.com/HabanaAI/vllm-fork /opt/vllm-fork" in one["dockerfile"]
    assert f"git -C /opt/vllm-fork checkout --detach {COMMIT}" in one["dockerfile"]
    assert "VLLM_TARGET_DEVICE=hpu pip install -e /opt/vllm-fork" in one["dockerfile"]
    assert one["alias"] == "gaudi-serve/vllm"
    assert one["name"].startswith("gaudi-serve/vllm:1.21.3-")
    for release, torch in (("1.22.0", "2.7.1"), ("1.23.0", "2.9.0")):
        assert f"{release}/ubuntu22.04/habanalabs/pytorch-installer-{torch}:latest" in built(release)["dockerfile"]


def test_the_tag_names_the_content_and_nothing_else() -> None:
    assert built()["name"] == built()["name"]
    other = {"commit": COMMIT[::-1]}
    names = {built(**recipe)["name"] for recipe in ({}, {"vllm": other}, {"audio": True}, {"multimodal": True})}
    assert len(names) == 4


def test_every_part_of_the_manual_can_be_put_in() -> None:
    source = {"repository": "https://github.com/HabanaAI/vllm-hpu-extension.git", "branch": "deepseek_r1"}
    inc = {"repository": "https://github.com/intel/neural-compressor.git", "branch": "master", "commit": COMMIT}
    text = built(
        extension={**source, "commit": COMMIT},
        inc=inc,
        multimodal=True,
        audio=True,
        hccl_ofi_wrapper={"commit": COMMIT},
        hccl_demo={"commit": COMMIT},
    )["dockerfile"]
    for part in (
        "pip install -e /opt/extension",
        "cd /opt/inc && python setup.py pt develop",
        'CC="cc -mavx2" pip install',
        "vllm[audio]",
        "./configure --prefix=/opt/libfabric --with-synapseai=/usr",
        "cp libhccl_ofi_wrapper.so /usr/lib/habanalabs/",
        "echo '7fbbaeb0",
        "git clone --branch main https://github.com/HabanaAI/hccl_demo /opt/hccl_demo",
        "RUN cd /opt/hccl_demo && make -j\n",
    ):
        assert part in text


def test_the_plugin_takes_vllm_itself_without_a_second_pytorch() -> None:
    parts = {"vllm": {"branch": "v0.16.0", "commit": COMMIT}, "plugin": {"branch": "v0.16.0", "commit": COMMIT}}
    lines = built("1.23.0", **parts)["dockerfile"].splitlines()
    assert lines[0] == "FROM vault.habana.ai/gaudi-docker/1.23.0/ubuntu22.04/habanalabs/pytorch-installer-2.9.0:latest"
    clones = [line.split()[5:7] for line in lines if line.startswith("RUN git clone")]
    assert clones == [
        ["https://github.com/vllm-project/vllm", "/opt/vllm"],
        ["https://github.com/vllm-project/vllm-gaudi", "/opt/vllm-gaudi"],
    ]
    install = [line for line in lines if "pip install" in line]
    assert "sed '/^torch/d'" in install[0] and "VLLM_TARGET_DEVICE=empty" in install[1]
    assert not any("requirements-hpu" in line for line in lines)


def test_nothing_installs_plain_pillow_again() -> None:
    text = built(audio=True, multimodal=True, inc={"branch": "master", "commit": COMMIT})["dockerfile"]
    assert text.splitlines()[-1].endswith("pillow-simd")


SECRETS: dict[str, Any] = {
    "password": {"vllm": {"commit": COMMIT, "repository": "https://bot:s3cret@host/vllm.git"}},
    "token alone": {"vllm": {"commit": COMMIT, "repository": "https://s3cret@host/vllm.git"}},
    "no commit": {"vllm": {"repository": "HTTPS://bot:s3cret@host/vllm.git"}},
    "odd characters": {"vllm": {"commit": COMMIT, "repository": "https://bot:s3/cr@t!s3cret@host/vllm.git"}},
    "over ssh": {"vllm": {"commit": COMMIT}, "inc": {"repository": "ssh://bot:s3cret@host/inc.git"}},
    "download": {"vllm": {"commit": COMMIT}, "libfabric": {"url": "http://bot:s3cret@host/a.tar.bz2"}},
    "no address": {"vllm": {"commit": COMMIT, "repository": " https://bot:s3cret@host/vllm.git"}},
    "no mapping": {"vllm": ["https://bot:s3cret@host/vllm.git"]},
    "unknown part": {"vllm": {"commit": COMMIT}, "vlm": {"repository": "https://bot:s3cret@host/vllm.git"}},
}


@pytest.mark.parametrize("recipe", SECRETS.values(), ids=SECRETS)
def test_an_address_with_a_secret_is_refused_and_not_shown(recipe: dict[str, Any]) -> None:
    with pytest.raises(InputError) as raised:
        vllm_images([{"name": "x", "build": "gaudi", "recipe": recipe}])
    with pytest.raises(InputError) as nameless:
        vllm_images([{"build": "gaudi", "recipe": recipe}])
    for error in (raised, nameless):
        assert "s3c" not in str(error.value)
        assert "s3/" not in str(error.value)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name",
    [
        *("https://u:s3cret@reg.example/x:1", "u:s3cret@reg.example/x:1", "https://reg.example/x:1", "reg.example/X:1"),
        *("a:1:2", "x:1@sha256:zz", "a//b", "a/", "a b", "x:" + "1" * 129, "a/" * 200 + "a", "ä", 5),
    ],
)
def test_what_no_engine_takes_for_an_image_is_refused_before_one_is_asked(name: Any) -> None:
    with pytest.raises(InputError, match=r"vllm_images: name .*: must be the name of an image, such as ") as raised:
        vllm_images([{"name": name}])
    (error,) = vllm_plan([{"name": "m", "weights": "/w", "image": name}], CPU)["errors"]
    assert error["key"] == "image"
    assert "must be the name of an image, such as " in error["message"]
    assert "s3cret" not in str(raised.value) + str(error)


@pytest.mark.parametrize(
    "name",
    [
        *("i", "vllm:1", "gaudi-serve/vllm-cpu:0.32.0", "localhost:5000/a_b/c__d--e.f:V1_x.y-z", "Reg.Example:443/a/b"),
        *(f"reg.example/x:1@sha256:{'0a' * 32}", f"x@sha256:{'0a' * 32}", "[fd00::1]:5000/x:1", "a1b2c3d4e5f6"),
    ],
)
def test_every_name_that_an_engine_takes_is_good(name: str) -> None:
    assert vllm_images([{"name": name}]) == [{"name": name}]
    assert vllm_plan([{"name": "m", "weights": "/w", "image": name}], CPU)["errors"] == []


def test_what_the_refusal_of_a_secret_reports() -> None:
    with pytest.raises(InputError) as raised:
        vllm_images([{"name": "x", "build": "gaudi", "recipe": SECRETS["password"]}])
    assert str(raised.value) == (
        "vllm_images: x: recipe.vllm.repository: must be an address without user and password, "
        "which would stay in the image's history"
    )


def test_a_user_alone_is_no_secret_where_ssh_asks_for_one() -> None:
    assert (
        "ssh://git@host:22/vllm.git"
        in built(vllm={"commit": COMMIT, "repository": "ssh://git@host:22/vllm.git"})["dockerfile"]
    )


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"name": "x:1"}, "x:1: name 'x:1': must be a name without a tag"),
        (
            {"recipe": {"vllm": {}}},
            "recipe.vllm.commit null: must be 40 hexadecimal digits, such as 'git ls-remote https",
        ),
        ({"recipe": {"vllm": {"commit": COMMIT, "branch": "a; rm -rf /"}}}, "recipe.vllm.branch 'a; rm -rf /'"),
        ({"recipe": {"vllm": {"commit": COMMIT, "repository": "/etc"}}}, "recipe.vllm.repository '/etc'"),
        ({"recipe": {"vllm": {"commit": COMMIT, "tag": 1}}}, 'recipe.vllm ["tag"]: must have only the keys'),
        ({"recipe": {"vllm": {"commit": COMMIT}, "audio": "yes"}}, "recipe.audio 'yes': must be true or false"),
        ({"recipe": {"vllm": "x"}}, "recipe.vllm 'x': must be a mapping"),
        (
            {"recipe": {"vllm": {"commit": COMMIT}, "hccl_ofi_wrapper": {}}},
            "recipe.hccl_ofi_wrapper.commit null: must be 40",
        ),
        (
            {"recipe": {"vllm": {"commit": COMMIT}, "libfabric": True}},
            "recipe.libfabric true: must be a mapping of url and sha256",
        ),
        (
            {"recipe": {"vllm": {"commit": COMMIT}, "libfabric": {"url": "http://a/b.tar.bz2"}}},
            "recipe.libfabric.sha256 null: must be 64 hexadecimal digits",
        ),
        ({"recipe": {"speed": 1}}, "a mapping of audio, base"),
        (
            {"recipe": {"release": "1.19.0"}},
            "recipe.release '1.19.0': has no known base image; releases 1.21, 1.22, 1.23, 1.24.1 have one",
        ),
        ({"recipe": {"release": 1.21}}, "recipe.release '1.21': must be a quoted release"),
    ],
)
def test_what_is_not_pinned_or_not_known_is_refused(entry: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as raised:
        vllm_images([{"name": "x", "build": "gaudi", **entry}])
    assert message in str(raised.value)
    fleet = vllm_fleet_plan({"a": known(vllm_images=[{"name": "x", "build": "gaudi", **entry}])}, ["a"], [])
    assert fleet["errors"][0]["key"] == "vllm_images"


def test_a_model_may_name_a_built_image_without_its_tag() -> None:
    entry = {"name": "gaudi-serve/vllm", "build": "gaudi", "recipe": {"vllm": {"commit": COMMIT}}}
    one = known(vllm_images=[entry], vllm_models=[model(image="gaudi-serve/vllm")])
    fleet = vllm_fleet_plan({"a": one}, ["a"], [])
    assert fleet["errors"] == []
    assert fleet["hosts"]["a"]["models"][0]["image"] == built()["name"]


def test_the_examples_of_the_documentation_are_sound() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "images.md").read_text(encoding="utf-8")
    examples = [yaml.safe_load(block) for block in re.findall(r"^```yaml\n(.*?)^```", text, re.DOTALL | re.MULTILINE)]
    images = [image for example in examples for image in vllm_images(example.get("vllm_images", []))]
    assert [image.get("alias") for image in images] == [
        *("gaudi-serve/vllm-gaudi", "gaudi-serve/vllm-deepseek", None, "gaudi-serve/vllm-plugin", None),
    ]
    second = images[1]["dockerfile"]
    assert second.count("--branch deepseek_r1") == 2
    assert "/opt/vllm-fork/requirements-hpu.txt" in second
    # One that nobody has pinned cannot be built.
    assert f"checkout --detach {'0' * 40}" in second
