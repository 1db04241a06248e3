"""The signing key of a bundle, and signatures with it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...host.bundle_verify import KEY
from .base import FetchError
from .settings import Settings

OWNER = "gaudi-serve bundle"
RSA, DSA = "1", "17"  # their numbers in OpenPGP
LEAST = 2048  # bits of an RSA key that apt accepts
# SHA-1 may be the default of the user's gpg, and no apt accepts it.
DIGEST = ("--digest-algo", "SHA512")


class Signer:
    """A key in the user's keyring, or the toolkit's own key in a separate folder."""

    def __init__(self, settings: Settings) -> None:
        self.home = None if settings.signing_key else settings.key_dir
        self.key = settings.signing_key or OWNER

    def problem(self) -> str:
        """Return what is wrong with the user's key; empty if it is valid."""
        if self.home:
            return ""
        if not self.fingerprint:
            return f"bundle_signing_key {self.key}: this user has no such secret key; see gpg --list-secret-keys"
        keys = [line.split(":") for line in self._gpg("--list-keys", "--with-colons", self.key).stdout.splitlines()]
        # An upper-case S: the key or one of its subkeys can sign, and is neither expired nor revoked.
        if not any(line[0] == "pub" and "S" in line[11] for line in keys):
            return f"bundle_signing_key {self.key}: cannot sign: it has expired, was revoked, or is for other uses"
        if any(line[0] in ("pub", "sub") and "s" in line[11] and weak(line[3], int(line[2])) for line in keys):
            return f"bundle_signing_key {self.key}: apt may refuse it: use ed25519, or RSA with {LEAST} bits"
        return ""

    @property
    def fingerprint(self) -> str:
        """Return the fingerprint of the primary key; empty without a key."""
        done = self._gpg("--list-secret-keys", "--with-colons", self.key)
        lines = [line.split(":") for line in done.stdout.splitlines()]
        return next((line[9] for line in lines if line[0] == "fpr"), "") if done.returncode == 0 else ""

    @contextmanager
    def ready(self, make: bool = True) -> Iterator[Signer]:
        """Create the toolkit's own key if it is missing; at the end, its gpg-agent is stopped.

        Args:
            make: whether to create a missing key.
        """
        try:
            if make and self.home and not self.fingerprint:
                self.home.mkdir(parents=True, exist_ok=True, mode=0o700)
                self.home.chmod(0o700)
                self._done("--passphrase", "", "--quick-generate-key", OWNER, "ed25519", "sign", "never")
            yield self
        finally:
            if self.home:
                with suppress(FileNotFoundError):
                    argv = ["gpgconf", "--homedir", str(self.home), "--kill", "gpg-agent"]
                    subprocess.run(argv, capture_output=True, check=False)

    def export(self, path: Path) -> None:
        """Write the armoured public key."""
        path.write_text(self._done("--armor", "--export", "--export-options", "export-minimal", self.key), "ascii")

    def detached(self, source: Path, target: Path) -> None:
        """Write an armoured signature of a file."""
        self._signed("--detach-sign", source, target)

    def clear(self, source: Path, target: Path) -> None:
        """Write a text with its signature around it."""
        self._signed("--clearsign", source, target)

    def _signed(self, how: str, source: Path, target: Path) -> None:
        target.unlink(missing_ok=True)
        self._done(*DIGEST, "--local-user", self.key, "--armor", "--output", str(target), how, str(source))

    def _done(self, *words: str) -> str:
        done = self._gpg(*words)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            raise FetchError(f"gpg: {lines[-1] if lines else done.returncode}")
        return done.stdout

    def _gpg(self, *words: str) -> subprocess.CompletedProcess[str]:
        home = ["--homedir", str(self.home)] if self.home else []
        argv = ["gpg", *home, "--batch", "--no-tty", "--yes", "--quiet", *words]
        return subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env={**os.environ, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            check=False,
        )


def weak(algorithm: str, bits: int) -> bool:
    """Return whether apt on some release refuses keys of an algorithm, by its number in OpenPGP."""
    return algorithm == DSA or (algorithm == RSA and bits < LEAST)


def fingerprint_of(folder: Path) -> str:
    """Return the fingerprint of the key inside a bundle, which is not trusted; empty without a key."""
    argv = ["gpg", "--batch", "--no-tty", "--with-colons", "--show-keys", str(folder / KEY)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return next((line.split(":")[9] for line in done.stdout.splitlines() if line.startswith("fpr:")), "")
