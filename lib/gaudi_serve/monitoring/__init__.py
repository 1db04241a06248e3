"""What operators look at: metrics, targets, rules and dashboards."""
