"""`lpsfed tune`: searches settings by validation."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from simulation.cli import options
from simulation.reports.terminal import ERR, OUT, count_bar, print_on_stderr

if TYPE_CHECKING:
    from shared.method.settings import MethodSettings
    from simulation.tuning.search import Search

DEFAULT_FLAGS = ("--task items", "--preset default")  # left out of the command


@options.spread_records
def tune(
    data: options.Data,
    out: Annotated[Path, typer.Option(help="Folder of the search; an existing search resumes")],
    strategy: options.StrategyOrNone = None,
    task: options.TaskOrNone = None,
    trials: Annotated[int, typer.Option(min=1, help="Number of trials, with those of earlier calls")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of each trial")] = 5,
    clients: options.ClientsOrNone = None,
    preset: Annotated[options.PresetName | None, typer.Option(help="Preset of settings (default: the task's)")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws")] = 0,
    changes: options.Changes = None,
    *,
    how: options.DivisionFlags,
    file: options.FileFlags,
    rules: options.Rules = None,
    device: options.DeviceChoice = options.Device.auto,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads per client")] = 1,
    as_json: options.AsJson = False,
) -> None:
    """Searches a strategy's settings by validation alone. Settings given with --set stay fixed."""
    from simulation.experiments.blind import write_blind_shards
    from simulation.experiments.tasks import simulated_task
    from simulation.partitioning.sources import find_or_cut_shards
    from simulation.tuning.search import Search, open_study, summarise_search, write_best_settings
    from simulation.tuning.spaces import search_space

    options.ensure_folder(out)
    task = options.choose_task(task, data, file)
    fixed, doing = options.parse_pairs(changes or []), simulated_task(task.value)
    chosen, named = options.value_or_default(strategy, doing.strategy), options.value_or_default(preset, doing.preset)
    base, _ = doing.choose_method(named, chosen, fixed)
    space = search_space(chosen, base, fixed)
    cut = options.choose_cut(data, task, clients, how, file, rules)
    shards = find_or_cut_shards(data, cut, out / "shards", doing.cut)
    base = doing.fit_method(base, shards.paths)
    if not as_json:
        options.print_notes(shards.notes)
    with tempfile.TemporaryDirectory(prefix="lpsfed-blind-") as folder:
        cache = Path(folder) / "cache"
        blind = write_blind_shards(doing.hide_test, shards.paths, Path(folder) / "shards")
        plan = Search(blind, chosen, base, space, rounds, seed, device.value, threads, cache, doing.name)
        stopped = _run_with_bar(plan, out, trials, shown=not as_json)
        best = summarise_search(plan, open_study(plan, out))
    path = write_best_settings(out, best)
    if as_json:
        options.print_json(best)
    else:
        OUT.print(_values_table(best, base), f"written: {path}. To train with them:", sep="\n")
        command = _simulate_command(shards.paths[0].parent, best, doing.name, named, fixed)
        OUT.print(command, soft_wrap=True, highlight=False)
    if stopped:
        print_on_stderr(f"interrupted: the trials are kept in {out}; the same command resumes")
        raise typer.Exit(options.INTERRUPTED_CODE)


def _run_with_bar(plan: Search, out: Path, trials: int, *, shown: bool) -> bool:
    """Runs the trials and prints the failed ones. True if Ctrl-C ended the search."""
    from simulation.tuning.search import open_study, run_search, spent_trials

    study = open_study(plan, out)
    with count_bar("trials", max(0, trials - len(spent_trials(study))), shown=shown) as observe:
        try:
            run_search(plan, study, trials, observe)
        except KeyboardInterrupt:
            return True
    for trial in spent_trials(study):
        if "reason" in trial.user_attrs:
            ERR.print(f"trial {trial.number} failed: {trial.user_attrs['reason']}", highlight=False)
    return False


def _values_table(best: Mapping[str, Any], base: MethodSettings) -> Table:
    """Returns a table of the best values beside those of the start."""
    from simulation.tuning.spaces import initial_value

    spent = f"{best['trials']} trials: {best['pruned']} ended early, {best['failed']} failed"
    spent += f"\n{best['epochs']} epochs a client in all"
    table = Table(title="Chosen by validation", caption=spent, box=box.SIMPLE, padding=0, pad_edge=False)
    table.add_column("setting")
    table.add_column("at first", justify="right")
    table.add_column("chosen", justify="right")
    for name, value in best["values"].items():
        first = initial_value(name, best["strategy"], base)
        table.add_row(name, f"{first:.4g}", f"{value:.4g}")
    table.add_section()
    first = "-" if best["default"] is None else f"{best['default']:.4f}"
    table.add_row(best["measure"], first, f"{best['validation']:.4f}")
    return table


def _simulate_command(shards: Path, best: Mapping[str, Any], task: str, preset: str, fixed: Mapping[str, str]) -> str:
    """Returns the command that simulates with the best settings."""
    chosen = " ".join(f"--set {name}={value}" for name, value in {**fixed, **best["values"]}.items())
    words = [flag for flag in (f"--task {task}", f"--preset {preset}") if flag not in DEFAULT_FLAGS]
    length = f"--rounds {best['rounds']} --seed {best['seed']}"
    return " ".join(["lpsfed simulate", str(shards), f"--strategy {best['strategy']}", *words, length, chosen])
