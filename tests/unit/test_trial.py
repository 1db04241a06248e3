"""The trial of a model's next container, and the paths that a launch names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.catalog.keys import CHECKS
from gaudi_serve.catalog.merge import model_files
from gaudi_serve.host.trial import refused
from gaudi_serve.model.paths import on_host, paths_read
from helpers.plans import model, planned

# Stands for the supervisor: it refuses a launch for what stands in its environment, and reports what it was given.
PROGRAM = """
import json, pathlib, sys
flag, place, *paths = sys.argv[1:]
place = pathlib.Path(place)
launch = json.loads(place.read_text())
text = place.with_suffix(".env").read_text()
for mount in launch["mounts"]:
    assert pathlib.Path(mount["source"]).exists(), mount
secret = place.with_suffix(".secret")
if "bad" in text:
    sys.exit(f"{flag} {launch['name']} {paths} {secret.exists()}\\nsecond line")
"""


def launch(name: str, folder: Path, *command: str) -> str:
    mounts = [{"source": f"/etc/gaudi-serve/{name}.buckets"}, {"source": str(folder)}]
    return json.dumps({"name": name, "command": ["vllm", *command], "mounts": mounts})


def test_each_model_is_tried_from_copies_of_its_planned_files(tmp_path: Path) -> None:
    (tmp_path / "b.secret").write_text("VLLM_API_KEY=x\n", encoding="utf-8")
    (tmp_path / "here.json").write_text(
        json.dumps({"name": "here", "command": ["vllm"], "mounts": []}), encoding="utf-8"
    )
    (tmp_path / "here.env").write_text("bad=1\n", encoding="utf-8")
    models: list[dict[str, Any]] = [
        {
            "name": name,
            "files": {
                f"/etc/gaudi-serve/{name}.json": launch(name, tmp_path, "--chat-template", "/t/a.jinja"),
                f"/etc/gaudi-serve/{name}.env": env,
                f"/etc/gaudi-serve/{name}.buckets": "1",
            },
        }
        for name, env in (("a", "A=1\n"), ("b", "A=bad\n"))
    ]
    before = sorted(path.name for path in tmp_path.iterdir())
    found = refused([*models, {"name": "here"}, {"name": "gone"}], PROGRAM, tmp_path)
    assert found["b"] == "--trial b ['/t/a.jinja'] True second line"
    assert found["here"] == "--trial here [] False second line"
    assert "gone.json" in found["gone"]
    assert set(found) == {"b", "here", "gone"}
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_paths_that_a_command_names_are_known() -> None:
    command = ["vllm", "serve", "--model", "/data/x", "--chat-template", "/t/./a.jinja", "--seed", "7"]
    command += ["--lora-modules", "sql=/l/sql", '{"name": "b", "path": "/l/b"}', "org=org/name", "--port", "/no"]
    command += ['--speculative-config={"model": "/d", "num_speculative_tokens": 2}', "--chat-template={{ /x }}"]
    command += ["--tool-parser-plugin", "/t/p.py", "-O", '{"cache_dir": "/new"}', "--lora-modules", "c=/l/c"]
    command += ["-tp", "/no"]
    assert paths_read(command) == ["/t/a.jinja", "/l/sql", "/l/b", "/d", "/t/p.py", "/l/c"]


def test_a_path_of_a_container_is_found_on_its_host() -> None:
    mounts = [{"source": "/a", "target": "/m"}, {"source": "/b/", "target": "/m/inner/"}, "x", {"source": 3}]
    assert on_host("/m/f", mounts) == "/a/f"
    assert on_host("/m/inner/f", mounts) == "/b/f"
    assert on_host("/mm", mounts) is None
    assert on_host("/m", None) is None


TEMPLATE = {"mounts": [{"source": "/srv/t", "target": "/t"}], "chat_template": "/t/a.jinja", "launch_profile": "vllm"}


def errors(more: dict[str, Any], **host: Any) -> list[tuple[str, Any, str]]:
    found = planned(model(**more), **host)["errors"]
    return [(one["key"], one["value"], one["allowed"]) for one in found]


def test_what_a_model_names_must_be_on_its_host() -> None:
    assert model_files([model(**TEMPLATE)], {}, {}) == ["/srv/t", "/srv/t/a.jinja"]
    assert errors(TEMPLATE) == []  # as in saved facts without them
    assert errors(TEMPLATE, files={"/srv/t": True, "/srv/t/a.jinja": True}) == []
    missing = "does not exist on this host; create it, or mount an existing folder or file"
    named = ("chat_template", "/t/a.jinja", "is /srv/t/a.jinja on this host, which does not exist")
    assert errors(TEMPLATE, files={"/srv/t": True, "/srv/t/a.jinja": False}) == [named]
    assert errors(TEMPLATE, files={"/srv/t": False, "/srv/t/a.jinja": False}) == [("mounts", "/srv/t", missing), named]
    # Docker creates a folder that a server may write to.
    writable = {"mounts": [{"source": "/srv/w", "target": "/w", "read_only": False}]}
    assert model_files([model(**writable)], {}, {}) == []
    assert errors(writable, files={"/srv/w": False}) == []


def test_what_no_mount_provides_is_named() -> None:
    plan = planned(model(launch_profile="vllm", chat_template="/t/a.jinja"))
    assert any(
        "chat_template: /t/a.jinja must be in the image: no mount provides it" in one for one in plan["warnings"]
    )
    plan = planned(model(launch_profile="vllm", chat_template="/data/QwQ-32B/chat_template.jinja"))
    assert not any("must be in the image" in one for one in plan["warnings"])


def test_nothing_is_mounted_over_the_weights() -> None:
    over = {"mounts": [{"source": "/srv/t", "target": "/data/QwQ-32B/"}], "launch_profile": "vllm"}
    assert errors(over) == [
        ("mounts", "/data/QwQ-32B/", "is where the plan mounts the weights or an adapter; choose another target")
    ]


@pytest.mark.parametrize(
    ("key", "value", "wrong"),
    [
        ("ulimits", ["memlock=-1:-1", "nofile=1024", "stack=67108864:67108864"], None),
        ("ulimits", ["foo=1"], "has foo, which is none of Docker's ulimits"),
        ("ulimits", ["nofile=10:5"], "above the hard one"),
        ("ulimits", ["nofile=-1:5"], "above the hard one"),
        ("ulimits", ["nofile=1", "nofile=2"], "has two ulimits with the limit nofile"),
        ("ulimits", "nofile=1", "must be a list"),
        ("ulimits", ["nofile=\u0663"], "must be a list"),
        ("ulimits", ["memlock=18446744073709551615"], "takes at most 9223372036854775807; -1 sets no limit"),
        ("ulimits", ["memlock=0:18446744073709551615"], "takes at most 9223372036854775807"),
        ("ulimits", ["memlock=9223372036854775807"], None),
        (
            "mounts",
            [{"source": "/a", "target": "/t"}, {"source": "/b", "target": "/t/"}],
            "two mounts with the target /t",
        ),
    ],
)
def test_limits_and_mounts_that_docker_refuses(key: str, value: Any, wrong: str | None) -> None:
    found = CHECKS[key](value)
    assert found is None if wrong is None else wrong in str(found)
