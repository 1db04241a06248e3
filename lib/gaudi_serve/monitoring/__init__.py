"""Monitoring for operators: metrics, targets, rules and dashboards."""
