"""The enrolment of a Fleet, from its configuration."""

import socket
from typing import TYPE_CHECKING

from ingero.config.deploy.fleet_folder import FleetFolder
from ingero.config.fleet import FleetConfig

if TYPE_CHECKING:
    from ingero.fleet.enrolment.service import EnrolmentService


def build_enrolment(config: FleetConfig) -> "EnrolmentService | None":
    """Return the service that enrols nodes if its folder is configured; raises AuthError.

    Nodes cannot enrol under the names in Fleet's own certificates.
    """
    folder = config.extensions.ingero_enrolment.dir
    if folder is None:
        return None
    # certificates, which only a Fleet that nodes can join signs
    from ingero.fleet.enrolment.own_certificates import OwnCertificates  # noqa: PLC0415 - see above
    from ingero.fleet.enrolment.service import EnrolmentService  # noqa: PLC0415 - see above
    from ingero.transport.certificates import names_in  # noqa: PLC0415 - see above

    files = [each.tls.cert_file for each in config.listeners() if each.tls is not None]
    own = {socket.gethostname(), *(name for file in files for name in names_in(file))}
    service = EnrolmentService(folder, sorted(own))
    operator = FleetFolder.around(folder).operator_certificate
    service.certificates = OwnCertificates(service.authority, [*files, operator])
    return service
