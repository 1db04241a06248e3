"""Entry point of the vllm command; of its jobs only serve is here."""

from __future__ import annotations

import sys

import vllm
from vllm.standin import stack
from vllm.standin.options import make_parser, with_dashes
from vllm.standin.serve import serve

USAGE = "usage: vllm [-h] [-v] {serve} ..."


def main() -> int:
    """Do what the first word asks for."""
    words = sys.argv[1:]
    if words[:1] in (["-v"], ["--version"]):
        print(vllm.__version__)
        return 0
    if words[:1] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    if words[:1] != ["serve"]:
        print(f"{USAGE}\nvllm: error: argument subparser: invalid choice: {words[:1]}", file=sys.stderr)
        return 2
    options = make_parser("vllm", stack.UPSTREAM).parse_args(with_dashes(words[1:]), positional_model=True)
    return serve(options)
