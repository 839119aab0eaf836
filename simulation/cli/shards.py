"""`lpsfed shard`: adds to a silo's shard, or erases from it."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import DataError, SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.cli.options import AsJson, print_json, print_notes
from simulation.progress import step
from simulation.reports.terminal import OUT

if TYPE_CHECKING:
    import polars as pl

    from client_service.data.interactions import Shard

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Adds to a silo's shard, or erases from it. A client uses the new shard from its next start on.",
)

Folder = Annotated[Path, typer.Argument(help="The shard: a folder with interactions.parquet")]


@app.command()
def append(
    folder: Folder,
    events: Annotated[Path, typer.Argument(help="File of interactions: user, item, and optional split, time, rating")],
    items: Annotated[Path | None, typer.Option(help="File of titles of new items")] = None,
    min_rating: Annotated[
        float | None, typer.Option(help="Smallest rating that is positive in this file (default: as in the shard)")
    ] = None,
    rating_kind: options.RatingKindChoice = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    as_json: AsJson = False,
) -> None:
    """Adds interactions to a shard, all or none. Those without a split are for training.

    Ratings are read as the shard's. A later low rating removes a positive one.
    """
    from client_service.data.interaction_files import change_shard
    from client_service.event_log.shard_update import append_events
    from simulation.datasets.dataset import WHOLE
    from simulation.datasets.load import read_events, read_titles
    from simulation.datasets.ratings import choose_positives, join_splits

    least = options.choose_min_rating(min_rating, rating_kind, "usual")
    found, notes = read_events(events, options.parse_file_options(columns, delimiter)), list[str]()
    titles = None if items is None else read_titles(items)

    def append_positives(shard: Shard) -> Shard:
        earlier = shard.events["rating"] if "rating" in shard.events.columns else None
        chosen = choose_positives(
            {WHOLE: found.table}, least, events, column=found.rating_field, known=shard.rating, earlier=earlier
        )
        notes.extend(chosen.notes)
        after = append_events(shard, join_splits(chosen.tables), events, titles)
        return replace(after, rating=shard.rating or chosen.meaning)

    with step("changing the shard"):
        before, after = change_shard(folder, append_positives)
    if not as_json:
        print_notes([*found.notes, *notes])
    _print_change(before, after, as_json=as_json)


@app.command()
def erase(
    folder: Folder,
    user: Annotated[list[str] | None, typer.Option(help="Id of a user; repeatable")] = None,
    users: Annotated[Path | None, typer.Option(help="File of users' ids, one per line or in a column user")] = None,
    events: Annotated[Path | None, typer.Option(help="File of interactions: user, item")] = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    strict: Annotated[bool, typer.Option("--strict", help="Change nothing if one of them is not in the shard")] = False,
    as_json: AsJson = False,
) -> None:
    """Erases users, or single interactions, from a shard, all or none.

    Users or interactions that are not in the shard are counted and reported. Earlier models still contain the erased
    data: no client serves them for the new shard.
    """
    import polars as pl

    from client_service.data.id_columns import read_id_list
    from client_service.data.interaction_files import change_shard
    from client_service.event_log.shard_update import count_unknown, erase_events, erase_users
    from simulation.datasets.load import read_events

    ids = [*(user or []), *([] if users is None else read_id_list(users, "user"))]
    if bool(ids) == (events is not None):
        raise SettingsError("shard erase: expected either users (--user, --users) or --events")
    table = None if events is None else read_events(events, options.parse_file_options(columns, delimiter)).table
    keys = pl.DataFrame({"user": ids}, schema={"user": pl.String}) if table is None else table.select("user", "item")
    counts: list[tuple[int, int]] = []

    def erase_chosen(shard: Shard) -> Shard:
        counts.append(count_unknown(shard, keys))
        if strict and counts[0][0]:
            raise DataError(
                f"shard erase: expected all in the shard, {_describe_unknown(counts[0], keys)}: nothing changed"
            )
        return erase_users(shard, ids) if events is None else erase_events(shard, keys, events)

    with step("changing the shard"):
        before, after = change_shard(folder, erase_chosen)
    if counts[0][0] and not as_json:
        print_notes([_describe_unknown(counts[0], keys)])
    _print_change(before, after, as_json=as_json, unknown=counts[0][0])


def _describe_unknown(counts: tuple[int, int], keys: pl.DataFrame) -> str:
    missing, requested = counts
    return f"{missing:,} of {count_noun(requested, 'user' if keys.width == 1 else 'interaction')} are not in the shard"


@app.command()
def absorb(
    folder: Folder,
    state_directory: Annotated[
        Path, typer.Option(help="State directory of the client, with the log of posted interactions")
    ],
    least_rating: Annotated[
        float | None, typer.Option(help="Smallest rating that is positive (default: as in the shard, else 4)")
    ] = None,
    catalogue: Annotated[
        Path | None, typer.Option(help="List of shared items; positive interactions with other items wait")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Merges the interactions that applications have posted into the shard, and removes erased users.

    The client may run meanwhile: it uses the shard that it has read, and the new one from its next start on.
    """
    from client_service.data.interaction_files import lock_shard, read_catalogue, save_shard
    from client_service.event_log.database import NAME as FEEDBACK
    from client_service.event_log.database import has_log
    from client_service.event_log.shard_update import merge_log_into_shard
    from client_service.event_log.store import EventStore

    if not has_log(state_directory):
        raise SettingsError(f"{state_directory}: expected a client's state directory with {FEEDBACK}, got none")
    listed = None if catalogue is None else read_catalogue(catalogue).to_list()
    with step("changing the shard"), closing(EventStore(state_directory)) as store, lock_shard(folder) as before:
        absorbed = merge_log_into_shard(before, store, least_rating, listed)
        save_shard(folder, absorbed.after)
        store.delete_absorbed(absorbed.batch, absorbed.after.lists_digest, absorbed.kept)
        store.compact()
    _print_change(absorbed.before, absorbed.after, as_json=as_json)
    if absorbed.waiting and not as_json:
        waiting = count_noun(absorbed.waiting, "interaction")
        OUT.print(f"{waiting} with items outside the catalogue left in the log", highlight=False)


