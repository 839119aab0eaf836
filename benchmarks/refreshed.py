"""Effect of a refresh after a few events on a trained model, on validation items.

lpsfed simulate SHARDS --out RUN
python -m benchmarks.refreshed SHARDS RUN [--events 20]

Each silo of the finished run gets new events of its users, drawn from its test interactions, and a new user with five
items. Then it is refreshed as a running client would be. Printed is the primary measure: of the run's last model, on
the shard before; and on the shard after, of the model at which training would start with every choice made anew, and
of the refreshed one.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from pathlib import Path

import numpy as np
import polars as pl
import torch

from benchmarks.common import render_table
from client_service.data.interaction_files import load_shard
from client_service.data.interactions import Shard
from client_service.evaluation.metrics import LABELS, PRIMARY
from client_service.event_log.messages import InteractionIn
from client_service.event_log.shard_update import merge_log_into_shard
from client_service.event_log.store import EventStore
from client_service.model_store.model_files import load_head
from client_service.refresh.rebuild import ModelRenewal
from client_service.runtime.interruption import NEVER
from client_service.settings import ClientSettings, client_settings
from client_service.tasks.items import ITEMS

NEW_USER, NEW_ITEMS = "a user who is new", 5
CPU = torch.device("cpu")


def draw_events(shard: Shard, count: int) -> list[InteractionIn]:
    """Draws events of known users and of a new one."""
    tests = shard.events_with_ids().filter(pl.col("split") == "test")
    known = tests.sample(min(count, len(tests)), seed=0).select("user", "item").rows()
    new = np.random.default_rng(0).choice(shard.item_ids, NEW_ITEMS, replace=False)
    pairs = [*known, *((NEW_USER, item) for item in new.tolist())]
    return [InteractionIn(event=str(n), user=u, item=i, time=None, rating=None) for n, (u, i) in enumerate(pairs)]


def measure_silo(shard: Path, state: Path, events: int) -> tuple[str, ...]:
    """Returns a row of the table."""
    with tempfile.TemporaryDirectory() as place:
        settings = copy_silo(shard, state, Path(place))
        before, head = load_shard(settings.shard), load_head(settings.models_directory)
        assert head is not None, "expected a silo of a finished run"
        store = EventStore(settings.state_directory)
        store.append(draw_events(before, events))
        after = merge_log_into_shard(before, store, settings.least_rating).after
        renewal = ModelRenewal(settings, ITEMS, after, CPU, NEVER)
        found = [one for erased in (True, False) if (one := renewal.renew(erased=erased)) is not None]
        store.close()
    after_each = [ITEMS.judge(after, one.served, NEVER).primary_value for one in found]
    kind = "trained" if found[-1].head.carried else "at the start"
    values = (head.values[PRIMARY], *after_each)
    return (shard.name, head.version, *(f"{value:.4f}" for value in values), kind)


def copy_silo(shard: Path, state: Path, place: Path) -> ClientSettings:
    """Copies shard and state; returns the settings of this silo."""
    shutil.copytree(shard, place / "shard")
    shutil.copytree(state / "model", place / "state" / "model")
    return client_settings(name=shard.name, shard=place / "shard", state_directory=place / "state")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shards", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--events", type=int, default=20)
    given = parser.parse_args()
    silos = [path for path in sorted(given.shards.iterdir()) if (given.run / path.name / "model").is_dir()]
    rows = [measure_silo(path, given.run / path.name, given.events) for path in silos]
    measure = LABELS[PRIMARY].title
    print(f"{measure} on validation items, {given.events} events and a new user\n")
    print(render_table(("silo", "model", "before", "started anew", "refreshed", "which is"), rows))


if __name__ == "__main__":
    main()
