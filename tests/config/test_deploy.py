"""Files that are shipped twice are the same, and the table of ports is that of the services."""

import sys
from pathlib import Path

import pytest

from ingero.config.deploy.ports import ECHO, FLEET, PORTS, ports_alone
from ingero.config.deploy.units import (
    AGENT_UNIT,
    FLEET_UNIT,
    SHIPPED,
    agent_unit,
    fleet_unit,
    installed_program,
)
from ingero.config.echo import EchoConfig
from ingero.config.fleet import FleetConfig
from ingero.transport.listen import parse_address

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("name", ["ingero-rules", "ingero-cost-rules"])
def test_rules_of_the_package_are_those_of_the_repository(name: str) -> None:
    """`cp deploy/prometheus/NAME.yml src/ingero/config/deploy/NAME.yaml` brings them up to date."""
    shipped = ROOT / "src" / "ingero" / "config" / "deploy" / f"{name}.yaml"
    assert shipped.read_text() == (ROOT / "deploy" / "prometheus" / f"{name}.yml").read_text()


@pytest.mark.parametrize("name", [AGENT_UNIT, FLEET_UNIT])
def test_units_of_the_package_are_those_of_the_repository(name: str) -> None:
    """`cp deploy/systemd/NAME src/ingero/config/deploy/` brings them up to date."""
    assert (SHIPPED / name).read_text() == (ROOT / "deploy" / "systemd" / name).read_text()


def changed(name: str, unit: str) -> tuple[set[str], set[str]]:
    """Return the lines that a unit lacks, and those that only it has."""
    shipped, made = set((SHIPPED / name).read_text().splitlines()), set(unit.splitlines())
    return shipped - made, made - shipped


def test_the_unit_of_a_joined_node_differs_in_its_paths_only() -> None:
    unit = agent_unit(Path("/opt/i/ingero"), Path("/etc/i.yaml"), Path("/var/lib/i"))
    assert changed(AGENT_UNIT, unit) == (
        {
            "Documentation=man:ingero-agent(1)",
            "ExecStart=/usr/bin/ingero agent --config /etc/ingero/ingero.yaml",
        },
        {"ExecStart=/opt/i/ingero agent --config /etc/i.yaml", "ReadWritePaths=/var/lib/i"},
    )


def test_the_unit_of_a_new_fleet_has_its_folder_and_user() -> None:
    unit = fleet_unit(Path("/o/ingero-fleet"), Path("/f/c.yaml"), Path("/home/ann/f"), "ann")
    lines = unit.splitlines()
    assert lines.index("ExecStart=/o/ingero-fleet --config /f/c.yaml") > lines.index("[Service]")
    assert {"User=ann", "ReadWritePaths=/home/ann/f", "ProtectHome=read-only"} <= set(lines)
    assert not [line for line in lines if line.startswith(("Group=", "StateDirectory"))]


def test_units_start_the_installed_program_whatever_started_us(tmp_path: Path) -> None:
    (tmp_path / "ingero-fleet").touch()
    beside = installed_program(str(tmp_path / "ingero"), "ingero-fleet")
    assert beside == tmp_path / "ingero-fleet"
    module = ROOT / "src" / "ingero" / "__main__.py"
    assert installed_program(str(module), "ingero-fleet").parent == Path(sys.executable).parent


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
