"""The reference for Echo's benchmark: decode with protobuf, insert row by row, commit, answer."""

import sys

import duckdb
import uvicorn
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

COLUMNS = "ts BIGINT, value DOUBLE, metric VARCHAR, cluster VARCHAR, node VARCHAR, op VARCHAR, kernel VARCHAR, severity VARCHAR, job VARCHAR, rank BIGINT, gpu BIGINT, pid BIGINT, step BIGINT, dur_us DOUBLE, p99_us DOUBLE"  # fmt: skip  # noqa: E501


def rows(body: bytes) -> list[tuple]:
    found = []
    for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
        who = {a.key: a.value.string_value for a in resource.resource.attributes}
        for scope in resource.scope_metrics:
            for metric in scope.metrics:
                for point in metric.gauge.data_points:
                    values = [
                        getattr(a.value, a.value.WhichOneof("value")) for a in point.attributes
                    ]
                    fixed = (point.time_unix_nano, point.as_double, metric.name, *who.values())
                    found.append((*fixed, *values))
    return found


def main(port: int, folder: str) -> None:
    connection = duckdb.connect(f"{folder}/rows.db")
    connection.execute(f"CREATE TABLE IF NOT EXISTS events ({COLUMNS})")
    marks = ", ".join("?" * (COLUMNS.count(",") + 1))

    async def metrics(request: Request) -> Response:
        connection.execute("BEGIN")
        connection.executemany(f"INSERT INTO events VALUES ({marks})", rows(await request.body()))
        connection.execute("COMMIT")
        return Response(b"", media_type="application/x-protobuf")

    app = Starlette(routes=[Route("/v1/metrics", metrics, methods=["POST"])])
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="error", access_log=False)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
