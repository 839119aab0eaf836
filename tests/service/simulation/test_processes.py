"""The same federation as real processes on loopback ports, ended by their handles."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from shared.errors import UnavailableError
from simulation.experiments import processes as subject
from simulation.experiments.experiment import Experiment
from simulation.experiments.processes import choose_addresses, connect_services
from simulation.ports import free_ports

Described = Callable[..., Experiment]


def test_free_ports_differ_and_can_be_listened_on() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20
    with socket.create_server(("127.0.0.1", ports[0])) as server:
        assert server.getsockname()[1] == ports[0]


def test_every_service_has_an_address_of_its_own_on_loopback(experiment: Described) -> None:
    places = choose_addresses(experiment("run"))
    urls = [places.aggregator, *places.clients.values()]
    assert set(places.clients) == {"client-1", "client-2"} and len(set(urls)) == 3
    assert all(url.startswith("http://127.0.0.1:") for url in urls)


@pytest.mark.anyio
async def test_nobody_at_an_address_is_named_in_bounded_time(
    experiment: Described, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subject, "START_SECONDS", 0.2)
    described = experiment("run")
    places = choose_addresses(described)
    with pytest.raises(UnavailableError, match=r"http://127\.0\.0\.1:\d+: expected a ready service within 0\.2 s"):
        async with connect_services(described, places):
            pass
