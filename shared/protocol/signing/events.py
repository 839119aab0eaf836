"""Events of a federation, which the aggregator writes into held answers, and their signatures.

An event is signed once for all clients, by Ed25519 over its text, and names the stream to which it belongs: an event of
another federation, of an earlier process or of an earlier time is none of this one. Only the first event of an answer
is a client's own: it names the signature of the request that it answers, so that nobody can play an old answer again.
"""

from __future__ import annotations

import base64
import re
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from shared.errors import UnavailableError
from shared.message import Message
from shared.protocol.schemas import RunOut
from shared.protocol.signing.keys import PrivateKey, PublicKey, is_made_by

MEDIA_TYPE = "text/event-stream"
CHANGES = "/v1/runs/current/changes"  # path of the stream
OFFER = {"Link": f'<{CHANGES}>; rel="monitor"'}  # header of an answer of an aggregator that offers the stream
LONGEST_EVENT = 64 << 10  # bytes of an event with its signature
EVENT_SECONDS = 0.05  # least time between two changes that are told, and between two events that are read
PURPOSE = b"lpsfed event\n"  # an answer's signature covers lines that begin otherwise
END = b"\n\n"
FORM = re.compile(rb"id: ([0-9]{1,16})\ndata: (\{[^\n]+\})\ndata: ([A-Za-z0-9+/]{86}==)\n\n")
Hex16 = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
Hex32 = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class FederationEvent(Message):
    """Event of a federation: the opening of a stream, a change, or a heart-beat.

    stream: the broadcaster's own number. sequence: of the last change. clock: the broadcaster's seconds. Of an opening
    alone: `aggregator`, the key that signs; `request`, the signature of the request; `beat_seconds`, the longest time
    between two events. spread_seconds: time over which all clients are to come back after an end: one who answers them
    then is not overrun. state: of a change, where it is the same for all clients; without one each client asks for its
    own.
    """

    kind: Literal["opened", "change", "beat"]
    stream: Hex16
    sequence: int = Field(ge=0, lt=1 << 53)
    clock: float = Field(allow_inf_nan=False)
    aggregator: Hex32 | None = Field(None, exclude_if=lambda key: key is None)
    request: str | None = Field(None, max_length=256, exclude_if=lambda signature: signature is None)
    beat_seconds: float | None = Field(None, gt=0, le=60, exclude_if=lambda seconds: seconds is None)
    spread_seconds: float | None = Field(None, gt=0, le=60, exclude_if=lambda seconds: seconds is None)
    state: RunOut | None = Field(None, exclude_if=lambda state: state is None)


def write_event(event: FederationEvent, key: PrivateKey) -> bytes:
    """Writes an event with its signature, as one event of server-sent events."""
    text = event.model_dump_json().encode()
    signature = base64.b64encode(key.sign(PURPOSE + text))
    return b"id: %d\ndata: %b\ndata: %b%b" % (event.sequence, text, signature, END)


def read_event(content: bytes, key: PublicKey | None = None) -> FederationEvent:
    """Reads an event that `write_event` has written.

    key: that must have signed it; None: it is not checked. Raises UnavailableError for another form or signature: what
    a proxy or an impostor says counts no more than silence.
    """
    found = FORM.fullmatch(content)
    if found is None or len(content) > LONGEST_EVENT:
        raise UnavailableError("expected an event of the federation, got something else")
    try:
        if key is not None and not is_made_by(key, base64.b64decode(found[3]), PURPOSE + found[2]):
            raise UnavailableError("expected an event signed by the aggregator, got another signature")
        event = FederationEvent.model_validate_json(found[2])
    except ValidationError:
        raise UnavailableError("expected an event of the federation, got another message") from None
    if event.sequence != int(found[1]) or (event.state is not None and event.state.sequence != event.sequence):
        raise UnavailableError("expected one sequence number in an event, got two")
    return event
