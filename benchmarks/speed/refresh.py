"""Cost of a refresh after some events, and its difference to a new model.

python -m benchmarks.speed.refresh SHARD [--events 1000]

A silo has a copy of the shard and its first model. Events of users drawn once go into the log. Measured are the
seconds of each part of the refresh, and of a first model from nothing for the same new shard. Of the answers of both
models for drawn users: the largest difference of two scores of an item that both list, as a share of the largest
score, and the common share of their lists of 20. Once with the choices of validation for the model before, as in a
refresh, and once with those for the new shard.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from benchmarks.common import render_table
from benchmarks.speed.serving import draw_users, untrained_settings
from client_service.compilation.item_publisher import ItemPublisher
from client_service.compiled.publication import SERVING
from client_service.data.interaction_files import load_shard, lock_shard, save_shard
from client_service.data.interactions import Shard
from client_service.event_log.messages import InteractionIn
from client_service.event_log.shard_update import merge_log_into_shard
from client_service.event_log.store import EventStore
from client_service.federation.training_run import TrainingRun
from client_service.model_store.model_files import ServedItems
from client_service.models.ranker import Rows
from client_service.refresh.rebuild import ModelRenewal
from client_service.runtime.interruption import NEVER
from client_service.serving.model_server import ModelServer
from client_service.settings import ClientSettings, client_settings
from client_service.tasks.items import ITEMS
from client_service.tasks.task import RunContext
from shared.method.parameters import Parameters
from shared.method.tensors import initial_parameters, mlp_specification

LISTED, SEED = 20, 0
CPU = torch.device("cpu")
Seconds = dict[str, float]


@contextmanager
def timed(seconds: Seconds, name: str) -> Iterator[None]:
    """Adds the seconds of a context under this name."""
    began = time.perf_counter()
    yield
    seconds[name] = time.perf_counter() - began


def open_silo(shard: Path, folder: Path) -> ClientSettings:
    """Returns the settings of a silo with a copy of the shard."""
    shutil.copytree(shard, folder / "shard")
    method = untrained_settings()
    return client_settings(name="client-1", shard=folder / "shard", state_directory=folder / "state", method=method)


def first_model(settings: ClientSettings, shard: Shard) -> ServedItems:
    """Fits, stores and evaluates the model of a run that begins."""
    recommender = ModelServer()
    place = RunContext(settings.name, "run-1", SEED, settings.method, settings.models_directory)
    arrays = initial_parameters(mlp_specification(settings.method), SEED, exact=True)
    TrainingRun(place, ITEMS, shard, recommender, CPU).begin(Parameters(arrays), 0)
    assert recommender.served is not None
    return recommender.served


def log_events(settings: ClientSettings, shard: Shard, count: int) -> EventStore:
    """Creates a log of events of known users and items."""
    draws, store = np.random.default_rng(SEED), EventStore(settings.state_directory)
    users, items = (draws.choice(ids, count) for ids in (shard.user_ids, shard.item_ids))
    pairs = enumerate(zip(users.tolist(), items.tolist(), strict=True))
    store.append(
        [InteractionIn(event=str(n), user=user, item=item, time=None, rating=None) for n, (user, item) in pairs]
    )
    return store


def refresh(
    settings: ClientSettings, store: EventStore, seconds: Seconds, *, choose: bool
) -> tuple[Shard, ServedItems, bool]:
    """Refreshes a silo; returns the new shard, its model, and whether that was trained before.

    choose: make every choice again, as after an erasure.
    """
    with lock_shard(settings.shard) as before:
        with timed(seconds, "absorb"):
            absorbed = merge_log_into_shard(before, store, settings.least_rating)
        renewal = ModelRenewal(settings, ITEMS, absorbed.after, CPU, NEVER)
        with timed(seconds, "model"):
            renewed = renewal.renew(erased=choose)
        assert renewed is not None
        with timed(seconds, "write"):
            save_shard(settings.shard, absorbed.after)
            served = renewal.keep(renewed)
        assert isinstance(served, ServedItems)
        with timed(seconds, "publish"):
            publisher = ItemPublisher(absorbed.after, settings.state_directory / SERVING)
            publisher.serve_model(served)
        publisher.close()
    return absorbed.after, served, renewed.head.carried


def compare(one: ServedItems, other: ServedItems, rows: Rows) -> tuple[float, float]:
    """Compares the scores and lists of two models.

    Returns the largest difference of two scores as a share of the largest, and the share of equal places in the
    lists.
    """
    lists = [
        served.ranker.top_k_with_scores(served.ranker.users[rows], no_exclusions(served, rows), LISTED)
        for served in (one, other)
    ]
    (first, first_scores), (second, second_scores) = lists
    same = first[:, :, None] == second[:, None, :]
    apart = np.abs(first_scores[:, :, None] - second_scores[:, None, :])[same]
    return float(apart.max(initial=0.0) / np.abs(first_scores).max()), float(same.any(axis=2).mean())


def no_exclusions(served: ServedItems, rows: Rows) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
    """Returns a mask that excludes no item."""
    return np.zeros((len(rows), len(served.ranker.items.embedding)), dtype=bool)


def measure(shard: Path, events: int, *, choose: bool) -> tuple[Seconds, Seconds, float, float]:
    """Measures a refresh and a model built from scratch, and compares both."""
    quick, full = Seconds(), Seconds()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as other:
        settings = open_silo(shard, Path(one))
        before = load_shard(settings.shard)
        first_model(settings, before)
        store = log_events(settings, before, events)
        after, refreshed, _ = refresh(settings, store, quick, choose=choose)
        store.close()
        fresh = open_silo(settings.shard, Path(other))
        with timed(full, "model"):
            rebuilt = first_model(fresh, after)
        rows = np.array([after.user_row(user) for user in draw_users(after)[:500]])
        return quick, full, *compare(refreshed, rebuilt, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shard", type=Path)
    parser.add_argument("--events", type=int, default=1000)
    asked = parser.parse_args()
    rows: list[tuple[object, ...]] = []
    for choose in (False, True):
        quick, full, apart, same = measure(asked.shard, asked.events, choose=choose)
        parts = ", ".join(f"{name} {value:.2f}" for name, value in quick.items())
        whose = "of the new shard" if choose else "of the model before"
        rows.append((whose, f"{sum(quick.values()):.2f}", parts, f"{full['model']:.2f}", f"{apart:.2g}", f"{same:.4f}"))
    heads = ("choices", "refresh s", "of which", "from nothing s", "scores apart", f"lists of {LISTED} the same")
    print(render_table(heads, rows))


if __name__ == "__main__":
    main()