@app.command()
def features(
    folder: Folder,
    file: Annotated[Path | None, typer.Argument(help="File of vectors, of `lpsfed encode`")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the vectors; the projection replaces them")] = False,
    as_json: AsJson = False,
) -> None:
    """Stores vectors of the items in a shard, or removes them.

    They replace the vectors of the projection.

    The file must have vectors of some items of the shard. Later items are encoded by the encoder in the file; without
    one they have no vector until the file is made again.
    """
    from client_service.data.files import commit_files, current_file, lock_folder, read_bytes
    from client_service.data.interaction_files import FEATURES, load_shard
    from client_service.text.feature_file import align_rows, read_feature_file

    if (file is None) != remove:
        raise SettingsError("shard features: expected either a file of vectors or --remove")
    notes: list[str] = []
    with step("changing the shard"), lock_folder(folder):
        shard = load_shard(folder)
        if file is None:
            current_file(folder, FEATURES).unlink(missing_ok=True)
            known, encoder = 0, "none"
        else:
            found = read_feature_file(file)
            known, encoder = int(align_rows(found, shard.item_ids)[1].sum()), found.encoder
            if found.text_encoder is None:
                notes.append("a server cannot run this encoder: searches and items posted later go without it")
            if not known:
                raise DataError(f"{file}: expected vectors of this shard's items, got those of others alone")
            commit_files(folder, {FEATURES: read_bytes(file)})
    count = len(shard.item_ids)
    if as_json:
        return print_json({"items": count, "known": known, "encoder": encoder, "notes": notes})
    print_notes(notes)
    if remove:
        OUT.print(f"{folder}: vectors removed", highlight=False, soft_wrap=True)
    else:
        OUT.print(f"{folder}: vectors of {known:,} of {count:,} items, by {encoder}", highlight=False, soft_wrap=True)


def _print_change(before: Shard, after: Shard, *, as_json: bool, unknown: int | None = None) -> None:
    """Prints sizes, digests and notes of the change, never an id.

    unknown: number of requested users or interactions that were not there.
    """
    from client_service.data.interaction_files import shard_head

    heads = {"before": shard_head(before), "after": shard_head(after)}
    if as_json:
        content = {when: head.model_dump(mode="json", exclude_none=True) for when, head in heads.items()}
        return print_json(content if unknown is None else content | {"not_in_shard": unknown})
    for when, head in heads.items():
        nodes = f"{count_noun(head.users, 'user')}, {count_noun(head.items, 'item')}"
        sizes = f"{nodes}, {head.train} train, {head.valid} valid, {head.test} test, {head.met or 0} met"
        OUT.print(f"{when}: {sizes}, digest {head.digest[:16]}", highlight=False)
    for note in after.notes[len(before.notes) :]:
        OUT.print(note, highlight=False)
