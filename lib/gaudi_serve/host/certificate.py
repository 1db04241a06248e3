"""Self-signed certificates for mutual authentication of two hosts, each of which has a copy of the other's."""

from __future__ import annotations

import re
import time
from datetime import datetime, timezone
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from ..core.atomic_write import write_whole
from ..core.errors import InputError
from ..core.run import read_text, run

BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----\n.*?-----END CERTIFICATE-----\n", re.DOTALL)
DAYS = 3650
# Early enough for runs before the end; a new certificate must also reach the other hosts.
LEFT_DAYS = 90
# Until then, renewal waits for a run with all hosts that need the new certificate.
LAST_DAYS = 30


def read(path: Path) -> dict[str, Any]:
    """Return ``{text, names, until}`` of a file with certificate and key; empty if it is missing or unreadable.

    text: the certificate without its key. names: its addresses and names. until: its end, as Unix time.
    """
    found = BLOCK.search(read_text(path) or "")
    if not found:
        return {}
    told = run(["openssl", "x509", "-in", str(path), "-noout", "-enddate", "-ext", "subjectAltName"])
    end = re.search(r"notAfter=(.+) GMT", told.out)
    if told.status or not end:
        return {}
    until = datetime.strptime(end[1], "%b %d %H:%M:%S %Y").replace(tzinfo=timezone.utc)
    names = re.findall(r"(?:DNS|IP Address):([^,\s]+)", told.out)
    return {"text": found[0], "names": sorted(map(_plain, names)), "until": int(until.timestamp())}


def _plain(name: str) -> str:
    """Return a name in normal form for comparison: openssl writes IPv6 addresses in full."""
    try:
        return str(ip_address(name))
    except ValueError:
        return name.lower()


def problem(found: dict[str, Any], name: str, left_days: float = LEFT_DAYS) -> str:
    """Return why a certificate must be replaced; empty if it is valid for more than ``left_days``."""
    if not found:
        return "there is none"
    if _plain(name) not in found["names"]:
        return f"it is for {', '.join(found['names']) or 'nobody'}"
    days = (found["until"] - time.time()) / 86400
    return f"it ends in {max(0, int(days))} days" if days < left_days else ""


def make(path: Path, name: str) -> None:
    """Write a key and its self-signed certificate to one file that only root can read.

    Args:
        path: the file; its folder must exist.
        name: address or name in the certificate.

    Raises:
        InputError: if openssl fails.
        OSError: if the file cannot be written.
    """
    kind = "IP" if re.fullmatch(r"[0-9.]+|[0-9a-fA-F.]*:[0-9a-fA-F:.]*", name) else "DNS"
    made = run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-keyout", "-", "-out", "-", "-days", str(DAYS), "-subj", "/CN=gaudi-serve"),
            *("-addext", f"subjectAltName={kind}:{name}"),
        ]
    )
    if made.status or not BLOCK.search(made.out) or "PRIVATE KEY" not in made.out:
        raise InputError(f"{path}: openssl has made no certificate: {made.err.strip()[-300:]}")
    write_whole(path, made.out, 0o600)
