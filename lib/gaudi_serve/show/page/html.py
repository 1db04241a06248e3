"""The page of a fleet: one self-contained HTML file with its styles, scripts and data."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from ...core.errors import InputError
from .hosts import STATES

PLAYBOOKS = Path(__file__).resolve().parents[4] / "playbooks"
TEMPLATES = PLAYBOOKS / "templates/page"
SCRIPTS = (PLAYBOOKS / "files/uplot/uPlot.iife.min.js", TEMPLATES / "page.js")
STYLES = (PLAYBOOKS / "files/uplot/uPlot.min.css", TEMPLATES / "page.css")


def fleet_page_html(document: Mapping[str, Any]) -> str:
    """Return the HTML page of a document of fleet_page.

    Every value is escaped. The page's policy allows only its own scripts and styles, by their hashes.

    Raises:
        InputError: if the template cannot be rendered.
    """
    # Only the controller renders; modules on hosts use this library without jinja2.
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"day": day, "duration": duration, "json_text": json_text}
    scripts, styles = _texts(SCRIPTS), _texts(STYLES)
    try:
        return environment.get_template("page.html.j2").render(
            page=document,
            states=[one for one in STATES.items() if one[0] in {host["state"] for host in document["hosts"]}],
            scripts=scripts,
            styles=styles,
            policy=policy(scripts, styles),
        )
    except jinja2.TemplateError as problem:
        raise InputError(f"playbooks/templates/page: {problem}") from problem


def policy(scripts: list[str], styles: list[str]) -> str:
    """Return the page's Content-Security-Policy."""
    allowed = {"script-src": scripts, "style-src": styles}
    parts = [f"{name} {' '.join(map(_source, texts))}" for name, texts in allowed.items()]
    return "; ".join(["default-src 'none'", *parts, "img-src data:", "base-uri 'none'", "form-action 'none'"])


def json_text(value: Any) -> str:
    """Return JSON that is safe in a script element: it cannot end the element or begin a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def day(seconds: float | None) -> str:
    """Return a Unix time as readable text in UTC."""
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M UTC") if seconds else "-"


def duration(seconds: float | None) -> str:
    """Return a duration as readable text; a dash if it is unknown."""
    if seconds is None:
        return "-"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


@cache
def _texts(paths: tuple[Path, ...]) -> list[str]:
    return [path.read_text(encoding="utf-8").rstrip("\n") for path in paths]


def _source(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
