"""Compares the clusters and the node of a token with those that a request names."""

from ingero.contract.names import CLUSTER_ID, DEFAULT_CLUSTER, NODE_ID
from ingero.contract.otlp.body import decode
from ingero.contract.otlp.rows import resource_context
from ingero.contract.otlp.values import (
    LogsRequest,
    MetricsRequest,
    Resource,
    TracesRequest,
    plain_attributes,
)
from ingero.errors import MalformedPush, TooLarge
from ingero.transport.bearer import Key
from ingero.transport.otlp.server_http import Inbound, Reply


def not_allowed(cluster: str | None) -> str:
    """Return why a token is not valid for a cluster, or for all of them."""
    return f"this token is not valid for {f'cluster {cluster!r}' if cluster else 'all clusters'}"


def refused_cluster(sender: Key, inbound: Inbound) -> Reply | None:
    """Return the refusal of a request that names another cluster or node than its token allows.

    The cluster of the request wins in Fleet, but exporters pass the body on as it is.
    """
    if not sender.is_confined:
        return None
    try:
        request = decode(inbound.kind, inbound.body, inbound.encoding)
        resources = _resources(request)
        other = _other_node(sender.node, resources)
        if other is not None:
            return Reply(403, message=f"this token is of {sender.node}, not of {other!r}")
        if sender.clusters is None:
            return None
        named = [_cluster_in(resource) for resource in resources]
    except MalformedPush as error:
        return Reply(400, message=str(error))
    except TooLarge as error:
        return Reply(413, message=str(error))
    cluster = inbound.cluster
    for name in (cluster, *(each or cluster or DEFAULT_CLUSTER for each in named)):
        if name is not None and name not in sender.clusters:
            return Reply(403, message=not_allowed(name))
    return None


def _other_node(own: str | None, resources: list[Resource | None]) -> str | None:
    """Return a node that a request names and that is not `own`, by any name that Echo reads."""
    for resource in resources if own is not None else ():
        explicit = plain_attributes(resource.attributes if resource else ()).get(NODE_ID)
        named = str(explicit) if explicit else resource_context(resource).node_id
        if named is not None and named != own:
            return named
    return None


def _resources(request: MetricsRequest | TracesRequest | LogsRequest) -> list[Resource | None]:
    if isinstance(request, MetricsRequest):
        return [each.resource for each in request.resource_metrics]
    if isinstance(request, TracesRequest):
        return [each.resource for each in request.resource_spans]
    return [each.resource for each in request.resource_logs]


def _cluster_in(resource: Resource | None) -> str | None:
    """Return the cluster that a resource names, under any of the names that Echo reads."""
    explicit = plain_attributes(resource.attributes if resource else ()).get(CLUSTER_ID)
    if explicit:
        return str(explicit)
    found = resource_context(resource).cluster_id
    return None if found == DEFAULT_CLUSTER else found
