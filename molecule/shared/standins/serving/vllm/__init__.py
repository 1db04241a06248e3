"""Stand-in for vLLM on Gaudi: the options, checks, log lines and answers, without a model."""

__version__ = "0.9.0.1+gaudi1213"
