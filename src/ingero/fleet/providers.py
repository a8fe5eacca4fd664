"""The provider of a sender, by the operator's rules: written into its measurements before anything prices them."""

import msgspec

from ingero.config.providers import ProviderLookup
from ingero.contract import names
from ingero.contract.otlp.values import (
    MetricsRequest,
    ResourceMetrics,
    attributes,
    plain_attributes,
)


def with_provider(
    request: MetricsRequest, providers: ProviderLookup, address: str | None
) -> MetricsRequest:
    """The request with the provider that the operator's rules give its sender, by address or by label (F073)."""
    if providers.is_empty:
        return request
    return MetricsRequest(
        tuple(_provided(each, providers, address) for each in request.resource_metrics)
    )


def _provided(
    measured: ResourceMetrics, providers: ProviderLookup, address: str | None
) -> ResourceMetrics:
    resource = measured.resource
    known = plain_attributes(resource.attributes) if resource is not None else {}
    said = known.get(names.PROVIDER)
    found = providers.find(address, known, said if isinstance(said, str) else None)
    if resource is None or found is None:
        return measured
    told = msgspec.structs.replace(
        resource, attributes=attributes({**known, names.PROVIDER: found})
    )
    return msgspec.structs.replace(measured, resource=told)
