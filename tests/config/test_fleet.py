import json
import re
from pathlib import Path

import pytest
from tests.support.shared_data import SHARED, shared

from ingero.config.fleet import FleetConfig
from ingero.config.fleet_processor import VerdictConfig
from ingero.config.loader import load_file, load_text, to_mapping
from ingero.core.health.threshold import ThresholdPolicy
from ingero.core.verdict.policy import VerdictPolicy
from ingero.errors import ConfigError
from ingero.transport.tls import is_loopback

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = CONFIGS / "fleet-config-plain.yaml"
SECURED = CONFIGS / "fleet-config.yaml"


def load(text: str) -> FleetConfig:
    return load_text(FleetConfig, text, "fleet.yaml")


def test_published_configuration_loads_unchanged() -> None:
    """F053, F054: the file as printed; ours in configs/ means the same."""
    folder = shared("seeds")
    article = json.loads(next(folder.glob("001*.txt")).read_text())["readme"]
    printed = re.search(r"## Fleet Configuration\s+```yaml\n(.*?)```", article, re.DOTALL)
    assert printed is not None, SHARED
    config = load(printed[1])
    assert config == load_file(FleetConfig, SHIPPED)
    assert config.processors.ingero.policy() == ThresholdPolicy()
    protocols = config.receivers.otlp.protocols
    assert protocols.grpc is not None and protocols.http is not None
    assert (protocols.grpc.endpoint, protocols.http.endpoint) == ("0.0.0.0:4317", "0.0.0.0:4318")


def test_without_a_file_the_same_on_loopback() -> None:
    shipped = json.dumps(to_mapping(load_file(FleetConfig, SHIPPED)))
    assert json.loads(shipped.replace("0.0.0.0", "127.0.0.1")) == to_mapping(FleetConfig())


def test_shipped_configuration_is_the_plain_one_with_certificates_and_tokens() -> None:
    secured = load_file(FleetConfig, SECURED)
    for listener in secured.listeners():
        if not is_loopback(listener.endpoint):
            assert listener.tls is not None, listener.key
            assert listener.token_file is not None, listener.key
    plain = load_file(FleetConfig, SHIPPED)
    # with a token, other machines may scrape Fleet's own metrics
    assert plain.service.telemetry.metrics.address == "127.0.0.1:8888"
    text = json.dumps(to_mapping(plain)).replace("127.0.0.1:8888", "0.0.0.0:8888")
    assert _without_secrets(to_mapping(secured)) == json.loads(text)


def _without_secrets(mapping: dict[str, object]) -> dict[str, object]:
    return {
        key: _without_secrets(value) if isinstance(value, dict) else value
        for key, value in mapping.items()
        if key not in ("tls", "token_file")
    }


def test_effective_configuration_loads_again() -> None:
    config = load_file(FleetConfig, SHIPPED)
    assert load(json.dumps(to_mapping(config))) == config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "processors:\n  memory_limiter: {}",
            "fleet.yaml:2: processors.memory_limiter: unknown key; "
            "allowed: batch, ingero, providerlookup",
        ),
        (
            "service:\n  pipelines:\n    metrics:\n      processors: [memory_limiter]",
            "processors[0]: must be one of ingero",
        ),
        (
            "processors:\n  ingero:\n    threshold:\n      k: 9",
            "fleet.yaml:4: processors.ingero.threshold.k: 9 is out",
        ),
        (
            "processors:\n  ingero:\n    push_interval: 500ms",
            "interval: 500ms is out of range; allowed: 1s to 1h",
        ),
        (
            "processors:\n  ingero:\n    ttl_multiplier: 1",
            "ttl_multiplier: 1 is out of range; allowed: 2 to 1000",
        ),
        (
            "processors:\n  ingero:\n    quorum: {coverage_fraction: 1.5}",
            "coverage_fraction: 1.5 is out of range",
        ),
        (
            "processors:\n  ingero:\n    threshold: {min: 0.9, max: 0.5}",
            "ingero.threshold.max: 0.5 is out of range",
        ),
        (
            "exporters:\n  prometheus:\n    endpoint: 0.0.0.0:8080",
            "fleet.yaml:3: exporters.prometheus.endpoint: port 8080 is taken by "
            "extensions.ingero_threshold.agent",
        ),
        (
            "extensions:\n  ingero_threshold: {admin_endpoint: '0.0.0.0:8081'}",
            "is not a loopback address",
        ),
        ("extensions:\n  ingero_threshold: {admin_endpoint: ':8081'}", "is not a loopback address"),
        (
            "receivers:\n  otlp:\n    protocols:\n      http: {endpoint: nowhere}",
            "http.endpoint: 'nowhere' is not an address",
        ),
        ("service:\n  pipelines:\n    metrics: {processors: []}", "must name ingero"),
        (
            "service:\n  pipelines:\n    metrics: {processors: [ingero], exporters: [debug]}",
            "fleet.yaml:3: service.pipelines.metrics.exporters: debug is not defined; "
            "the section exporters",
        ),
        (
            "service:\n  pipelines:\n    traces: {exporters: [prometheus/a]}",
            "fleet.yaml:3: service.pipelines.traces.exporters: prometheus/a takes metrics only",
        ),
        ("exporters:\n  otlp: {}", "fleet.yaml:2: exporters.otlp: missing: endpoint"),
        ("exporters:\n  otlp/a:", "fleet.yaml:2: exporters.otlp/a: missing: endpoint"),
        (
            "exporters:\n  zipkin: {}",
            "fleet.yaml:2: exporters.zipkin: unknown; allowed: debug, otlp, otlphttp",
        ),
        ("exporters:\n  otlp/: {endpoint: a}", "fleet.yaml:2: exporters.otlp/: unknown"),
        (
            "exporters:\n  otlp/a:\n    endpoint: a\n    tmeout: 1s",
            "fleet.yaml:4: exporters.otlp/a.tmeout: unknown",
        ),
    ],
)
def test_mistakes_name_line_key_and_what_is_allowed(text: str, expected: str) -> None:
    """F034 for the admin address, F053, F054."""
    with pytest.raises(ConfigError) as caught:
        load(text)
    assert expected in str(caught.value)
    assert re.match(r"fleet\.yaml:\d+: ", str(caught.value))


