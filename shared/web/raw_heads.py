"""Raw request heads: size, spelled names, and peer; ambiguous heads are refused.

Parsed headers do not show the spaces before a value, nor capital letters, which could carry data. A head that two
servers could split differently is refused: a proxy could be led to pass on a second request inside the first (request
smuggling, RFC 9112, 11.2).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

import h11
from h11._readers import ChunkedReader
from h11._receivebuffer import ReceiveBuffer
from starlette.types import Scope

STATE = "raw_head"  # in a request's state
LINE_END = b"\r\n"
ANOTHER_LINE = re.compile(rb"\r(?!\n)|(?<!\r)\n|\n[ \t]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
LENGTH = re.compile(rb"\n(content-length|transfer-encoding):[ \t]*(.*?)[ \t]*\r", re.IGNORECASE)
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}\r\n")
LONGEST_CHUNK_LINE = 64  # most bytes of the line with a chunk's size


@dataclass(frozen=True)
class RawHead:
    """Size and names of a request's head, and the peer's address.

    bytes: of the first line, all headers and the empty line. names: as spelled.
    """

    bytes: int
    names: tuple[str, ...]
    peer: str | None


def find_raw_head(scope: Scope) -> RawHead | None:
    """Returns the raw head of a request; None if it came over no connection."""
    found: RawHead | None = scope.get("state", {}).get(STATE)
    return found


class MeasuredConnection(h11.Connection):
    """h11 connection that measures heads and refuses ambiguous ones.

    note: called with each head's size and names before the request is handled. most: longest head in bytes; h11
    itself takes a longer one that arrives in one piece. too_long: a head was longer. asks_for_head: the last request
    was HEAD, whose answer has no body.

    h11 also accepts bare line feeds, folded lines, a length given twice or beside chunks, and extensions of chunks;
    here each is an error.
    """

    def __init__(self, most: int, note: Callable[[int, tuple[str, ...]], None]) -> None:
        super().__init__(h11.SERVER, max_incomplete_event_size=most)
        self._most, self._note, self.too_long, self.asks_for_head = most, note, False, False

    def next_event(self) -> Any:
        if self.their_state is not h11.IDLE:
            return super().next_event()
        self.asks_for_head = False
        before = self.trailing_data[0]
        try:
            event = super().next_event()
        except h11.RemoteProtocolError as error:
            self.too_long = error.error_status_hint == HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            raise
        if isinstance(event, h11.Request):
            self._look(event, before[: len(before) - len(self.trailing_data[0])])
        return event

    def _look(self, request: h11.Request, head: bytes) -> None:
        self.asks_for_head = request.method == b"HEAD"
        if len(head) > self._most:
            self.too_long = True
            raise h11.RemoteProtocolError("the head is too long")
        require_unambiguous_head(head, request.http_version)
        if isinstance(self._reader, ChunkedReader):
            self._reader = PlainChunks()
        self._note(len(head), tuple(name.decode("latin-1") for name, _ in request.headers.raw_items()))


def require_unambiguous_head(head: bytes, version: bytes) -> None:
    """Raises RemoteProtocolError for a head that another server could read differently.

    Each line ends in CR LF and is not continued, and the body's length is given once: by digits, or in chunks.
    """
    if not head.endswith(LINE_END * 2) or ANOTHER_LINE.search(head):
        raise h11.RemoteProtocolError("expected header lines that end in CR LF, without continuation lines")
    if version not in (b"1.1", b"1.0"):
        raise h11.RemoteProtocolError("expected HTTP/1.1 or 1.0")
    said = [(name.lower(), value) for name, value in LENGTH.findall(head)]
    if len(said) > 1 or any(name == b"content-length" and not value.isdigit() for name, value in said):
        raise h11.RemoteProtocolError("expected the body's length once")
    if version == b"1.0" and any(name == b"transfer-encoding" for name, _ in said):
        raise h11.RemoteProtocolError("expected no chunks before HTTP/1.1")


class PlainChunks(ChunkedReader):
    """Reader of chunked bodies without extensions, spaces or trailers."""

    def __init__(self) -> None:
        super().__init__()
        self._left, self._ended, self._expected = 0, False, b""

    def __call__(self, buf: ReceiveBuffer) -> h11.Data | h11.EndOfMessage | None:
        if self._expected and not self._skip_line_end(buf):
            return None
        if self._ended:
            return h11.EndOfMessage()
        if self._left == 0:
            size = self._read_size(buf)
            if size is None:
                return None
            if size == 0:
                self._ended, self._expected = True, LINE_END
                return self(buf)
            self._left = size
        data = buf.maybe_extract_at_most(self._left)
        if data is None:
            return None
        self._left -= len(data)
        self._expected = LINE_END if self._left == 0 else b""
        return h11.Data(data=bytes(data))

    def _skip_line_end(self, buf: ReceiveBuffer) -> bool:
        """Returns whether the line end was there in full."""
        came = buf.maybe_extract_at_most(len(self._expected)) or b""
        if not self._expected.startswith(came):
            raise h11.RemoteProtocolError("expected CR LF after a chunk, and nothing after the last")
        self._expected = self._expected[len(came) :]
        return not self._expected

    @staticmethod
    def _read_size(buf: ReceiveBuffer) -> int | None:
        line = buf.maybe_extract_next_line()
        if line is None:
            if len(buf) > LONGEST_CHUNK_LINE:
                raise h11.RemoteProtocolError("expected a chunk's size")
            return None
        if not CHUNK_SIZE.fullmatch(line):
            raise h11.RemoteProtocolError("expected a chunk's size of at most 8 hexadecimal digits, and nothing else")
        return int(line, 16)
