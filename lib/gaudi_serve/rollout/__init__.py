"""Changes to a fleet, host by host: in which order, at whose cost, and whether a host proves itself."""
