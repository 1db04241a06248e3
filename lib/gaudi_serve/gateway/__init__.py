"""One endpoint for the models of many hosts: HAProxy's configuration and its control at run time."""
