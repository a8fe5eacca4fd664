"""Fleet addresses: the published URL vectors, the rules for schemes, and refusals."""

import pytest

from ingero.errors import ConfigError
from ingero.transport.endpoint import Protocol, parse_endpoint, threshold_url


@pytest.mark.parametrize(
    ("text", "insecure", "base"),
    [
        pytest.param("fleet:4318", True, "http://fleet:4318", id="52"),
        pytest.param("fleet:4318", False, "https://fleet:4318", id="52-secure"),
        pytest.param("https://fleet:8080/", True, "https://fleet:8080", id="53"),
        pytest.param("fleet:4318///", True, "http://fleet:4318", id="54"),
        pytest.param("fleet:4318/v1/metrics", True, "http://fleet:4318", id="54-suffix"),
        pytest.param("https://fleet:8080/api", False, "https://fleet:8080/api", id="55"),
        pytest.param("[::1]:4318", True, "http://[::1]:4318", id="56"),
    ],
)
def test_published_urls(text: str, insecure: bool, base: str) -> None:
    endpoint = parse_endpoint(text, insecure=insecure)
    assert endpoint.base == base
    assert endpoint.push_url("c", "n").startswith(f"{base}/v1/metrics?cluster_id=c")


def test_cluster_and_node_are_encoded_into_the_query_vector_57() -> None:
    url = parse_endpoint("fleet:4318").push_url("prod-cluster", "gpu node/1&x=y")
    assert (
        url
        == "https://fleet:4318/v1/metrics?cluster_id=prod-cluster&node_id=gpu%20node%2F1%26x%3Dy"
    )


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "ftp://fleet:4318",
        "://invalid",
        "https://",
        "fleet:99999",
        "http://u:p@fleet:1",
        "a b:4318",
    ],
)
def test_wrong_addresses_are_refused_vector_58(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_endpoint(text)


@pytest.mark.parametrize(
    "text", ["https://fleet.example/", "https://fleet.example/api/v1/threshold"]
)
def test_threshold_url_vector_59(text: str) -> None:
    assert threshold_url(text, "prod") == "https://fleet.example/api/v1/threshold?cluster_id=prod"


@pytest.mark.parametrize(
    ("text", "protocol", "base"),
    [
        ("https://fleet.example.com:4317", Protocol.GRPC, "fleet.example.com:4317"),
        ("fleet:4317", Protocol.GRPC, "fleet:4317"),
        ("https://fleet:4318", Protocol.HTTP_JSON, "https://fleet:4318"),
        ("https://fleet:4317/v1/metrics", Protocol.GRPC, "fleet:4317"),
        ("https://fleet:4317/otlp", Protocol.HTTP_JSON, "https://fleet:4317/otlp"),
        ("https://fleet", Protocol.HTTP_JSON, "https://fleet"),
    ],
)
def test_scheme_rules(text: str, protocol: Protocol, base: str) -> None:
    endpoint = parse_endpoint(text)
    assert (endpoint.protocol, endpoint.base) == (protocol, base)


def test_protocol_overrides_the_port() -> None:
    assert (
        parse_endpoint("fleet:4317", protocol=Protocol.HTTP_PROTOBUF).base == "https://fleet:4317"
    )
    assert parse_endpoint("fleet:9999", protocol=Protocol.GRPC).base == "fleet:9999"
    assert parse_endpoint("https://fleet", protocol=Protocol.GRPC).base == "fleet:4317"
    with pytest.raises(ConfigError, match="path"):
        parse_endpoint("https://fleet/otlp", protocol=Protocol.GRPC)
