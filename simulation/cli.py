"""The command line `lpsfed`. Results go to stdout (JSON with --json), bars and errors to stderr."""

from __future__ import annotations

import json
import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from aggregator_service.__main__ import serve as serve_aggregator
from aggregator_service.settings import aggregator_settings
from client_service.__main__ import serve as serve_client
from client_service.settings import client_settings
from shared.errors import FederationError, SettingsError
from shared.settings import PRESET_ROUNDS, method_settings
from simulation.console import ERR, OUT, answer_table, crossing_table, field_table, partition_table, quality_table
from simulation.demo import demonstrate, stop_kept
from simulation.doctor import examine
from simulation.experiment import Experiment
from simulation.plots import draw_curves, markdown_table, read_report
from simulation.run import simulate as run_in_process
from simulation.source import SYNTHETIC, Cut, cut_shards, find_shards
from simulation.study import study

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Federated recommendations; nobody sees your data.")


class Method(StrEnum):
    spectral = "spectral"
    users = "users"
    random = "random"
    ego = "ego"
    interconnected = "interconnected"


class StrategyName(StrEnum):
    lpsfed = "lpsfed"
    fedavg = "fedavg"
    local = "local"


class PresetName(StrEnum):
    default = "default"
    paper = "paper"


class Device(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


Data = Annotated[str, typer.Argument(help=f"data set, folder of shards, or '{SYNTHETIC}'")]
AsJson = Annotated[bool, typer.Option("--json", help="print JSON alone")]
Clients = Annotated[int, typer.Option(min=1, help="number of clients")]
Number = Annotated[int, typer.Option("--partition", min=0, help="p: 0 is deterministic, others draw anew")]
How = Annotated[Method, typer.Option("--method", help="how to divide users and items")]
SplitSeed = Annotated[int, typer.Option(min=0, help="of the 8:1:1 split, where the data bring none")]
SettingsFile = Annotated[Path | None, typer.Option(help="TOML; environment and flags win over it")]


@app.command()
def demo(
    data: Annotated[str, typer.Option(help="data set; the built-in generator by default")] = SYNTHETIC,
    clients: Clients = 4,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    keep: Annotated[bool, typer.Option("--keep", help="leave the services running; --stop ends them")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="only end the services of an earlier demo")] = False,
    folder: Annotated[Path, typer.Option(help="for shards, states and logs")] = Path("demo"),
    as_json: AsJson = False,
) -> None:
    """Partition, start aggregator and clients as processes, train, report, and answer a request."""
    for name in stop_kept(folder):
        ERR.print(f"ended the {name} of an earlier demo")
    if stop:
        return
    fresh = _next_folder(folder)
    shards = cut_shards(data, Cut(clients), fresh / "shards")
    experiment = Experiment(shards.paths, fresh, method_settings(), rounds=rounds)
    if not as_json:
        OUT.print(partition_table(shards.summary))
    seen = demonstrate(experiment, edges_kept=shards.edges_kept, shown=not as_json, keep_in=folder if keep else None)
    if as_json:
        _print_json({"report": seen.report, "url": seen.url, "answer": seen.answer})
    else:
        first = next(iter(seen.ledgers.values()))
        tables = (
            quality_table(seen.report),
            crossing_table(seen.ledgers),
            field_table(first),
            answer_table(seen.answer),
        )
        OUT.print(*tables, sep="\n")
        _print_request(seen.url, keep=keep)


@app.command()
def partition(
    data: Annotated[str, typer.Argument(help=f"data set, or '{SYNTHETIC}'")],
    out: Annotated[Path, typer.Option(help="folder for the shards")],
    clients: Clients = 4,
    method: How = Method.spectral,
    number: Number = 0,
    split_seed: SplitSeed = 0,
    as_json: AsJson = False,
) -> None:
    """Divide a data set into shards, one folder a client."""
    shards = cut_shards(data, Cut(clients, method.value, number, split_seed), out)
    if as_json:
        return _print_json(shards.summary)
    OUT.print(partition_table(shards.summary))
    for note in shards.summary["notes"]:
        OUT.print(f"- {note}")


@app.command()
def simulate(
    data: Data,
    out: Annotated[Path | None, typer.Option(help="new or empty folder; by default the next in runs/")] = None,
    clients: Clients = 4,
    rounds: Annotated[int | None, typer.Option(min=1, help="by default the preset's")] = None,
    strategy: StrategyName = StrategyName.lpsfed,
    preset: PresetName = PresetName.default,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    changes: Annotated[list[str] | None, typer.Option("--set", help="a setting of the method, key=value")] = None,
    method: How = Method.spectral,
    number: Number = 0,
    split_seed: SplitSeed = 0,
    device: Device = Device.auto,
    threads: Annotated[int, typer.Option(min=1, help="CPU threads a client")] = 1,
    as_json: AsJson = False,
) -> None:
    """Train a federation in one process, over the very same services, and hold it against the floors."""
    agreed = method_settings(preset.value, **_pairs(changes or []))
    folder = _next_folder(Path("runs")) if out is None else _empty_folder(out)
    shards = find_shards(Path(data)) or cut_shards(
        data, Cut(clients, method.value, number, split_seed), folder / "shards"
    )
    experiment = Experiment(
        shards.paths,
        folder,
        agreed,
        strategy=strategy.value,
        rounds=rounds or PRESET_ROUNDS[preset.value],
        seed=seed,
        device=device.value,
        threads=threads,
    )
    report = study(experiment, run_in_process, edges_kept=shards.edges_kept, shown=not as_json)
    if as_json:
        return _print_json(report)
    OUT.print(quality_table(report), f"report: {folder / 'report.json'}", sep="\n")


