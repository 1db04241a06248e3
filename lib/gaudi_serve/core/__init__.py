"""Errors, and what no message may show."""
