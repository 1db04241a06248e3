"""Buckets from the traffic of servers that run: what came, what is planned for it, and how that is shown."""
