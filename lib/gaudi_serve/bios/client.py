"""A thin Redfish client for one BMC: one session, one request at a time. Standard library only: it travels to hosts."""

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
TIMEOUT_S = 60.0  # of one request: BMCs are slow
PAUSE_S = 5.0  # between two tries
LONGEST = 400  # characters of a BMC's own message that an error shows
FINGERPRINT = re.compile(r"(sha256:)?([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}")


class BmcError(Exception):
    """Why a BMC did not do what was asked. The message names its address, and holds no secret."""


@dataclass(frozen=True)
class Bmc:
    """Where a BMC is, and how it is reached.

    address: host or host:port. ca: certificates of authorities as PEM text; empty takes the system's. fingerprint:
    SHA-256 of the BMC's own certificate, in place of authorities. wait_s: seconds in which a BMC that starts, or that
    has all its sessions in use, must answer. pause_s: seconds between two tries.
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
        """Read it from a module's arguments."""
        texts = {key: str(given.get(key) or "") for key in ("address", "user", "password", "ca", "fingerprint")}
        numbers = {key: float(given[key]) for key in ("wait_s", "timeout_s", "pause_s") if given.get(key) is not None}
        return cls(**texts, **numbers)  # type: ignore[arg-type]  # texts and numbers by their names

    @property
    def place(self) -> tuple[str, int]:
        """Return host and port."""
        host, _, port = self.address.rpartition(":")
        # An IPv6 address without a port has colons of its own.
        if not host or not port.isdigit() or (":" in host and not host.endswith("]")):
            return self.address.strip("[]"), 443
        return host.strip("[]"), int(port)


@dataclass(frozen=True)
class Answer:
    """What a BMC answered: HTTP status, JSON object, headers by their lowercase names."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]

    @property
    def etag(self) -> str:
        """Return what If-Match must say of this resource; empty where the BMC has none."""
        return self.headers.get("etag") or str(self.body.get("@odata.etag") or "")

    @property
    def reason(self) -> str:
        """Return the BMC's own words for an error, on one line."""
        error = self.body.get("error")
        error = error if isinstance(error, Mapping) else {}
        told = error.get("@Message.ExtendedInfo") or []
        # Some BMCs give one object in place of a list of them.
        told = told if isinstance(told, list) else [told]
        texts = [str(one.get("Message") or one.get("MessageId") or "") for one in told if isinstance(one, Mapping)]
        text = " ".join(" ".join(filter(None, texts) or [str(error.get("message") or "")]).split())
        return text[:LONGEST] if text.isprintable() else ascii(text[:LONGEST])

    def tells(self, word: str) -> bool:
        """Tell whether the error has a message of this identifier, such as SessionLimitExceeded."""
        return word in json.dumps(self.body.get("error") or {})


class Redfish:
    """A session with a BMC. It is closed at the end in any case: a BMC holds few of them."""

    def __init__(self, bmc: Bmc, sleep: Callable[[float], None] = time.sleep) -> None:
        """Take where the BMC is; nothing is sent before ``with``."""
        self.bmc, self._sleep = bmc, sleep
        self._connection: http.client.HTTPSConnection | None = None
        self._token = self._session = ""
        self._context: ssl.SSLContext | None = None
        # The last one that was asked.
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
        """Close the session. What fails here would hide the reason of what went before."""
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
            BmcError: where there is none, or the BMC does not answer.
        """
        return self._asked("GET", path, None, {})

    def patch(self, path: str, body: Mapping[str, Any], etag: str) -> Answer:
        """Change a resource, as it was when its ETag was read; status 412 says that it has changed since.

        Raises:
            BmcError: where the BMC refuses.
        """
        return self._asked("PATCH", path, body, {"If-Match": etag} if etag else {}, accepts=(412,))

    def delete(self, path: str) -> None:
        """Remove a resource.

        Raises:
            BmcError: where the BMC refuses.
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
            # A BMC that has started again knows no session of before.
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
        """Return an answer; a BMC that starts, or has no session to spare, is waited for."""
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
        """Return which certificates are accepted.

        Raises:
            BmcError: where those of the authorities cannot be read.
        """
        try:
            context = ssl.create_default_context(cadata=self.bmc.ca or None)
        except (ssl.SSLError, ValueError):
            raise BmcError(f"{self._name}: bios_bmc_ca holds no certificate that can be read") from None
        if self.bmc.fingerprint:
            # The certificate itself is compared, which is more than who has signed it.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _connected(self) -> http.client.HTTPSConnection:
        """Return a connection to the BMC whose certificate is the expected one; nothing has been sent through it."""
        host, port = self.bmc.place
        connection = http.client.HTTPSConnection(host, port, timeout=self.bmc.timeout_s, context=self._context)
        connection.connect()
        if self.bmc.fingerprint:
            seen = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(seen, plain_fingerprint(self.bmc.fingerprint)):
                connection.close()
                raise BmcError(
                    f"{self._name}: its certificate has the SHA-256 fingerprint {seen}, "
                    "which bios_bmc_fingerprint is not"
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
    """Return a fingerprint as lowercase digits, without a prefix and colons."""
    return text.lower().removeprefix("sha256:").replace(":", "")


def _later(answer: Answer) -> bool:
    """Tell whether the same request may have another answer soon."""
    return answer.status in (502, 503, 504) or (answer.status >= 400 and answer.tells("SessionLimitExceeded"))


def _path(location: str) -> str:
    """Return the path of a location, which some BMCs give with their address."""
    return re.sub(r"^https?://[^/]+", "", location)


def _object(text: bytes) -> dict[str, Any]:
    found = json.loads(text) if text.strip() else {}
    if not isinstance(found, dict):
        raise ValueError("it answers with no JSON object")
    return found
