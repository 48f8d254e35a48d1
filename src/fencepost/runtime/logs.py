"""Logs for people or for machines: one line an event, with its fields. Secrets never get this far."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime
from typing import Literal, TextIO

import msgspec

LogFormat = Literal["auto", "pretty", "json"]

_COLOURS = {"WARNING": "\033[33m", "ERROR": "\033[31m", "CRITICAL": "\033[31m"}
_PLAIN = "\033[0m"


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
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
    def __init__(self, *, colour: bool) -> None:
        super().__init__()
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created).astimezone().strftime("%H:%M:%S.%f")[:-3]
        fields = " ".join(f"{key}={value}" for key, value in getattr(record, "fields", {}).items())
        text = f"{at} {record.levelname.lower():7} {record.getMessage()} {fields}".rstrip()
        if record.exc_info:
            text += "\n" + self.formatException(record.exc_info)
        colour = _COLOURS.get(record.levelname, "")
        return f"{colour}{text}{_PLAIN}" if self._colour and colour else text


def configure(log_format: LogFormat, level: str, stream: TextIO = sys.stderr) -> None:
    is_terminal = stream.isatty()
    pretty = log_format == "pretty" or (log_format == "auto" and is_terminal)
    handler = logging.StreamHandler(stream)
    handler.setFormatter(PrettyFormatter(colour=is_terminal) if pretty else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for noisy in ("asyncio", "aiohttp", "uvicorn.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # An outage is told by those who meet it; the driver's pool adds a trace for every connection that it can't restore.
    logging.getLogger("asyncpg.pool").setLevel(logging.ERROR)
