"""Labels of nodes on their way from the configuration of an agent to the verdicts of Fleet."""

import pytest
from tests.support.verdict_pushes import own_time_push

from ingero.config.ingero import AgentConfig
from ingero.contract import names
from ingero.contract.exposition import render
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
from ingero.fleet.verdict_metrics import job_families
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


def test_gpu_and_pod_of_a_rank_are_labels_of_the_series_that_joins() -> None:
    identity = Identity(node="n1", cluster="c", job="j", rank=0, gpu_uuid="GPU-7", pod="worker-0")
    (pushed,) = own_time_push("n1", 0, 1, 500.0).resource_metrics
    service = VerdictService()
    for resource in (identity_resource(identity), identity_resource(Identity(node="n2", rank=1))):
        part = ResourceMetrics(resource=resource, scope_metrics=pushed.scope_metrics)
        service.take(MetricsRequest((part,)), "c", 1e6)
    page = render(job_families(service)).decode()
    assert (
        'ingero_job_info{cluster_id="c",gpu_uuid="GPU-7",ingero_job="j",ingero_pod="worker-0",'
        'node_id="n1",rank="0"} 1'
    ) in page
    assert 'gpu_uuid="",ingero_job="",ingero_pod="",node_id="n2",rank="1"' in page


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
