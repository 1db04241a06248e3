"""The generated picture, sound and film of the smoke tests."""

from __future__ import annotations

import base64
import io
import math
import struct
import wave
import zlib

PICTURE_COLOUR, SIDE = "red", 224
RATE, PITCH = 16000, 440.0
# Two seconds of blue, 112 by 112 pixels, four frames a second; encoded once with H.264.
FILM = (
    "AAAAIGZ0eXBpc29tAAACAGlzb21pc28yYXZjMW1wNDEAAANgbW9vdgAAAGxtdmhkAAAAAAAAAAAAAAAAAAAD6AAAB9AAAQAAAQAA"
    "AAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAABAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAgAA"
    "Aq90cmFrAAAAXHRraGQAAAADAAAAAAAAAAAAAAABAAAAAAAAB9AAAAAAAAAAAAAAAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAABAAAA"
    "AAAAAAAAAAAAAABAAAAAAHAAAABwAAAAAAAkZWR0cwAAABxlbHN0AAAAAAAAAAEAAAfQAAAgAAABAAAAAAInbWRpYQAAACBtZGhk"
    "AAAAAAAAAAAAAAAAAABAAAAAgABVxAAAAAAALWhkbHIAAAAAAAAAAHZpZGUAAAAAAAAAAAAAAABWaWRlb0hhbmRsZXIAAAAB0m1p"
    "bmYAAAAUdm1oZAAAAAEAAAAAAAAAAAAAACRkaW5mAAAAHGRyZWYAAAAAAAAAAQAAAAx1cmwgAAAAAQAAAZJzdGJsAAAAwnN0c2QA"
    "AAAAAAAAAQAAALJhdmMxAAAAAAAAAAEAAAAAAAAAAAAAAAAAAAAAAHAAcABIAAAASAAAAAAAAAABDExhdmMgbGlieDI2NAAAAAAA"
    "AAAAAAAAAAAAAAAAAAAAGP//AAAAOGF2Y0MBZAAL/+EAGmdkAAuscgRHPsBEAAADAAQAAAMAIDxQphGAAQAHaOhDg5LIsP34+AAA"
    "AAAQcGFzcAAAAAEAAAABAAAAFGJ0cnQAAAAAAAACNAAAAAAAAAAYc3R0cwAAAAAAAAABAAAACAAAEAAAAAAUc3RzcwAAAAAAAAAB"
    "AAAAAQAAADhjdHRzAAAAAAAAAAUAAAABAAAgAAAAAAEAAIAAAAAAAQAAMAAAAAACAAAAAAAAAAMAABAAAAAAHHN0c2MAAAAAAAAA"
    "AQAAAAEAAAAIAAAAAQAAADRzdHN6AAAAAAAAAAAAAAAIAAAAMQAAAA4AAAANAAAADQAAAA0AAAANAAAADQAAAA0AAAAUc3RjbwAA"
    "AAAAAAABAAADkAAAAD11ZHRhAAAANW1ldGEAAAAAAAAAIWhkbHIAAAAAAAAAAG1kaXJhcHBsAAAAAAAAAAAAAAAACGlsc3QAAAAI"
    "ZnJlZQAAAJVtZGF0AAAALWWIgQACn/6EH8CmERxHpRngX7LVuyQkld2oq+r+QLUdd1ndf/WLAGgAfwxqsQAAAApBmgjtiCH/AAa8"
    "AAAACUGeEGcQS/8MmQAAAAkBnhgmiCH/EfAAAAAJAZ4YRogh/xHxAAAACQGeGI1IIf8R8QAAAAkBnhitSCH/EfEAAAAJAZ4YzUgh"
    "/xHx"
)


def picture() -> str:
    """Return a red square as a PNG file in base64."""
    line = b"\0" + b"\xff\0\0" * SIDE
    header = struct.pack(">IIBBBBB", SIDE, SIDE, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(line * SIDE, 9)), (b"IEND", b"")]
    file = b"\x89PNG\r\n\x1a\n"
    for kind, data in parts:
        file += struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    return base64.b64encode(file).decode()


def sound() -> str:
    """Return one second of a 440 Hz tone as a WAV file in base64."""
    file = io.BytesIO()
    with wave.open(file, "wb") as tone:
        tone.setnchannels(1)
        tone.setsampwidth(2)
        tone.setframerate(RATE)
        samples = (int(20000 * math.sin(2 * math.pi * PITCH * n / RATE)) for n in range(RATE))
        tone.writeframes(b"".join(struct.pack("<h", sample) for sample in samples))
    return base64.b64encode(file.getvalue()).decode()


def film() -> str:
    """Return two seconds of blue as an MP4 file in base64."""
    return FILM
