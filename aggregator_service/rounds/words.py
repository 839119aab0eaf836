"""What a quarantined client is told: nothing of others, and not the operator's own words."""

from __future__ import annotations

from collections.abc import Mapping

from shared.protocol.schemas import Cause

SAID: Mapping[Cause, str] = {
    "refusals": "too many of your updates in one run were not what is declared",
    "shares": "what you have sealed for another client is proven to be none of the shares that you have committed to",
    "distance": "your update was further from where its round began than the run allows",
    "operator": "an operator has decided so",
}
