"""Conversion between the messages of silo and server and the records of Flower.

Tensors travel as an ArrayRecord and scalars as a MetricRecord, so that other Flower components can read them; the
bodies on both sides are those of the services.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from shared.errors import ProtocolError
from shared.method.parameters import Parameters
from shared.protocol.wire import decode_body, encode_body

TENSORS, SCALARS, WORDS = "tensors", "scalars", "words"
NO_BODY = b""


def write_records(words: Mapping[str, Any], body: bytes = NO_BODY) -> RecordDict:
    """Writes a message of words and, if given, the parameters of a body.

    words: JSON types.
    """
    records = RecordDict({WORDS: ConfigRecord({"json": json.dumps(dict(words))})})
    if body:
        content = decode_body(body)[1]
        records[TENSORS] = ArrayRecord({name: Array(value) for name, value in sorted(content.arrays.items())})
        records[SCALARS] = MetricRecord({name: float(value) for name, value in content.scalars.items()})
    return records


def read_words(records: RecordDict) -> dict[str, Any]:
    """Reads the words of a message; raises ProtocolError if it has none."""
    try:
        words: dict[str, Any] = json.loads(str(records.config_records[WORDS]["json"]))
    except (KeyError, ValueError):
        raise ProtocolError(f"expected a message of this app, with the record {WORDS!r}, got another") from None
    return words


def read_body(records: RecordDict) -> bytes:
    """Reads the parameters of a message as a body; empty without any.

    Raises ProtocolError for an array that is neither float32 nor uint32.
    """
    if TENSORS not in records.array_records:
        return NO_BODY
    arrays = {name: array.numpy() for name, array in records.array_records[TENSORS].items()}
    if wrong := sorted(name for name, value in arrays.items() if value.dtype.name not in ("float32", "uint32")):
        raise ProtocolError(f"expected float32 or uint32, got another type for {wrong[0]!r}")
    scalars = {name: float(value) for name, value in records.metric_records.get(SCALARS, {}).items()}
    return encode_body(Parameters(arrays, scalars))
