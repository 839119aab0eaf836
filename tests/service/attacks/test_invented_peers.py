"""Who the peers are.

Who: the aggregator. It invents clients, or puts its own keys in place of a client's, until a genuine one is alone among
keys that it holds. Before, a client took any roster with its own keys in it, and its update lay bare.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shared.method.parameters import Parameters
from shared.protocol.secure import client, server
from shared.protocol.signing.keys import new_key
from tests.support.liar import Liar
from tests.support.neighbours import BOTH_GRAPHS

if TYPE_CHECKING:
    from tests.support.misled import Mislead

pytestmark = [pytest.mark.anyio, BOTH_GRAPHS]
INVENTED = ("client-2", "client-3", "client-4")


class Inventor(Liar):
    """It plays the others by itself, phase by phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.exchange is not None
        self.identities = {name: new_key() for name in INVENTED}
        self.states: dict[str, Any] = {
            name: client.begin_secure_round(self.exchange.terms, name, key) for name, key in self.identities.items()
        }
        self.content = Parameters(self.start.arrays, {"margin": 0.0})
        for state in self.states.values():
            self.exchange = server.accept_message(self.exchange, state.message)

    def _go_on(self) -> None:
        """As soon as the victim has spoken, so have all."""
        assert self.exchange is not None
        before = self.exchange.phase
        super()._go_on()
        if self.exchange.phase != before:
            for name, key in self.identities.items():
                self._play(name, key)

    def _play(self, name: str, key: Any) -> None:
        assert self.exchange is not None
        everybody = {one.client: one for one in self.exchange.keys.values()}
        match self.exchange.phase:
            case "shares":
                members = {one: client.identity_key(message.identity) for one, message in everybody.items()}
                self.states[name] = client.share_secrets(
                    self.states[name], server.make_roster(self.exchange), members, key
                )
            case "checks":
                delivery = server.make_delivery(self.exchange, name)
                self.states[name] = client.check_shares(self.states[name], delivery, key)
            case "masked":
                self.states[name], update = client.mask_update(
                    self.states[name], server.make_sharers(self.exchange), self.content, key
                )
                self.exchange = server.accept_header(self.exchange, update.header)
                self.vectors[name] = update.vector
                return
            case "consents":
                request = server.make_unmask_request(self.exchange)
                self.states[name], message = client.sign_consent(self.states[name], request, key)
                self.exchange = server.accept_message(self.exchange, message)
                return
            case "answers":
                answer = client.answer_unmask_request(self.states[name], server.make_consents(self.exchange))
                self.exchange = server.accept_message(self.exchange, answer)
                return
        self.exchange = server.accept_message(self.exchange, self.states[name].message)


@pytest.mark.parametrize(
    ("silos_there", "words"), [(4, "the key that this silo knows of 'client-2'"), (1, "this silo knows as members")]
)
async def test_nobody_masks_with_clients_that_its_silo_does_not_know(
    mislead: Mislead, silos_there: int, words: str
) -> None:
    """Where clients of these names exist, the aggregator has put its own keys in place of theirs."""
    async with mislead(silos_there, Inventor, names={"client-1", *INVENTED}) as clients:
        await clients.require_refused(words, by=["client-1"])
