"""Weights on a host: fetched once, converted once, repaired piece by piece; never half under their name."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import testinfra
import yaml
from runs import eventually

TOKEN = "canary-7c1d"  # noqa: S105 - a test looks for it
PLAYBOOK = "playbooks/weights.yml"
VARIABLES = yaml.safe_load((Path(__file__).parents[1] / "inventory/group_vars/all.yml").read_text("utf-8"))
MODELS: list[dict[str, Any]] = VARIABLES["vllm_models"]
DATA = "/data/hf_models"
SHARD = "model-00003-of-00008.safetensors"
TAKEN = ("FP8-G2", "FP8-G2-measurement", "Copied")
UNIT = "gaudi-serve-weights-server"
ONCE = "gaudi-serve-once-[0-9A-Za-z_-]{20}"  # a token with which a host takes folders from another
FOLDERS = ("FP8", "FP8-G2", "FP8-G2-measurement", "Other", "Copied", "Cloned")


@pytest.fixture
def playbook(playbook: Any) -> Callable[..., Any]:
    """Return a function that runs a playbook on the host that has a hub, or on those of ``--limit``."""

    def run(name: str, *arguments: str, **given: Any) -> Any:
        return playbook(name, "--limit", "mol-weights", *arguments, **given)

    return run


def only(name: str, **source: Any) -> list[dict[str, Any]]:
    """Return one of the scenario's models, its source with other values: a run looks at every folder of every model."""
    model = copy.deepcopy(next(model for model in MODELS if model["name"] == name))
    model["source"].update(source)
    return [model]


def manifest(host: Any, folder: str) -> dict[str, Any]:
    """Return the record of a folder."""
    found: dict[str, Any] = json.loads(host.file(f"{folder}/.gaudi-serve-weights.json").content_string)
    return found


@pytest.fixture
def other() -> Any:
    """The host that takes finished folders from the first one."""
    return testinfra.get_host("docker://mol-weights-b")


def served(host: Any) -> int:
    """Return how often the server was started; assert that it does not run."""
    assert host.check_output(f"systemctl list-units --all --plain --no-legend '{UNIT}*'") == ""
    return int(host.check_output(f"journalctl --unit='{UNIT}-*' --output=cat | grep -c ^Started"))


def taken_whole(host: Any, other: Any) -> None:
    """Assert that the second host has what the first one has, with its origin."""
    for name in TAKEN:
        theirs, ours = manifest(host, f"{DATA}/{name}"), manifest(other, f"{DATA}/{name}")
        for record in (theirs, ours):
            record["files"] = {path: (file["size"], file["sha256"]) for path, file in record["files"].items()}
            del record["written"]
        assert ours == theirs
        test_folder_is_whole_and_recorded(other, name)


@pytest.mark.parametrize("name", FOLDERS)
def test_folder_is_whole_and_recorded(host: Any, name: str) -> None:
    files = manifest(host, f"{DATA}/{name}")["files"]
    assert len(files) >= (1 if "measurement" in name else 10)
    sums = "\n".join(f"{file['sha256']}  {path}" for path, file in files.items())
    assert host.run(f"cd {DATA}/{name} && printf '%s\n' '{sums}' | sha256sum --check --quiet").rc == 0


def test_nothing_else_is_left(host: Any) -> None:
    assert set(host.file(DATA).listdir()) - {"QwQ-32B", "Qwen2.5-7B-Instruct"} == set(FOLDERS)
    hidden = host.check_output(f"find {DATA} -name '.*' -not -name .gaudi-serve-weights.json -not -name .gitattributes")
    assert hidden == ""


def test_converted_by_the_vendors_script_with_its_log(host: Any) -> None:
    assert host.run(f'grep -aqF \'"converted": "g2"\' {DATA}/FP8-G2/{SHARD}').rc == 0
    assert host.run(f"grep -aqF converted {DATA}/FP8/{SHARD}").rc == 1
    assert "(8/8)" in host.file("/var/lib/gaudi-serve/weights/from-hub/convert.log").content_string
    assert host.check_output("docker ps --all --quiet") == ""


def test_folder_put_there_by_hand_is_taken_as_it_is(host: Any) -> None:
    assert manifest(host, f"{DATA}/QwQ-32B")["source"] == {"kind": "adopted"}


