"""The changes of a configuration file, for people: key, old value, new value."""

from __future__ import annotations

import pytest
from gaudi_serve.core.text_changes import text_changes

BEFORE = """defaults
    mode http
    timeout connect 5s
    timeout client 1h
    timeout server 1h
backend qwq
    balance leastconn
    server g1 10.0.0.1:30001 check
frontend main
    bind :8000
    http-request deny if { path /metrics }
    http-request set-header X-A 1
"""


@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ("balance leastconn", "balance roundrobin", ["backend qwq: balance: leastconn -> roundrobin"]),
        ("bind :8000", "bind :8443 ssl crt /x.pem", ["frontend main: bind: :8000 -> :8443 ssl crt /x.pem"]),
        ("    timeout connect 5s\n", "", ["defaults: - timeout connect 5s"]),
        ("client 1h", "client 2h", ["defaults: timeout client: 1h -> 2h"]),
        # One setting is removed, and another one changes.
        (
            "    timeout client 1h\n    timeout server 1h",
            "    timeout server 2h",
            ["defaults: - timeout client 1h", "defaults: timeout server: 1h -> 2h"],
        ),
        (
            "deny if { path /metrics }",
            "track-sc0 src",
            [
                "frontend main: - http-request deny if { path /metrics }",
                "frontend main: + http-request track-sc0 src",
            ],
        ),
        # Servers are reported elsewhere, also those with another name.
        ("server g1 10.0.0.1:30001", "server h1 10.0.0.9:30001", []),
        ("server g1 10.0.0.1:30001 check", "server g1 10.0.0.1:30001 check disabled", []),
    ],
)
def test_a_change_is_shown_with_its_own_key(old: str, new: str, lines: list[str]) -> None:
    assert text_changes(BEFORE, BEFORE.replace(old, new), left_out=("server ",)) == lines


def test_no_more_lines_than_a_message_holds() -> None:
    many = "".join(f"    option {number}\n" for number in range(12))
    assert text_changes(BEFORE, f"{BEFORE}{many}")[-1] == "and 4 more"


def test_settings_without_a_common_word_do_not_replace_each_other() -> None:
    before, after = "backend b\n    balance leastconn\n", "backend b\n    maxconn 5\n"
    assert text_changes(before, after) == ["backend b: - balance leastconn", "backend b: + maxconn 5"]
