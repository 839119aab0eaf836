"""What every refusal of both services is answered with: RFC 9457."""

from __future__ import annotations

from pydantic import BaseModel, Field


class ProblemOut(BaseModel):
    """RFC 9457 problem document. `code` is stable; the words of `detail` are not."""

    type: str = Field("about:blank", description="no page describes a problem further")
    title: str = Field(description="the status in a few words", examples=["Not found"])
    status: int = Field(ge=400, le=599, description="HTTP status of the answer", examples=[404])
    detail: str = Field(description="what was expected, and what came", examples=["there is no run 'run-9'"])
    code: str = Field(description="stable: programs may match on it", examples=["not-found"])
    request_id: str | None = Field(None, description="as in the service's log and in X-Request-ID")