def test_token_is_nowhere(host: Any) -> None:
    assert host.file("/srv/hub.token").content_string == TOKEN  # the search below looks for the right one
    places = "/var/lib/gaudi-serve /var/log /data /opt/gaudi-serve /etc /root /tmp /run/systemd/generator"
    assert host.run(f"grep -rlF {TOKEN} {places}").stdout == ""


def test_other_host_took_what_was_fetched_once(host: Any, other: Any) -> None:
    taken_whole(host, other)
    # No original, no client of a hub: it could not have asked the one that is on the first host's loopback.
    assert set(other.file(DATA).listdir()) - {"QwQ-32B", "Qwen2.5-7B-Instruct"} == set(TAKEN)
    assert not other.file("/opt/gaudi-serve/weights-clients").exists
    assert not other.run("curl -sS http://127.0.0.1:9200").succeeded
    assert served(host) == 1  # the run that had nothing to do has started none


def test_taken_again_from_a_host_outside_the_run_and_its_token_is_nowhere(host: Any, other: Any, playbook: Any) -> None:
    other.check_output(f"rm -r {DATA}/Copied {DATA}/FP8-G2/{SHARD}")
    # What a run leaves behind that was cut off: it has the port for a while, and is waited for.
    held = "import socket, time; s = socket.create_server(('0.0.0.0', 8873)); time.sleep(90)"
    host.check_output(f'systemd-run --collect --unit={UNIT}-0ld python3 -c "{held}"')
    look = "while :; do cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ | tr '\\0' ' ' >>/run/seen; sleep 0.1; done 2>&-"
    for machine in (host, other):
        machine.check_output(f'systemd-run --unit=look sh -c "{look}"')
    run = playbook(PLAYBOOK, "--limit", "mol-weights-b", "-vvv", "--diff")
    assert run.status == 0, run.text
    assert f"repaired {DATA}/FP8-G2: 1 of 10 files" in run.flat
    taken_whole(host, other)
    served(host)
    assert "another run serves weights" in host.file("/var/lib/gaudi-serve/weights/served/serve.log").content_string
    assert not re.search(ONCE, run.text)
    for machine in (host, other):
        machine.check_output("systemctl stop look")
        assert "_weights" in machine.check_output(
            "grep -ao fetch_weights /run/seen || grep -ao serve_weights /run/seen"
        )
        assert machine.run(f"grep -aE {ONCE} /run/seen").stdout == ""
        assert machine.run(f"journalctl --output=cat | grep -E {ONCE}").stdout == ""
        places = "/var/lib/gaudi-serve /var/log /data /etc /root /tmp"
        # Ansible takes the file of a job that has run beside it away a moment after it has reported its end.
        assert eventually(lambda one=machine, kept=f"grep -rlaE {ONCE} {places}": one.run(kept).stdout == "", 20)


def test_server_of_another_run_is_left_alone(host: Any, other: Any, playbook: Any) -> None:
    other.check_output(f"mv {DATA}/Copied /data/Copied")
    held = "import socket, time; s = socket.create_server(('0.0.0.0', 8873)); time.sleep(1000)"
    host.check_output(f'systemd-run --collect --unit={UNIT}-live python3 -c "{held}"')
    run = playbook(PLAYBOOK, "--limit", "all", __model_weights_idle=5)
    said = run.flat
    assert run.status != 0
    assert f"another run serves weights ({UNIT}-live.service); run again when it has ended" in said
    assert host.check_output(f"systemctl is-active {UNIT}-live") == "active"
    host.check_output(f"systemctl stop {UNIT}-live")
    other.check_output(f"mv /data/Copied {DATA}/Copied")
    served(host)


def test_host_that_has_nothing_to_give_lets_the_others_fetch(other: Any, playbook: Any) -> None:
    # No hub can be reached there, so what comes from its own source is a folder of its own.
    other.check_output(f"mkdir -p /srv/own && cp -r {DATA}/Copied/. /srv/own")
    wish = [{"name": "own", "weights": f"{DATA}/Own", "port": 30009, "source": {"kind": "path", "path": "/srv/own"}}]
    models_of = "{{ wish if inventory_hostname == 'mol-weights-b' else [] }}"
    run = playbook(PLAYBOOK, "--limit", "all", vllm_models=models_of, wish=wish)
    assert run.status == 0, run.text
    test_folder_is_whole_and_recorded(other, "Own")
    other.check_output(f"rm -r {DATA}/Own /srv/own")


