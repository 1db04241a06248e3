"""Secrets do not come out with the texts of servers and programs, however these repeat them."""

from __future__ import annotations

import base64
import html
import http.server
import json
import shutil
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.bundle.access import Access
from gaudi_serve.core.errors import InputError
from gaudi_serve.core.hide import hidden, logins
from gaudi_serve.host import registry
from gaudi_serve.host.pull import pull
from gaudi_serve.host.smoke import Unhealthy, ask, health
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).parents[2]
# A password with everything that another format writes in another way.
TOLD = 'k3y "quoted" <b>&\'s/+=\\ü%40-canary'
SPELLINGS = {
    "plain": str,
    "json": json.dumps,
    "json with unicode": lambda text: json.dumps(text, ensure_ascii=False),
    "json with escaped slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "json in json": lambda text: json.dumps(json.dumps(text)),
    "python": repr,
    "python's ascii": ascii,
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "query": urllib.parse.quote_plus,
    "html": html.escape,
    "html in decimal": lambda text: "".join(f"&#{ord(one)};" for one in text),
    "capitals": str.upper,
    "one line": lambda text: text.replace(" ", "  \n"),
    "basic login": lambda text: base64.b64encode(f"operator:{text}".encode()).decode(),
    "registry login": lambda text: base64.urlsafe_b64encode(json.dumps({"password": text}).encode()).decode(),
}


@pytest.mark.parametrize("how", [one for one in SPELLINGS if one != "registry login"])
def test_a_secret_is_hidden_in_every_spelling(how: str) -> None:
    text = hidden(f"The value {SPELLINGS[how](TOLD)} is not valid.", [TOLD])
    assert "canary" not in text.lower() and "quoted" not in text.lower() and "(hidden)" in text
    assert base64.b64encode(TOLD.encode()).decode()[4:-4] not in text
    assert text.startswith("The value ") and text.endswith(" is not valid.")


def test_a_secret_in_an_encoded_mapping_is_hidden() -> None:
    text = SPELLINGS["registry login"]("correct-horse-canary")
    assert hidden(f"X-Registry-Auth: {text}", ["correct-horse-canary"]).count("(hidden)") == 1


def test_overlapping_and_nested_secrets_leave_no_rest() -> None:
    assert hidden("abcdefg abcd", ["abcd", "cdefg", "bc", "", None]) == "(hidden) (hidden)"
    # The mark itself is never changed.
    assert hidden("(x) hidden x", ["x", "hidden"]) == "((hidden)) (hidden) (hidden)"
    assert hidden("<0&amp;> <0%26>", ["0&"]) == "<(hidden)> <(hidden)>"


@settings(max_examples=60, deadline=None)
@given(
    # White space at the ends is not hidden: a format can add or remove it. Brackets alone are also in the text beside.
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
    .map(str.strip)
    .filter(lambda one: one.strip("<>")),
    st.sampled_from([one for one in SPELLINGS if one not in ("capitals", "basic login", "registry login")]),
)
def test_no_secret_stays(secret: str, how: str) -> None:
    assert hidden(f"<<{SPELLINGS[how](secret)}>>", [secret]) in (
        *("<<(hidden)>>", '<<"(hidden)">>', "<<'(hidden)'>>", '<<"\\"(hidden)\\"">>'),
        # A secret that is a quotation mark or a backslash can take that of the format with it.
        *(f"<<{quote}(hidden){end}>>" for quote in ("", '"', "'", '"\\') for end in ("", '"', "'", '\\""')),
    )


def test_logins_of_addresses_are_secrets_and_ports_and_users_of_ssh_are_not() -> None:
    found = logins("https://bob:p%40ss/w@h/x", "http://token@h", "ssh://git@h/x", "https://h:443/a@b", None)
    assert found == {"bob:p%40ss/w", "bob:p@ss/w", "p%40ss/w", "p@ss/w", "token"}
    assert hidden("fatal: https://bob:pw@h/x: pw is wrong", logins("https://bob:pw@h")) == (
        "fatal: https://***@h/x: (hidden) is wrong"
    )


