"""Errors, checks, programs, files, tables, and what no message may show: what everything else is made with."""
