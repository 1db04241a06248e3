"""Stand-in for vLLM on Gaudi: the options, checks, log lines and answers, without a model."""

from .standin.stack import VERSION as __version__

__all__ = ["__version__"]
