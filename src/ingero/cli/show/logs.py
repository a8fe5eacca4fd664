"""Log lines of every service: time, level, event name, then its fields as key=value."""

import json
import logging
import sys
import time
from pathlib import Path

from ingero.cli.show.safe_output import visible_json
from ingero.cli.show.table import printable
from ingero.errors import ConfigError

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """Format a record as `2026-11-15T02:32:37.298Z INFO straggler_raised score=0.58 mode=fleet`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = (
            f"{key}={_value(value)}" for key, value in vars(record).items() if key not in _PLAIN
        )
        line = " ".join(
            [
                f"{at}.{int(record.msecs):03d}Z",
                record.levelname,
                printable(record.getMessage()),
                *fields,
            ]
        )
        # Indented, so that no line of an error can pass for an event.
        trace = self.formatException(record.exc_info).splitlines() if record.exc_info else []
        return "\n  ".join([line, *map(printable, trace)])


def _value(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
    if text and text.isprintable() and not set(text) & set(' "='):
        return text
    return visible_json(json.dumps(text))


def set_up_logging(level: str = "info", file: Path | None = None) -> None:
    """Log to standard error, or append to a file; standard output is for results."""
    try:
        handler = logging.StreamHandler(sys.stderr) if file is None else logging.FileHandler(file)
    except OSError as error:
        raise ConfigError(f"cannot write the log to {file}: {error.strerror}") from None
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "aiohttp", "mcp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    # Invalid requests must not fill the log; the replies to them are counted.
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
    logging.getLogger("uvicorn.error").addFilter(_is_error)
    # One such record for each call whose message was damaged or whose sender went away.
    logging.getLogger("grpc._cython.cygrpc").addFilter(
        lambda record: _kind(record) != "ExecuteBatchError"
    )


def _is_error(record: logging.LogRecord) -> bool:
    """Return False for a request that was cancelled because the service stops."""
    return _kind(record) != "CancelledError"


def _kind(record: logging.LogRecord) -> str:
    """Return the name of the error: not every process that logs has its class."""
    kind = record.exc_info[0] if record.exc_info else None
    return kind.__name__ if kind else ""
