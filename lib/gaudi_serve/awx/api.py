"""A client of AWX's API: it retries while AWX is busy, and reports each failure in one message."""

from __future__ import annotations

import base64
import json
import os
import re
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.client import HTTPException
from typing import Any

from ..core.checks import is_flag_text, is_true
from ..core.errors import InputError, one_line
from ..core.hide import hidden
from .settings import UNSENDABLE, is_address, is_token

Object = dict[str, Any]
Listed = list[Object]
TESTED = "24.6.1"
OLDEST = 24  # the first release with role assignments at /api/v2/role_user_assignments/
TIMEOUT_S = 120.0  # of a request; a busy AWX takes more than a minute for a list
JOB_S = 1800.0  # an update of a project or an inventory
RETRIES = 5
PAUSE_S = 2.0
BUSY = (429, 502, 503, 504)
READERS = 4  # concurrent requests
LAST_LINES = 15  # of the output of a failed update
VARIABLES = "CONTROLLER_HOST, and CONTROLLER_OAUTH_TOKEN or CONTROLLER_USERNAME and CONTROLLER_PASSWORD"


class AwxError(Exception):
    """AWX cannot be reached or refuses a request. The message is one line without secrets."""


class Refused(AwxError):
    """AWX responds to a request with an error. ``status`` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unfinished(AwxError):
    """A run failed after it had changed something."""


# Error responses for these objects may repeat a part of a secret.
SECRETIVE = re.compile(r"/api/v2/(credentials|notification_templates)/?")


@dataclass(frozen=True)
class Login:
    """Address and credentials of an AWX. If ``verify`` is false, its certificate is not checked."""

    host: str
    token: str = field(default="", repr=False)
    username: str = ""
    password: str = field(default="", repr=False)
    verify: bool = True

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Login:
        """Return the login from environment variables.

        Raises:
            InputError: for a missing or invalid variable.
        """
        values = {
            name: environment.get(f"CONTROLLER_{name}") or environment.get(f"TOWER_{name}") or ""
            for name in ("HOST", "OAUTH_TOKEN", "USERNAME", "PASSWORD", "VERIFY_SSL")
        }
        if not values["HOST"]:
            raise InputError(f"CONTROLLER_HOST: is not set; export {VARIABLES}")
        if not values["OAUTH_TOKEN"] and not (values["USERNAME"] and values["PASSWORD"]):
            raise InputError(f"CONTROLLER_OAUTH_TOKEN: is not set; export {VARIABLES}")
        host = values["HOST"] if re.match(r"https?://", values["HOST"]) else f"https://{values['HOST']}"
        if "@" in host:
            raise InputError(f"CONTROLLER_HOST: (hidden) has a user or password; export {VARIABLES}")
        if not is_address(host):
            raise InputError("CONTROLLER_HOST: is not an address such as https://awx.example.net")
        if values["OAUTH_TOKEN"] and not is_token(values["OAUTH_TOKEN"]):
            raise InputError(f"CONTROLLER_OAUTH_TOKEN: (hidden) {UNSENDABLE}")
        verify = values["VERIFY_SSL"].lower() or "true"
        if not is_flag_text(verify):
            raise InputError(f"CONTROLLER_VERIFY_SSL: {one_line(verify)[:80]!r} is not true or false")
        return cls(host.rstrip("/"), values["OAUTH_TOKEN"], values["USERNAME"], values["PASSWORD"], is_true(verify))

    def with_token(self, token: str) -> Login:
        """Return the login of another user at the same AWX."""
        return Login(self.host, token, verify=self.verify)

    def header(self) -> str:
        """Return the value of the Authorization header."""
        if self.token:
            return f"Bearer {self.token}"
        login = f"{self.username}:{self.password}".encode(errors="surrogateescape")
        return f"Basic {base64.b64encode(login).decode()}"


class Api:
    """Sends requests to one AWX."""

    def __init__(
        self, login: Login, timeout_s: float = TIMEOUT_S, pause_s: float = PAUSE_S, secrets: Iterable[Any] = ()
    ) -> None:
        self.login, self.timeout_s, self.pause_s = login, timeout_s, pause_s
        self.secrets = [*secrets, login.token, login.password]
        context = None
        if login.host.startswith("https:"):
            context = ssl.create_default_context()
            if not login.verify:
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        tls = [urllib.request.HTTPSHandler(context=context)] if context else []
        self.opener = urllib.request.build_opener(_StayHere, *tls)

    def get(self, path: str, **query: Any) -> Object:
        """Return the response to a GET request; it is repeated while AWX is busy.

        Raises:
            AwxError: if the response is not an object.
        """
        found = self.send("GET", path + (f"?{urllib.parse.urlencode(query)}" if query else ""))
        if not isinstance(found, dict):
            raise self.odd("GET", path)
        return found

    def list(self, path: str, **query: Any) -> Listed:
        """Return the objects of all pages of a list."""
        return self.results(self.get(path, page_size=200, **query), path)

    def results(self, page: Object, path: str) -> Listed:
        """Return the objects on a page of a list and on all following pages."""
        found: Listed = []
        while True:
            objects = page.get("results")
            if not isinstance(objects, list) or not all(isinstance(one, dict) and "id" in one for one in objects):
                raise self.odd("GET", path)
            found += objects
            if not page.get("next"):
                return found
            page = self.get(str(page["next"]))

    def odd(self, method: str, path: str) -> AwxError:
        """Return the error for a response that does not have AWX's format."""
        return AwxError(f"{self.login.host}: the answer to {method} {path} is not one of AWX; is this an AWX?")

    def many(self, paths: Iterable[str]) -> dict[str, Object]:
        """Return the responses to GET requests by path, with a few requests at a time."""
        wanted = list(dict.fromkeys(paths))
        with ThreadPoolExecutor(READERS) as readers:
            return dict(zip(wanted, readers.map(self.get, wanted), strict=True))

    def send(self, method: str, path: str, body: Any = None) -> Any:
        """Return the response to a request; None for an empty response.

        After a connection failure, only requests that may safely be sent twice are repeated.

        Raises:
            Refused: for an error response.
            AwxError: if there is no response.
        """
        text = path if path.startswith("/") else f"/api/v2/{path}"
        # Each of AWX's paths ends with a slash, also before a question mark.
        place, mark, query = text.partition("?")
        url = f"{self.login.host}{place.rstrip('/')}/{mark}{query}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": self.login.header(), "Content-Type": "application/json"}
        for attempt in range(RETRIES + 1):
            request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310 - http or https
            last = attempt == RETRIES
            try:
                with self.opener.open(request, timeout=self.timeout_s) as answer:
                    return _read(answer.read(), url)
            except urllib.error.HTTPError as problem:
                # Busy means that a proxy did not forward the request. After a gateway timeout it may have been done.
                again = problem.code in BUSY and (method == "GET" or problem.code in (429, 503))
                if last or not again:
                    raise self._refused(method, text, problem) from None
            except (OSError, HTTPException) as problem:
                reason = getattr(problem, "reason", problem)
                again = method == "GET" or isinstance(reason, ConnectionRefusedError)
                if last or not again or isinstance(reason, ssl.SSLCertVerificationError):
                    raise AwxError(self._unreachable(reason)) from None
            except ValueError:
                # The exception's text may contain a header and so the token.
                raise AwxError(f"{self.login.host}: {method} {one_line(text)[:200]} cannot be sent") from None
            time.sleep(self.pause_s * (attempt + 1))
        raise AssertionError

    def _unreachable(self, reason: Any) -> str:
        host = self.login.host
        if isinstance(reason, ssl.SSLCertVerificationError):
            return (
                f"{host}: its certificate is not valid here: {reason.verify_message}; name the file of its authority "
                "in SSL_CERT_FILE, or export CONTROLLER_VERIFY_SSL=false to accept any certificate"
            )
        if isinstance(reason, TimeoutError):
            return f"{host}: did not answer within {self.timeout_s:.0f} s"
        return f"{host}: cannot be reached: {one_line(str(reason))[:200]}"

    def _refused(self, method: str, path: str, problem: urllib.error.HTTPError) -> Refused:
        body = problem.read().decode(errors="replace")
        if problem.code == 401:
            name = "CONTROLLER_OAUTH_TOKEN" if self.login.token else "CONTROLLER_USERNAME and CONTROLLER_PASSWORD"
            return Refused(401, f"{self.login.host}: AWX does not accept {name}: it is wrong or has expired")
        if 300 <= problem.code < 400:
            target = _target(problem.url or "", problem.headers.get("Location") or "")
            text = f"{self.login.host}: answers {method} {path} with a redirect"
            here = target in ("", self.login.host)
            return Refused(problem.code, text if here else f"{text} to {target}; export CONTROLLER_HOST={target}")
        detail = _fields(body) if method != "GET" and SECRETIVE.match(path) else _detail(hidden(body, self.secrets))
        return Refused(problem.code, f"AWX answers {method} {path} with {problem.code}: {detail}")

    def finished(self, job: str, what: str, timeout_s: float = JOB_S, interval_s: float = 2.0) -> None:
        """Wait until an update of a project or an inventory has ended.

        Raises:
            AwxError: if it failed, with the end of its output, or takes too long.
        """
        end = time.monotonic() + timeout_s
        while not (found := self.get(job)).get("finished"):
            if time.monotonic() > end:
                raise AwxError(f"{what}: has not ended after {timeout_s:.0f} s; AWX's page shows it under Jobs")
            time.sleep(interval_s)
        if found.get("status") == "successful":
            return
        # AWX hides the logins of http addresses alone.
        output = hidden(str(self.get(f"{job}stdout/", format="json").get("content") or ""), self.secrets)
        lines = [line for line in re.sub(r"\x1b\[[\d;]*m", "", output).splitlines() if line.strip()]
        explained = hidden(str(found.get("job_explanation") or ""), self.secrets)
        reasons = [*([explained] if explained else []), *lines[-LAST_LINES:]]
        raise AwxError("\n".join([f"{what}: {found.get('status')}. The end of its output:", *reasons]))


