"""The address that a server listens on: one of its host's, or nothing is changed."""

from __future__ import annotations

import socket
from typing import Any

import pytest
from gaudi_serve.catalog.merge import model_hosts
from gaudi_serve.core.run import Result
from gaudi_serve.host import observe_host
from gaudi_serve.inventory.facts import checked_host
from helpers.plans import gaudi_host, model, planned

OWN = ["10.0.0.1", "127.0.0.1", "::1", "fe80::1"]
NAMES = {"here": ["10.0.0.1"], "localhost": ["127.0.0.1"], "there": ["10.0.0.2"], "gone": []}


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.0.0.9", "0.0.0.0", "::", "10.0.0.1", "fe80:0::1", "here", "localhost"]
)
def test_own_addresses_and_names_of_them_pass(host: str) -> None:
    assert planned(model(host=host), addresses=OWN, names=NAMES)["errors"] == []


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("10.0.0.256", "is not an address; those of this host are 0.0.0.0, 10.0.0.1, 127.0.0.1, ::1, fe80::1"),
        (
            "10.0.0.2",
            "is not an address of this host; those of this host are 0.0.0.0, 10.0.0.1, 127.0.0.1, ::1, fe80::1",
        ),
        ("10:0", "is not an address; those of this host are 0.0.0.0, 10.0.0.1, 127.0.0.1, ::1, fe80::1"),
        ("there", "is 10.0.0.2 here; it must be an address of this host: those of this host are 0.0.0.0, 10.0.0.1"),
        (
            "gone",
            "is not a name that this host can resolve; it must be an address of this host: those of this host are",
        ),
    ],
)
def test_other_addresses_are_refused_before_a_server_is_stopped(host: str, allowed: str) -> None:
    (error,) = planned(model(host=host), addresses=OWN, names=NAMES)["errors"]
    assert error["message"].startswith(f"gaudi01: model qwq: host {host!r}: {allowed}")


def test_facts_of_an_older_version_report_no_more_than_they_know() -> None:
    host, problems = checked_host(gaudi_host())
    assert (problems, host["addresses"], host["names"]) == ([], None, {})
    assert planned(model(host="10.0.0.2"))["errors"] == planned(model(host="there"))["errors"] == []
    (error,) = planned(model(host="10.0.0.256"))["errors"]
    assert (
        error["message"] == "gaudi01: model qwq: host '10.0.0.256': is not an address; it must be one such as 127.0.0.1"
    )


def test_what_a_host_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    models = [model(host="b"), model(host="10.0.0.1"), model(host="::1"), model(host=7), {"model": "entry"}, "x"]
    assert model_hosts(models, {"entry": {"host": "c"}}, {"host": "a"}) == ["b", "c"]
    assert model_hosts([model()], {}, {"host": "a"}) == ["a"]
    listed = Result(0, '[{"addr_info": [{"local": "10.0.0.1"}, {"local": "::1"}]}, {}]', "")
    monkeypatch.setattr(observe_host, "run", lambda _: listed)
    monkeypatch.setattr(observe_host, "read_text", lambda _: "0\n")
    assert observe_host.addresses() == ["10.0.0.1", "::1"]
    # Addresses that move between hosts, as those of keepalived, may be listened on beforehand.
    monkeypatch.setattr(observe_host, "read_text", lambda _: "1\n")
    assert observe_host.addresses() is None

    def lookup(name: str, *_: Any, **__: Any) -> list[Any]:
        if name == "gone":
            raise socket.gaierror
        return [(2, 1, 6, "", ("10.0.0.1", 0))]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    assert observe_host.resolved(["here", "gone"]) == {"here": ["10.0.0.1"], "gone": []}
