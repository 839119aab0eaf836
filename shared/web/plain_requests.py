"""Reads and answers plain requests of HTTP/1.1 without h11.

h11 would take most of a request's time. A plain request is one that `MeasuredConnection` would take as well, with the
same result: a head of CR LF lines in one piece, each name once, and a body of a stated length. h11 reads every other
request, and writes the refusals. A plain answer is a head with a length, and one body, after the whole request. h11
writes every other answer: it then reads the request, and goes on from there.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, RequestResponseCycle

TOKEN: Final = rb"[-!#$%&'*+.^_`|~0-9a-zA-Z]++"
VALUE: Final = rb"[\t\x20-\x7e\x80-\xff]*+"
REQUEST: Final = re.compile(
    rb"(GET|HEAD|POST|PUT|DELETE) (/[\x21-\x7e]*+) HTTP/1\.1\r\n((?:%b:%b\r\n)++)\r\n" % (TOKEN, VALUE)
)
FIELD: Final = re.compile(rb"([^:]++):[ \t]*+((?:[^\r]*[^\r \t])?)[ \t]*+\r\n")
ANSWER: Final = re.compile(rb"(?:[-!#$%%&'*+.^_`|~0-9a-z]++: %b\r\n)++" % VALUE)
REQUEST_FRAMING: Final = frozenset((b"transfer-encoding", b"expect", b"upgrade"))  # headers that h11 is to read
ANSWER_FRAMING: Final = frozenset((b"transfer-encoding", b"connection", b"upgrade"))  # headers that h11 is to write
LENGTH: Final = re.compile(rb"[0-9]{1,12}")
LONGEST_HEAD = 8 << 10
FILLER: Final = bytes(64 << 10)  # stands for a body that was read, where h11 reads its request again
STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, phrase)
    for status, phrase in STATUS_PHRASES.items()
    if status >= 200 and status not in (204, 205, 304)
}


Headers = list[tuple[bytes, bytes]]
AnswerAtOnce = Callable[[Any], tuple[Headers, bytes] | None]
"""(scope) -> headers and body of an answer with status 200: an app may have it beside its ASGI interface.