def test_programs_that_run_alone_have_the_same_function() -> None:
    for name, original in (("hide", "hide"), ("whole", "atomic_write"), ("words", "words")):
        copied = ROOT / f"roles/model_weights/files/{name}.py"
        assert copied.read_bytes() == (ROOT / f"lib/gaudi_serve/core/{original}.py").read_bytes()


# ---- each client, whose other side repeats the secret


class Echo(http.server.BaseHTTPRequestHandler):
    """Answers with an error that repeats the request's headers, after so many characters."""

    before = 0

    def log_message(self, *_: Any) -> None:
        """Log nothing."""

    def do_GET(self) -> None:
        """Refuse."""
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps({"message": "x" * self.before + str(self.headers)}).encode()
        self.send_response(500)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET


class Local(http.server.ThreadingHTTPServer):
    """A server at a path or a port."""

    daemon_threads = True

    def get_request(self) -> Any:
        """Return a request; a socket of a path has no address."""
        return self.socket.accept()[0], ("local", 0)


@contextmanager
def echoing(before: int = 0, path: Path | None = None) -> Iterator[int]:
    """Serve an echo at a port, or at a path; yield the port."""
    server = Local(("127.0.0.1", 0), type("Of", (Echo,), {"before": before}))
    if path:
        server.socket.close()
        server.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        server.socket.bind(str(path))
        server.socket.listen()
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()


# The text is cut in the middle of the secret at several of these.
@pytest.mark.parametrize("before", [0, *range(180, 400, 20)])
def test_a_servers_error_does_not_contain_its_key_also_where_the_text_is_cut(before: int) -> None:
    key = "sk-canary-0123456789"
    with echoing(before) as port:
        model = {"name": "m", "served_model_name": "m", "host": "127.0.0.1", "port": port}
        with pytest.raises(Unhealthy) as problem:
            ask(model, ["text"], 5, key)
        for text in (str(problem.value), health(model, 5, key)):
            assert "status 500" in text and "sk-c" not in text


@pytest.mark.parametrize("before", [0, *range(440, 500, 20)])
def test_an_engines_error_does_not_contain_the_login(tmp_path: Path, before: int) -> None:
    # A path of a socket has at most 107 characters.
    folder = Path("/tmp") / tmp_path.name
    folder.mkdir(exist_ok=True)
    login = {"username": "ci", "password": "correct-horse-canary"}
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        stack.enter_context(echoing(before, folder / "s"))
        with pytest.raises(InputError, match="could not be pulled as ci") as problem:
            pull("r.example/x:1", login, str(folder / "s"))
    coded = base64.urlsafe_b64encode(json.dumps(login).encode()).decode()
    assert coded[-20:-4] not in str(problem.value) and "canary" not in str(problem.value)


def test_a_registrys_error_does_not_contain_the_clients_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "TRUSTED", tmp_path)
    key = "-----BEGIN KEY-----\nMIGHAgEAMBMGByqGSM49\n-----END KEY-----\n"
    client = registry.RegistryClient("r:1", "ca", "cert", key)
    with pytest.raises(InputError) as problem, registry.trusted(client):
        raise InputError("image x: no key in MIGHAgEAMBMGByqGSM49")
    assert str(problem.value) == "image x: no key in (hidden)"


def test_a_programs_output_does_not_contain_what_a_bundle_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://me:proxy-canary@p:3128")
    access = Access(
        origins={"https://***@h/x": "https://bob:origin%2Dcanary@h/x"},
        logins={"r": {"username": "ci", "password": "login-canary"}},
        tokens={"hub": "hf_canary"},
    )
    said = "hf_canary origin-canary origin%2Dcanary LOGIN-CANARY proxy-canary https://x:y@z"
    assert access.cleaned(said) == "(hidden) (hidden) (hidden) (hidden) (hidden) https://***@z"
