"""From what is wished to what is to run: complete, check, place, launch, cost, digest; and what differs from that."""
