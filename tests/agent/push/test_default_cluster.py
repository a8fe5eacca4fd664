"""An agent with nothing but the address of Fleet."""

import logging

import pytest

from ingero.agent.push.app import Agent, AgentOptions
from ingero.config.ingero import IngeroConfig
from ingero.config.loader import load_text


def test_a_configuration_with_only_an_endpoint_joins_the_default_cluster(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The published agent configuration, as printed."""
    text = "fleet:\n  endpoint: https://fleet.example.com:4317\n"
    config = load_text(IngeroConfig, text, "ingero.yaml")
    with caplog.at_level(logging.WARNING):
        agent = Agent(config, AgentOptions())
    assert agent.identity.cluster == "default"
    assert [record.message for record in caplog.records] == ["cluster_defaulted"]
