"""The code that the filters on the controller and the modules on the hosts share.

Standard library only: the same files run inside ansible-core's own environment and, as
``ansible.module_utils.gaudi_serve``, with whatever python3 a host has (3.10 or newer).
"""
