"""Passwords of a host's own files do not leave the host."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from gaudi_serve.core.redact import CREDENTIALS, MARK, mark, redacted, restored
from gaudi_serve.host import baseline as found
from gaudi_serve.host import observe_runtime
from gaudi_serve.stages.container_runtime import daemon_json

CANARY = "canary-77%40x"
OWNERS = {
    "proxies": {"http-proxy": f"http://bob:{CANARY}@proxy:3128", "no-proxy": "a@b, c"},
    "registry-mirrors": ["https://u:other@mirror/v2", "https://plain:5000"],
}


def test_a_merged_file_gets_its_passwords_back() -> None:
    text = json.dumps(OWNERS)
    seen = redacted(text)
    assert seen is not None and CANARY not in seen and ":other@" not in seen
    assert len(set(MARK.findall(seen))) == 2
    assert redacted(seen) == seen
    wanted = daemon_json(seen, True, True, "", "host")
    assert json.loads(restored(wanted, [None, text]))["proxies"] == OWNERS["proxies"]
    assert json.loads(restored(wanted, [text]))["registry-mirrors"] == OWNERS["registry-mirrors"]
    with pytest.raises(ValueError, match=f"the password of the mark {mark('other')}"):
        restored(seen, [json.dumps({"proxies": OWNERS["proxies"]})])


@pytest.mark.parametrize("text", ["", None, "{}", '{"a": "http://host:80/x@y"}', '{"mail": "a:b@c"}'])
def test_what_is_no_password_is_left_alone(text: str | None) -> None:
    assert redacted(text) == text
    assert not CREDENTIALS.search(text or "")


def test_neither_facts_nor_records_have_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, records = tmp_path / "daemon.json", tmp_path / "found"
    daemon.write_text(json.dumps(OWNERS), encoding="utf-8")
    for module in (observe_runtime, found):
        monkeypatch.setattr(module, "DAEMON_JSON", str(daemon))
    monkeypatch.setattr(found, "TRACES", {})
    monkeypatch.setattr(found.records, "__defaults__", (records,))
    text = redacted(daemon.read_text(encoding="utf-8"))
    kept = found.keep("container_runtime", {"daemon_json": text, "enabled": True}, folder=records)
    # The record is the host's, and must do without the file.
    assert kept is not None and json.loads(json.loads(kept)["found"]["daemon_json"]) == OWNERS
    found.write_record(records / "container_runtime.json", kept)
    assert CANARY not in json.dumps(found.redacted_records())
    assert text is not None and json.loads(found.with_passwords(text)) == OWNERS
    daemon.write_text("{}", encoding="utf-8")
    assert json.loads(found.with_passwords(text)) == OWNERS
    assert found.redacted_records()["container_runtime"]["found"]["daemon_json"] == text
