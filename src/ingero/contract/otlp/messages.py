"""The protobuf messages of OTLP, imported by what needs them at its first use.

The runtime and the messages take 3 MB. A Fleet whose pushes the compiled decoder reads does
without them.
"""

from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.logs.v1 import logs_pb2
from opentelemetry.proto.metrics.v1 import metrics_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from ingero.contract.otlp.values import LogsRequest, MetricsRequest, TracesRequest

__all__ = ["ENUMS", "REQUESTS", "RESPONSES", "DecodeError", "FieldDescriptor"]

REQUESTS: Final[dict[type, Callable[[], Any]]] = {
    MetricsRequest: ExportMetricsServiceRequest,
    TracesRequest: ExportTraceServiceRequest,
    LogsRequest: ExportLogsServiceRequest,
}
RESPONSES: Final[dict[type, Any]] = {
    MetricsRequest: ExportMetricsServiceResponse,
    TracesRequest: ExportTraceServiceResponse,
    LogsRequest: ExportLogsServiceResponse,
}
ENUMS: Final = {  # by the name of a field in OTLP/JSON
    "aggregationTemporality": metrics_pb2.AggregationTemporality,
    "kind": trace_pb2.Span.SpanKind,
    "code": trace_pb2.Status.StatusCode,
    "severityNumber": logs_pb2.SeverityNumber,
}
