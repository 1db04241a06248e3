"""Verifies that the folder of a bundle is complete and matches its signature: python3 FILE FOLDER FINGERPRINT.

It uses only the standard library and gpgv, since the machine that serves a bundle runs it too.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SUMS, SIGNATURE, KEY = "SHA256SUMS", "SHA256SUMS.asc", "key.asc"
WORK = ".work"  # files of an unfinished fetch
LINE = re.compile(r"(?P<sum>[0-9a-f]{64})  (?P<path>[^\n]+)")
CHUNK = 1 << 22
LARGEST = {SUMS: 1 << 28, SIGNATURE: 1 << 20, KEY: 1 << 20}  # bytes, so that a sparse file is not read for hours
# What gpgv reports of a key or a signature that apt on the hosts would refuse, although the signature fits.
# KEYEXPIRED is not in the list: gpgv reports it of unused subkeys too.
REFUSED = {
    "EXPKEYSIG": "has expired",
    "EXPSIG": "made a signature that has expired",
    "REVKEYSIG": "was revoked",
}
WEAK = {"1": "MD5", "2": "SHA-1", "3": "RIPEMD-160"}  # by their number in OpenPGP
SKEW_S = 10  # by which apt accepts a time in the future


def verify(folder: str | Path, fingerprint: str) -> list[str]:
    """Return all errors of a bundle, a sentence each; empty if it is complete and matches its signature.

    Args:
        folder: of the bundle.
        fingerprint: of the signing key; it must have been obtained separately from the bundle.
    """
    place = Path(folder)
    missing = [name for name in LARGEST if (place / name).is_symlink() or not (place / name).is_file()]
    if missing:
        return [f"{place}: has no {', '.join(missing)}: it is not a bundle, or fetching it was interrupted"]
    large = [name for name, most in LARGEST.items() if (place / name).stat().st_size > most]
    if large:
        return [f"{place}: {', '.join(large)} is too large: copy the folder again"]
    wrong = signature_problem(place, fingerprint)
    if wrong:
        return [wrong]
    try:
        known = read_sums(place)
    except ValueError as problem:
        return [str(problem)]
    found = files_of(place)
    problems = [f"{place}: {WORK} exists: fetching was interrupted; run it again"] if (place / WORK).exists() else []
    problems += [f"{path}: is missing" for path in known if path not in found]
    problems += [f"{shown(path)}: is extra: the signed list does not have it" for path in found if path not in known]
    odd = {path: kind for path in found if (kind := odd_kind(place / path))}
    problems += [f"{shown(path)}: is {kind}, where a file belongs" for path, kind in odd.items()]
    both = [path for path in known if path in found and path not in odd]
    sums = checksums(place, both)
    return problems + [f"{path}: was changed: its checksum differs" for path in both if sums[path] != known[path]]


def signature_problem(place: Path, fingerprint: str) -> str:
    """Return the error in the signature of the checksums; empty if it is valid."""
    wanted = re.sub(r"[\s:]", "", fingerprint).upper()
    if not re.fullmatch(r"[0-9A-F]{40}", wanted):
        return f"fingerprint {fingerprint!r}: must be the 40 hexadecimal digits that the fetching run has printed"
    with tempfile.TemporaryDirectory() as name:
        keyring = Path(name) / "key.gpg"
        try:
            keyring.write_bytes(dearmoured((place / KEY).read_text(encoding="ascii")))
        except ValueError:
            return f"{place / KEY}: is not an armoured key"
        argv = ["gpgv", "--status-fd", "1", "--keyring", str(keyring), str(place / SIGNATURE), str(place / SUMS)]
        plain = {**os.environ, "LC_ALL": "C"}
        try:
            done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False, env=plain)
        except FileNotFoundError:
            return "gpgv is missing, which verifies the signature: install the package gpgv"
    status = [line.split()[1:] for line in done.stdout.splitlines() if line.startswith("[GNUPG:] ")]
    if wrong := refusal(status, done.stderr):
        return f"{place / KEY}: {wrong}"
    # The last word is the primary key; the signing key may be its subkey.
    signers = [words[-1] for words in status if words[0] == "VALIDSIG"]
    if done.returncode != 0 or not signers:
        return f"{place / SIGNATURE}: is not a signature of {SUMS} by {KEY}: one of the three was changed"
    return "" if signers == [wanted] else f"{place}: is signed by {signers[0]}, not by {wanted}"


def refusal(status: Iterable[Sequence[str]], errors: str) -> str:
    """Return why apt on the hosts would refuse a key or its signature, although it fits; empty if it would not.

    Args:
        status: the words of each status line of gpgv.
        errors: its messages.
    """
    found = {words[0]: words[1:] for words in status}
    for word, reason in REFUSED.items():
        if word in found:
            expired = found.get("KEYEXPIRED", [""])[0]
            when = f" on {day(expired)}" if word == "EXPKEYSIG" and expired.isdigit() else ""
            return f"the key {reason}{when}, so apt on the hosts refuses it: fetch with a valid key"
    # The words of a valid signature: 2 is its time, 7 its digest.
    signed = found.get("VALIDSIG", [""] * 10)
    if signed[7] in WEAK:
        return f"the key signed with {WEAK[signed[7]]}, which apt on the hosts refuses: fetch with a valid key"
    if "in the future" in errors or (signed[2].isdigit() and int(signed[2]) > time.time() + SKEW_S):
        return "the key or its signature is from the future, so the clock of this machine is wrong: set it"
    return ""


def shown(path: str) -> str:
    """Return a path for a message: a name that no key signed may contain line breaks and codes of terminals."""
    return path if path.isprintable() else ascii(path)


def day(seconds: str) -> str:
    """Return the day of a time in seconds since 1970."""
    return time.strftime("%Y-%m-%d", time.gmtime(int(seconds)))


def odd_kind(path: Path) -> str:
    """Return what a path is instead of a file; empty for a file."""
    mode = path.lstat().st_mode
    if stat.S_ISREG(mode):
        return ""
    return "a link" if stat.S_ISLNK(mode) else "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"


def dearmoured(text: str) -> bytes:
    """Return a key in binary.

    Raises:
        ValueError: if the text is not a key.
    """
    found = re.search(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\n(?:[^\n]+: [^\n]*\n)*\n(.*?)\n(?:=....\n)?-----END", text, re.S
    )
    if not found:
        raise ValueError("no armour")
    return base64.b64decode("".join(found[1].split()), validate=True)


def read_sums(place: Path) -> dict[str, str]:
    """Return the checksums of a bundle by path.

    Raises:
        ValueError: for an invalid line, or a path outside the folder.
    """
    found = {}
    for number, line in enumerate((place / SUMS).read_text(encoding="utf-8").splitlines(), 1):
        fits = LINE.fullmatch(line)
        if not fits or {"", ".", ".."} & set(fits["path"].split("/")):
            raise ValueError(f"{place / SUMS}: line {number} is not a checksum of a file of the bundle")
        found[fits["path"]] = fits["sum"]
    return found


def files_of(place: Path) -> list[str]:
    """Return the files of a bundle that its checksums cover, including links, sorted."""
    found = []
    for top, folders, names in os.walk(place):
        links = [one for one in folders if (Path(top) / one).is_symlink()]
        found += [(Path(top) / one).relative_to(place).as_posix() for one in (*names, *links)]
        folders[:] = [one for one in folders if (top, one) != (str(place), WORK)]
    return sorted(one for one in found if one not in (SUMS, SIGNATURE))


def checksums(place: Path, paths: Iterable[str]) -> Mapping[str, str]:
    """Return the SHA-256 of files of a bundle; several are read at once."""
    wanted = list(paths)
    with ThreadPoolExecutor(4) as pool:
        return dict(zip(wanted, pool.map(lambda path: checksum(place / path), wanted), strict=True))


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file; empty if it cannot be read, or is a pipe or a device, which may never end."""
    total = hashlib.sha256()
    try:
        # A file larger than its disk is sparse; reading it would take days.
        if not path.is_file() or path.stat().st_size > shutil.disk_usage(path).total:
            return ""
        with path.open("rb") as handle:
            while part := handle.read(CHUNK):
                total.update(part)
    except OSError:
        return ""
    return total.hexdigest()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    found_problems = verify(*sys.argv[1:])
    print("\n".join(found_problems) or f"{sys.argv[1]}: is complete, and as it was signed")
    sys.exit(1 if found_problems else 0)
