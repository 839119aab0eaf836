"""The calls of a secure round but its masked vector, which is the round's update. Nothing is decided here.

Each phase has a call by which a client sends its message, and one by which it gets what the phase has led to.
"""

from __future__ import annotations

from fastapi import APIRouter, Response

from aggregator_service.http.authentication import Service, SignedRoute
from aggregator_service.http.routes import OWN, PRIVATE, PROBLEMS, SIGNED, Place, Responses, Wait, not_yet
from shared.message import Message
from shared.protocol.secure import messages
from shared.protocol.secure.server import Phase, Relayed

NOT_YET: Responses = {204: {"description": "the wait is over, the phase before is not closed"}}

router = APIRouter(prefix=OWN, tags=["secure rounds"], dependencies=SIGNED, responses=PROBLEMS, route_class=SignedRoute)


def _add_put(call: str, kind: type[Message]) -> None:
    async def put(place: Place, message: Relayed, service: Service) -> None:
        await service.relay_message(place, message)

    put.__annotations__["message"] = kind
    said = f"A client's message: {_first_line(kind)}"
    router.put(f"/{call}", name=f"put_{call}", description=said, status_code=204, response_class=Response)(put)


def _add_read(call: str, kind: type[Message], phase: Phase) -> None:
    async def read(place: Place, service: Service, wait: Wait = 0.0) -> Response:
        message = await service.federation.intake.result_after(phase, place, wait=wait)
        if message is None:
            return not_yet()
        return Response(message.model_dump_json(), media_type="application/json", headers=PRIVATE)

    said = f"What the phase before has led to: {_first_line(kind)} With `wait` a long poll."
    router.get(f"/{call}", name=f"read_{call}", description=said, response_model=kind, responses=NOT_YET)(read)


def _first_line(kind: type[Message]) -> str:
    return (kind.__doc__ or "").partition("\n\n")[0].replace("\n    ", " ")


_add_put("keys", messages.PublicKeys)
_add_read("roster", messages.Roster, "keys")
_add_put("shares", messages.SealedShares)
_add_read("delivery", messages.Delivery, "shares")
_add_read("request", messages.UnmaskRequest, "masked")
_add_put("checks", messages.ShareCheck)
_add_read("sharers", messages.Sharers, "checks")
_add_put("consents", messages.Consent)
_add_read("signatures", messages.Consents, "consents")
_add_put("answers", messages.UnmaskAnswer)
