"""keepalived's configuration: where the address is that several gateways share."""

from __future__ import annotations

from pathlib import PurePosixPath

from .objects import Gateway

# Run by keepalived: the gateway must answer, not only run.
HEALTH_FILE = "health.py"
HEALTH = """import ssl, sys, urllib.request
context = ssl.create_default_context()
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
handlers = urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
with urllib.request.build_opener(*handlers).open(sys.argv[1], timeout=2) as answer:
    sys.exit(answer.status != 200)
"""


def address_configuration(gateway: Gateway) -> str:
    """Return keepalived's file: the address is at the first gateway that answers, or at the first if none does.

    It names the check by the link that every configuration has, so that only a change of its own changes it.
    """
    scheme = "https" if gateway.certificate else "http"
    health = PurePosixPath(gateway.folder).with_name("current") / HEALTH_FILE
    own = "[::1]" if ":" in gateway.address else "127.0.0.1"
    return f"""# Written by gaudi-serve; changes here are lost.
global_defs {{
    enable_script_security
    script_user root
}}
vrrp_script gateway {{
    script "/usr/bin/python3 -I {health} {scheme}://{own}:{gateway.port}/health"
    interval 2
    timeout 3
    fall 2
    rise 2
    weight -100
}}
vrrp_instance gateway {{
    state BACKUP
    interface {gateway.virtual_interface}
    virtual_router_id {gateway.virtual_router_id}
    priority {max(101, 200 - 10 * gateway.rank)}
    advert_int 1
    virtual_ipaddress {{
        {gateway.virtual_address}
    }}
    track_script {{
        gateway
    }}
}}
"""
