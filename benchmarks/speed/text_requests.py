"""Latency of requests by text at a silo with a large catalogue.

Searches, and lists with new items.

python -m benchmarks.speed.text_requests [--items 30000] [--users 1000] [--requests 500] [--json]

The shard is generated, with titles; a tenth of its items is new. Requests come one after the other over one
connection. Wall-clock figures have the processor time of the server's processes beside them, which a busy machine
hardly changes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from urllib.parse import quote

import numpy as np
import polars as pl

from benchmarks.common import render_table
from benchmarks.speed.served_process import child_processes, list_path, open_connection, percentiles, write_request
from benchmarks.speed.serving import untrained_settings, wait_until_lists
from client_service.data.interaction_files import load_shard, save_shard
from client_service.data.interactions import Shard, build_shard, with_unmet_items
from simulation.datasets.synthetic import KINDS, describe_items, generate_dataset
from simulation.experiments.experiment import Experiment
from simulation.experiments.federation import execute_run, ignore_progress
from simulation.experiments.processes import choose_addresses, connect_services, start_services

BAR = 10.0  # ms, p99
NEW, WORDS, SYLLABLES = 0.1, 5000, ("ba", "do", "ki", "lu", "mer", "nos", "pra", "sti", "ten", "vou")
TICKS = os.sysconf("SC_CLK_TCK")


def write_titled_shard(folder: Path, users: int, items: int) -> Shard:
    """Writes a shard whose items have generated titles and a kind.

    A tenth of the items is new.
    """
    generator, made = np.random.default_rng(0), generate_dataset(0, users=users, items=items)
    words = np.array(["".join(generator.choice(SYLLABLES, 3)) for _ in range(WORDS)])
    assert made.titles is not None
    kind, years = made.titles["category"].fill_null(KINDS[0]), generator.integers(1950, 2025, len(made.titles))
    first, second = (words[generator.integers(0, WORDS, len(made.titles))] for _ in range(2))
    titles = [f"The {a} {b} ({y}, {k})" for a, b, y, k in zip(first, second, years, kind, strict=True)]
    table = describe_items(made.titles["item"], pl.Series(titles))
    new = table.filter(pl.Series(generator.random(len(table)) < NEW))
    events = made.events.join(new, on="item", how="anti")
    sold = events["item"].unique().implode()
    shard = build_shard("large", events, table.filter(pl.col("item").is_in(sold)))
    save_shard(folder, with_unmet_items(shard, new))
    return load_shard(folder)


def draw_text_requests(shard: Shard, key: str, count: int) -> dict[str, list[bytes]]:
    """Draws search, list and basket requests, as bytes by kind."""
    generator = np.random.default_rng(1)
    users, titles = generator.choice(shard.user_ids, count).tolist(), generator.choice(shard.titles or (), count)
    words = [quote(" ".join(str(title).split()[1:3])) for title in titles]
    misspelt = [quote(str(title).split()[1][:-1] + "x") for title in titles]
    baskets = [generator.choice(shard.item_ids, 20, replace=False).tolist() for _ in range(count)]
    paths = {
        "search by words": [f"/v1/items?query={one}" for one in words],
        "search with a typing error": [f"/v1/items?query={one}" for one in misspelt],
        "list with a place for a new item": [f"{list_path(user)}?k=10" for user in users],
        "list of new items alone": [f"{list_path(user)}?k=10&only=new" for user in users],
    }
    found = {what: [write_request("GET", path, key) for path in each] for what, each in paths.items()}
    bodies = [{"basket": basket, "k": 10} for basket in baskets]
    for what, more in (("with a new item", {}), ("without, by interactions alone", {"new": 0})):
        sent = [write_request("POST", "/v1/recommendations", key, one | more) for one in bodies]
        found[f"basket of 20 {what}"] = sent
    return found


def processor_seconds(pid: int) -> float:
    """Reads the processor time of a process and its children that run."""
    total = 0
    for one in (pid, *child_processes(pid)):
        fields = Path(f"/proc/{one}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICKS


def time_requests(url: str, pid: int, requests: Sequence[bytes]) -> dict[str, float]:
    """Sends requests in turn; measures their milliseconds and the server's processor time."""
    times = []
    with open_connection(url) as line:
        line.ask(requests[0])
        began = processor_seconds(pid)
        for request in requests:
            start = perf_counter()
            line.ask(request)
            times.append(1000.0 * (perf_counter() - start))
        spent = processor_seconds(pid) - began
    p50, p99 = percentiles(times, 50, 99)
    return {"p50": p50, "p99": p99, "processor": round(1000.0 * spent / len(requests), 3)}


async def measure_text_requests(items: int, users: int, count: int) -> dict[str, dict[str, float]]:
    """Serves a generated shard by its closed form, and times each kind of request."""
    with tempfile.TemporaryDirectory() as folder:
        shard = write_titled_shard(Path(folder) / "large", users, items)
        experiment = Experiment((Path(folder) / "large",), Path(folder) / "run", untrained_settings(), rounds=1)
        places, name = choose_addresses(experiment), experiment.names[0]
        with start_services(experiment, places) as children:
            async with connect_services(experiment, places, children) as federation:
                await execute_run(federation, experiment.run_request(), ignore_progress)
                await wait_until_lists(next(iter(federation.clients.values())))
            asked = draw_text_requests(shard, experiment.application_key, count)
            url, pid = places.clients[name], children.pids[name]
            return {what: time_requests(url, pid, requests) for what, requests in asked.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=30_000)
    parser.add_argument("--users", type=int, default=1000)
    parser.add_argument("--requests", type=int, default=500, help="of each kind")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = asyncio.run(measure_text_requests(arguments.items, arguments.users, arguments.requests))
    if arguments.json:
        print(json.dumps(found, indent=1))
        return
    rows = [
        [what, *(f"{one[name]:.2f}" for name in ("p50", "p99", "processor")), "yes" if one["p99"] <= BAR else "no"]
        for what, one in found.items()
    ]
    print(render_table(("request", "p50 ms", "p99 ms", "processor ms", f"p99 <= {BAR:g} ms"), rows))


if __name__ == "__main__":
    main()
