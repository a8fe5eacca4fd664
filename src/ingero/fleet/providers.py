"""Sets the provider of a sender in its metrics, by the rules of the operator."""

import msgspec

from ingero.config.providers import ProviderLookup
from ingero.contract import names
from ingero.contract.otlp.body import Encoding, decode
from ingero.contract.otlp.codec import encode_json, encode_protobuf
from ingero.contract.otlp.values import (
    MetricsRequest,
    ResourceMetrics,
    attributes,
    plain_attributes,
)
from ingero.errors import MalformedPush, TooLarge


def body_with_provider(
    body: bytes, encoding: Encoding, providers: ProviderLookup, address: str | None
) -> bytes:
    """Return a body in which the provider is set; one that cannot be read stays as it is."""
    try:
        request = with_provider(decode(MetricsRequest, body, encoding), providers, address)
    except (MalformedPush, TooLarge):
        return body
    return encode_json(request) if encoding is Encoding.JSON else encode_protobuf(request)


def with_provider(
    request: MetricsRequest, providers: ProviderLookup, address: str | None
) -> MetricsRequest:
    """Return the request with the provider that the operator's rules assign to its sender (F073).

    The rules match the sender's address or its labels.
    """
    if providers.is_empty:
        return request
    return MetricsRequest(
        tuple(_provided(each, providers, address) for each in request.resource_metrics)
    )


def _provided(
    measured: ResourceMetrics, providers: ProviderLookup, address: str | None
) -> ResourceMetrics:
    resource = measured.resource
    labels = plain_attributes(resource.attributes) if resource is not None else {}
    reported = labels.get(names.PROVIDER)
    found = providers.find(address, labels, reported if isinstance(reported, str) else None)
    if resource is None or found is None:
        return measured
    changed = msgspec.structs.replace(
        resource, attributes=attributes({**labels, names.PROVIDER: found})
    )
    return msgspec.structs.replace(measured, resource=changed)
