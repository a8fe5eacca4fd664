"""Finds or makes the certificate of this node's API: `python -m ingero.cli.node_certificate ORDER`.

A process of its own, because what it imports would stay in the memory of the agent.
"""

import sys
from pathlib import Path

import msgspec

from ingero.agent.api.server import DashboardSettings, dashboard_certificate
from ingero.agent.service.node_api import CertificateOrder, NodeCertificate
from ingero.errors import IngeroError
from ingero.transport.tls import ServerTls


def main() -> int:
    """Print the certificate as JSON, or in `problem` why there is none."""
    order = msgspec.json.decode(sys.argv[1], type=CertificateOrder)
    tls = None
    if order.cert and order.key:
        tls = ServerTls(cert=Path(order.cert), key=Path(order.key))
    settings = DashboardSettings(address=order.address, db=Path(), node=order.node, tls=tls)
    try:
        used = dashboard_certificate(settings)
        found = NodeCertificate(str(used.tls.cert), str(used.tls.key), used.names)
    except (IngeroError, OSError, ValueError) as error:
        found = NodeCertificate(problem=str(error))
    sys.stdout.write(msgspec.json.encode(found).decode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