def test_nothing_to_take_where_the_first_host_fails(host: Any, other: Any, playbook: Any) -> None:
    host.check_output(f"mv {DATA}/Copied /data/Copied && mv /srv/nfs/Copied /srv/nfs/away")
    other.check_output(f"mv {DATA}/Copied /data/Copied")
    run = playbook(PLAYBOOK, "--limit", "all")
    said = run.flat
    assert run.status != 0
    assert "mol-weights: model from-path: source: /srv/nfs/Copied is not a folder on this host" in said
    assert "mol-weights-b: model_weights_from_host mol-weights: has fetched no weights in this run: it failed" in said
    assert not other.file(f"{DATA}/Copied").exists
    host.check_output(
        f"mv /data/Copied {DATA}/Copied && mv /srv/nfs/away /srv/nfs/Copied; rm -rf {DATA}/Copied.partial"
    )
    other.check_output(f"mv /data/Copied {DATA}/Copied")
    served(host)


def test_flipped_byte_is_found_and_only_it_is_fetched(host: Any, playbook: Any) -> None:
    flip = f"import os; f = open('{DATA}/Other/{SHARD}', 'r+b'); t = os.fstat(f.fileno()); f.seek(5000); b = f.read(1)"
    flip += (
        "; f.seek(5000); f.write(bytes([b[0] ^ 1])); f.flush(); os.utime(f.fileno(), ns=(t.st_atime_ns, t.st_mtime_ns))"
    )
    assert host.run(f'python3 -c "{flip}"').rc == 0
    wish = {"vllm_models": only("from-modelscope")}
    assert playbook(PLAYBOOK, **wish).changed_nothing
    run = playbook(PLAYBOOK, model_weights_verify="full", **wish)
    assert run.status == 0, run.text
    assert "repaired /data/hf_models/Other: 1 of 10 files" in run.flat
    assert playbook(PLAYBOOK, model_weights_verify="full", **wish).changed_nothing
    test_folder_is_whole_and_recorded(host, "Other")


def test_lost_shard_is_found_by_any_run(host: Any, playbook: Any) -> None:
    host.check_output(f"rm {DATA}/Copied/{SHARD}")
    run = playbook(PLAYBOOK, vllm_models=only("from-path"))
    assert run.status == 0, run.text
    assert "repaired /data/hf_models/Copied: 1 of 10 files" in run.flat
    test_folder_is_whole_and_recorded(host, "Copied")


def test_conversion_killed_in_the_middle_is_done_again(host: Any, playbook: Any) -> None:
    host.check_output(f"rm -r {DATA}/FP8-G2")
    slow = {"model_weights_convert_env": {"STANDIN_CONVERT_STEP_S": "1"}}

    def halfway() -> bool:
        return bool(host.run(f"ls {DATA}/FP8-G2.partial/{SHARD}").rc == 0)

    playbook(PLAYBOOK, until=halfway, **slow)
    # The controller is gone, and now the program and its client of the engine are, too; the container goes on.
    host.run("kill -9 $(pgrep -f convert_weights) $(pgrep -f 'docker run')")
    assert host.check_output("docker ps --format '{{.Names}}'") == "gaudi-weights-from-hub"
    assert not host.file(f"{DATA}/FP8-G2").exists
    run = playbook(PLAYBOOK)
    assert run.status == 0, run.text
    test_folder_is_whole_and_recorded(host, "FP8-G2")
    test_nothing_else_is_left(host)
    assert host.check_output("docker ps --all --quiet") == ""
    assert playbook(PLAYBOOK).changed_nothing


def test_conversion_that_leaves_a_shard_out_is_not_accepted(host: Any, playbook: Any) -> None:
    host.check_output(f"mv {DATA}/FP8-G2 /data/kept")
    run = playbook(PLAYBOOK, model_weights_convert_env={"STANDIN_FAULT": "convert"})
    assert run.status != 0
    assert "model from-hub: the conversion ended, but: model-00008-of-00008.safetensors is missing" in run.flat
    assert not host.file(f"{DATA}/FP8-G2").exists
    host.check_output(f"rm -r {DATA}/FP8-G2.partial; mv /data/kept {DATA}/FP8-G2")
    assert playbook(PLAYBOOK).changed_nothing


def test_original_may_go_once_it_is_converted(host: Any, playbook: Any) -> None:
    host.check_output(f"mv {DATA}/FP8 /data/FP8")
    assert playbook(PLAYBOOK, vllm_models=only("from-hub")).changed_nothing
    host.check_output(f"mv /data/FP8 {DATA}/FP8")


