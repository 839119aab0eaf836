"""Commands that see more than one silo: demo, partition, simulate, report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from shared.method.settings import method_settings
from shared.protocol.secure.messages import FEWEST_CLIENTS
from shared.words import count_noun
from simulation.cli import options
from simulation.console import ERR, OUT, answer_table, rounds_done, tell_on_stderr
from simulation.demo import DemoResult, run_demonstration, stop_kept_services
from simulation.engines import choose_engine
from simulation.engines.folder_of_run import command_words, find_or_cut_again, open_run_folder
from simulation.engines.ray_engine import RayCluster
from simulation.experiment import DEADLINE_SECONDS, Experiment
from simulation.federation import Observe, Outcome, Progress
from simulation.plots import draw_curves, markdown_table, read_report
from simulation.privacy import parse_privacy
from simulation.report import measure_labels
from simulation.source import CHAIN, SYNTHETIC
from simulation.study import run_study
from simulation.tables import crossed_lines, crossing_table, field_table, partition_table, quality_table, worth_table
from simulation.tasks import simulated_task

PAUSE_SECONDS = 30 * 86400.0  # for which a simulation may be interrupted amid a round


def demo(
    data: Annotated[
        str | None, typer.Option(help="data set, divided by its users; by default generated shops of one chain")
    ] = None,
    task: options.Task = options.TaskName.items,
    clients: options.Clients = 4,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    common_basis: options.CommonBasis = options.BasisKind.exact,
    rank: options.Rank = None,
    basis_rounds: options.BasisRounds = None,
    keep: Annotated[bool, typer.Option("--keep", help="leave the services running; --stop ends them")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="only end the services of an earlier demo")] = False,
    folder: Annotated[Path, typer.Option(help="for shards, states and logs")] = Path("demo"),
    secure: options.Secure = False,
    split: options.SplitChoice = None,
    min_rating: options.MinRating = None,
    rating_kind: options.KindOfRating = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    as_json: options.AsJson = False,
) -> None:
    """Partition, start aggregator and clients as processes, train, report, and answer a request.

    It trains in the strict boundary and then with the common basis, in secure mode, which takes three clients; fewer
    have no common basis.
    """
    for name in stop_kept_services(folder):
        ERR.print(f"ended the {name} of an earlier demo")
    if stop:
        return
    fresh = _next_folder(folder, "--folder")
    doing = simulated_task(task.value)
    if clients < FEWEST_CLIENTS or not doing.has_basis:
        common_basis = options.BasisKind.off
    changes = options.method_changes(None, common_basis, rank, basis_rounds)
    taught = doing.taught if data is None else {}
    method = method_settings(doing.preset, **taught, **changes)
    how = None if data in (None, CHAIN) or task is not options.TaskName.items else options.Method.users
    file_options = options.parse_file_options(columns, delimiter)
    cut = options.choose_cut(
        data or CHAIN, clients, how, 0, 0, min_rating, split, task, file_options=file_options, kind=rating_kind
    )
    shards = doing.cut(data or doing.generated, cut, fresh / "shards")
    experiment = Experiment(
        shards.paths,
        fresh,
        method,
        doing.strategy,
        doing.name,
        rounds=rounds,
        secure=secure or common_basis is not options.BasisKind.off,
    )
    if not as_json:
        OUT.print(partition_table(shards.summary))
        options.print_notes(shards.notes)
    seen = run_demonstration(
        experiment, edges_kept=shards.edges_kept, shown=not as_json, keep_in=folder if keep else None
    )
    if as_json:
        return options.print_json(_demo_document(seen))
    _print_demo(seen)
    _print_request(seen, keep=keep)


def _demo_document(seen: DemoResult) -> dict[str, Any]:
    ways = [way.model_dump() for way in seen.ways]
    return {
        "report": seen.report,
        "ways": ways,
        "url": seen.url,
        "key_file": str(seen.key_file),
        "answer": seen.answer,
    }


def _print_demo(seen: DemoResult) -> None:
    first = next(iter(seen.ledgers.values()))
    tables = (
        quality_table(seen.report),
        crossing_table(seen.ledgers),
        field_table(first),
        answer_table(seen.example.said, seen.answer),
        worth_table(seen.ways),
    )
    OUT.print(*tables, *crossed_lines(seen.ways), sep="\n")


def partition(
    data: Annotated[str, typer.Argument(help=f"data set, '{SYNTHETIC}' or '{CHAIN}'")],
    out: Annotated[Path, typer.Option(help="folder for the shards")],
    task: options.Task = options.TaskName.items,
    clients: options.Clients = 4,
    method: options.How = None,
    number: options.Number = 0,
    split: options.SplitChoice = None,
    split_seed: options.SplitSeed = 0,
    min_rating: options.MinRating = None,
    rating_kind: options.KindOfRating = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    rules: options.Rules = None,
    as_json: options.AsJson = False,
) -> None:
    """Divide a data set into shards, one folder a client."""
    file_options = options.parse_file_options(columns, delimiter)
    cut = options.choose_cut(
        data, clients, method, number, split_seed, min_rating, split, task, rules, file_options, rating_kind
    )
    shards = simulated_task(task.value).cut(data, cut, options.ensure_folder(out))
    if as_json:
        return options.print_json(shards.summary)
    OUT.print(partition_table(shards.summary))
    for note in shards.notes:
        OUT.print(f"- {note}")


def simulate(
    data: options.Data,
    out: Annotated[
        Path | None, typer.Option(help="new or empty folder, or one to go on in; by default the next in runs/")
    ] = None,
    clients: options.ClientsOfCut = None,
    task: options.Task = options.TaskName.items,
    rounds: Annotated[int | None, typer.Option(min=1, help="by default the preset's")] = None,
    strategy: options.StrategyOrNone = None,
    preset: Annotated[options.PresetName | None, typer.Option(help="by default the task's")] = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    changes: options.Changes = None,
    privacy: options.Privacy = None,
    method: options.How = None,
    number: options.Number = 0,
    split: options.SplitChoice = None,
    split_seed: options.SplitSeed = 0,
    min_rating: options.MinRating = None,
    rating_kind: options.KindOfRating = None,
    columns: options.Columns = None,
    delimiter: options.Delimiter = None,
    rules: options.Rules = None,
    device: options.Device = options.Device.auto,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads a client")] = 1,
    common_basis: options.CommonBasis = options.BasisKind.off,
    rank: options.Rank = None,
    basis_rounds: options.BasisRounds = None,
    secure: options.Secure = False,
    engine: options.EngineName = options.EngineChoice.services,
    ray_address: options.RayAddress = "",
    ray_cpus: options.RayCpus = 0,
    no_floors: options.NoFloors = False,
    as_json: options.AsJson = False,
) -> None:
    """Train a federation on one machine or a cluster, and hold it against the floors.

    The same command with the same --out goes on where it was interrupted.
    """
    conduct = choose_engine(engine.value, RayCluster(ray_address, ray_cpus))
    changed = options.method_changes(changes, common_basis, rank, basis_rounds)
    doing = simulated_task(task.value)
    chosen = options.text_or(strategy, doing.strategy)
    agreed, enough = doing.choose_method(preset, chosen, changed)
    file_options = options.parse_file_options(columns, delimiter)
    cut = options.choose_cut(
        data, clients, method, number, split_seed, min_rating, split, task, rules, file_options, rating_kind
    )
    named = {"task": doing.name, "strategy": chosen, "seed": seed, "rounds": rounds, "threads": threads}
    words = command_words(data, cut, **named, device=device.value, method=agreed.model_dump(mode="json"))
    if engine is options.EngineChoice.services:  # what the others refuse; and what they have begun is not for services
        words |= {"engine": engine.value, "secure": secure, "privacy": sorted(privacy or [])}
    folder = _next_folder(Path("runs"), "runs") if out is None else options.ensure_folder(out)
    open_run_folder(folder, words)
    with explain_interrupt(folder, rounds or enough, named=out is not None) as note_progress:
        shards = find_or_cut_again(data, cut, folder / "shards", doing.cut)
        if not as_json:
            options.print_notes(shards.notes)
        experiment = Experiment(
            shards.paths,
            folder,
            agreed,
            strategy=chosen,
            task=doing.name,
            rounds=rounds or enough,
            seed=seed,
            device=device.value,
            threads=threads,
            secure=secure,
            privacy=parse_privacy(options.parse_pairs(privacy or [], "--privacy")),
            deadline_seconds=PAUSE_SECONDS if engine is options.EngineChoice.services else DEADLINE_SECONDS,
        )

        def conduct_noted(one: Experiment, observe: Observe) -> Outcome:
            return conduct(one, lambda seen: (note_progress(seen), observe(seen))[-1])

        edges = shards.edges_kept
        report = run_study(experiment, conduct_noted, edges_kept=edges, shown=not as_json, floors=not no_floors)
    if as_json:
        return options.print_json(report)
    OUT.print(quality_table(report), f"report: {folder / 'report.json'}", sep="\n")


@contextmanager
def explain_interrupt(folder: Path, rounds: int, *, named: bool) -> Iterator[Observe]:
    """Where Ctrl-C ends a simulation, say what is kept in its folder and which command goes on. `named`: the command
    has named the folder. What is yielded is told how far the clients are."""
    done = 0

    def note_progress(seen: Progress) -> None:
        nonlocal done
        if seen.part == "training":
            done = min((rounds_done(status) for status in seen.statuses.values()), default=0)

    try:
        yield note_progress
    except KeyboardInterrupt:
        words = ["lpsfed", *sys.argv[1:], *([] if named else ["--out", str(folder)])]
        tell_on_stderr(f"interrupted: {done} of {count_noun(rounds, 'round')} are kept in {folder}; to go on:")
        tell_on_stderr(f"  {shlex.join(words)}")
        raise typer.Exit(options.INTERRUPTED) from None


def report(
    folder: Annotated[Path, typer.Argument(help="folder of a simulation")], as_json: options.AsJson = False
) -> None:
    """Draw a run's curves (curves.png) and write its table (report.md) into its folder."""
    content, rows = read_report(folder)
    draw_curves(measure_labels(content), rows, folder / "curves.png")
    (folder / "report.md").write_text(markdown_table(content), encoding="utf-8")
    if as_json:
        return options.print_json(content)
    OUT.print(quality_table(content), f"written: {folder / 'curves.png'}, {folder / 'report.md'}", sep="\n")


def _next_folder(root: Path, flag: str) -> Path:
    """root/1, root/2, ...: the first number that is not taken."""
    taken = [int(path.name) for path in options.ensure_folder(root, flag).glob("*") if path.name.isdigit()]
    folder = root / str(max(taken, default=0) + 1)
    folder.mkdir()  # another command that has just taken the number is not joined
    return folder


def _print_request(seen: DemoResult, *, keep: bool) -> None:
    if not keep:
        return OUT.print("The services have ended; --keep leaves them answering.")
    OUT.print("The services go on serving until `lpsfed demo --stop`. To ask:\n")
    OUT.print(f"(A browser is asked for a name and a password: operator, and what is in {seen.page_key_file}.)\n")
    body = "" if seen.example.body is None else f" --json '{json.dumps(seen.example.body)}'"
    sys.stdout.write(f"curl -H \"Authorization: Bearer $(cat {seen.key_file})\"{body} '{seen.url}'\n")
