"""Fleet's processor inside a pipeline of your own: no server, no ports, your own clock.

Pushes the scores of six nodes, one of them slow, then prints the threshold and the nodes below it.
Run it with `python examples/own_pipeline.py`.
"""

import time

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.core.health.threshold import ThresholdPolicy
from ingero.fleet.processor import FleetProcessor


def health(node: str, score: float) -> otlp.MetricsRequest:
    """Return what your receiver passes on: any decoded OTLP metrics request."""
    point = otlp.NumberPoint(
        as_double=score,
        time_unix_nano=time.time_ns(),
        attributes=otlp.attributes({names.NODE_STATE: "active"}),
    )
    return otlp.MetricsRequest(
        resource_metrics=(
            otlp.ResourceMetrics(
                resource=otlp.Resource(
                    attributes=otlp.attributes({names.NODE_ID: node, names.CLUSTER_ID: "train"})
                ),
                scope_metrics=(
                    otlp.ScopeMetrics(
                        metrics=(
                            otlp.Metric(
                                name=names.HEALTH_SCORE, gauge=otlp.Gauge(data_points=(point,))
                            ),
                        )
                    ),
                ),
            ),
        )
    )


def main() -> None:
    processor = FleetProcessor(ThresholdPolicy(statistical_min=5))
    scores = {
        "gpu-01": 0.92,
        "gpu-02": 0.91,
        "gpu-03": 0.58,
        "gpu-04": 0.93,
        "gpu-05": 0.94,
        "gpu-06": 0.92,
    }
    for node, score in scores.items():
        processor.take(health(node, score), None, time.monotonic(), time.time_ns())
    processor.tick(time.monotonic())  # in a service: once a second

    served = processor.served("train")
    print(f"threshold {served.value:.6f}, quorum {served.quorum_met}")
    print("below:", ", ".join(node for node, score in scores.items() if score < served.value))


if __name__ == "__main__":
    main()
