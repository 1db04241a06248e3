"""Entry point: python3 -m vllm.entrypoints.openai.api_server."""

from __future__ import annotations

import sys

from vllm.standin import stack
from vllm.standin.options import make_parser, with_dashes
from vllm.standin.serve import serve


def main() -> int:
    """Serve the model that the options name."""
    return serve(make_parser("api_server.py", stack.UPSTREAM).parse_args(with_dashes(sys.argv[1:])))


if __name__ == "__main__":
    sys.exit(main())
