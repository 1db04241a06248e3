"""The dashboards for Grafana: what they show, and how that becomes JSON."""
