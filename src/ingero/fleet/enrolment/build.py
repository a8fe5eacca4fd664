"""The enrolment of a Fleet, from its configuration."""

import socket
from typing import TYPE_CHECKING

from ingero.config.fleet import FleetConfig

if TYPE_CHECKING:
    from ingero.fleet.enrolment.service import EnrolmentService


def build_enrolment(config: FleetConfig) -> "EnrolmentService | None":
    """Return what enrols nodes, where a folder for it is set; raises AuthError.

    The names of Fleet's own certificates are nobody else's.
    """
    folder = config.extensions.ingero_enrolment.dir
    if folder is None:
        return None
    # certificates, which only a Fleet that nodes can join signs
    from ingero.fleet.enrolment.service import EnrolmentService  # noqa: PLC0415 - see above
    from ingero.transport.certificates import names_in  # noqa: PLC0415 - see above

    own = {socket.gethostname()}
    for listener in config.listeners():
        if listener.tls is not None:
            own.update(names_in(listener.tls.cert_file))
    return EnrolmentService(folder, sorted(own))
