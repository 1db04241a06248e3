"""One endpoint for the models of many hosts: what HAProxy is told, and how it is talked to while it runs."""
