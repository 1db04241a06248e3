"""Single files over HTTP: source archives and signing keys."""

from __future__ import annotations

import hashlib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path

from ...core.words import short_digest
from ...host.bundle_verify import CHUNK, KEY
from ..items import Item
from .base import Bundle, FetchError, Got, Outcome, again, each, of_kind
from .sources import place_of


def fetch(bundle: Bundle, items: Sequence[Item]) -> Outcome:
    """Download files; a file with a known checksum only once, others to compare them."""
    return each(of_kind(items, "download", "key"), bundle, _got)


def _got(bundle: Bundle, item: Item) -> Got:
    if "://" not in item.origin:
        # A key on the hosts; inside the site, the bundle's own key signs the repository.
        return Got(KEY)
    last = bundle.last(item)
    wanted = item.version.removeprefix("sha256:") if item.version.startswith("sha256:") else ""
    if last and wanted in ("", last.sha256) and item.kind != "key":
        return again(last)
    path = f"downloads/{place_of(item.origin)}"
    stage = bundle.work / path
    stage.parent.mkdir(parents=True, exist_ok=True)
    download(bundle.access.origin(item), stage)
    with stage.open("rb") as handle:
        found = hashlib.file_digest(handle, "sha256").hexdigest()
    if wanted and found != wanted:
        stage.unlink()
        raise FetchError(f"{item.origin}: has the SHA-256 {short_digest(found)} in place of {short_digest(wanted)}")
    if last and last.sha256 == found:
        stage.unlink()
        return again(last)
    (bundle.folder / path).parent.mkdir(parents=True, exist_ok=True)
    stage.replace(bundle.folder / path)
    return Got(path, (bundle.folder / path).stat().st_size, found)


def download(address: str, target: Path, token: str = "") -> None:
    """Download a file, or the rest of an interrupted download.

    Raises:
        FetchError: if the server does not provide it.
    """
    begin = target.stat().st_size if target.exists() else 0
    parts = urllib.parse.urlsplit(address)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
    request = urllib.request.Request(plain, headers={"Range": f"bytes={begin}-"} if begin else {})  # noqa: S310
    if token:
        request.add_unredirected_header("Authorization", f"Bearer {token}")
    if parts.username:
        import base64

        login = urllib.parse.unquote(parts.netloc.rpartition("@")[0]).encode()
        request.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login).decode()}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http or https, as checked
            mode = "ab" if answer.status == HTTPStatus.PARTIAL_CONTENT else "wb"
            with target.open(mode) as handle:
                while part := answer.read(CHUNK):
                    handle.write(part)
            if answer.length:
                raise FetchError(f"{plain}: the connection broke; the next run continues there")
    except urllib.error.HTTPError as problem:
        if problem.code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE and begin:
            return  # the file was already complete; its checksum verifies it
        raise FetchError(f"{plain}: status {problem.code}") from None
    except OSError as problem:
        raise FetchError(f"{plain}: {getattr(problem, 'reason', problem)}") from None
