"""Files that are shipped twice are the same, and the table of ports is that of the services."""

from pathlib import Path

import pytest

from ingero.config.deploy.ports import ECHO, FLEET, PORTS, ports_alone
from ingero.config.echo import EchoConfig
from ingero.config.fleet import FleetConfig
from ingero.transport.listen import parse_address

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["ingero-rules", "ingero-cost-rules"])
def test_rules_of_the_package_are_those_of_the_repository(name: str) -> None:
    """`cp deploy/prometheus/NAME.yml src/ingero/config/deploy/NAME.yaml` brings them up to date."""
    shipped = ROOT / "src" / "ingero" / "config" / "deploy" / f"{name}.yaml"
    assert shipped.read_text() == (ROOT / "deploy" / "prometheus" / f"{name}.yml").read_text()


def test_each_service_alone_has_the_ports_of_the_table() -> None:
    listeners = {each.name: parse_address(each.endpoint)[1] for each in FleetConfig().listeners()}
    assert listeners == ports_alone(FLEET)
    echo = EchoConfig(insecure_no_tls=True, auth_token_file=Path("x"))
    found = {
        "grpc": echo.otlp_addr,
        "http": echo.otlp_http_addr,
        "mcp": echo.mcp_addr,
        "health": echo.health_addr,
    }
    assert {name: parse_address(addr)[1] for name, addr in found.items()} == ports_alone(ECHO)


def test_no_two_services_collide_on_one_machine() -> None:
    moved = [port.moved for port in PORTS.values()]
    assert len(set(moved)) == len(moved)
