"""Shared basics: errors, checks, programs, files, tables, and the redaction of secrets."""
