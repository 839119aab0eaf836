"""Commands that see more than one silo: partition, simulate, report."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from shared.errors import SettingsError
from shared.words import count_noun
from simulation.cli import options
from simulation.partitioning.sources import CHAIN, SHOPS, SYNTHETIC
from simulation.progress import print_progress
from simulation.reports.terminal import OUT, partition_table, print_on_stderr, rounds_done

if TYPE_CHECKING:
    from shared.method.settings import MethodSettings
    from simulation.engines.study import RunExperiment
    from simulation.experiments.experiment import Experiment
    from simulation.experiments.federation import Observe, Outcome, Progress
    from simulation.partitioning.item_matches import MatchedShards

PAUSE_SECONDS = 30 * 86400.0  # for which a simulation may be interrupted amid a round


@options.spread_records
def partition(
    data: Annotated[str, typer.Argument(help=f"Data set, '{SYNTHETIC}', '{CHAIN}', '{SHOPS}', 'clicks' or 'rings'")],
    out: Annotated[Path, typer.Option(help="Folder for the shards")],
    task: options.TaskOrNone = None,
    clients: options.Clients = 4,
    *,
    how: options.DivisionFlags,
    file: options.FileFlags,
    rules: options.Rules = None,
    as_json: options.AsJson = False,
) -> None:
    """Divides a data set into shards, one folder per client."""
    from simulation.experiments.tasks import simulated_task

    task = options.choose_task(task, data, file)
    cut = options.choose_cut(data, task, clients, how, file, rules)
    shards = simulated_task(task.value).cut(data, cut, options.ensure_folder(out))
    if as_json:
        return options.print_json(shards.summary)
    OUT.print(partition_table(shards.summary))
    for note in shards.notes:
        OUT.print(f"- {note}")


@options.spread_records
def simulate(
    data: options.Data,
    out: Annotated[
        Path | None, typer.Option(help="Folder of the run: new, empty, or one to resume (default: the next in runs/)")
    ] = None,
    clients: options.ClientsOrNone = None,
    task: options.TaskOrNone = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds (default: the preset's)")] = None,
    strategy: options.StrategyOrNone = None,
    preset: Annotated[options.PresetName | None, typer.Option(help="Preset of settings (default: the task's)")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws")] = 0,
    changes: options.Changes = None,
    privacy: options.Privacy = None,
    *,
    how: options.DivisionFlags,
    file: options.FileFlags,
    rules: options.Rules = None,
    device: options.DeviceChoice = options.Device.auto,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per client")] = 1,
    basis: options.BasisFlags,
    secure: options.Secure = False,
    engine_flags: options.EngineFlags,
    no_floors: options.NoFloors = False,
    as_json: options.AsJson = False,
) -> None:
    """Trains a federation on one machine or a cluster, and compares it with simple baselines.

    The same command with the same --out resumes an interrupted simulation.
    """
    from simulation.engines import choose_engine
    from simulation.engines.ray_engine import RayCluster
    from simulation.engines.run_folders import describe_command, open_run_folder, reuse_or_cut_shards
    from simulation.engines.study import run_study
    from simulation.experiments.experiment import Experiment, parse_privacy
    from simulation.experiments.tasks import simulated_task
    from simulation.partitioning.scenarios import find_late_silos
    from simulation.reports.tables import quality_table

    engine = engine_flags.engine
    most_bytes = None if engine_flags.silo_memory is None else engine_flags.silo_memory << 20
    conduct = choose_engine(engine.value, RayCluster(engine_flags.ray_address, engine_flags.ray_cpus), most_bytes)
    changed = options.parse_method_changes(changes, basis)
    task = options.choose_task(task, data, file)
    doing = simulated_task(task.value)
    chosen = options.value_or_default(strategy, doing.strategy)
    if how.scenario is not None:  # a scenario compares sums; training needs --set
        changed = {"strategy.train": "false", **changed} if chosen == "lpsfed" else changed
        how = replace(how, number=how.number or seed)
    disjoint = how.scenario is not None and how.scenario.value.startswith("disjoint")
    if disjoint and not any(name.startswith("sums.") for name in changed):
        changed = {"sums.content.kind": "content", **changed}  # there is no common item to sum
    if how.match_items and (how.scenario is None or how.scenario.value != "ids-differ"):
        raise SettingsError("--match-items: expected it with --scenario ids-differ alone, whose silos differ in ids")
    agreed, enough = doing.choose_method(preset, chosen, changed)
    cut = options.choose_cut(data, task, clients, how, file, rules)
    named: dict[str, Any] = {"task": doing.name, "strategy": chosen, "seed": seed, "rounds": rounds, "threads": threads}
    services = engine is options.EngineChoice.services
    words = describe_command(data, cut, **named, device=device.value, method=agreed.model_dump(mode="json"))
    if services:  # plain and ray refuse these, and their runs cannot resume on services
        words |= {"engine": engine.value, "secure": secure, "privacy": sorted(privacy or [])}
    folder = next_folder(Path("runs"), "runs") if out is None else options.ensure_folder(out)
    open_run_folder(folder, words)
    named |= {"rounds": rounds or enough, "device": device.value, "secure": secure}
    named |= {"privacy": parse_privacy(options.parse_pairs(privacy or [], "--privacy"))}
    named |= {"deadline_seconds": PAUSE_SECONDS} if services else {}
    with explain_interrupt(folder, named["rounds"], conduct, named=out is not None) as observed:
        shards = reuse_or_cut_shards(data, cut, folder / "shards", doing.cut)
        if not as_json:
            options.print_notes(shards.notes)
        agreed = doing.fit_method(agreed, shards.paths)
        matched = match_scenario_items(shards.paths, folder / "matches") if how.match_items else None
        late = () if how.scenario is None else find_late_silos(how.scenario.value, shards.paths)
        named |= {"late": late, "matches": {} if matched is None else matched.files}
        if how.scenario is not None and not disjoint and basis.common_basis is None and "basis.kind" not in changed:
            agreed, reason = choose_scenario_basis(
                agreed, [path for path in shards.paths if path not in late], named["matches"]
            )
            print_progress(reason)
        one, edges = Experiment(shards.paths, folder, agreed, **named), shards.edges_kept
        report = run_study(one, observed, edges_kept=edges, shown=not as_json, floors=not no_floors)
        report |= {} if matched is None else {"matches": matched.to_json()}
        if disjoint:
            from simulation.experiments.disjoint_shops import join_figures, measure_small_shop

            name, figures = measure_small_shop(one)
            report["silos"] = [join_figures(row, figures if row["client"] == name else {}) for row in report["silos"]]
            (folder / "report.json").write_text(json.dumps(report, indent=1), encoding="utf-8")
    if as_json:
        return options.print_json(report)
    OUT.print(quality_table(report), f"report: {folder / 'report.json'}", sep="\n")


def match_scenario_items(shards: Sequence[Path], folder: Path) -> MatchedShards:
    """Matches ids by titles in the scenario `ids-differ`, and prints precision and recall."""
    from simulation.partitioning.item_matches import match_shards
    from simulation.partitioning.scenarios import RENAMED

    found = match_shards(shards, folder, RENAMED)
    scores = found.to_json()
    words = f"{found.taken:,} of {found.known:,} own ids are matched by their titles"
    print_progress(f"{words}: precision {scores['precision']:.4f}, recall {scores['recall']:.4f}")
    return found


def choose_scenario_basis(
    method: MethodSettings, shards: Sequence[Path], matches: Mapping[str, Path]
) -> tuple[MethodSettings, str]:
    """Chooses the sums by the number of items and training interactions of all silos.

    Returns the method with them, and the reason. matches: what silos have signed of their own ids.
    """
    from client_service.data.interaction_files import load_shard
    from shared.method.settings import validate_settings
    from shared.sums.item_basis import FEW_SIMULATED, choose_basis
    from simulation.partitioning.catalogue import merge_shard_items

    pairs = sum(load_shard(path).train.nnz for path in shards)
    chosen, reason = choose_basis(len(merge_shard_items(shards, matches)), pairs, few=FEW_SIMULATED)
    changed = method.model_copy(update={"basis": method.basis.model_copy(update=chosen)})
    return validate_settings(type(method), changed.model_dump()), reason


@contextmanager
def explain_interrupt(folder: Path, rounds: int, conduct: RunExperiment, *, named: bool) -> Iterator[RunExperiment]:
    """Prints, where Ctrl-C ends a simulation, what is kept and which command resumes.

    named: the command names the folder. Yields the function that conducts the run and notes how far its clients are.
    """
    from shared.method.declaration import TRAINING

    latest: Progress | None = None

    def conduct_noted(experiment: Experiment, observe: Observe) -> Outcome:
        def note_and_observe(seen: Progress) -> None:
            nonlocal latest
            latest = seen if seen.part == TRAINING else latest
            observe(seen)

        return conduct(experiment, note_and_observe)

    try:
        yield conduct_noted
    except KeyboardInterrupt:
        done = min((rounds_done(status) for status in latest.statuses.values()), default=0) if latest else 0
        words = ["lpsfed", *sys.argv[1:], *([] if named else ["--out", str(folder)])]
        print_on_stderr(f"interrupted: {done} of {count_noun(rounds, 'round')} are kept in {folder}; to resume:")
        print_on_stderr(f"  {shlex.join(words)}")
        raise typer.Exit(options.INTERRUPTED_CODE) from None


def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a simulation")], as_json: options.AsJson = False
) -> None:
    """Draws a run's curves (curves.png) and writes its table (report.md) into its folder."""
    from simulation.reports.plots import draw_curves, markdown_table, read_report
    from simulation.reports.report import measure_labels
    from simulation.reports.tables import quality_table

    content, rows = read_report(folder)
    draw_curves(measure_labels(content), rows, folder / "curves.png")
    (folder / "report.md").write_text(markdown_table(content), encoding="utf-8")
    if as_json:
        return options.print_json(content)
    OUT.print(quality_table(content), f"written: {folder / 'curves.png'}, {folder / 'report.md'}", sep="\n")


def next_folder(root: Path, flag: str) -> Path:
    """Makes the folder of the first free number: root/1, root/2, ..."""
    taken = [int(path.name) for path in options.ensure_folder(root, flag).glob("*") if path.name.isdigit()]
    folder = root / str(max(taken, default=0) + 1)
    folder.mkdir()  # fails where another command has just taken the number
    return folder
