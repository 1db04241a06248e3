"""From what is wanted to what is to run: complete, check, place, launch, cost, digest; what differs, what goes down."""
