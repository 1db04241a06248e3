"""Changes to a fleet, host by host: their order, the downtime, and the checks of each host."""
