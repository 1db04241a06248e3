"""What kind of model it is: media it takes, tools it calls, vectors it makes, and what vLLM refuses otherwise."""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import math
import re
import struct
import zlib
from pathlib import Path
from typing import Any

from .answers import Refused

MEDIA = {
    "qwen2_vl": {"image", "video"},
    "qwen2_5_vl": {"image", "video"},
    "qwen2_audio": {"audio"},
    "qwen2_5_omni": {"image", "video", "audio"},
}
PARTS = {"image_url": "image", "video_url": "video", "audio_url": "audio", "input_audio": "audio"}
COLOURS = {(255, 0, 0): "red", (0, 255, 0): "green", (0, 0, 255): "blue", (0, 0, 0): "black", (255, 255, 255): "white"}
TOOL_PARSERS = {"hermes", "mistral", "llama3_json", "llama4_json", "jamba", "deepseek_v3", "pythonic", "granite"}
DIMENSIONS = 64


class Abilities:
    """Read once at start."""

    def __init__(self, options: argparse.Namespace) -> None:
        """Look into config.json and the options; an unknown tool parser ends the start, as in vLLM."""
        config = json.loads((Path(options.model) / "config.json").read_text(encoding="utf-8"))
        self.media = MEDIA.get(config.get("model_type", ""), set())
        self.limits: dict[str, Any] = options.limit_mm_per_prompt or {}
        # Upstream says by its runner what the fork's task was.
        runner = {"pooling": "embed"}.get(getattr(options, "runner", None) or "", "generate")
        self.task = getattr(options, "task", None) or runner
        self.tools = bool(options.enable_auto_tool_choice and options.tool_call_parser)
        if options.enable_auto_tool_choice and not options.tool_call_parser:
            raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
        if options.tool_call_parser and options.tool_call_parser not in TOOL_PARSERS:
            raise KeyError(f"invalid tool call parser: {options.tool_call_parser} (chose from {sorted(TOOL_PARSERS)})")

    def require(self, job: str) -> None:
        """Refuse a job that the task does not have."""
        jobs = {"embed": {"Embeddings"}, "embedding": {"Embeddings"}, "score": {"Rerank"}}
        if job not in jobs.get(self.task, {"Chat Completions", "Completions"}):
            raise Refused(400, "BadRequestError", f"The model does not support {job} API")

    def seen(self, parts: list[dict[str, Any]]) -> list[str]:
        """Return what the media of a message show, and refuse what the model or its limits do not allow."""
        kinds = [PARTS[part["type"]] for part in parts if part.get("type") in PARTS]
        for kind in kinds:
            limit = int(self.limits.get(kind, 1)) if kind in self.media else 0
            if kinds.count(kind) > limit:
                raise Refused(400, "BadRequestError", f"At most {limit} {kind}(s) may be provided in one request.")
        return [look(part) for part in parts if part.get("type") in PARTS]

    def tool_call(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the call that a request with tools gets, or None where it has none."""
        tools = request.get("tools")
        if not tools or request.get("tool_choice") == "none":
            return None
        if request.get("tool_choice", "auto") == "auto" and not self.tools:
            text = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise Refused(400, "BadRequestError", text)
        function = tools[0]["function"]
        wanted = function.get("parameters", {}).get("required", [])
        return {"name": function["name"], "arguments": json.dumps(dict.fromkeys(wanted, "Paris"))}


def look(part: dict[str, Any]) -> str:
    """Return what one picture, film or sound shows; it must be a whole file."""
    kind = part["type"]
    if kind == "input_audio":
        content = decoded(part["input_audio"]["data"])
    else:
        head, _, data = str(part[kind]["url"]).partition(",")
        if not re.fullmatch(r"data:[\w/+.-]+;base64", head):
            raise Refused(400, "BadRequestError", "The URL must be either a HTTP, data or file URL.")
        content = decoded(data)
    if PARTS[kind] == "image":
        return f"a {colour(content)} picture"
    if PARTS[kind] == "video":
        if content[4:8] != b"ftyp" or b"moov" not in content:
            raise Refused(400, "BadRequestError", "Could not open video stream")
        return "a short film"
    if content[:4] != b"RIFF" or content[8:12] != b"WAVE":
        raise Refused(400, "BadRequestError", "Error opening audio: Format not recognised.")
    return "a tone"


def decoded(text: str) -> bytes:
    """Return the bytes of base64."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as problem:
        raise Refused(400, "BadRequestError", f"Invalid base64-encoded string: {problem}") from problem


def colour(content: bytes) -> str:
    """Return the colour of a PNG file's first point."""
    data, position = b"", 8
    if content[:8] != b"\x89PNG\r\n\x1a\n":
        raise Refused(400, "BadRequestError", "cannot identify image file")
    while position < len(content):
        (length,) = struct.unpack(">I", content[position : position + 4])
        if content[position + 4 : position + 8] == b"IDAT":
            data += content[position + 8 : position + 8 + length]
        position += 12 + length
    try:
        line = zlib.decompress(data)
    except zlib.error as problem:
        raise Refused(400, "BadRequestError", f"broken data stream when reading image file: {problem}") from problem
    return COLOURS.get((line[1], line[2], line[3]), "grey")


def vector(text: str) -> list[float]:
    """Return a unit vector of a text: its words, counted by a checksum."""
    counts = [0.0] * DIMENSIONS
    for word in re.findall(r"\w+", text.lower()):
        counts[zlib.crc32(word.encode()) % DIMENSIONS] += 1.0
    length = math.sqrt(sum(count * count for count in counts)) or 1.0
    return [count / length for count in counts]


def ranked(query: str, documents: list[str]) -> list[dict[str, Any]]:
    """Return documents by likeness to the query, best first, as vLLM's rerank does."""
    scores = [sum(a * b for a, b in zip(vector(query), vector(text), strict=True)) for text in documents]
    order = sorted(range(len(documents)), key=lambda index: -scores[index])
    return [
        {"index": index, "document": {"text": documents[index]}, "relevance_score": scores[index]} for index in order
    ]
