"""What is wanted of weights, what is there, and what is left to do."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from gaudi_serve.catalog.keys import findings
from gaudi_serve.catalog.source import source_problem
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.run import sha256_text
from gaudi_serve.core.templates import file_of
from gaudi_serve.host import weights_names
from gaudi_serve.host.observe_weights import observe
from gaudi_serve.model.host import Host
from gaudi_serve.model.spec import Spec
from gaudi_serve.model.weights import WeightsFacts
from gaudi_serve.plan.check import host_problems
from gaudi_serve.stages.base import Given, Pending
from gaudi_serve.stages.registry import BY_ROLE
from gaudi_serve.stages.weights import (
    weights_changes,
    weights_drift,
    weights_folders,
    weights_lines,
    weights_refusal,
    weights_sources,
    weights_stops,
)

HUB = {"kind": "hub", "repo": "Qwen/QwQ-32B"}
R1 = {"name": "r1", "weights": "/data/R1-G2", "image": "i", "source": {**HUB, "convert": "g2"}}


def sources(**source: Any) -> list[dict[str, Any]]:
    """Return one model with a source."""
    model = {"name": "m", "weights": "/data/M", "image": "i", "source": {**HUB, **source}}
    return weights_sources([model], {}, {})


def record(**source: Any) -> dict[str, Any]:
    """Return the state of a folder that is whole."""
    return {"exists": True, "config": True, "damaged": [], "leftovers": [], "manifest": {"source": {**HUB, **source}}}


def steps(models: list[dict[str, Any]], folders: dict[str, Any], verify: str = "quick") -> list[tuple[str, str]]:
    """Return the steps that are due."""
    changes = weights_changes(models, {"folders": folders}, verify)
    return [(job["step"], job["target"]) for job in changes["jobs"]]


@pytest.mark.parametrize(
    ("source", "allowed"),
    [
        ("hub", "must be a mapping, such as {kind: hub, repo: Qwen/QwQ-32B}"),
        ({"kind": "s3"}, "must have a kind of hub, modelscope, git, path, not 's3'"),
        ({"kind": "hub"}, "must have a key repo with kind hub: owner/name"),
        ({**HUB, "repo": "../x"}, "must have a key repo with kind hub: owner/name"),
        (
            {"kind": "git", "url": "https://user:secret@host/x.git"},
            "must have a key url with kind git: an address without a token",
        ),
        ({"kind": "path", "path": "nfs"}, "must have a key path with kind path: a path"),
        ({"kind": "git", "url": "https://[x"}, "must have a key url with kind git: an address without a token"),
        ({**HUB, "endpoint": "http://[x"}, "must have an endpoint that is a quoted text without blanks and tokens"),
        (
            {**HUB, "revision": "--upload-pack=x"},
            "must have a revision that is a quoted text without blanks and tokens",
        ),
        ({**HUB, "revision": 5}, "must have a revision that is a quoted text without blanks and tokens"),
        (
            {**HUB, "include": "*.json"},
            "must have a list of file patterns as include, such as ['*.safetensors', '*.json']",
        ),
        ({**HUB, "convert": "g3"}, "must have convert: g2, or none"),
        ({**HUB, "calibrate": "yes"}, "must have calibrate: true or false"),
        ({**HUB, "folder": "x"}, "must have a folder that is an absolute path without .."),
        ({**HUB, "folder": "/data/../etc"}, "must have a folder that is an absolute path without .."),
        (
            {**HUB, "measurement": {"repo": "a/b", "folder": "../etc"}},
            "must have a measurement whose folder is an absolute path without ..",
        ),
        (
            {**HUB, "measurement": {"repo": "a/b", "folder": "/data/../etc"}},
            "must have a measurement whose folder is an absolute path without ..",
        ),
        (
            {**HUB, "measurement": {"repo": 1}},
            "must have a measurement that is a source: a key repo with kind hub: owner/name",
        ),
    ],
)
def test_wrong_source_is_refused_with_this_sentence(source: Any, allowed: str) -> None:
    assert source_problem(source) == allowed
    found = findings({"name": "m", "weights": "/data/M", "source": source})
    # Shown nowhere: it may hold the very token that is refused.
    assert found == [("source", source if source == "hub" else "(hidden)", allowed)]


def test_misspelt_key_of_a_source_is_named() -> None:
    assert "not token" in str(source_problem({**HUB, "token": "x"}))


def test_good_sources() -> None:
    for source in (
        {**HUB, "revision": "main", "endpoint": "https://hf-mirror.com", "include": ["*.json"]},
        {"kind": "modelscope", "repo": "Qwen/QwQ-32B", "convert": "g2", "measurement": {"repo": "Yi30/x"}},
        {"kind": "git", "url": "https://www.modelscope.cn/Qwen/QwQ-32B.git"},
        {"kind": "git", "url": "git@example.net:a/b.git"},
        {"kind": "path", "path": "/nfs/QwQ-32B", "calibrate": True},
    ):
        assert source_problem(source) is None, source


def test_model_with_a_source_need_not_be_there_yet() -> None:
    host = Host.of({"accelerator": "gaudi", "weights": {"/data/M": None}})
    spec = Spec({"name": "m", "weights": "/data/M", "image": "i", "port": 1, "launch_profile": "vllm"})
    assert [
        key for key, _, _ in host_problems(spec, host, [WeightsFacts.of(spec, host)], "1.21.3", weights_come=True)
    ] == ["weights"]
    source = spec.but(source=HUB)
    assert host_problems(source, host, [WeightsFacts.of(source, host)], "1.21.3", weights_come=True) == []


def test_catalog_mirrors_and_shared_folders() -> None:
    catalog = {"qwq": {"weights": "/data/M/", "source": HUB}}
    models = [{"name": "a", "model": "qwq"}, {"name": "b", "model": "qwq"}, {"name": "c", "weights": "/data/C"}]
    found = weights_sources(models, catalog, {"image": "i"}, {"hub": "https://mirror"})
    assert found == [{"name": "a", "weights": "/data/M", "image": "i", "source": {**HUB, "endpoint": "https://mirror"}}]
    models[1] = {"name": "b", "weights": "/data/M", "source": {**HUB, "revision": "v2"}}
    with pytest.raises(InputError, match=r"model b: source: .* differs from that of model a"):
        weights_sources(models, catalog, {})
    assert weights_sources("x", {}, {}) == []


def test_what_is_due() -> None:
    models = sources()
    assert steps(models, {"/data/M": {"exists": False}}) == [("fetch", "/data/M")]
    assert steps(models, {"/data/M": record()}) == []
    assert steps(models, {"/data/M": record()}, "full") == [("fetch", "/data/M")]
    for state in (
        {**record(), "damaged": ["x"]},
        {**record(), "leftovers": ["/data/M.gaudi-serve-old"]},
        {**record(), "manifest": None},
        record(revision="v1"),
    ):
        assert steps(models, {"/data/M": state}) == [("fetch", "/data/M")], state
    adopted = {**record(), "manifest": {"source": {"kind": "adopted"}}}
    assert steps(models, {"/data/M": adopted}) == []


def test_conversion_comes_after_its_original_and_outlives_it() -> None:
    models = weights_sources([R1], {}, {})
    assert weights_folders(models) == ["/data/R1", "/data/R1-G2"]
    both = [("fetch", "/data/R1"), ("convert", "/data/R1-G2")]
    assert steps(models, {}) == both
    converted = {**record(), "manifest": {"source": {"kind": "convert", "convert": "g2", "of": HUB}}}
    assert steps(models, {"/data/R1-G2": converted}) == []
    assert steps(models, {"/data/R1": record()}) == both[1:]
    assert steps(models, {"/data/R1-G2": {**converted, "damaged": ["x"]}, "/data/R1": record()}) == both[1:]


def test_measurement_files_and_calibration() -> None:
    models = sources(measurement={"repo": "Yi30/x", "folder": "/data/x"}, calibrate=True)
    assert steps(models, {"/data/M": record()}) == [("measure", "/data/x"), ("calibrate", "/data/M-calibration")]
    lines = weights_lines(weights_changes(models, {"folders": {}}), "h1")
    assert lines[0] == "h1: model m: fetch Qwen/QwQ-32B (hub) as /data/M: it is not there"
    assert lines[2] == "h1: model m: calibrate /data/M (calibrate) as /data/M-calibration: it is not there"


@pytest.mark.parametrize(
    ("changed", "device", "message"),
    [
        ({}, "HL-325L", "h1: model r1: source.convert 'g2': is for Gaudi2; this host has HL-325L (Gaudi3)"),
        ({}, "HL-338", "(Gaudi3), which serves the original weights"),
        ({}, "HL-999", "is for Gaudi2 (HL-225, HL-288), and this host has HL-999"),
        ({"weights": "/data/R1"}, "HL-225", "weights must end in -G2, or source.folder name the original's"),
        ({"image": None}, "HL-225", "needs the model's image, whose script converts"),
    ],
)
def test_conversion_is_refused(changed: dict[str, Any], device: str, message: str) -> None:
    reasons = weights_refusal(weights_sources([{**R1, **changed}], {}, {}), {"folders": {}}, "h1", device)
    assert len(reasons) == 1
    assert message in reasons[0]


def test_conversion_on_gaudi2_is_not_refused() -> None:
    for device in ("HL-225", "HL-225B", "HL-288", None):
        assert weights_refusal(weights_sources([R1], {}, {}), {"folders": {}}, "h1", device) == []


TWO = {"name": "n", "weights": "/data/N", "image": "i", "source": {"kind": "hub", "repo": "a/n"}}


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"measurement": {"repo": "a/m", "folder": "/data/M"}}, {}, "source.measurement.folder '/data/M'"),
        ({"measurement": {"repo": "a/m", "folder": "/data/M/sub"}}, {}, "source.measurement.folder '/data/M/sub'"),
        ({"measurement": {"repo": "a/m", "folder": "/data//M.partial"}}, {}, "overlaps"),
        ({"measurement": {"repo": "a/m", "folder": "/data/M.gaudi-serve-old/x"}}, {}, "overlaps"),
        ({"measurement": {"repo": "a/m", "folder": "/data/N"}}, {}, "model n: weights '/data/N'"),
        ({}, {"weights": "/data/M/N"}, "model n: weights '/data/M/N'"),
        (
            {},
            {"weights": "/data/N-G2", "source": {**HUB, "convert": "g2", "folder": "/data/M", "revision": "v2"}},
            "folder",
        ),
        (
            {"measurement": {"repo": "a/m", "folder": "/data/x"}},
            {"source": {**TWO["source"], "measurement": {"repo": "a/other", "folder": "/data/x/"}}},
            "source.measurement.folder '/data/x'",
        ),
        ({"kind": "path", "repo": None, "path": "/data/M/sub"}, {}, "overlaps its source.path"),
        ({"kind": "path", "repo": None, "path": "/data"}, {}, "overlaps its source.path '/data'"),
    ],
)
def test_folders_that_would_be_fetched_over_one_another(
    first: dict[str, Any], second: dict[str, Any], message: str
) -> None:
    source = {key: value for key, value in {**HUB, **first}.items() if value is not None}
    model = {"name": "m", "weights": "/data/M", "image": "i", "source": source}
    reasons = weights_refusal(weights_sources([model, {**TWO, **second}], {}, {}), {"folders": {}}, "h1")
    assert len(reasons) == 1, reasons
    assert reasons[0].startswith("h1: model ")
    assert message in reasons[0]


def test_models_may_share_what_they_are_made_from() -> None:
    plain = {"name": "m", "weights": "/data/R1", "image": "i", "source": HUB}
    measured = {**R1, "source": {**R1["source"], "measurement": {"repo": "a/m", "folder": "/data/x"}}}
    other = {**TWO, "source": {**TWO["source"], "measurement": {"repo": "a/m", "folder": "/data/x"}}}
    beside = {**TWO, "name": "o", "weights": "/data/N2", "source": {"kind": "path", "path": "/data/R1"}}
    models = weights_sources([plain, measured, other, beside], {}, {})
    assert weights_refusal(models, {"folders": {}}, "h1") == []


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("http://git.example.net/a/b.git", True),
        ("https://git.example.net/a/b.git", False),
        ("ssh://git.example.net/a/b.git", False),
        ("http://127.0.0.1:8000/a.git", False),
    ],
)
def test_gits_token_over_an_open_line_is_refused(url: str, refused: bool) -> None:
    fetched = weights_sources([{**R1, "source": {"kind": "git", "url": url}}], {}, {})
    measured = sources(measurement={"kind": "git", "url": url})
    for models, key in ((fetched, "source.url"), (measured, "source.measurement.url")):
        reasons = weights_refusal(models, {"folders": {}}, "h1", tokens=["git", "hub"])
        assert [f"{key} {url!r}" in reason for reason in reasons] == [True] * refused
        assert weights_refusal(models, {"folders": {}}, "h1", tokens=["hub"]) == []


def test_unknown_files_are_not_touched() -> None:
    state = {"exists": True, "manifest": None, "config": False}
    reasons = weights_refusal(sources(), {"folders": {"/data/M": state}}, "h1")
    assert reasons[0].startswith("h1: model m: weights '/data/M': holds files, but no config.json")
    own = weights_sources([{**R1, "weights": "/data/M", "source": {"kind": "path", "path": "/data/M"}}], {}, {})
    assert "is the model's own folder, and does not exist" in weights_refusal(own, {"folders": {}}, "h1")[0]


def test_folders_are_observed_without_reading_weights(tmp_path: Path) -> None:
    folder = tmp_path / "M"
    live = observe([str(folder)], str(tmp_path / "venv"))
    assert live["folders"][str(folder)]["exists"] is False
    assert live["folders"][str(folder)]["free_bytes"] > 0
    assert live["tools"]["clients"] == ""
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    state = observe([str(folder)], "")["folders"][str(folder)]
    assert (state["config"], state["manifest"], state["damaged"]) == (True, None, ["gone.safetensors"])
    files = {}
    for path in folder.iterdir():
        files[path.name] = {"size": path.stat().st_size, "mtime_ns": path.stat().st_mtime_ns, "sha256": None}
    (folder / ".gaudi-serve-weights.json").write_text(json.dumps({"source": HUB, "files": files}))
    (tmp_path / "M.partial").mkdir()
    state = observe([str(folder)], "")["folders"][str(folder)]
    assert (state["damaged"], state["leftovers"]) == ([], [str(tmp_path / "M.partial")])
    os.utime(folder / "config.json", ns=(1, 1))
    assert observe([str(folder)], "")["folders"][str(folder)]["damaged"] == ["config.json"]


def test_what_lies_beside_a_folder_is_reported_apart(tmp_path: Path) -> None:
    folder, partial = tmp_path / "M", tmp_path / "M.partial"

    def seen() -> tuple[list[str], str | None]:
        state = observe([str(folder)], "")["folders"][str(folder)]
        return [Path(one).name for one in state["leftovers"]], state["in_the_way"]

    (tmp_path / "M.old").mkdir()
    (tmp_path / "M.old/mine.safetensors").touch()
    assert seen() == ([], None)
    (tmp_path / "M.gaudi-serve-old").mkdir()
    partial.mkdir()
    assert seen() == (["M.partial", "M.gaudi-serve-old"], None)
    (partial / "mine.safetensors").touch()
    assert seen() == (["M.gaudi-serve-old"], str(partial))
    (partial / ".gaudi-serve-weights.json").touch()
    assert seen() == (["M.partial", "M.gaudi-serve-old"], None)
    for other in (lambda: partial.symlink_to(tmp_path / "M.old"), partial.touch):
        shutil.rmtree(partial) if partial.is_dir() and not partial.is_symlink() else partial.unlink()
        other()
        assert seen() == (["M.gaudi-serve-old"], str(partial))


def test_what_is_in_the_way_is_refused_where_a_folder_is_to_be_fetched() -> None:
    beside = {"in_the_way": "/data/M.partial", "leftovers": []}
    reasons = weights_refusal(sources(), {"folders": {"/data/M": {"exists": False, **beside}}}, "h1")
    assert len(reasons) == 1
    assert reasons[0].startswith("h1: model m: /data/M.partial: is not managed by the toolkit")
    assert reasons[0].endswith("move it away, or remove it")
    assert weights_refusal(sources(), {"folders": {"/data/M": {**record(), **beside}}}, "h1") == []
    # What was being replaced comes back, and may need nothing.
    back = {"exists": False, **beside, "leftovers": ["/data/M.gaudi-serve-old"]}
    assert weights_refusal(sources(), {"folders": {"/data/M": back}}, "h1") == []


@pytest.mark.parametrize("mark", [".gaudi-serve-work/parts", ".gaudi-serve-weights.json"])
def test_the_mark_of_a_partial_folder_goes_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mark: str) -> None:
    partial = tmp_path / "M.partial"
    for name in ("sub/x", "~last", mark):
        (partial / name).parent.mkdir(parents=True, exist_ok=True)
        (partial / name).touch()
    removed: list[str] = []
    known: list[bool] = []

    def seen(call: Any) -> Any:
        def counted(path: Any, *given: Any, **named: Any) -> None:
            call(path, *given, **named)
            removed.append(Path(path).name)
            known.append(not partial.exists() or weights_names.is_own(partial))

        return counted

    monkeypatch.setattr(os, "unlink", seen(os.unlink))
    monkeypatch.setattr(os, "rmdir", seen(os.rmdir))
    weights_names.remove_own(partial)
    assert len(removed) >= 5 and all(known), removed
    assert not partial.exists()


def test_the_catalogs_source_gives_way_to_a_folder_that_was_put_there_by_hand() -> None:
    catalog = {"x": {"weights": "/data/x", "source": {"kind": "hub", "repo": "a/x"}}}
    wish = [{"name": "m", "model": "x"}]
    assert len(weights_sources(wish, catalog, {})) == 1
    assert len(weights_sources(wish, catalog, {}, here={"/data/x": None})) == 1
    assert weights_sources(wish, catalog, {}, here={"/data/x": {"config": {}, "recorded": False}}) == []
    assert len(weights_sources(wish, catalog, {}, here={"/data/x": {"config": {}, "recorded": True}})) == 1
    own = [{**wish[0], "source": {"kind": "hub", "repo": "a/y"}, "image": "i"}]
    images = [{"alias": "i", "name": "i:1"}]
    (one,) = weights_sources(own, catalog, {}, here={"/data/x": {"recorded": False}}, images=images)
    assert (one["source"]["repo"], one["image"]) == ("a/y", "i:1")


def given(models: list[dict[str, Any]], theirs: list[dict[str, Any]], **more: Any) -> list[tuple[str, str, str]]:
    """Return the steps that are due where host a gives what it has, and the folders that it gives."""
    told = {"host": "a", "models": theirs, "live": None, **more}
    jobs = weights_changes(models, {"folders": {}}, source_host=told)["jobs"]
    return [(job["step"], job["target"], (job.get("from") or {}).get("folder", "")) for job in jobs]


def test_finished_folders_come_from_a_host_that_has_them() -> None:
    wish = {**R1, "source": {**R1["source"], "measurement": {"repo": "Yi30/x"}, "calibrate": True}}
    ours = weights_sources([wish], {}, {})
    theirs = weights_sources([{**wish, "weights": "/nvme/R1-G2"}], {}, {}, {"hub": "https://mirror"})
    taken = [
        ("convert", "/data/R1-G2", "/nvme/R1-G2"),
        ("measure", "/data/R1-G2-measurement", "/nvme/R1-G2-measurement"),
        ("calibrate", "/data/R1-G2-calibration", "/nvme/R1-G2-calibration"),
    ]
    assert given(ours, theirs) == taken  # and no original
    changes = weights_changes(ours, {"folders": {}}, source_host={"host": "a", "models": theirs, "live": None})
    assert (changes["client"], changes["git"]) == (False, False)
    assert weights_lines(changes, "h1")[0] == ("h1: model r1: copy /nvme/R1-G2 from a as /data/R1-G2: it is not there")


def test_what_is_taken_comes_before_what_is_fetched() -> None:
    models = weights_sources([TWO, {**R1, "weights": "/data/M", "source": HUB}], {}, {})
    taken = [("fetch", "/data/M", "/data/M"), ("fetch", "/data/N", "")]
    assert given(models, sources()) == taken


def test_only_a_whole_folder_from_the_same_source_is_taken() -> None:
    models = sources()
    assert given(models, sources(revision="v2")) == [("fetch", "/data/M", "")]
    adopted = {**record(), "manifest": {"source": {"kind": "adopted"}}}
    for state, folder in (
        (record(), "/data/M"),
        (adopted, "/data/M"),
        (record(endpoint="https://mirror"), "/data/M"),
        (record(revision="v2"), ""),
        ({**record(), "damaged": ["x"]}, ""),
        ({**record(), "manifest": None}, ""),
        ({}, ""),
    ):
        assert given(models, models, live={"folders": {"/data/M": state}}) == [("fetch", "/data/M", folder)], state


def test_folder_that_is_only_to_be_recorded_is_not_taken() -> None:
    other = {"host": "a", "models": sources(), "live": None}
    live = {"folders": {"/data/M": {**record(), "manifest": None}}}
    assert "from" not in weights_changes(sources(), live, source_host=other)["jobs"][0]
    assert weights_changes(sources(), live, "full", other)["jobs"][0]["from"]["folder"] == "/data/M"
    absent = {**other, "live": {"folders": {}}, "absent": True}
    assert weights_refusal(sources(), live, "h1", source_host=absent) == []


def test_host_outside_the_run_must_have_what_is_missing() -> None:
    absent = {"host": "a", "models": sources(), "live": {"folders": {}}, "absent": True}
    (reason,) = weights_refusal(sources(), {"folders": {}}, "h1", source_host=absent)
    assert reason == (
        "h1: model m: model_weights_from_host 'a': is not part of this run (--limit), and has no complete folder "
        "/data/M, or cannot be reached; include it"
    )
    assert weights_refusal(sources(), {"folders": {}}, "h1", source_host={**absent, "absent": False}) == []
    assert weights_refusal(sources(), {"folders": {}}, "h1", source_host={**absent, "live": None}) == []


def test_folder_that_was_put_by_hand_on_one_host_reaches_the_others() -> None:
    own = weights_sources([{**R1, "weights": "/data/M", "source": {"kind": "path", "path": "/data/M"}}], {}, {})
    other = {"host": "a", "models": own, "live": None}
    assert weights_refusal(own, {"folders": {}}, "h1", source_host=other) == []
    assert given(own, own) == [("fetch", "/data/M", "/data/M")]


@pytest.mark.parametrize("step", ["convert", "calibrate"])
def test_what_was_converted_or_calibrated_by_hand_is_left_alone(step: str) -> None:
    source = {"kind": "hub", "repo": "a/b", "convert": "g2", "calibrate": True}
    wish = {"name": "m", "weights": "/data/m-G2", "image": "i", "source": source}
    folders = {
        "/data/m-G2": {"exists": True, "config": True, "manifest": None},
        "/data/m-G2-calibration": {"exists": True, "manifest": None},
    }
    live = {"folders": folders, "tools": {}}
    assert step not in {job["step"] for job in weights_changes([wish], live)["jobs"]}
    gone = {"folders": {**folders, "/data/m-G2": {}, "/data/m-G2-calibration": {}}, "tools": {}}
    assert step in {job["step"] for job in weights_changes([wish], gone)["jobs"]}


@pytest.mark.parametrize("kind", ["hub", "modelscope"])
def test_a_token_is_not_sent_to_a_mirror_that_everybody_can_listen_to(kind: str) -> None:
    def reasons(endpoint: str, tokens: list[str]) -> list[str]:
        source = {"kind": kind, "repo": "a/b", "endpoint": endpoint}
        live = {"folders": {}, "tools": {}}
        return weights_refusal([{"name": "m", "weights": "/data/m", "source": source}], live, "g", tokens=tokens)

    (reason,) = reasons("http://mirror.example", [kind])
    assert reason.startswith("g: model m: source.endpoint 'http://mirror.example': model_weights_tokens.")
    for endpoint, tokens in (
        ("http://127.0.0.1:9", [kind]),
        ("https://mirror.example", [kind]),
        ("http://m.example", []),
    ):
        assert reasons(endpoint, tokens) == []


def test_drift_is_a_sentence_a_folder() -> None:
    assert weights_drift(weights_changes(sources(), {"folders": {}})) == ["model m: /data/M is not there"]


def test_an_image_that_is_no_text_is_the_plans_to_refuse() -> None:
    model = {"name": "m", "weights": "/data/M", "source": HUB, "image": ["x"]}
    assert weights_sources([model], {}, {})[0]["image"] is None


def test_models_that_serve_from_a_folder_that_is_replaced_are_announced() -> None:
    def unit(source: str, running: bool = True) -> dict[str, Any]:
        return {"container": {"running": running}, "launch": {"mounts": [{"source": source}]}}

    services = {"units": {"a": unit("/w/a"), "b": unit("/w/b"), "c": unit("/w/a", running=False), "d": {}}}
    for reason, expected in (
        ("comes from another source or revision", ["a"]),
        ("has 2 missing or changed files: x, y", ["a"]),
        ("is not there", ["a"]),
        ("exists without a record of its content", []),
        ("has leftovers of an interrupted run beside it", []),
        ("must be read and compared", []),
    ):
        assert weights_stops({"jobs": [{"target": "/w/a", "reason": reason}]}, services) == expected


DEFAULTS = yaml.safe_load((Path(__file__).parents[2] / "roles/model_weights/defaults/main.yml").read_text("utf-8"))
TOOLS = {"git": False, "git_lfs": False, "venv_module": False, "clients": ""}


def pending(models: list[dict[str, Any]], asked: dict[str, Any] | None = None, **known: Any) -> Pending:
    """Return what the stage answers on host h1: in a plan, and with what the role knows of host a in the role."""
    role = {} if asked is None else {"__model_weights_source_host": asked}
    live = {"folders": {}, "tools": TOOLS}
    base = {"groups": {"all": ["a", "h1"]}, "ansible_check_mode": False, "gaudi_weights": live, "gaudi_services": {}}
    return BY_ROLE["model_weights"].pending(
        Given("h1", {**DEFAULTS, **base, "model_weights_models": models, **role, **known})
    )


NOBODY = {"runs": False, "given": None, "live": None, "looked": None}
FROM_A = {"model_weights_from_host": "a"}
THERE = {"folders": {"/data/M": record()}, "tools": TOOLS}


def test_a_plan_does_not_ask_the_source_host_and_the_role_does() -> None:
    models = sources()
    asked = {**NOBODY, "runs": True, "given": models, "live": THERE}
    plan, role = pending(models, **FROM_A), pending(models, asked, **FROM_A)
    assert plan.due == ["h1: model m: fetch Qwen/QwQ-32B (hub) as /data/M: it is not there"]
    assert role.due == ["h1: model m: copy /data/M from a as /data/M: it is not there"]
    assert (plan.facts, role.facts) == ({"together": True}, {"together": True})
    taken = role.changes
    assert (taken["asked"], taken["own"], taken["packages"], taken["clients"]["due"]) == (["/data/M"], [], [], False)
    # The source host itself, and a host without one, fetch.
    for known in ({}, {"model_weights_from_host": "h1"}):
        assert pending(models, asked, **known).changes["take"] == []


def test_only_the_role_refuses_before_anything_is_changed() -> None:
    models = [{**sources()[0], "source": {**HUB, "calibrate": True}, "image": None}]
    assert not pending(models).refusal
    (reason,) = pending(models, NOBODY).refusal
    assert reason == "h1: model m: source.calibrate: needs the model's image, whose script it runs"
    (reason,) = pending(sources(), NOBODY, model_weights_from_host="c").refusal
    assert reason == "h1: model_weights_from_host c: is not a host of the inventory, which has a, h1"
    # A host without models with a source has no part in it.
    nothing = pending([], NOBODY, gaudi_weights=None, model_weights_from_host="c")
    assert (nothing.refusal, nothing.changes["due"], nothing.changes["source_missing"]) == ((), False, [])


def test_a_client_waits_for_the_word_of_a_source_host_and_looks_at_one_outside_the_run() -> None:
    models = sources()
    runs = {**NOBODY, "runs": True, "live": THERE}
    (reason,) = pending(models, runs, **FROM_A).changes["source_missing"]
    assert reason == (
        "h1: model_weights_from_host a: has fetched no weights in this run: it failed, cannot be reached, or has "
        "another model_weights_from_host"
    )
    assert pending(models, {**runs, "given": []}, **FROM_A).changes["source_missing"] == []
    # In check mode it will have them.
    checked = pending(models, {**runs, "given": models, "live": None}, ansible_check_mode=True, **FROM_A)
    assert checked.changes["asked"] == ["/data/M"]
    assert pending(models, {**runs, "given": models, "live": None}, **FROM_A).changes["asked"] == []
    assert not pending(models, NOBODY, **FROM_A).refusal  # before the look
    looked = {"ansible_facts": {"gaudi_weights": THERE}}
    assert pending(models, {**NOBODY, "looked": looked}, **FROM_A).changes["asked"] == ["/data/M"]
    for nothing in ({}, {"unreachable": True}, {"ansible_facts": {"gaudi_weights": {"folders": {}}}}):
        found = pending(models, {**NOBODY, "looked": nothing}, **FROM_A)
        assert "is not part of this run (--limit)" in found.changes["source_missing"][0]


def test_the_stage_reports_what_fetching_needs_and_what_is_left() -> None:
    found = pending(sources(), NOBODY)
    assert found.changes["packages"] == ["python3-venv"]
    clients = found.changes["clients"]
    assert (clients["due"], clients["digest"]) == (True, sha256_text(file_of("model_weights", "requirements.txt")))
    whole = {"folders": {}, "tools": {**TOOLS, "clients": clients["digest"]}}
    assert pending(sources(), NOBODY, gaudi_weights=whole).changes["packages"] == []
    git = weights_sources([{**R1, "weights": "/data/M", "source": {"kind": "git", "url": "https://h/x.git"}}], {}, {})
    assert pending(git, NOBODY).changes["packages"] == ["git", "git-lfs"]
    assert found.left == ["Still to do after this run:", *found.due]
    # A full look reads what is there, and leaves nothing.
    there = pending(sources(), NOBODY, gaudi_weights=THERE, model_weights_verify="full")
    assert (there.changes["due"], there.changes["left"], there.left, len(there.due)) == (True, False, [], 1)
    assert there.changes["folders"] == there.changes["targets"] == ["/data/M"]


def test_no_token_and_no_credential_is_in_what_the_stage_returns() -> None:
    secret = "hunter2"  # noqa: S105 - of the test
    known = {
        "model_weights_tokens": {"hub": secret, "git": secret},
        **{f"model_weights_{kind}_proxy": f"http://user:{secret}@proxy.example" for kind in ("http", "https")},
        "model_weights_index_url": f"https://user:{secret}@index.example/simple",
        "model_weights_calibrate_env": {"HF_TOKEN": secret},
    }
    url = f"https://user:{secret}@host/x.git"
    for source in (HUB, {"kind": "git", "url": url}):
        found = pending([{"name": "m", "weights": "/data/M", "image": "i", "source": source}], NOBODY, **known)
        assert bool(found.refusal) == (source is not HUB)
        assert secret not in str(found)