class _StayHere(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send the token to any host, and a POST would become a GET."""

    def redirect_request(self, *_: Any) -> None:
        """Return None, so that a redirect counts as an error response."""


def _read(body: bytes, url: str) -> Any:
    try:
        return json.loads(body) if body else None
    except ValueError:
        raise AwxError(f"{url}: the answer is not JSON, so this is not an AWX") from None


def _target(url: str, location: str) -> str:
    """Return the AWX address in a redirect, without a login; empty if it has none."""
    try:
        parts = urllib.parse.urlsplit(urllib.parse.urljoin(url, location))
    except ValueError:
        return ""
    # The path of a login page, for example, is not part of an AWX's address.
    folder = parts.path.partition("/api/v2/")[0] if "/api/v2/" in parts.path else ""
    found = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{folder}"
    return found if parts.scheme in ("http", "https") and is_address(found) else ""


def _detail(body: str) -> str:
    """Return an error's text on one line, shortened; HTML pages come from proxies and contain nothing useful."""
    if body.lstrip().startswith("<"):
        return "a page of HTML, as from a proxy"
    return one_line(" ".join(body.split()))[:500]


def _fields(body: str) -> str:
    """Return the names of the fields in an error, without their values."""

    def names(value: Any, path: str) -> list[str]:
        if not isinstance(value, Mapping):
            return [path]
        return [name for key, part in value.items() for name in names(part, f"{path}.{key}" if path else str(key))]

    try:
        found = names(json.loads(body), "")
    except ValueError:
        found = [""]
    return f"{one_line(', '.join(found))[:200]} (hidden)".lstrip()


def login_refusal(api: Api, organization: str) -> tuple[list[str], Object]:
    """Return why this login cannot create the objects of the settings, and the login's user.

    Args:
        api: client of the AWX.
        organization: the organization of all objects.

    Raises:
        AwxError: if AWX cannot be reached or does not accept the login.
    """
    version = str(api.get("ping").get("version") or "")
    major = re.match(r"(\d+)\.", version)
    if not major or int(major[1]) < OLDEST:
        return [
            f"{api.login.host}: AWX {version or 'of unknown version'} is too old; {OLDEST}.0 or later is needed"
        ], {}
    users = api.list("me")
    if not users:
        raise api.odd("GET", "me")
    me = users[0]
    who = f"{api.login.host}: user {me.get('username')}"
    if me.get("is_superuser"):
        return ([f"{who}: the token has scope read; make one with scope write"] if _reads_only(api) else []), me
    found = api.list("organizations", name=organization)
    if not found:
        return [
            f"{who} is not a system administrator and cannot make organization {organization}; use a token of a system "
            "administrator, or have one make the organization and make this user its administrator"
        ], me
    if not ((found[0].get("summary_fields") or {}).get("user_capabilities") or {}).get("edit"):
        return [f"{who} is not an administrator of organization {organization}; use a token of one"], me
    return [], me


def _reads_only(api: Api) -> bool:
    """Return whether a system administrator's token has scope read, which AWX does not show.

    AWX refuses a label without a name: with status 403 for a read-only token, otherwise because the name is missing.
    """
    try:
        api.send("POST", "labels", {})
    except Refused as problem:
        return problem.status == 403
    return False


def from_environment(secrets: Iterable[Any] = ()) -> Api:
    """Return a client for the AWX of the environment variables. Its messages contain none of ``secrets``."""
    return Api(Login.of(os.environ), secrets=secrets)
