"""Buckets from the traffic of running servers: the requests, the planned buckets, and the report."""
