"""The enrolment of a Fleet, from its configuration."""

import socket

from ingero.config.fleet import FleetConfig
from ingero.fleet.enrolment.service import EnrolmentService
from ingero.transport.certificates import names_in


def build_enrolment(config: FleetConfig) -> EnrolmentService | None:
    """Return what enrols nodes, where a folder for it is set; raises AuthError.

    The names of Fleet's own certificates are nobody else's.
    """
    folder = config.extensions.ingero_enrolment.dir
    if folder is None:
        return None
    own = {socket.gethostname()}
    for listener in config.listeners():
        if listener.tls is not None:
            own.update(names_in(listener.tls.cert_file))
    return EnrolmentService(folder, sorted(own))
