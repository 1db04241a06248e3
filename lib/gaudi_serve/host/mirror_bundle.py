"""Whether a bundle can be served from its folder: the path, the packages, and the permissions."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

# The path is written into the settings of nginx and apt.
PLACE = re.compile(r"/[A-Za-z0-9._+-]+(/[A-Za-z0-9._+-]+)*/?")
# The service that serves the bundle has private folders in place of these.
PRIVATE = ("/tmp/", "/var/tmp/")  # noqa: S108 - a name, nothing is written there
READ, ENTER = 0o004, 0o005


def place_problem(folder: str) -> str:
    """Return why no bundle can be served from a folder, whatever it contains; empty if one can."""
    if not PLACE.fullmatch(folder):
        return (
            f"bundle {folder!r}: must be the absolute path of its folder on this host, of letters, digits and . _ + -, "
            "such as /srv/bundle"
        )
    if f"{folder}/".startswith(PRIVATE):
        return f"bundle {folder!r}: must not be below {folder[: folder.index('tmp') + 3]}, which services do not see"
    return ""


def serve_problems(folder: str, system: str) -> list[str]:
    """Return why a complete bundle cannot be served from its folder; empty if it can.

    Args:
        folder: of the bundle.
        system: the package repository that this host installs from, such as debian-12-amd64; empty for none.
    """
    place = Path(folder).resolve()
    problems = []
    if system and not (place / "apt" / system / "InRelease").is_file():
        known = sorted(path.parent.name for path in (place / "apt").glob("*/InRelease"))
        problems.append(
            f"has no packages of this host ({system}), which has no nginx, docker-registry or skopeo yet; it has "
            f"those of {', '.join(known) or 'no system'}: make it with this host in the inventory"
        )
    closed = next(_closed(place), None)
    if closed is not None:
        problems.append(
            f"{closed} cannot be read by every user of this host, as the programs that serve it are: chmod a+rX it, "
            f"and chmod -R a+rX {place}"
        )
    return problems


def _closed(place: Path) -> Iterator[Path]:
    """Yield the folders and files that only some users can read."""
    yield from (one for one in reversed(place.parents) if not one.stat().st_mode & 0o001)
    for path in (place, *sorted(place.rglob("*"))):
        wanted = ENTER if path.is_dir() else READ
        if path.stat().st_mode & wanted != wanted:
            yield path
