"""From the request to the launch: complete, check, place, launch, cost, digest, pending changes and downtime."""
