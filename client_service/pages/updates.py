"""One call of the record and the declaration -> what left with it, field by field, and whether it was as declared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from client_service.boundary.crossings import Attempt
from shared.method.declaration import Declaration
from shared.protocol.forms import beside, forms
from shared.web.pages import Verdict, shape

REFUSED = 400  # the least status of a refusal


@dataclass(frozen=True)
class Field:
    """One part of an update's body; the parts' bytes add up to the body's."""

    name: str
    kind: str
    shape: str
    bytes: str
    sha256: str | None
    value: str


@dataclass(frozen=True)
class SentUpdate:
    """One update that left, or may have left."""

    key: str
    run: str | None
    round: int | None
    time: str
    bytes: int
    sha256: str
    outcome: Verdict
    agrees: Verdict
    fields: tuple[Field, ...]


def sent_update(one: Attempt, declaration: Declaration) -> SentUpdate:
    """An update as the page shows it."""
    agrees = as_declared(one, declaration)
    return SentUpdate(
        key=f"update-{one.sequence}",
        run=one.run,
        round=one.round,
        time=one.time,
        bytes=one.bytes,
        sha256=one.sha256,
        outcome=_outcome(one),
        agrees=Verdict("good", "as declared", "") if agrees else Verdict("bad", "other fields", ""),
        fields=_fields(one),
    )


def as_declared(one: Attempt, declaration: Declaration) -> bool:
    """Did it hold the declared tensors and at most the declared scalars; or, where it was no update, nothing at all?"""
    if one.call != "update":
        return not one.tensors and not one.scalars
    part = declaration.with_tensors(one.tensor_names)
    ours = {(name, form.dtype, form.shape) for name, form in forms(part).items()}
    theirs = [(field.get("name"), field.get("dtype"), tuple(field.get("shape", ()))) for field in one.tensors]
    return len(theirs) == len(ours) and set(theirs) == ours and set(one.scalars) <= set(beside(part))


def _outcome(one: Attempt) -> Verdict:
    if one.error is not None:
        return Verdict("warn", "no answer", f"{one.error}: it may have arrived")
    if one.status is None:
        return Verdict("busy", "no answer yet", "under way, or cut off: it may have arrived")
    if one.status >= REFUSED:
        return Verdict("bad", f"refused, {one.status}", "the aggregator did not take it")
    if one.receipt is None or one.receipt.get("digest") != one.sha256:
        return Verdict("bad", "other receipt", "the aggregator’s receipt has another digest, or there is none")
    return Verdict("good", "receipt agrees", "the aggregator’s receipt has the same digest")


def _fields(one: Attempt) -> tuple[Field, ...]:
    """The tensors, the scalars, and what is left of the body: the header that holds names, shapes and scalars."""
    tensors = [_tensor(field) for field in one.tensors]
    scalars = [Field(name, "scalar", "one number", "in the header", None, str(v)) for name, v in one.scalars.items()]
    rest = one.bytes - sum(field.get("bytes", 0) for field in one.tensors)
    return (*tensors, *scalars, Field("header", "names and scalars", "JSON", f"{rest:,}", None, ""))


def _tensor(field: Mapping[str, Any]) -> Field:
    lengths, count = shape(field.get("shape", ())), f"{field.get('bytes', 0):,}"
    kind = f"{field.get('dtype')}{', only up' if field.get('up_only') else ''}"
    return Field(str(field.get("name")), kind, lengths, count, field.get("sha256"), "")