@app.command()
def report(folder: Annotated[Path, typer.Argument(help="folder of a simulation")], as_json: AsJson = False) -> None:
    """Draw a run's curves (curves.png) and write its table (report.md) into its folder."""
    found, rows = read_report(folder)
    draw_curves(rows, folder / "curves.png")
    (folder / "report.md").write_text(markdown_table(found), encoding="utf-8")
    if as_json:
        return _print_json(found)
    OUT.print(quality_table(found), f"written: {folder / 'curves.png'}, {folder / 'report.md'}", sep="\n")


@app.command()
def aggregator(
    state_directory: Annotated[Path | None, typer.Option(help="database and blobs")] = None,
    operator_token_file: Annotated[Path | None, typer.Option(help="file with the operator's secret")] = None,
    strategy: Annotated[StrategyName | None, typer.Option()] = None,
    host: Annotated[str | None, typer.Option()] = None,
    port: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Serve the aggregator. Settings also come from LPSFED_AGGREGATOR_*; flags win."""
    serve_aggregator(aggregator_settings(**_given(locals())))


@app.command()
def client(
    settings: SettingsFile = None,
    name: Annotated[str | None, typer.Option(help="given by the operator")] = None,
    shard: Annotated[Path | None, typer.Option(help="folder with interactions.parquet")] = None,
    state_directory: Annotated[Path | None, typer.Option(help="secret, ledger and models")] = None,
    aggregator_url: Annotated[str | None, typer.Option()] = None,
    strategy: Annotated[StrategyName | None, typer.Option()] = None,
    device: Annotated[Device | None, typer.Option()] = None,
    host: Annotated[str | None, typer.Option()] = None,
    port: Annotated[int | None, typer.Option()] = None,
) -> None:
    """Serve one silo's client. Settings also come from LPSFED_CLIENT_* and a TOML file; flags win."""
    given = _given(locals())
    given.pop("settings", None)
    serve_client(client_settings(settings, **given))


@app.command()
def doctor(
    shard: Annotated[Path | None, typer.Option(help="a shard to read")] = None,
    settings: SettingsFile = None,
    folder: Annotated[Path, typer.Option(help="where state would go")] = Path(),
    ports: Annotated[list[int] | None, typer.Option("--port", help="ports that should be free")] = None,
    as_json: AsJson = False,
) -> None:
    """Check Python, packages, device, disk, ports, shard and settings."""
    checks = examine(shard=shard, folder=folder, ports=tuple(ports or (8800, 8801)), settings=settings)
    if as_json:
        _print_json([vars(check) for check in checks])
    else:
        table = Table("check", "", "found")
        for check in checks:
            table.add_row(check.name, "[green]good[/]" if check.good else "[red]bad[/]", check.found)
        OUT.print(table)
    if not all(check.good for check in checks):
        raise typer.Exit(1)


def _given(flags: dict[str, Any]) -> dict[str, Any]:
    """The flags that were set; an enumeration as its text."""
    plain = {name: flag.value if isinstance(flag, StrEnum) else flag for name, flag in flags.items()}
    return {name: flag for name, flag in plain.items() if flag is not None}


def _pairs(changes: list[str]) -> dict[str, str]:
    """['a=1', ...] -> {'a': '1', ...}. SettingsError for anything else."""
    split = [change.partition("=") for change in changes]
    if wrong := [change for change, (key, mark, _) in zip(changes, split, strict=True) if not key or not mark]:
        raise SettingsError(f"--set: expected key=value, got {wrong[0]!r}")
    return {key: value for key, _, value in split}


def _next_folder(root: Path) -> Path:
    """root/1, root/2, ...: the first number that is not taken."""
    taken = [int(path.name) for path in root.glob("*") if path.name.isdigit()]
    folder = root / str(max(taken, default=0) + 1)
    folder.mkdir(parents=True)
    return folder


def _empty_folder(folder: Path) -> Path:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(f"--out: expected a new or an empty folder, got {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1) + "\n")


def _print_request(url: str, *, keep: bool) -> None:
    kept, ended = "go on serving until `lpsfed demo --stop`", "have ended; --keep leaves them running"
    OUT.print(f"The services {kept if keep else ended}. To ask:\n")
    sys.stdout.write(f"curl '{url}'\n")


def main() -> None:
    """Entry point: an error of the tree is one line on stderr and exit code 1 or, for settings, 2."""
    try:
        app()
    except FederationError as error:
        ERR.print("[red]error:[/]", escape(str(error)), highlight=False, soft_wrap=True)
        sys.exit(2 if isinstance(error, SettingsError) else 1)


if __name__ == "__main__":
    main()
