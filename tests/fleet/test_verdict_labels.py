"""Labels of nodes on their way from the configuration of an agent to the verdicts of Fleet."""

import pytest
from tests.support.verdict_pushes import own_time_push

from ingero.config.ingero import AgentConfig
from ingero.contract import names
from ingero.contract.otlp.values import (
    MetricsRequest,
    Resource,
    ResourceMetrics,
    attributes,
    plain_attributes,
)
from ingero.contract.push.encode import identity_resource
from ingero.contract.types import Identity
from ingero.errors import ConfigError
from ingero.fleet.verdicts import VerdictService


def test_labels_of_an_agent_reach_the_members_of_the_engine() -> None:
    identity = Identity(node="n1", cluster="c", job="j", rank=0, labels=(("rack", "r7"),))
    (pushed,) = own_time_push("n1", 0, 1, 500.0).resource_metrics
    resource = identity_resource(identity)
    assert plain_attributes(resource.attributes)[f"{names.LABEL_PREFIX}rack"] == "r7"
    request = MetricsRequest(
        (ResourceMetrics(resource=resource, scope_metrics=pushed.scope_metrics),)
    )
    service = VerdictService()
    service.take(request, "c", 1e6)
    (member,) = service.clusters["c"].engine.registry.members
    assert member.labels == (("rack", "r7"),)


def test_labels_that_are_no_text_or_too_many_are_ignored() -> None:
    (pushed,) = own_time_push("n1", 0, 1, 500.0).resource_metrics
    assert pushed.resource is not None
    values = plain_attributes(pushed.resource.attributes)
    values |= {f"{names.LABEL_PREFIX}l{number}": "x" for number in range(9)}
    values |= {f"{names.LABEL_PREFIX}number": 5, names.LABEL_PREFIX: "nameless"}
    request = MetricsRequest(
        (
            ResourceMetrics(
                resource=Resource(attributes=attributes(values)),
                scope_metrics=pushed.scope_metrics,
            ),
        )
    )
    service = VerdictService()
    service.take(request, "c", 1e6)
    (member,) = service.clusters["c"].engine.registry.members
    assert member.labels == tuple((f"l{number}", "x") for number in range(names.MAX_LABELS))


def test_labels_are_checked_in_the_configuration() -> None:
    assert AgentConfig(labels={"rack": "r7"}).labels == {"rack": "r7"}
    with pytest.raises(ConfigError, match="labels: 6 labels; at most 5 are sent"):
        AgentConfig(labels={f"l{number}": "x" for number in range(6)})
    with pytest.raises(ConfigError, match=r"labels\.rack: name and value must be"):
        AgentConfig(labels={"rack": " "})
