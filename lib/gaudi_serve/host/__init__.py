"""Code that runs on the hosts: observers, files, packages, baseline, removal, requests to a server."""
