"""A Redfish client for one BMC. It uses only the standard library, because it also runs on hosts."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.client
import json
import math
import re
import ssl
import time
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from ..core.hide import hidden

ROOT = "/redfish/v1/"
SESSIONS = "/redfish/v1/SessionService/Sessions"
TIMEOUT_S = 60.0  # without a byte; BMCs are slow
LIMIT_S = 300.0  # of one request in all; a registry can have megabytes
PAUSE_S = 5.0  # between two attempts
LONGEST_PAUSE_S = 120.0  # that a BMC can ask for
CLOSING_S = 30.0  # for the end of a session
LONGEST = 400  # characters of a BMC's message in an error
MOST = 2**26  # bytes of an answer
SAFE = ("GET", "DELETE")
# Identifiers of messages on a missing free session; the last one is Dell's.
NO_SESSION = ("SessionLimitExceeded", "RAC0218")
LATER = (429, 502, 503, 504)
ONCE = "the password is not sent again, because a BMC locks its user after a few wrong ones"
TEXTS = ("address", "user", "password", "ca", "fingerprint", "serial")
NUMBERS = ("wait_s", "timeout_s", "limit_s", "pause_s")
FINGERPRINT = re.compile(r"(sha256:)?([0-9A-Fa-f]{2}:?){31}[0-9A-Fa-f]{2}")


class BmcError(Exception):
    """Why a BMC did not carry out a request. The message names its address and contains no secret."""


class LostAnswer(BmcError):
    """A BMC got a request that cannot be repeated, and nobody knows what it did with it."""


@dataclass(frozen=True)
class Bmc:
    """The address of a BMC and its credentials.

    address: host or host:port. ca: certificates of authorities as PEM text; empty for the system's. fingerprint:
    SHA-256 of the BMC's own certificate, instead of authorities. serial: serial number or service tag of the system,
    where the BMC has several. wait_s: seconds to wait for a BMC that starts or has no free session. timeout_s: longest
    silence of the BMC in seconds. limit_s: longest time of one request in seconds. pause_s: seconds between two
    attempts.
    """

    address: str
    user: str
    password: str = field(repr=False)
    ca: str = field(default="", repr=False)
    fingerprint: str = ""
    serial: str = ""
    wait_s: float = 60.0
    timeout_s: float = TIMEOUT_S
    limit_s: float = LIMIT_S
    pause_s: float = PAUSE_S

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Bmc:
        """Return the BMC of a module's arguments."""
        texts = {key: str(given.get(key) or "") for key in TEXTS}
        numbers = {key: float(given[key]) for key in NUMBERS if given.get(key) is not None}
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
    """The response of a BMC: HTTP status, JSON object, headers by lowercase name.

    An answer whose text is no JSON object has an empty ``body``, and ``is_json`` is False: the status still counts.
    """

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str]
    is_json: bool = True

    @property
    def etag(self) -> str:
        """Return the value for If-Match; empty if the BMC sends none."""
        return self.headers.get("etag") or str(self.body.get("@odata.etag") or "")

    @property
    def reason(self) -> str:
        """Return the BMC's own error message; it can contain what was sent, also a password."""
        error = self.body.get("error")
        error = error if isinstance(error, Mapping) else {}
        texts = messages_of(error.get("@Message.ExtendedInfo"))
        message = error.get("message") or ""
        # Older firmware of Dell sends a text with its language.
        message = message.get("value") if isinstance(message, Mapping) else message
        return " ".join(texts or [str(message)])

    @property
    def retry_after_s(self) -> float:
        """Return the seconds after which the BMC wants the next request; 0 if it names none."""
        text = self.headers.get("retry-after", "").strip()
        if text.isdecimal():
            return float(text[:9])
        with contextlib.suppress(TypeError, ValueError):
            return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
        return 0.0

    def tells(self, word: str) -> bool:
        """Return whether the error has a message with this identifier, such as SessionLimitExceeded."""
        return word in json.dumps(self.body.get("error") or {})


def messages_of(found: Any) -> list[str]:
    """Return the texts of Redfish messages. Some BMCs send one object in place of a list, or only an identifier."""
    found = found if isinstance(found, list) else [found]
    texts = []
    for one in found:
        if not isinstance(one, Mapping):
            continue
        args = one.get("MessageArgs")
        named = f" ({', '.join(map(str, args))})" if args and isinstance(args, list) else ""
        text = str(one.get("Message") or "") or (f"{one['MessageId']}{named}" if one.get("MessageId") else "")
        texts += [text] if text else []
    return texts


