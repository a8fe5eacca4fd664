"""Units of systemd for the services, as `ingero fleet init` and `ingero join` write them."""

from pathlib import Path
from typing import Final

AGENT_UNIT: Final = "ingero-agent.service"
FLEET_UNIT: Final = "ingero-fleet.service"
AGENT_CAPABILITIES: Final = "CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_SYS_ADMIN CAP_DAC_READ_SEARCH"

_SANDBOX: Final = """\
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
ProtectKernelModules=yes
ProtectKernelLogs=yes
ProtectClock=yes
ProtectHostname=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
"""


def agent_unit(program: Path, config: Path, state: Path) -> str:
    """Return the unit of the agent. Its recorder needs capabilities; its other parts drop them."""
    return f"""\
[Unit]
Description=Ingero agent
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
NotifyAccess=main
ExecStart={program} agent --config {config}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
WatchdogSec=60
TimeoutStopSec=60
RuntimeDirectory=ingero
RuntimeDirectoryPreserve=restart
StateDirectory=ingero
ReadWritePaths={state}
LimitMEMLOCK=infinity
LimitNOFILE=65536
CapabilityBoundingSet={AGENT_CAPABILITIES}
AmbientCapabilities={AGENT_CAPABILITIES}
NoNewPrivileges=yes
ProtectSystem=strict
ProtectKernelModules=yes
ProtectClock=yes
ProtectHostname=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes

[Install]
WantedBy=multi-user.target
"""


def fleet_unit(program: Path, config: Path, folder: Path, user: str) -> str:
    """Return the unit of Fleet, which runs as `user` and writes to one folder only."""
    return f"""\
[Unit]
Description=Ingero Fleet
Wants=network-online.target
After=network-online.target

[Service]
Type=notify
ExecStart={program} --config {config}
ExecReload=/bin/kill -HUP $MAINPID
Restart=on-failure
RestartSec=5
WatchdogSec=60
User={user}
ReadWritePaths={folder}
LimitNOFILE=65536
CapabilityBoundingSet=
{_SANDBOX}PrivateDevices=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged @resources
MemoryDenyWriteExecute=yes
UMask=0077

[Install]
WantedBy=multi-user.target
"""
