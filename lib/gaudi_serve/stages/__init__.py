"""What each stage wants on a host, what differs there, what a reset takes back."""
