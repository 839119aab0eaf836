"""Logging of events as JSON lines. Only warnings are shown before `configure_logging` is called.

An error is logged by its type and place. The message of an error that is not the project's own is left out: it may
hold data, such as a user's id.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from contextlib import nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, ExcInfo, WrappedLogger

from shared.errors import FederationError

WARNINGS = "py.warnings"  # the logger of Python's own warnings
DEEPEST = 20  # frames of a traceback, the innermost


class _Bound(structlog.stdlib.BoundLogger):
    def exception(self, event: str | None = None, *args: Any, **fields: Any) -> Any:
        """Logs an error with its traceback, without the message that logging would add."""
        return self.error(event, *args, exc_info=True, **fields)


def make_logger(package: str) -> structlog.stdlib.BoundLogger:
    """Makes the structured logger of a service, on the standard logger of its package."""
    bound: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(package),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            _replace_exception,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=_Bound,
        cache_logger_on_first_use=False,
    )
    return bound


def configure_logging(package: str, level: str) -> None:
    """Configures a process to log JSON lines to stderr, from `level` on."""
    handler = LineHandler()
    handler.setFormatter(LineFormatter(package))
    logging.basicConfig(handlers=[handler], force=True)
    # No line says where it was written, by which thread or process: to look that up costs more than the line.
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.captureWarnings(True)
    logging.getLogger(package).setLevel(level.upper())


class LineHandler(logging.StreamHandler[TextIO]):
    """Logging handler that writes JSON lines to stderr."""

    def write_line(self, line: str) -> None:
        """Writes a line of the service itself, without a record of the standard library."""
        with self.lock or nullcontext():
            self.stream.write(f"{line}{self.terminator}")
            self.stream.flush()


def write_line(to: logging.Logger, line: str) -> None:
    """Logs a line of finished text at level info, which must be on.

    A `LineHandler` that is the only handler gets the line at once. Other handlers get it through the logger.
    """
    handlers = logging.root.handlers
    if len(handlers) == 1 and type(handlers[0]) is LineHandler and not to.handlers and to.propagate:
        try:
            return handlers[0].write_line(line)
        except (OSError, ValueError):  # no reader, or a closed stream: the standard library reports it below
            pass
    to.info(line)


class LineFormatter(logging.Formatter):
    """Formatter that passes the service's lines and writes libraries' records as JSON."""

    def __init__(self, package: str) -> None:
        super().__init__()
        self._package = package

    def format(self, record: logging.LogRecord) -> str:
        if record.name == self._package:
            return record.getMessage()
        at = datetime.fromtimestamp(record.created, UTC).isoformat().replace("+00:00", "Z")
        line = {
            "event": _message_template(record),
            "logger": record.name,
            "level": record.levelname.lower(),
            "timestamp": at,
        }
        return json.dumps(line | ({"exception": describe_errors(record.exc_info)} if record.exc_info else {}))


def _message_template(record: logging.LogRecord) -> str:
    """Returns a library's message without its arguments; of a warning its place and category."""
    if record.name == WARNINGS:
        return ": ".join(record.getMessage().split(": ")[:2])
    return str(record.msg)


def _replace_exception(_: WrappedLogger, __: str, event: EventDict) -> EventDict:
    given = event.pop("exc_info", None)
    if given:
        event["exception"] = describe_errors(given)
    return event


def describe_errors(given: ExcInfo | BaseException | bool | tuple[None, None, None]) -> list[str]:
    """Lists a chain of errors, latest first: type, our own message, and where raised."""
    error, lines, seen = _find_error(given), [], set[int]()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        words = f": {error}" if isinstance(error, FederationError) else ""
        lines += [f"{type(error).__name__}{words}", *_list_frames(error.__traceback__)]
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return lines


def _find_error(given: object) -> BaseException | None:
    if isinstance(given, BaseException):
        return given
    return given[1] if isinstance(given, tuple) else sys.exc_info()[1]


def _list_frames(trace: TracebackType | None) -> list[str]:
    frames = traceback.extract_tb(trace)[-DEEPEST:]
    return [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