def test_wrong_token_and_vanished_revision_end_with_a_sentence(host: Any, playbook: Any) -> None:
    for extra, message in (
        (
            {"vllm_models": only("from-modelscope", revision="v9")},
            "model from-modelscope: source: http://127.0.0.1:9200 has no test/Other with a revision v9",
        ),
        (
            {
                "vllm_models": only("from-modelscope", revision="main"),
                "model_weights_tokens": {"modelscope": "wrong"},
            },
            "refuses access (403) with the token that was given; see model_weights_tokens.modelscope",
        ),
    ):
        run = playbook(PLAYBOOK, "-vvv", "--diff", **extra)
        assert run.status != 0
        assert message in run.flat, run.text
        assert TOKEN not in run.text
        test_folder_is_whole_and_recorded(host, "Other")
    wish = {"vllm_models": only("from-modelscope")}
    run = playbook(PLAYBOOK, **wish)
    assert run.status == 0, run.text
    assert playbook(PLAYBOOK, **wish).changed_nothing


def test_calibration_with_the_cards(host: Any, playbook: Any) -> None:
    # The vendor's script ends with status 0 where it can load nothing.
    wish = only("from-hub", calibrate=True)
    run = playbook(PLAYBOOK, vllm_models=wish, model_weights_calibrate_endpoint="http://127.0.0.1:9")
    assert run.status != 0
    text = run.flat.replace("''", "'")
    assert "the calibration ended, but: it has written nothing:" in text, run.text
    assert "ConnectionError: Couldn't reach 'NeelNanda/pile-10k' on the Hub" in text, run.text
    assert not host.file(f"{DATA}/FP8-G2-calibration").exists
    run = playbook(PLAYBOOK, vllm_models=only("from-hub", calibrate=True))
    assert run.status == 0, run.text
    assert host.file(f"{DATA}/FP8-G2-calibration").listdir()
    assert playbook(PLAYBOOK, vllm_models=only("from-hub", calibrate=True)).changed_nothing


def test_conversion_is_refused_on_gaudi3(playbook: Any, host: Any) -> None:
    before = manifest(host, f"{DATA}/FP8-G2")
    run = playbook(PLAYBOOK, model_weights_device="HL-325L", vllm_models=only("from-hub"))
    assert run.status != 0
    assert "this host has HL-325L (Gaudi3), which serves the original weights" in run.flat
    assert "changed=0" in run.text
    assert manifest(host, f"{DATA}/FP8-G2") == before


def test_models_that_share_a_card_are_served_and_restart_with_either_folder(
    host: Any, playbook: Any, started: Any
) -> None:
    host.check_output("testhost-init device HL-225 1.22.0-57e3f5d")
    for name, kind in (("gte", "BertModel"), ("rerank", "BertForSequenceClassification")):
        config = json.dumps({**VARIABLES["vllm_model_defaults"]["config"], "architectures": [kind]})
        host.check_output(f"mkdir {DATA}/{name} && echo '{config}' > {DATA}/{name}/config.json")
        host.check_output(f"echo x > {DATA}/{name}/model.safetensors")
    second = {"name": "rerank", "weights": f"{DATA}/rerank"}
    entry = {"name": "gte", "weights": f"{DATA}/gte", "max_model_len": 512, "shares_card_with": [second]}
    given = {"accelerator_release": "1.22.0", "vllm_models": [entry]}
    # The run asks each of the two in its own way.
    run = playbook("playbooks/models.yml", **given)
    assert run.status == 0, run.text
    address = "http://127.0.0.1:30001/v1/models"
    assert re.findall('"id": "([^"]+)"', host.check_output(f"curl --silent {address}")) == ["gte", "rerank"]
    before = started("gte")
    host.check_output(f"cp -a {DATA}/rerank {DATA}/new && mv {DATA}/rerank {DATA}/old && mv {DATA}/new {DATA}/rerank")
    announced = playbook("playbooks/models.yml", "--check", **given).flat
    assert "! gte (with rerank) is down from stage models on for about" in announced
    run = playbook("playbooks/models.yml", **given)
    assert run.status == 0, run.text
    assert started("gte") != before
    run = playbook("playbooks/models.yml", accelerator_release="1.22.0", vllm_models=[])
    assert run.status == 0, run.text
    assert host.check_output("docker ps --all --quiet --filter name=vllm-gte") == ""
    host.check_output(f"testhost-init device HL-225 1.21.3-57e3f5d; rm -r {DATA}/gte {DATA}/rerank {DATA}/old")
