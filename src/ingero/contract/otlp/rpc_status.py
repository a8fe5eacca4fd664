"""google.rpc.Status, the body of OTLP errors, and google.rpc.RetryInfo, the delay before a retry.

OTLP clients over gRPC follow RetryInfo; without it they drop a request that was refused with
RESOURCE_EXHAUSTED. Over HTTP they follow the Retry-After header, which the body repeats. The two
messages are declared here, because no dependency of ours contains them.
"""

import functools
from typing import Any, Final

import msgspec

from ingero.contract.otlp.body import Encoding

STATUS_METADATA: Final = "grpc-status-details-bin"
RETRY_METADATA: Final = "google.rpc.retryinfo-bin"  # the key that the Python SDK reads
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"


def encode_status(
    encoding: Encoding, code: int, message: str, retry_after_s: int | None = None
) -> bytes:
    """Return the body that OTLP requires with every error; `code` is the gRPC status code."""
    if encoding is Encoding.JSON:
        status: dict[str, object] = {"code": code, "message": message}
        if retry_after_s is not None:
            status["details"] = [{"@type": _RETRY_INFO, "retryDelay": f"{retry_after_s}s"}]
        return msgspec.json.encode(status)
    answer = _messages()[0](code=code, message=message)
    if retry_after_s is not None:
        answer.details.add(type_url=_RETRY_INFO, value=encode_retry_info(retry_after_s))
    encoded: bytes = answer.SerializeToString()
    return encoded


def encode_retry_info(retry_after_s: int) -> bytes:
    """Return a google.rpc.RetryInfo."""
    encoded: bytes = _messages()[1](retry_delay={"seconds": retry_after_s}).SerializeToString()
    return encoded


def decode_retry_after_s(status: bytes) -> float | None:
    """Return the delay that an encoded Status asks for; None without one or for other bytes."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - loaded at the first use

    status_type, retry_type = _messages()
    try:
        for packed in status_type.FromString(status).details:
            if packed.type_url == _RETRY_INFO:
                delay = retry_type.FromString(packed.value).retry_delay
                return max(0.0, float(delay.seconds + delay.nanos / 1e9))
    except DecodeError:
        pass
    return None


@functools.cache
def _messages() -> tuple[Any, Any]:
    """Declare Status and RetryInfo in a descriptor pool of our own.

    In the default pool they would clash with another package that declares them. The runtime is
    loaded at the first use.
    """
    from google.protobuf import any_pb2, duration_pb2  # noqa: PLC0415 - see above
    from google.protobuf.descriptor_pb2 import (  # noqa: PLC0415 - see above
        FieldDescriptorProto,
        FileDescriptorProto,
    )
    from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - see above
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - see above

    file = FileDescriptorProto(
        name="google/rpc/status.proto", package="google.rpc", syntax="proto3"
    )
    one, many = FieldDescriptorProto.LABEL_OPTIONAL, FieldDescriptorProto.LABEL_REPEATED
    nested = FieldDescriptorProto.TYPE_MESSAGE
    status, retry = file.message_type.add(name="Status"), file.message_type.add(name="RetryInfo")
    status.field.add(name="code", number=1, label=one, type=FieldDescriptorProto.TYPE_INT32)
    status.field.add(name="message", number=2, label=one, type=FieldDescriptorProto.TYPE_STRING)
    status.field.add(
        name="details", number=3, label=many, type=nested, type_name=".google.protobuf.Any"
    )
    retry.field.add(
        name="retry_delay", number=1, label=one, type=nested, type_name=".google.protobuf.Duration"
    )
    pool = DescriptorPool()
    for known in (any_pb2.DESCRIPTOR, duration_pb2.DESCRIPTOR):
        file.dependency.append(known.name)
        pool.AddSerializedFile(known.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindMessageTypeByName
    return GetMessageClass(found("google.rpc.Status")), GetMessageClass(
        found("google.rpc.RetryInfo")
    )
