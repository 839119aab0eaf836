"""Commands that change a silo's shard: append what happened since, erase users or interactions."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from client_service.feedback.absorb import absorb_feedback
from client_service.feedback.database import NAME as FEEDBACK
from client_service.feedback.store import FeedbackStore
from client_service.shard import Shard, change_shard, hold_shard, save_shard, shard_head
from client_service.shard.changes import append_events, erase_events, erase_users
from client_service.shard.files import read_bytes
from client_service.shard.storage import read_catalogue
from shared.errors import SettingsError
from shared.words import count_noun
from simulation.cli.options import AsJson, print_json, print_notes
from simulation.console import OUT
from simulation.datasets import LeastRating, read_events, read_titles
from simulation.datasets.dataset import WHOLE
from simulation.datasets.likings import choose_likings, join_splits

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Change a shard. A client works with the new one from its next start on.",
)

Folder = Annotated[Path, typer.Argument(help="the shard: a folder with interactions.parquet")]


@app.command()
def append(
    folder: Folder,
    events: Annotated[Path, typer.Argument(help="file of interactions: user, item, and split, time, rating if known")],
    items: Annotated[Path | None, typer.Option(help="file of titles for new items")] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="of a liking; by default 4 of 5, 8 of 10, and of other scales any; 0: any")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Add interactions to a shard, whole or not at all. Those without a split are for training."""
    least: LeastRating = "usual" if min_rating is None else min_rating
    chosen, notes = choose_likings({WHOLE: read_events(events)}, least, events)
    table, titles = join_splits(chosen), None if items is None else read_titles(items)
    if not as_json:
        print_notes(notes)
    _print_change(*change_shard(folder, lambda shard: append_events(shard, table, events, titles)), as_json=as_json)


@app.command()
def erase(
    folder: Folder,
    user: Annotated[list[str] | None, typer.Option(help="id of a user; repeatable")] = None,
    users: Annotated[Path | None, typer.Option(help="file of ids of users, one a line")] = None,
    events: Annotated[Path | None, typer.Option(help="file of interactions: user, item")] = None,
    as_json: AsJson = False,
) -> None:
    """Erase users, or single interactions, from a shard, whole or not at all. What is not there is no error.

    Models that were trained before are not made to forget: no client serves them for the new shard.
    """
    lines = [] if users is None else read_bytes(users).decode("utf-8", errors="replace").splitlines()
    ids = [*(user or []), *(line for line in lines if line)]
    if bool(ids) == (events is not None):
        raise SettingsError("shard erase: expected either users (--user, --users) or --events")
    table = None if events is None else read_events(events)

    def erase_chosen(shard: Shard) -> Shard:
        return erase_users(shard, ids) if table is None or events is None else erase_events(shard, table, events)

    _print_change(*change_shard(folder, erase_chosen), as_json=as_json)


@app.command()
def absorb(
    folder: Folder,
    state_directory: Annotated[Path, typer.Option(help="the client's, where applications' interactions are logged")],
    least_rating: Annotated[float, typer.Option(help="of an interaction, to count as a liking")] = 4.0,
    catalogue: Annotated[
        Path | None, typer.Option(help="ids of the items that all clients share; likings of other items wait")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Rewrite a shard with what applications have told its client since, without the users whom they have erased.

    The client may run meanwhile: it goes on with the shard that it has read, and works with the new one from its next
    start on.
    """
    if not (state_directory / FEEDBACK).is_file():
        raise SettingsError(f"{state_directory}: expected a client's state directory with {FEEDBACK}, got none")
    listed = None if catalogue is None else read_catalogue(catalogue).to_list()
    with closing(FeedbackStore(state_directory)) as store, hold_shard(folder) as before:
        absorbed = absorb_feedback(before, store, least_rating, listed)
        save_shard(folder, absorbed.after)
        store.forget_absorbed(absorbed.handed, absorbed.after.lists_digest, absorbed.kept)
        store.compact()
    _print_change(absorbed.before, absorbed.after, as_json=as_json)
    if absorbed.waiting and not as_json:
        waiting = count_noun(absorbed.waiting, "interaction")
        OUT.print(f"{waiting} with items outside the catalogue left in the log", highlight=False)


def _print_change(before: Shard, after: Shard, *, as_json: bool) -> None:
    """Sizes, digests and the clean-ups of this change; never an id."""
    heads = {"before": shard_head(before), "after": shard_head(after)}
    if as_json:
        return print_json({when: head.model_dump(mode="json", exclude_none=True) for when, head in heads.items()})
    for when, head in heads.items():
        nodes = f"{count_noun(head.users, 'user')}, {count_noun(head.items, 'item')}"
        sizes = f"{nodes}, {head.train} train, {head.valid} valid, {head.test} test, {head.met or 0} met"
        OUT.print(f"{when}: {sizes}, digest {head.digest[:16]}", highlight=False)
    for note in after.notes[len(before.notes) :]:
        OUT.print(note, highlight=False)
