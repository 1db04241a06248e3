"""Records of what was found: none is lost to another writer, none is written over because it cannot be read."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from gaudi_serve.host.baseline import alone, keep, records, write_record
from helpers.plans import model, planned


def test_a_record_that_cannot_be_read_is_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "host_tuning.json").write_text("{cut")
    with pytest.raises(ValueError, match="cannot be read, so the state before the first change is not known"):
        keep("host_tuning", {"a": 1}, folder=tmp_path)


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    def write(name: str) -> None:
        with alone(tmp_path):
            text = keep("vllm_image", None, brought={"images": {name: "x"}}, folder=tmp_path)
            time.sleep(0.05)
            if text:
                write_record(tmp_path / "vllm_image.json", text)

    writers = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert set(records(tmp_path)["vllm_image"]["brought"]["images"]) == set("abcd")
    assert json.loads((tmp_path / "vllm_image.json").read_text())


def test_what_gives_a_server_more_than_it_seems_is_warned_of() -> None:
    mounts = [{"source": "/var/run/docker.sock", "target": "/s"}]
    plan = planned(model(mounts=mounts, env={"LD_PRELOAD": "/x.so", "PATH": "/x"}, port=80))
    assert plan["errors"] == []
    assert [text for text in plan["warnings"] if "mounts" in text or "env sets" in text or "port 80" in text] == [
        "gaudi01: model qwq: mounts /var/run/docker.sock: anyone who breaks into the server is then root on the host",
        "gaudi01: model qwq: env sets LD_PRELOAD, in place of the image's own",
        "gaudi01: model qwq: env sets PATH, in place of the image's own",
        "gaudi01: model qwq: port 80 is below 1024: the server gets NET_BIND_SERVICE for it",
    ]
