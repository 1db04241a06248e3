"""Benchmarks: loads, the tool that sends them, saved results, and their comparison."""
