"""A Redfish client for one BMC. It uses only the standard library, because it also runs on hosts."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import hmac
import http.client
import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"
TIMEOUT_S = 60.0  # of one request; BMCs are slow
PAUSE_S = 5.0  # between two attempts
LONGEST = 400  # characters of a BMC's message in an error
FINGERPRINT = re.compile(r"(sha256:)?([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}")


class BmcError(Exception):
    """Why a BMC did not carry out a request. The message names its address and contains no secret."""


@dataclass(frozen=True)
class Bmc:
    """The address of a BMC and its credentials.

    address: host or host:port. ca: certificates of authorities as PEM text; empty for the system's. fingerprint:
    SHA-256 of the BMC's own certificate, instead of authorities. wait_s: seconds to wait for a BMC that starts or has
    no free session. pause_s: seconds between two attempts.
    """

    address: str
    user: str
    password: str = field(repr=False)
    ca: str = field(default="", repr=False)
    fingerprint: str = ""
    wait_s: float = 60.0
    timeout_s: float = TIMEOUT_S
    pause_s: float = PAUSE_S

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Bmc:
        """Return the BMC of a module's arguments."""
        texts = {key: str(given.get(key) or "") for key in ("address", "user", "password", "ca", "fingerprint")}
        numbers = {key: float(given[key]) for key in ("wait_s", "timeout_s", "pause_s") if given.get(key) is not None}
        return cls(**texts, **numbers)  # type: ignore[arg-type]  # texts and numbers by their names

    @property
    def place(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self.address.rpartition(":")
        # An IPv6 address without a port also contains colons.
        if not host or not port.isdigit() or (":" in host and not host.endswith("]")):
            return self.address.strip("[]"), 443
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Answer:
    """The response of a BMC: HTTP status, JSON object, headers by lowercase name."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """Return the value for If-Match; empty if the BMC sends none."""
        return self.headers.get("etag") or str(self.body.get("@odata.etag") or "")

    @property
    def reason(self) -> str:
        """Return the BMC's own error message, on one line."""
        error = self.body.get("error")
        error = error if isinstance(error, Mapping) else {}
        told = error.get("@Message.ExtendedInfo") or []
        # Some BMCs send one object instead of a list.
        told = told if isinstance(told, list) else [told]
        texts = [str(one.get("Message") or one.get("MessageId") or "") for one in told if isinstance(one, Mapping)]
        text = " ".join(" ".join(filter(None, texts) or [str(error.get("message") or "")]).split())
        return text[:LONGEST] if text.isprintable() else ascii(text[:LONGEST])

    def tells(self, word: str) -> bool:
        """Return whether the error has a message with this identifier, such as SessionLimitExceeded."""
        return word in json.dumps(self.body.get("error") or {})


class Redfish:
    """A session with a BMC. It is always closed at the end, because a BMC has only a few sessions."""

    def __init__(self, bmc: Bmc, sleep: Callable[[float], None] = time.sleep) -> None:
        """Store the BMC; ``with`` opens the session."""
        self.bmc, self._sleep = bmc, sleep
        self._connection: http.client.HTTPSConnection | None = None
        self._token = self._session = ""
        self._context: ssl.SSLContext | None = None
        # The last requested path.
        self.path = ""

    def __enter__(self) -> Redfish:
        """Open the session."""
        self._context = self._trusted()
        try:
            self._login()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Close the session. Errors here are ignored, because they would hide an earlier error."""
        try:
            if self._session:
                with contextlib.suppress(OSError, http.client.HTTPException, BmcError):
                    self._sent("DELETE", self._session, None, {})
        finally:
            self._token = self._session = ""
            self._close()

    def get(self, path: str) -> Answer:
        """Return a resource.

        Raises:
            BmcError: if it does not exist, or the BMC does not respond.
        """
        return self._asked("GET", path, None, {})

    def patch(self, path: str, body: Mapping[str, Any], etag: str) -> Answer:
        """Change a resource if its ETag is unchanged; a response with status 412 means that it has changed.

        Raises:
            BmcError: if the BMC refuses.
        """
        return self._asked("PATCH", path, body, {"If-Match": etag} if etag else {}, accepts=(412,))

    def delete(self, path: str) -> None:
        """Remove a resource; a missing one is no error.

        Raises:
            BmcError: if the BMC refuses.
        """
        self._asked("DELETE", path, None, {}, accepts=(404,))

    def _asked(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        accepts: tuple[int, ...] = (),
    ) -> Answer:
        self.path = path
        answer = self._patient(method, path, body, headers)
        if answer.status == 401:
            # A restarted BMC does not accept earlier sessions.
            self._login()
            answer = self._patient(method, path, body, headers)
        if answer.status in (301, 302, 307, 308) and method == "GET" and answer.headers.get("location"):
            answer = self._patient(method, _path(answer.headers["location"]), body, headers)
        if answer.status >= 300 and answer.status not in accepts:
            raise BmcError(f"{self._name}: {method} {path}: status {answer.status}: {answer.reason or 'no reason'}")
        return answer

    def _login(self) -> None:
        body = {"UserName": self.bmc.user, "Password": self.bmc.password}
        self._token = self._session = ""
        answer = self._patient("POST", SESSIONS, body, {})
        if answer.status in (401, 403):
            raise BmcError(f"{self._name}: it refuses user {self.bmc.user} or the password; nothing is tried again")
        token = answer.headers.get("x-auth-token", "")
        if answer.status >= 300 or not token:
            raise BmcError(f"{self._name}: no session: status {answer.status}: {answer.reason or 'no reason'}")
        self._token, self._session = token, _path(answer.headers.get("location", ""))

    def _patient(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Answer:
        """Return a response; while the BMC starts or has no free session, the request is repeated."""
        deadline = time.monotonic() + self.bmc.wait_s
        while True:
            problem = ""
            try:
                answer = self._sent(method, path, body, headers)
                if not _later(answer):
                    return answer
                problem = f"status {answer.status}: {answer.reason or 'it is starting'}"
            except ssl.SSLCertVerificationError as found:
                text = f"{self._name}: its certificate is not accepted: {found.verify_message}"
                raise BmcError(f"{text}; set bios_bmc_ca or bios_bmc_fingerprint") from None
            except (OSError, http.client.HTTPException, ValueError) as found:
                problem = str(found) or type(found).__name__
            self._close()
            if time.monotonic() + self.bmc.pause_s > deadline:
                raise BmcError(f"{self._name}: no answer within {self.bmc.wait_s:g} s: {problem}")
            self._sleep(self.bmc.pause_s)

    def _sent(self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]) -> Answer:
        connection = self._connection = self._connection or self._connected()
        given = {"Accept": "application/json", "OData-Version": "4.0", **headers}
        given |= {"X-Auth-Token": self._token} if self._token else {}
        given |= {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body).encode(), given)
        response = connection.getresponse()
        text = response.read()
        found = {name.lower(): value for name, value in response.getheaders()}
        if found.get("connection", "").lower() == "close":
            self._close()
        if found.get("content-encoding") == "gzip" or text[:2] == b"\x1f\x8b":
            text = gzip.decompress(text)
        return Answer(response.status, _object(text), found)

    def _trusted(self) -> ssl.SSLContext:
        """Return the TLS context with the accepted certificates.

        Raises:
            BmcError: if the authorities' certificates cannot be read.
        """
        try:
            context = ssl.create_default_context(cadata=self.bmc.ca or None)
        except (ssl.SSLError, ValueError):
            raise BmcError(f"{self._name}: bios_bmc_ca holds no certificate that can be read") from None
        if self.bmc.fingerprint:
            # _connected compares the certificate itself, which is stricter than a check of its signature.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _connected(self) -> http.client.HTTPSConnection:
        """Return a connection to the BMC after checking its certificate; no request has been sent yet."""
        host, port = self.bmc.place
        connection = http.client.HTTPSConnection(host, port, timeout=self.bmc.timeout_s, context=self._context)
        connection.connect()
        if self.bmc.fingerprint:
            seen = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(seen, plain_fingerprint(self.bmc.fingerprint)):
                connection.close()
                raise BmcError(
                    f"{self._name}: its certificate has the SHA-256 fingerprint {seen}, "
                    "which differs from bios_bmc_fingerprint"
                )
        return connection

    def _close(self) -> None:
        if self._connection:
            self._connection.close()
        self._connection = None

    @property
    def _name(self) -> str:
        return f"BMC {self.bmc.address}"


def plain_fingerprint(text: str) -> str:
    """Return a fingerprint as lowercase digits, without prefix and colons."""
    return text.lower().removeprefix("sha256:").replace(":", "")


def _later(answer: Answer) -> bool:
    """Return whether the same request may succeed soon."""
    return answer.status in (502, 503, 504) or (answer.status >= 400 and answer.tells("SessionLimitExceeded"))


def _path(location: str) -> str:
    """Return the path of a location; some BMCs send a complete URL."""
    return re.sub(r"^https?://[^/]+", "", location)


def _object(text: bytes) -> dict[str, Any]:
    found = json.loads(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("it answers with no JSON object")
    return found
