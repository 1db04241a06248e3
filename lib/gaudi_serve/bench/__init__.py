"""Benchmarks: loads, the tool that sends them, kept results, and how two of them compare."""
