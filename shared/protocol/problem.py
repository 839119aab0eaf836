"""Problem documents (RFC 9457), with which both services answer refusals."""

from __future__ import annotations

from pydantic import BaseModel, Field

from shared.errors import FaultCode

FAULTS: dict[FaultCode, str] = {
    "missing": "something needed is not there",
    "unknown": "a parameter, a field, a key of a filter or a body that is not declared",
    "repeated": "a parameter came twice and is no list",
    "wrong-type": "text where a number is expected, and the like",
    "out-of-range": "a number, a length or a count beyond its limits",
    "wrong-form": "text of another form: a time, a pattern, a filter",
    "wrong-value": "none of the allowed values, or values that do not go together",
    "not-json": "the body cannot be read as JSON",
}


class FaultOut(BaseModel):
    """One fault of a message."""

    code: FaultCode = Field(
        description="stable; " + "; ".join(f"`{code}`: {meaning}" for code, meaning in FAULTS.items()),
        examples=["out-of-range"],
    )
    at: str | None = Field(
        None,
        description="place of the fault: `query`, `path` or `body`, and the field; none: the whole message",
        examples=["query.k"],
    )
    detail: str = Field(
        description="what was expected, and what came", examples=["expected a number of at most 1,000, got 2000"]
    )


class ProblemOut(BaseModel):
    """RFC 9457 problem document. `code` is stable; the words of `detail` are not."""

    type: str = Field("about:blank", description="always about:blank: `code` names the problem")
    title: str = Field(description="status in a few words", examples=["Not found"])
    status: int = Field(ge=400, le=599, description="HTTP status of the answer", examples=[404])
    detail: str = Field(description="what was expected, and what came", examples=["there is no run 'run-9'"])
    code: str = Field(description="code of the problem, stable, for programs", examples=["not-found"])
    errors: tuple[FaultOut, ...] | None = Field(
        None, description="faults of a message refused with 422, each with a code of its kind"
    )
    request_id: str | None = Field(None, description="id of the request in the service's log and in X-Request-ID")
