"""`lpsfed quarantine` as an operator meets it: who is shut out, and why; one more; one less."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx

from shared.protocol.schemas import MemberOut, QuarantineOut

if TYPE_CHECKING:
    from conftest import Operate

HELD = QuarantineOut(cause="operator", reason="a broken [red]shard[/]", since="then")
NORTH = MemberOut(client="north", joined_at="then", refused=0)
SOUTH = MemberOut(client="south", joined_at="then", refused=3, quarantine=HELD)


class Aggregator:
    """Answers as an aggregator with two clients of which one is shut out."""

    def __init__(self) -> None:
        self.requests: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests.append(request)
        if request.method == "GET":
            return httpx.Response(200, json=[one.model_dump(mode="json") for one in (NORTH, SOUTH)])
        if request.method == "POST" and "south" in request.url.path:
            return httpx.Response(409, json={"detail": "'south' is"})
        found = SOUTH if request.method == "POST" else NORTH
        return httpx.Response(200, json=found.model_dump(mode="json"))


def test_every_client_is_listed_with_why_it_is_shut_out(operate: Operate) -> None:
    aggregator = Aggregator()
    shown = operate(aggregator, "quarantine", "list")
    assert shown.exit_code == 0 and "south" in shown.stdout and "operator" in shown.stdout and "shard" in shown.stdout
    [asked] = aggregator.requests
    assert (asked.method, asked.url.path) == ("GET", "/v1/clients")
    assert asked.headers["authorization"] == "Bearer the operator's token"
    assert json.loads(operate(aggregator, "quarantine", "list", "--json").stdout)[1] == SOUTH.model_dump(mode="json")


def test_a_client_is_shut_out_with_a_reason_and_let_in_again(operate: Operate) -> None:
    aggregator = Aggregator()
    assert "quarantined" in operate(aggregator, "quarantine", "set", "north", "--reason", "why").stdout
    assert "north: not quarantined" in operate(aggregator, "quarantine", "lift", "north").stdout
    first, second = aggregator.requests
    assert (first.method, first.url.path, json.loads(first.content)) == (
        "POST",
        "/v1/clients/north/quarantine",
        {"reason": "why"},
    )
    assert (second.method, second.url.path) == ("DELETE", "/v1/clients/north/quarantine")


def test_what_the_aggregator_refuses_is_told(operate: Operate) -> None:
    aggregator = Aggregator()
    assert "409" in str(operate(aggregator, "quarantine", "set", "south", "--reason", "why").exception)
    assert "reason" in str(operate(aggregator, "quarantine", "set", "north", "--reason", "x" * 201).exception)
