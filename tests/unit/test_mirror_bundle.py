"""Whether a bundle can be served from where it lies."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from gaudi_serve.host.mirror_bundle import place_problem, serve_problems

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("place", ["/srv/bundle", "/srv/bundle/", "/data/2026-11+1/b_1.x", "/tmpfs/bundle"])
def test_a_plain_absolute_path_is_served_from(place: str) -> None:
    assert place_problem(place) == ""


@pytest.mark.parametrize(
    "place", ["", "/", "bundle", "~/bundle", "/srv/my bundle", '/srv/"x', "/srv/a;b", "/srv/$x", "/srv//b", "/srv/b\n"]
)
def test_what_settings_cannot_hold_is_refused(place: str) -> None:
    assert place_problem(place).startswith(f"bundle {place!r}: must be the absolute path")


@pytest.mark.parametrize("place", ["/tmp/bundle", "/var/tmp/bundle", "/tmp"])
def test_folders_that_services_do_not_see_are_refused(place: str) -> None:
    assert "which services do not see" in place_problem(place)


def test_the_first_thing_that_only_some_users_can_read_is_named(tmp_path: Path) -> None:
    place = tmp_path / "bundle"
    (place / "apt/debian-12-amd64").mkdir(parents=True)
    file = place / "apt/debian-12-amd64/InRelease"
    file.write_text("x")
    file.chmod(0o600)
    assert any("cannot be read by every user" in one for one in serve_problems(str(place), ""))
    (said, *_) = serve_problems(str(place), "ubuntu-24.04-arm64")
    assert "has no packages of this host (ubuntu-24.04-arm64)" in said and "those of debian-12-amd64:" in said
    assert not any("has no packages" in one for one in serve_problems(str(place), "debian-12-amd64"))


@pytest.mark.parametrize(
    ("times", "stale"),
    [
        ({}, False),
        ({"/run/gaudi-mirror/nginx.pid": None}, True),
        ({"/run/gaudi-mirror-registry": 4.0}, True),
        ({"/etc/gaudi-mirror-server/host.pem": 11.0}, True),
        ({"/etc/systemd/system/gaudi-mirror.service": 20.5}, True),
    ],
)
def test_services_are_restarted_by_what_they_have_read_not_by_what_a_run_has_written(
    times: dict[str, float | None], stale: bool
) -> None:
    loader = DataLoader()
    known = loader.load_from_file(str(ROOT / "roles/site_mirror/vars/main.yml"), trusted_as_template=True)
    started = dict.fromkeys(known["__site_mirror_started"], 10.0)
    folder = known["__site_mirror_folder"]
    files = [one["path"].replace("{{ __site_mirror_folder }}", folder) for one in known["__site_mirror_configuration"]]
    known["__site_mirror_configuration"] = [{"path": path} for path in files]
    seen = {**dict.fromkeys([*files, f"{folder}/host.pem"], 5.0), **started, **times}
    known["__site_mirror_times"] = {
        "results": [
            {"item": path, "stat": {"exists": when is not None, **({} if when is None else {"mtime": when})}}
            for path, when in seen.items()
        ]
    }
    assert Templar(loader=loader, variables=known).template(known["__site_mirror_stale"]) is stale
