"""What services log within a command is told in words, once; what is no line of theirs is told as it is."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from io import StringIO

import pytest

from simulation.cli import PlainLogHandler
from tests.support.questions import LONGEST_SECONDS

EVENT = {"level": "warning", "timestamp": "2026-11-25T00:42:44Z", "request_id": "0" * 32}


def told(*messages: str) -> list[str]:
    stream = StringIO()
    handler = PlainLogHandler(stream)
    for message in messages:
        handler.handle(logging.LogRecord("client_service", logging.WARNING, "", 0, message, None, None))
    return stream.getvalue().splitlines()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"event": "warning", "reason": "with two clients"}, "warning: with two clients"),
        ({"event": "held_up", "code": "conflict", "reason": "a run is open"}, "held up: a run is open (code conflict)"),
        ({"event": "run_failed", "run": "run-1", "reason": "nobody came"}, "run failed: nobody came (run run-1)"),
        ({"event": "training_lost", "run": "run-1", "round": 3}, "training lost (run run-1, round 3)"),
    ],
)
def test_an_event_is_told_in_words(fields: dict[str, object], words: str) -> None:
    assert told(json.dumps(EVENT | fields)) == [words]


def test_what_was_told_before_is_not_told_again() -> None:
    first, second = (json.dumps(EVENT | {"event": "warning", "reason": reason}) for reason in ("one", "two"))
    assert told(first, first, second, first) == ["warning: one", "warning: two"]


@pytest.mark.parametrize("line", ["of a library", "[1, 2]", '"words"', "{", '{"level": "warning"}'])
def test_another_line_is_told_as_it_is(line: str) -> None:
    assert told(line) == [line]


def test_a_command_tells_so_and_a_service_does_not() -> None:
    warn = "from client_service.runtime.logs import LOGGER; LOGGER.warning('warning', reason='with two clients')"
    install = "from simulation.cli import configure_plain_log; configure_plain_log(); "
    serve = "from shared.web.logs import configure_logging; configure_logging('client_service', 'info'); "
    said = [
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=LONGEST_SECONDS, check=True
        ).stderr
        for code in (install + warn, install + serve + warn)
    ]
    assert said[0] == "warning: with two clients\n"
    assert json.loads(said[1])["reason"] == "with two clients"
