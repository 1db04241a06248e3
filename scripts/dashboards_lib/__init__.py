"""The dashboards for Grafana: their contents, and their conversion to JSON."""
