"""Entry point of the fork of release 1.22 for several models: python3 -m vllm.entrypoints.openai.mm_api_server."""

from __future__ import annotations

import sys

from vllm.standin import stack
from vllm.standin.options import make_parser, with_dashes
from vllm.standin.serve import serve


def main() -> int:
    """Serve the models that the options name."""
    if stack.PLUGIN:
        raise SystemExit("No module named vllm.entrypoints.openai.mm_api_server")
    parser = make_parser("mm_api_server.py")
    parser.add_argument("--models", "--names-list", nargs="*")
    parser.add_argument("--model-param", action="append")
    return serve(parser.parse_args(with_dashes(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
