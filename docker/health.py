"""Health of the container: is ``/health`` on this port of loopback answered with 200?

``health.py PORT``; exit status 0 or 1. With or without TLS, whichever the port speaks. The
certificate is made for the name by which others call this machine, so here it is not looked at.
"""

from __future__ import annotations

import http.client
import ssl
import sys


def status(port: int, *, secure: bool) -> int:
    """The status of one request; 0 where there is no answer."""
    link: http.client.HTTPConnection
    if secure:
        unchecked = ssl._create_unverified_context()
        link = http.client.HTTPSConnection("127.0.0.1", port, timeout=2, context=unchecked)
    else:
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
    try:
        link.request("GET", "/health")
        return link.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        link.close()


if __name__ == "__main__":
    port = int(sys.argv[1])
    sys.exit(not any(status(port, secure=secure) == 200 for secure in (False, True)))