None: there is no prepared answer, and the app is to be called as usual. The call has then changed nothing.
"""


class PlainRequest(NamedTuple):
    """HTTP request as the server has read it.

    names: of the headers, as spelled. headers: as h11 gives them. size: of the head in bytes. body: what has come of
    it; left: bytes that have not.
    """

    method: str
    target: bytes
    names: tuple[str, ...]
    headers: Headers
    size: int
    body: bytes
    left: int


def read_plain(data: bytes) -> PlainRequest | None:
    """Reads one plain request with nothing behind it; None: h11 is to read it."""
    head = REQUEST.match(data)
    if head is None or head.end() > LONGEST_HEAD:
        return None
    fields = FIELD.findall(head[3])
    headers = [(name.lower(), value) for name, value in fields]
    named = dict(headers)
    if len(named) != len(headers) or b"host" not in named or not REQUEST_FRAMING.isdisjoint(named):
        return None
    if named.get(b"connection", b"keep-alive").lower() != b"keep-alive":
        return None
    size, length = head.end(), named.get(b"content-length", b"0")
    if LENGTH.fullmatch(length) is None or (left := size + int(length) - len(data)) < 0:
        return None
    names = tuple(b"\n".join([name for name, _ in fields]).decode("ascii").split("\n"))
    return PlainRequest(head[1].decode("ascii"), head[2], names, headers, size, data[size:], left)


def describe_request(request: PlainRequest, root_path: str) -> dict[str, Any]:
    """Writes the part of an ASGI scope that follows from the request.

    It is the same as uvicorn's.
    """
    path, _, query = request.target.partition(b"?")
    text = path.decode("ascii")
    return {
        "type": "http",
        "http_version": "1.1",
        "method": request.method,
        "root_path": root_path,
        "path": root_path + (unquote(text) if "%" in text else text),
        "raw_path": root_path.encode("ascii") + path,
        "query_string": query,
        "headers": request.headers,
    }


def write_plain(status: int, headers: Headers, body: bytes, *, head: bool) -> bytes | None:
    """Writes an answer with its whole body.

    None: h11 is to write or to refuse the answer. head: the answer is to a HEAD request, and the body is left out.
    """
    named, line = dict(headers), STATUS_LINES.get(status)
    if line is None or len(named) != len(headers) or not ANSWER_FRAMING.isdisjoint(named):
        return None
    block = b"".join([b"%b: %b\r\n" % one for one in headers])
    if block.count(b"\n") != len(headers) or ANSWER.fullmatch(block) is None:
        return None
    if head:
        return b"".join((line, block, b"\r\n")) if LENGTH.fullmatch(named.get(b"content-length", b"")) else None
    if named.get(b"content-length") != b"%d" % len(body):
        return None
    return b"".join((line, block, b"\r\n", body))


class PlainCycle(RequestResponseCycle):
    """Plain request and its answer.

    head: bytes of the request's head. body: what has come of its body; left: bytes that have not. write_now: writes at
    once, past the buffer. pipelined: bytes that came after the request and wait for its answer.
    """

    def __init__(self, head: bytes, body: bytes, left: int, write_now: Callable[[bytes], None], **more: Any) -> None:
        super().__init__(**more)
        self._write_now = write_now
        self._head: bytes | None = head
        self._begun: Any = None
        self._came, self._left, self.pipelined = 0, len(body) + left, b""
        self.body, self.more_body = bytearray(), True
        self.receive_data(body)

    @property
    def is_plain(self) -> bool:
        """Whether the request is answered here, not by h11."""
        return self._head is not None

    def receive_data(self, data: bytes) -> None:
        """Takes bytes of the body, and those behind it.

        Pauses reading where the app is slower.
        """
        piece, behind = (data, b"") if len(data) <= self._left else (data[: self._left], data[self._left :])
        self._came, self._left = self._came + len(piece), self._left - len(piece)
        self.body += piece
        self.pipelined += behind
        self.more_body = self._left > 0
        if piece or not self.more_body:
            self.message_event.set()
        if behind or (self.more_body and len(self.body) > HIGH_WATER_LIMIT):
            self.flow.pause_reading()

    def take_pipelined(self) -> bytes:
        """Takes the bytes that have come behind the request."""
        pipelined, self.pipelined = self.pipelined, b""
        return pipelined

    async def send(self, message: Any) -> None:
        if self._head is None:
            return await super().send(message)
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if self._begun is None and message["type"] == "http.response.start":
            self._begun, self.response_started = message, True
            return
        answer = self._write_plain(message)
        if answer is None:
            await self._hand_over(message)
            return
        self._write_now(answer)
        self.response_complete = True
        self.message_event.set()
        if not self.keep_alive:
            self.transport.close()
        self.on_response()

    def write_head(self) -> None:
        """Writes the head of an answer whose body others write, where h11 has not."""
        if self._head is not None and (begun := self._begun) is not None:
            headers = [*self.default_headers, *begun.get("headers", ())]
            lines = [b"%b: %b\r\n" % one for one in headers]
            self._write_now(b"".join((STATUS_LINES[begun["status"]], *lines, b"\r\n")))

    def _write_plain(self, message: Any) -> bytes | None:
        """Writes head and body in one piece; None: the answer is not plain.

        An answer before the whole request is not either.
        """
        begun = self._begun
        if begun is None or message["type"] != "http.response.body" or message.get("more_body", False) or self._left:
            return None
        headers = [*self.default_headers, *begun.get("headers", ())]
        return write_plain(begun["status"], headers, message.get("body", b""), head=self.scope["method"] == "HEAD")

    async def _hand_over(self, message: Any) -> None:
        """Lets h11 read the request, and write its answer from the beginning."""
        head, self._head = self._head or b"", None
        self.conn.receive_data(head)
        self.conn.next_event()
        for begin in range(0, self._came, len(FILLER)):
            self.conn.receive_data(FILLER[: self._came - begin])
            self.conn.next_event()
        if behind := self.take_pipelined():
            self.conn.receive_data(behind)
        if not self._left:
            self.conn.next_event()  # the end of the request
        if (begun := self._begun) is not None:
            self.response_started = False
            await super().send(begun)
        await super().send(message)
