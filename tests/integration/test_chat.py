"""The page for chats in a real Chromium, behind a real HAProxy, where no other network is in reach."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gaudi_serve.gateway.objects import Backend, Chat, Client, Server
from helpers.browser import Chromium, View, chromium
from helpers.haproxies import KEYS, Front, client
from helpers.machine import free_port
from helpers.network import loopback_alone
from helpers.talking import Talker, talkers

pytestmark = pytest.mark.skipif(not shutil.which("haproxy"), reason="HAProxy is missing; scripts/deps installs it")
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC"
)
SECRET = "server-key-canary-51c2"  # noqa: S105 - of no real server
PASSWORD = "correct horse 7"  # noqa: S105 - of nobody
ALICE = Client("chat.alice", hashlib.sha256(f"alice:{PASSWORD}".encode()).hexdigest(), ("small",), 600)


@pytest.fixture(scope="module")
def browser() -> Iterator[Chromium]:
    with loopback_alone(), chromium() as started:
        yield started


@pytest.fixture
def models(browser: Chromium) -> Iterator[list[Talker]]:
    with talkers(3) as found:
        yield found


@pytest.fixture
def site(models: list[Talker], tmp_path: Path) -> Iterator[Front]:
    with front(models, tmp_path) as found:
        yield found


def front(models: list[Talker], folder: Path, users: tuple[Client, ...] = (), **more: Any) -> Front:
    """Return a gateway with a page, in front of a model, one that sees, and one that makes no text."""
    kinds = {"small": ("text",), "vision": ("text", "image"), "embedding": ()}
    backends = tuple(
        Backend(name, (Server(f"h.{name}", "127.0.0.1", one.server_port, 4),), SECRET, kinds=kinds[name])
        for name, one in zip(kinds, models, strict=True)
    )
    said = {"title": "Models of the site", "system_prompt": "Be brief.", "users": users}
    return Front(folder, backends, chat=Chat(port=free_port(), **said), clients=(client("bob"),), **more)


def url(site: Front) -> str:
    assert site.gateway.chat
    return f"http://localhost:{site.gateway.chat.port}/"


@contextlib.contextmanager
def opened(browser: Chromium, site: Front, **options: Any) -> Iterator[View]:
    """Open the page, and wait until it knows its models."""
    with browser.open(url(site), **options) as view:
        view.page.wait_for_selector("#model:enabled")
        yield view


def ask(view: View, text: str) -> None:
    view.page.fill("#text", text)
    view.page.press("#text", "Enter")


def answered(view: View, words: str) -> None:
    view.page.wait_for_function(
        "(words) => document.querySelector('#messages > li:last-child.answer')?.innerText.includes(words)", arg=words
    )


def test_a_conversation(browser: Chromium, site: Front, models: list[Talker]) -> None:
    models[0].words = [
        "# Answer\n\n**Paris**",
        " is the capital.\n\n",
        "```\ncode\n```\n",
        "<img src=http://192.0.2.1/x onerror=a()>",
    ]
    models[0].thought = "I know that."
    with opened(browser, site, accept_downloads=True) as view:
        page = view.page
        # What makes no text is not offered.
        assert page.locator("#model option").all_inner_texts() == ["small", "vision"]
        assert page.inner_text("h1") == "Models of the site"
        assert not page.is_visible("#attach")
        ask(view, "What is the capital of France?")
        answered(view, "is the capital.")
        page.wait_for_selector("#send:visible")
        # A heading of the answer is larger than the line that names who answers, and stands below it.
        size = "(one) => parseFloat(getComputedStyle(one).fontSize)"
        assert page.locator(".answer h4").evaluate(size) > page.locator(".answer > h3").evaluate(size)
        assert page.inner_text("#messages strong") == "Paris" and page.inner_text("#messages pre").strip() == "code"
        # A text of a model fetches nothing and runs nothing.
        assert page.locator("#messages img").count() == 0 and "<img src" in page.inner_text("#messages")
        assert page.inner_text("details.thought summary") == "Thoughts"
        assert "4 tokens" in page.inner_text(".notes")
        sent = models[0].asked[-1]
        assert next(iter(sent)) == "model" and sent["stream"] is True
        assert sent["messages"] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is the capital of France?"},
        ]
        assert [one for one in view.requests if not one.startswith((url(site), "data:", "blob:"))] == []
        assert view.errors == []


# What models write, and what people reported of other pages that show it.
ANSWERS = (
    (r"Let \(p^*\) and **\(q^*\)** be \(\xi_1\)xx.", r"Let \(p^*\) and <strong>\(q^*\)</strong> be \(\xi_1\)xx."),
    ("\\[\n\\sin & a \\\\\n- b\n\n= c\n\\]", '<pre tabindex="0">\\[\n\\sin &amp; a \\\\\n- b\n\n= c\n\\]</pre>'),
    (r"$a*b*c$ is $$x \\ y$$, and `\(x\)`", r"$a*b*c$ is $$x \\ y$$, and <code>\(x\)</code>"),
    ("It costs $5 or *only* $6.", "It costs $5 or <em>only</em> $6."),
    ("\\[ <img src=x onerror=a()> \\]", '<pre tabindex="0">\\[ &lt;img src=x onerror=a()&gt; \\]</pre>'),
    ("| a |\n|---|\n| x<br>y<b> |", "<td>x<br>y&lt;b&gt;</td>"),
    ("- [x] done\n- [ ] open", "<li>☑ done</li>\n<li>☐ open</li>"),
    ("(~5) to (~6), ~~no~~", "(~5) to (~6), <del>no</del>"),
    (">" * 20_000, f'<pre tabindex="0">{"&gt;" * 20_000}</pre>'),
    ("```\nopen <a>", "<code>open &lt;a&gt;\n</code>"),
    ("[x](javascript:a())", '<a target="_blank" rel="noopener noreferrer">x</a>'),
)


def test_what_models_write_keeps_its_meaning(browser: Chromium, site: Front) -> None:
    drawn = "(text) => { const it = document.createElement('div'); it.append(markdown(text)); return it.innerHTML; }"
    with opened(browser, site) as view:
        for text, html in ANSWERS:
            assert html in view.page.evaluate(drawn, text)


def test_thoughts_stay_open_while_the_answer_grows(browser: Chromium, site: Front, models: list[Talker]) -> None:
    models[0].words, models[0].pause_s, models[0].thought = ["word "] * 40, 0.05, "I know that."
    with opened(browser, site) as view:
        ask(view, "Talk.")
        answered(view, "word word")
        view.page.evaluate("document.querySelector('details.thought summary').click()")
        answered(view, "40 tokens")
        assert view.page.is_visible("details.thought div")


def test_what_was_reported_goes_along_and_is_kept(browser: Chromium, site: Front, models: list[Talker]) -> None:
    with opened(browser, site, accept_downloads=True) as view:
        page = view.page
        ask(view, "What is the capital of France?")
        answered(view, "is the capital.")
        page.wait_for_selector("#send:visible")
        models[0].words = ["Berlin"]
        ask(view, "And of Germany?")
        answered(view, "Berlin")
        assert [one["role"] for one in models[0].asked[-1]["messages"]] == ["system", "user", "assistant", "user"]
        with page.expect_download() as download:
            page.click("#export")
        saved = download.value.path().read_text()
        assert saved.startswith("# Models of the site") and "## You\n\nAnd of Germany?\n\n## small\n\nBerlin" in saved
        # A tab keeps its conversation over a reload, until a new one begins.
        page.reload()
        answered(view, "Berlin")
        page.click("#new")
        assert page.locator("#messages li").count() == 0


@pytest.mark.parametrize(("scheme", "size"), [("light", (1280, 900)), ("dark", (400, 700))])
def test_everybody_can_use_it(
    browser: Chromium, site: Front, scheme: Any, size: tuple[int, int], tmp_path: Path
) -> None:
    with opened(browser, site, scheme=scheme, size=size) as view:
        assert view.violations() == []
        ask(view, "Which capital?")
        answered(view, "capital.")
        view.page.wait_for_selector("#send:visible")
        view.page.click("#settings-toggle")
        assert view.violations() == []
        assert view.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        assert view.screenshot(tmp_path / "chat.png").stat().st_size > 5000


def test_a_picture_goes_to_a_model_that_sees(
    browser: Chromium, site: Front, models: list[Talker], tmp_path: Path
) -> None:
    (tmp_path / "one.png").write_bytes(PICTURE)
    (tmp_path / "two.png").write_bytes(b"no picture")
    with opened(browser, site) as view:
        page = view.page
        page.select_option("#model", "vision")
        page.wait_for_selector("#attach:visible")
        page.set_input_files("#file", [tmp_path / "one.png", tmp_path / "two.png"])
        page.wait_for_selector("#pictures img")
        page.wait_for_function("() => document.getElementById('status').innerText.startsWith('two.png is no')")
        ask(view, "What is it?")
        answered(view, "capital.")
        first, second = models[1].asked[-1]["messages"][-1]["content"]
        assert first["image_url"]["url"].startswith("data:image/jpeg;base64,/9j/")
        assert second == {"type": "text", "text": "What is it?"} and not models[0].asked
        assert view.violations() == []


def test_stop_ends_the_request_at_the_server(browser: Chromium, site: Front, models: list[Talker]) -> None:
    models[0].words, models[0].pause_s = ["word "] * 1000, 0.05
    with opened(browser, site) as view:
        ask(view, "Talk for long.")
        answered(view, "word word")
        assert models[0].working == 1
        view.page.click("#stop")
        site.wait(lambda: models[0].left == 1 and models[0].working == 0, 5)
        answered(view, "stopped")
        # Before the first word too, and a closed tab does the same.
        models[0].silent_s = 60
        ask(view, "Think for long.")
        site.wait(lambda: models[0].working == 1)
        view.page.press("#text", "Escape")
        site.wait(lambda: models[0].working == 0, 5)
        ask(view, "Think again.")
        site.wait(lambda: models[0].working == 1)
    site.wait(lambda: models[0].working == 0, 5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"status": 400}, r"The prompt is longer than 512 tokens\. \(400\)"),
        ({"breaks_after": 2}, "The connection has ended|cannot be reached, or the connection has ended|broken off"),
        ({"error": "EngineDeadError: the engine has died"}, "the engine has died"),
    ],
)
def test_a_page_is_of_use_after_every_failure(
    browser: Chromium, site: Front, models: list[Talker], how: dict[str, Any], message: str
) -> None:
    for key, value in how.items():
        setattr(models[0], key, value)
    with opened(browser, site) as view:
        ask(view, "A question.")
        view.page.wait_for_selector("#messages .error")
        assert re.search(message, view.page.inner_text("#messages .error"))
        models[0].status, models[0].breaks_after, models[0].error = 200, None, ""
        view.page.click("text=Try again")
        answered(view, "Paris is the capital.")
        assert [one["content"] for one in models[0].asked[-1]["messages"][1:]] == ["A question."]


def test_a_silent_server_does_not_hang_the_page(browser: Chromium, site: Front, models: list[Talker]) -> None:
    models[0].silent_s = 600
    with opened(browser, site) as view:
        page = view.page
        page.evaluate("Date.now = ((now) => () => now() + (window.later || 0))(Date.now)")
        ask(view, "A question.")
        site.wait(lambda: models[0].working == 1)
        page.evaluate("window.later = 20000")
        page.wait_for_function("() => document.getElementById('status').innerText.includes('silent for 2')")
        # What is written meanwhile stays, and another model can be asked after a stop.
        page.fill("#text", "The next one.")
        page.click("#stop")
        page.select_option("#model", "vision")
        page.wait_for_selector("#send:enabled")
        page.press("#text", "Enter")
        answered(view, "Paris is the capital.")
        assert models[1].asked[-1]["messages"][-1]["content"] == "The next one."


def test_a_gateway_that_comes_back_is_found(browser: Chromium, models: list[Talker], tmp_path: Path) -> None:
    with front(models, tmp_path) as site, opened(browser, site) as view:
        site.process.terminate()
        site.process.wait(20)
        ask(view, "A question.")
        view.page.wait_for_selector("#messages .error")
        assert "cannot be reached" in view.page.inner_text("#messages .error")


def answer_of(site: Front, path: str, **said: Any) -> tuple[int, str, dict[str, str]]:
    """Return status, text and headers of a request to the page's port that is not the page's own."""
    assert site.gateway.chat
    connection = http.client.HTTPConnection("127.0.0.1", site.gateway.chat.port, timeout=20)
    headers = {name.replace("_", "-"): value for name, value in said.items() if name not in ("method", "body")}
    connection.request(said.get("method", "GET"), path, said.get("body"), headers)
    answer = connection.getresponse()
    found = answer.status, answer.read().decode(), {name.lower(): value for name, value in answer.getheaders()}
    connection.close()
    return found


def test_nobody_else_can_ask_with_the_login_of_the_page(site: Front, models: list[Talker]) -> None:
    body = json.dumps({"model": "small", "messages": []})
    asked: dict[str, Any] = {"method": "POST", "body": body, "content_type": "text/plain"}
    # A page of another site can send this much, and not the header of the page.
    assert answer_of(site, "/v1/chat/completions", **asked)[0] == 403
    assert answer_of(site, "/", host="attacker.example")[0] == 421
    for path in ("/metrics", "/v1/embeddings", "/v1/completions", "/health", "/../etc/passwd", "/users.map"):
        assert answer_of(site, path, x_chat_page="1")[0] == 404, path
    assert answer_of(site, "/v1/models", x_chat_page="1", method="DELETE")[0] == 404
    status, _, headers = answer_of(site, "/")
    assert status == 200 and "frame-ancestors 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"] and headers["cache-control"] == "no-store"
    # A client of the gateway cannot be a user of the page by a header.
    assert site.ask("/v1/models", key=None, x_chat_client="chat")[0] == 401
    assert site.ask("/v1/models", key=KEYS["bob"], x_chat_client="chat")[0] == 200
    assert models[0].asked == []
    assert SECRET not in json.dumps([answer_of(site, f"/{name}")[1:] for name in ("", "settings.json", "chat.js")])


def test_users_log_in(browser: Chromium, models: list[Talker], tmp_path: Path) -> None:
    with front(models, tmp_path, (ALICE,)) as site:
        login = base64.b64encode(f"alice:{PASSWORD}".encode()).decode()
        assert answer_of(site, "/")[0] == 401
        assert answer_of(site, "/", authorization=f"Basic {login}")[0] == 200
        with opened(browser, site, http_credentials={"username": "alice", "password": PASSWORD}) as view:
            # What she may use.
            assert view.page.locator("#model option").all_inner_texts() == ["small"]
            ask(view, "A question.")
            answered(view, "Paris is the capital.")
        assert "client=chat.alice model=small" in site.log.read_text()
        assert "authorization" not in json.dumps(models[0].asked)
        wrong = base64.b64encode(b"alice:wrong").decode()
        found = [answer_of(site, "/", authorization=f"Basic {wrong}")[0] for _ in range(25)]
        assert found[:20] == [401] * 20 and found[-1] == 429
        assert answer_of(site, "/", authorization=f"Basic {login}")[0] == 429


def test_a_reload_keeps_what_is_reported(browser: Chromium, site: Front, models: list[Talker]) -> None:
    models[0].words, models[0].pause_s = ["word "] * 40, 0.05
    with opened(browser, site) as view:
        ask(view, "Talk.")
        answered(view, "word word")
        site.reload()
        answered(view, "40 tokens")
        ask(view, "Again.")
        answered(view, "40 tokens")
        assert len(models[0].asked) == 2 and view.errors == []
