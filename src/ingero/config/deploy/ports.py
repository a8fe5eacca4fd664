"""Every port of every service in one table: alone, and beside the others.

Services of one machine would collide on some ports. Each keeps its own while it runs alone; under
`ingero up`, which runs them together, the second one moves.
"""

from dataclasses import dataclass
from typing import Final

FLEET, ECHO, AGENT = "fleet", "echo", "agent"


@dataclass(frozen=True, slots=True)
class Port:
    """One listener: its service, its name in addresses, its port alone and beside the others."""

    service: str
    name: str
    alone: int
    moved: int
    option: str  # the flag of the service
    meaning: str


PORTS: Final = {  # by the flag of `ingero up`
    "fleet-grpc": Port(FLEET, "grpc", 4317, 4317, "--grpc", "agents push here (OTLP/gRPC)"),
    "fleet-http": Port(FLEET, "http", 4318, 4318, "--http", "agents push here (OTLP/HTTP)"),
    "fleet-api": Port(FLEET, "threshold", 8080, 8080, "--agent", "page, thresholds and status"),
    "fleet-admin": Port(FLEET, "admin", 8081, 8081, "--admin", "scores of every node"),
    "fleet-health": Port(FLEET, "health", 55679, 55679, "--health", "health page"),
    "fleet-metrics": Port(FLEET, "metrics", 8888, 8888, "--metrics", "Fleet's own metrics"),
    "fleet-prometheus": Port(
        FLEET, "prometheus", 9090, 9090, "--prometheus", "what agents pushed, for Prometheus"
    ),
    "echo-otlp": Port(ECHO, "grpc", 4317, 14317, "--otlp-addr", "OTLP/gRPC, Fleet forwards here"),
    "echo-otlp-http": Port(ECHO, "http", 4318, 14318, "--otlp-http-addr", "OTLP/HTTP"),
    "echo-api": Port(ECHO, "mcp", 8081, 18081, "--mcp-addr", "HTTP API and MCP, for questions"),
    "echo-health": Port(ECHO, "health", 8080, 18080, "--health-addr", "health page"),
    "agent-api": Port(AGENT, "api", 8080, 28080, "agent.api.listen", "page and API of this node"),
}


def ports_alone(service: str) -> dict[str, int]:
    """Return the ports of a service that runs alone, by the name of the listener."""
    return {port.name: port.alone for port in PORTS.values() if port.service == service}
