"""Latency from an event to an answer, and events per second, at a real client.

python -m benchmarks.speed.feedback SHARD [--events 200] [--batch 100] [--batches 250] [--seconds 8]

The client's run is over. First single events, of users drawn once: the post, the next list, whether the list has used
it, and the same list again. Then four writers post batches for which only the rate counts. Before both, if wrk is
installed, 50 callers at a time ask for lists of known users, without events and with EACH_SECOND events a second.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

import httpx
import numpy as np

from benchmarks.common import render_table
from benchmarks.speed.serving import draw_users, serve_closed_form, untrained_settings, user_requests
from benchmarks.speed.wrk import Load, LoadTarget, Requests, load_target
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from simulation.experiments.experiment import Experiment

WRITERS = 4
CALLERS = 50
EACH_SECOND = 200
Times = dict[str, list[float]]


async def measure_events(http: httpx.AsyncClient, shard: Shard, count: int) -> Times:
    """Measures milliseconds of each post and of two answers after it.

    Raises AssertionError if these ignore the event.
    """
    again = "the same list again"
    times: Times = {"post of one event": [], "the next list of that user": [], again: []}
    for place, user in enumerate(draw_users(shard)[:count]):
        path = f"/v1/users/{quote(user, safe='')}/recommendations"
        best = (await http.get(path)).json()["items"][0]["item"]
        began = time.perf_counter()
        event = {"event": f"one-{place}", "user": user, "item": best}
        (await http.post("/v1/interactions", json={"interactions": [event]})).raise_for_status()
        posted = time.perf_counter()
        after = [one["item"] for one in (await http.get(path)).json()["items"]]
        times["the next list of that user"].append(1000 * (time.perf_counter() - posted))
        times["post of one event"].append(1000 * (posted - began))
        assert best not in after, "the next answer does not know the event"
        began = time.perf_counter()
        assert after == [one["item"] for one in (await http.get(path)).json()["items"]]
        times[again].append(1000 * (time.perf_counter() - began))
    return times


async def measure_rate(http: httpx.AsyncClient, shard: Shard, batch: int, batches: int) -> float:
    """Measures accepted events per second of WRITERS together."""

    async def write(writer: int) -> None:
        for number in range(batches):
            names = [f"{writer}-{number}-{place}" for place in range(batch)]
            items = [shard.item_ids[hash(name) % len(shard.item_ids)] for name in names]
            events = [{"event": n, "user": f"new-{n}", "item": item} for n, item in zip(names, items, strict=True)]
            (await http.post("/v1/interactions", json={"interactions": events})).raise_for_status()

    began = time.perf_counter()
    await asyncio.gather(*(write(writer) for writer in range(WRITERS)))
    return WRITERS * batch * batches / (time.perf_counter() - began)


async def send_other_events(http: httpx.AsyncClient, shard: Shard) -> None:
    """Sends EACH_SECOND events of users of the shard, ten at a time, until cancelled."""
    draws, count = np.random.default_rng(1), 10
    for number in itertools.count():
        users, items = (draws.choice(ids, count).tolist() for ids in (shard.user_ids, shard.item_ids))
        pairs = enumerate(zip(users, items, strict=True))
        events = [{"event": f"on-{number}-{n}", "user": user, "item": item} for n, (user, item) in pairs]
        (await http.post("/v1/interactions", json={"interactions": events})).raise_for_status()
        await asyncio.sleep(count / EACH_SECOND)


async def measure_load(client: LoadTarget, shard: Shard, seconds: int) -> Load:
    """Measures the load of CALLERS callers with known users."""
    asked = Requests("known users", user_requests(draw_users(shard)))
    return await asyncio.to_thread(load_target, client, asked, CALLERS, seconds)


async def measure_load_with_events(client: LoadTarget, http: httpx.AsyncClient, shard: Shard, seconds: int) -> Load:
    """Measures the same load while events arrive."""
    telling = asyncio.create_task(send_other_events(http, shard))
    load = await measure_load(client, shard, seconds)
    telling.cancel()
    return load


def describe_loads(loads: Mapping[str, Load]) -> str:
    """Renders a table of loads."""
    rows = [(w, f"{one.rate:,.0f}", f"{one.p50:.1f}", f"{one.p99:.1f}", str(one.errors)) for w, one in loads.items()]
    return render_table((f"{CALLERS} callers", "requests a second", "p50 ms", "p99 ms", "errors"), rows)


async def measure(folder: Path, count: int, batch: int, batches: int, seconds: int) -> str:
    """Renders all tables."""
    shard, loads = load_shard(folder), dict[str, Load]()
    with tempfile.TemporaryDirectory() as place:
        experiment = Experiment((folder,), Path(place), untrained_settings(), rounds=1)
        async with serve_closed_form(experiment) as (client, _):
            headers = {"Authorization": f"Bearer {client.key}"}
            async with httpx.AsyncClient(base_url=client.url, headers=headers, timeout=60.0, trust_env=False) as http:
                if shutil.which("wrk"):
                    loads["nothing told"] = await measure_load(client, shard, seconds)
                    told = f"{EACH_SECOND} events a second"
                    loads[told] = await measure_load_with_events(client, http, shard, seconds)
                times = await measure_events(http, shard, count)
                rate = await measure_rate(http, shard, batch, batches)
    rows = [(what, *(f"{value:.1f}" for value in np.percentile(found, [50, 99]))) for what, found in times.items()]
    table = render_table(("what", "p50 ms", "p99 ms"), rows)
    return f"{table}\n\n{rate:,.0f} events a second, {batch} a batch\n\n{describe_loads(loads)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--batches", type=int, default=250)
    parser.add_argument("--seconds", type=int, default=8)
    given = parser.parse_args()
    print(asyncio.run(measure(given.shard, given.events, given.batch, given.batches, given.seconds)))


if __name__ == "__main__":
    main()
