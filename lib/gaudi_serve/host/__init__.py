"""What travels to the hosts: observers, files, packages, baseline, removal, questions to a server."""