def test_several_exporters_of_a_type() -> None:
    config = load(
        "exporters:\n  otlp/near: {endpoint: a}\n  otlp/far: {endpoint: b, timeout: 3s}\n"
        "  prometheus:\n  debug/x:\n"
        "service:\n  pipelines:\n    metrics:\n      processors: [ingero]\n"
        "      exporters: [prometheus, otlp/near, otlp/far]\n"
    )
    assert list(config.exporters) == ["otlp/near", "otlp/far", "prometheus", "debug/x"]
    assert to_mapping(config)["exporters"]["otlp/far"]["timeout"] == "3s"
    assert load(json.dumps(to_mapping(config))) == config
    assert (
        load(
            "exporters:\nservice: {pipelines: {metrics: {processors: [ingero], exporters: []}}}"
        ).exporters
        == {}
    )


def test_a_protocol_left_out_is_off_and_an_empty_one_has_its_defaults() -> None:
    protocols = load("receivers:\n  otlp:\n    protocols:\n      http:\n").receivers.otlp.protocols
    assert protocols.grpc is None
    assert protocols.http is not None and protocols.http.endpoint == "127.0.0.1:4318"


@pytest.mark.parametrize("kind", ["prometheusremotewrite", "file", "kafka", "kafka/second"])
def test_exporters_of_a_collector_are_refused_with_the_way_there(kind: str) -> None:
    with pytest.raises(ConfigError, match=r"name an `otlp` exporter .* Collector") as refused:
        load(f"exporters: {{{kind}: {{path: x}}}}")
    assert "docs/how-to/collector.md" in str(refused.value)


def test_providers_are_looked_up_by_a_processor_of_the_pipeline() -> None:
    """F073: rules without a pipeline, and a pipeline without rules, are mistakes."""
    rules = "processors: {providerlookup: {file: node_providers.yaml}}\n"
    named = "service: {pipelines: {metrics: {processors: [providerlookup, ingero], exporters: []}}}"
    assert load(rules + named).processors.providerlookup.file == Path("node_providers.yaml")
    with pytest.raises(ConfigError, match="file: has no effect; name providerlookup in service"):
        load(rules)
    with pytest.raises(ConfigError, match="providerlookup needs rules; name their file in proc"):
        load(named)


def test_batch_is_accepted_by_name_and_without_settings() -> None:
    pipeline = "service: {pipelines: {metrics: {processors: [ingero, batch], exporters: []}}}"
    config = load(f"processors: {{batch: {{}}, ingero: {{}}}}\n{pipeline}")
    assert config.service.pipelines.metrics.processors == ("ingero", "batch")
    with pytest.raises(ConfigError, match=r"timeout: unknown key; processors\.batch has no"):
        load("processors: {batch: {timeout: 5s}}")


def test_the_pipeline_beside_a_collector_is_a_valid_configuration() -> None:
    page = (CONFIGS.parent / "docs/how-to/collector.md").read_text()
    printed = re.search(r"```yaml\n(# fleet-config.yaml.*?)```", page, re.DOTALL)
    assert printed is not None
    config = load(printed[1])
    assert config.service.pipelines.metrics.exporters == ("prometheus", "otlp/collector")


def test_the_length_of_a_baseline_is_that_of_the_engine() -> None:
    assert VerdictConfig().warmup_samples == VerdictPolicy().warmup_samples
