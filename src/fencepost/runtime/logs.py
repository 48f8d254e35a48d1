"""Format logs for a terminal or as JSON: one line per event, with its fields. No caller passes secrets.

While PostgreSQL is down, the driver abandons connection attempts without reading their result. For each of them Python
reports "Future exception was never retrieved" with a traceback. They are logged in one line instead; the loops that need
the database log the outage itself.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

LogFormat = Literal["auto", "pretty", "json"]

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
_PLAIN = "\033[0m"


class JsonFormatter(logging.Formatter):
    """Write each record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line of JSON."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class PrettyFormatter(logging.Formatter):
    """Write each record as text: time, level, message, fields."""

    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as one line, followed by the traceback if there is one."""
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{key}={value}" for key, value in getattr(record, "fields", {}).items())
        text = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        colour = _COLOURS.get(record.levelname, "")
        return f"{colour}{text}{_PLAIN}" if self._colour and colour else text


def configure(log_format: LogFormat, level: str, stream: TextIO = sys.stderr) -> None:
    """Send all logs to `stream`. The format `auto` is `pretty` on a terminal and `json` otherwise."""
    is_terminal = stream.isatty()
    pretty = log_format == "pretty" or (log_format == "auto" and is_terminal)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrettyFormatter(colour=is_terminal) if pretty else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "aiohttp", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # The loops log a database outage; the driver's pool would add a traceback for every connection that it loses.
    logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)


_log = logging.getLogger(__name__)


def log_abandoned_attempts(
    loop: asyncio.AbstractEventLoop, is_failure: Callable[[BaseException], bool]
) -> None:
    """Log abandoned attempts at level DEBUG, and pass everything else to the previous exception handler."""
    before = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        future, error = context.get("future"), context.get("exception")
        is_abandoned = future is not None and not isinstance(future, asyncio.Task)
        if is_abandoned and isinstance(error, Exception) and is_failure(error):
            _log.debug("an abandoned connection attempt failed (%s)", type(error).__name__)
        elif before is not None:
            before(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)