class Redfish:
    """A session with a BMC. It is always closed at the end, because a BMC has only a few sessions.

    A BMC without sessions gets the login with each request (basic authentication).
    """

    def __init__(self, bmc: Bmc, sleep: Callable[[float], None] = time.sleep) -> None:
        """Store the BMC; ``with`` opens the session."""
        self.bmc, self._sleep = bmc, sleep
        self._connection: _Connection | None = None
        self._session = ""
        # The header of the login, and whether the BMC has accepted it: only then it may be sent again.
        self._login_header: dict[str, str] = {}
        self._accepted = False
        self._secrets = [bmc.password]
        self._context: ssl.SSLContext | None = None
        # The last requested path.
        self.path = ""
        # Paths of tasks and jobs that have ended: they never run again.
        self.ended: set[str] = set()

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
                with contextlib.suppress(BmcError):
                    self._patient("DELETE", self._session, None, {}, wait_s=min(self.bmc.wait_s, CLOSING_S))
        finally:
            self._session, self._login_header = "", {}
            self._close()

    def told(self, text: Any) -> str:
        """Return a text of the BMC for a message: one line, short, and without the secrets of this session."""
        line = " ".join(hidden(str(text), self._secrets).split())
        return (line if line.isprintable() else ascii(line))[:LONGEST]

    def error(self, text: str) -> BmcError:
        """Return the error with the BMC's address and no secret."""
        return BmcError(hidden(f"{self._name}: {text}", self._secrets))

    def get(self, path: str) -> Answer:
        """Return a resource.

        Raises:
            BmcError: if it does not exist, or the BMC does not respond.
        """
        return self._asked("GET", path, None, {})

    def find(self, path: str) -> Answer | None:
        """Return a resource; None if the BMC does not have it.

        Raises:
            BmcError: if the BMC does not respond.
        """
        answer = self._asked("GET", path, None, {}, accepts=(400, 403, 404, 405, 410, 501))
        return answer if answer.status < 300 else None

    def patch(self, path: str, body: Mapping[str, Any], etag: str) -> Answer:
        """Change a resource if its ETag is unchanged; a response with status 412 means that it has changed.

        Raises:
            LostAnswer: if the BMC got the request, and its response did not arrive: it may have made the change.
            BmcError: if the BMC refuses.
        """
        answer = self._asked("PATCH", path, body, {"If-Match": etag} if etag else {}, accepts=(412, 428))
        if answer.status == 428:
            # It wants an ETag, and has shown none: this one means any version.
            answer = self._asked("PATCH", path, body, {"If-Match": "*"}, accepts=(412,))
        return answer

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
        # Some BMCs send complete addresses as links.
        self.path = path = _path(path)
        answer = self._patient(method, path, body, headers)
        if answer.status == 401 and self._accepted and self._session:
            # A restarted BMC does not accept earlier sessions. It has accepted the password before.
            self._login()
            answer = self._patient(method, path, body, headers)
            if answer.status == 401:
                # It accepts the login, but not its session: another login would be refused too.
                self._accepted = False
        if answer.status in (301, 302, 307, 308) and method == "GET" and answer.headers.get("location"):
            answer = self._patient(method, _path(answer.headers["location"]), body, headers)
        if answer.status == 401 and not self._session:
            raise self._refused_login()
        if answer.status >= 300 and answer.status not in accepts:
            reason = self.told(answer.reason) or "no reason"
            raise self.error(f"{method} {path}: status {answer.status}: {reason}")
        self._accepted = self._accepted or path != ROOT
        return answer

    def _login(self) -> None:
        """Open a session, or choose basic authentication.

        The password is sent once: a BMC can lock its user after a few wrong ones. Without an answer nobody knows
        whether the BMC counted it, so only the statement that no session is free allows to send it again.
        """
        self._login_header, self._accepted, self._session = {}, False, ""
        # This resource needs no login: until it answers, nobody gets the password.
        root = self._patient("GET", ROOT, None, {})
        path = _sessions_of(root.body) if root.status < 300 else SESSIONS
        if not path:
            self._basic()
            return
        answer = self._posted(path)
        if answer.status in (404, 405, 501):
            self._basic()
            return
        if answer.status in (401, 403):
            raise self._refused_login()
        token = answer.headers.get("x-auth-token", "")
        if answer.status >= 300 or not token:
            reason = self.told(answer.reason) or "no reason"
            raise self.error(f"no session: status {answer.status}: {reason}; {ONCE}")
        self._secrets.append(token)
        self._login_header, self._accepted = {"X-Auth-Token": token}, True
        self._session = _path(answer.headers.get("location") or str(answer.body.get("@odata.id") or ""))

    def _posted(self, path: str) -> Answer:
        """Return the response to the login. It is sent again only if the BMC has no free session."""
        body = {"UserName": self.bmc.user, "Password": self.bmc.password}
        deadline = time.monotonic() + self.bmc.wait_s
        while True:
            try:
                self._close()
                answer = self._sent("POST", path, body, {}, time.monotonic() + self.bmc.limit_s)
            except (OSError, http.client.HTTPException) as problem:
                self._close()
                raise self.error(f"the login got no answer ({self.told(_text(problem))}); {ONCE}") from None
            if answer.status < 400 or not any(map(answer.tells, NO_SESSION)):
                return answer
            if time.monotonic() + self.bmc.pause_s > deadline:
                reason = f"status {answer.status}: {self.told(answer.reason)}"
                raise self.error(f"no session is free within {self.bmc.wait_s:g} s: {reason}")
            self._sleep(self.bmc.pause_s)

    def _basic(self) -> None:
        """Send the login with each request; the next one shows whether the BMC accepts it."""
        login = base64.b64encode(f"{self.bmc.user}:{self.bmc.password}".encode()).decode()
        self._secrets.append(login)
        self._login_header = {"Authorization": f"Basic {login}"}

    def _refused_login(self) -> BmcError:
        return self.error(f"it refuses user {self.bmc.user} or the password; nothing is tried again")

    def _patient(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        headers: Mapping[str, str],
        wait_s: float | None = None,
    ) -> Answer:
        """Return a response. A request is repeated while the BMC starts or is busy, if a repetition is safe.

        Safe are GET and DELETE, and any request that the BMC did not get or has refused for now. A request with a
        login that the BMC has not accepted yet is never repeated.
        """
        wait_s = self.bmc.wait_s if wait_s is None else wait_s
        deadline = time.monotonic() + wait_s
        while True:
            if method not in SAFE:
                # The BMC may be about to close an older connection, and nobody would know whether it got the request.
                self._close()
            answer, problem, pause = self._tried(method, path, body, headers)
            if answer:
                return answer
            self._close()
            left = deadline - time.monotonic()
            if left < self.bmc.pause_s:
                raise self.error(f"no answer within {wait_s:g} s: {problem}")
            self._sleep(min(max(pause, self.bmc.pause_s), left))

    def _tried(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[Answer | None, str, float]:
        """Return the response to one attempt; or None, why another one may succeed, and after how many seconds."""
        proven = self._accepted or not self._login_header or path == ROOT
        try:
            answer = self._sent(method, path, body, headers, time.monotonic() + self.bmc.limit_s)
        except ssl.SSLCertVerificationError as found:
            text = f"its certificate is not accepted: {found.verify_message}"
            raise self.error(f"{text}; set bios_bmc_ca or bios_bmc_fingerprint") from None
        except _NotSent as found:
            return None, self.told(found), 0.0
        except (OSError, http.client.HTTPException) as found:
            problem = self.told(_text(found))
            if method not in SAFE:
                raise LostAnswer(str(self.error(f"no answer to {method} {path}: {problem}"))) from None
            if not proven:
                raise self.error(f"the login got no answer ({problem}); {ONCE}") from None
            return None, problem, 0.0
        if answer.status < 300 and method == "GET" and not answer.is_json:
            problem = f"GET {path}: it answers with no JSON object"
            if not proven:
                raise self.error(problem)
            return None, problem, 0.0
        if answer.status not in LATER or not _safe(method, answer.status) or not proven:
            return answer, "", 0.0
        problem = f"status {answer.status}: {self.told(answer.reason) or 'it is starting or busy'}"
        return None, problem, min(answer.retry_after_s, LONGEST_PAUSE_S)

    def _sent(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str], deadline: float
    ) -> Answer:
        """Return the response to one request.

        Raises:
            _NotSent: if there is no connection.
            OSError: also if the complete response has not arrived by the deadline.
        """
        connection = self._connection = self._connection or self._connected(deadline)
        connection.limit(deadline, self.bmc.timeout_s)
        given = {"Accept": "application/json", "OData-Version": "4.0", **headers}
        # The service root needs no login, and does not judge it.
        given |= self._login_header if path != ROOT or self._accepted else {}
        given |= {"Content-Type": "application/json"} if body is not None else {}
        connection.request(method, path, None if body is None else json.dumps(body).encode(), given)
        response = connection.getresponse()
        text = response.read(MOST)
        found = {name.lower(): value for name, value in response.getheaders()}
        if found.get("connection", "").lower() == "close" or not response.isclosed():
            self._close()
        if found.get("content-encoding") == "gzip" or text[:2] == b"\x1f\x8b":
            with contextlib.suppress(zlib.error):
                text = zlib.decompressobj(31).decompress(text, MOST)
        return Answer(response.status, _object(text) or {}, found, _object(text) is not None)

    def _trusted(self) -> ssl.SSLContext:
        """Return the TLS context with the accepted certificates.

        Raises:
            BmcError: if the authorities' certificates cannot be read.
        """
        try:
            context = ssl.create_default_context(cadata=self.bmc.ca or None)
        except (ssl.SSLError, ValueError):
            raise self.error("bios_bmc_ca holds no certificate that can be read") from None
        context.sslsocket_class = _Socket
        if self.bmc.fingerprint:
            # _connected compares the certificate itself, which is stricter than a check of its signature.
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context

    def _connected(self, deadline: float) -> _Connection:
        """Return a connection to the BMC after checking its certificate; no request has been sent yet.

        Raises:
            _NotSent: if the BMC cannot be reached.
        """
        host, port = self.bmc.place
        connection = _Connection(host, port, context=self._context)
        connection.limit(deadline, self.bmc.timeout_s)
        try:
            connection.connect()
        except ssl.SSLCertVerificationError:
            raise
        except OSError as problem:
            raise _NotSent(_text(problem)) from None
        if self.bmc.fingerprint:
            seen = hashlib.sha256(connection.sock.getpeercert(binary_form=True) or b"").hexdigest()
            if not hmac.compare_digest(seen, plain_fingerprint(self.bmc.fingerprint)):
                connection.close()
                raise self.error(
                    f"its certificate has the SHA-256 fingerprint {seen}, which differs from bios_bmc_fingerprint"
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


class _NotSent(OSError):
    """There is no connection, so the BMC got nothing."""


class _Socket(ssl.SSLSocket):
    """A connection on which all reading and writing together must end at a time."""

    end_s: float = math.inf
    quiet_s: float = TIMEOUT_S

    def _hurry(self) -> None:
        left = self.end_s - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self.settimeout(min(left, self.quiet_s))

    def recv_into(self, *args: Any, **kwargs: Any) -> int:
        """Read within the time that is left."""
        self._hurry()
        return super().recv_into(*args, **kwargs)

    def send(self, *args: Any, **kwargs: Any) -> int:
        """Write within the time that is left."""
        self._hurry()
        return super().send(*args, **kwargs)


class _Connection(http.client.HTTPSConnection):
    """A connection with one limit for a request, from its first byte to the last one of the answer."""

    def limit(self, end_s: float, quiet_s: float) -> None:
        """Set when the request must have ended (monotonic), and the longest silence in seconds."""
        self.timeout = max(0.01, min(end_s - time.monotonic(), quiet_s))
        if isinstance(self.sock, _Socket):
            self.sock.end_s, self.sock.quiet_s = end_s, quiet_s


def _safe(method: str, status: int) -> bool:
    """Return whether a request may be repeated after this status. A proxy does not know what the BMC did."""
    return method in SAFE or status in (429, 503)


def _sessions_of(root: Mapping[str, Any]) -> str:
    """Return the path of the sessions by the service root; empty if the BMC has none."""
    links = root.get("Links")
    sessions = links.get("Sessions") if isinstance(links, Mapping) else None
    path = sessions.get("@odata.id") if isinstance(sessions, Mapping) else ""
    return str(path or "") or (SESSIONS if root.get("SessionService") else "")


def _text(problem: BaseException) -> str:
    if isinstance(problem, TimeoutError):
        return "the answer takes too long"
    return str(problem) or type(problem).__name__


def _path(location: str) -> str:
    """Return the path of a location; some BMCs send a complete URL."""
    return re.sub(r"^https?://[^/]+", "", location)


def _object(text: bytes) -> dict[str, Any] | None:
    """Return the JSON object of a text, an empty one for no text; None if it is none."""
    try:
        found = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None
