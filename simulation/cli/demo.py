"""`lpsfed demo`: starts a whole federation on one machine."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulation.cli import options
from simulation.cli.experiments import next_folder
from simulation.demo import FIRST_PORT
from simulation.reports.terminal import OUT, answer_table, partition_table, print_on_stderr

if TYPE_CHECKING:
    from simulation.demo import DemoResult
    from simulation.experiments.experiment import Experiment
    from simulation.experiments.processes import Addresses

DemoData = Annotated[str | None, typer.Option(help="Data set, divided by its users (default: generated shops)")]
Stop = Annotated[bool, typer.Option("--stop", help="Stop earlier demos that still run: all, or the one in --folder")]
FirstPort = Annotated[
    int, typer.Option(min=0, max=65000, help="Port of the aggregator; the silos' ports follow. 0: any free ports")
]


@options.spread_records
def demo(
    data: DemoData = None,
    task: options.Task = options.TaskName.items,
    clients: options.Clients = 4,
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds")] = 5,
    common_basis: options.CommonBasis = options.ItemBasisKind.exact,
    rank: options.Rank = None,
    basis_rounds: options.BasisRounds = None,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the services running; --stop ends them")] = False,
    stop: Stop = False,
    folder: Annotated[Path | None, typer.Option(help="Folder for shards, states and logs (default: demo)")] = None,
    first_port: FirstPort = FIRST_PORT,
    secure: options.Secure = False,
    split: options.SplitChoice = None,
    *,
    file: options.FileFlags,
    as_json: options.AsJson = False,
) -> None:
    """Runs a whole federation on this machine: trains, compares, and answers a request.

    It divides the data among silos, starts aggregator and clients as processes, trains without sums and then with
    masked sums of the silos' data, and compares both with what each silo has alone. Sums need three silos or more.
    They are sums of items' statistics, with --task sessions of transitions, with --task nodes Gram sums;
    --common-basis off leaves them out.
    """
    from shared.protocol.secure.messages import FEWEST_CLIENTS
    from simulation.demo import stop_demos
    from simulation.experiments.experiment import Experiment
    from simulation.experiments.tasks import simulated_task
    from simulation.partitioning.sources import CHAIN, SHOPS

    root = Path("demo") if folder is None else folder
    for what in [*stop_demos(folder if stop else root), *(stop_demos(root) if stop and folder is None else [])]:
        print_on_stderr(f"ended the {what}")
    if stop:
        return
    fresh = next_folder(root, "--folder")
    doing = simulated_task(task.value)
    if clients < FEWEST_CLIENTS:
        common_basis = options.ItemBasisKind.off
    own_sums = doing.sums != "exact" and common_basis is not options.ItemBasisKind.off
    summed = doing.sums if own_sums else common_basis.value
    changes = options.parse_method_changes(None, options.BasisFlags(options.BasisKind(summed), rank, basis_rounds))
    demo_settings = doing.demo_settings if data is None else {}
    how = None if data in (None, CHAIN, SHOPS) or task is not options.TaskName.items else options.Method.users
    doing.choose_method(None, doing.strategy, {**demo_settings, **changes})  # refuses flags before data are read
    cut = options.choose_cut(data or SHOPS, task, clients, options.DivisionFlags(how, split=split), file)
    shards = doing.cut(data or doing.demo_data, cut, fresh / "shards")
    more = {} if common_basis is options.ItemBasisKind.off else doing.declare_content(shards.paths)
    method, _ = doing.choose_method(None, doing.strategy, {**demo_settings, **changes, **more})
    experiment = Experiment(
        shards.paths,
        fresh,
        doing.fit_method(method, shards.paths),
        doing.strategy,
        doing.name,
        rounds=rounds,
        secure=secure or common_basis is not options.ItemBasisKind.off,
    )
    if not as_json:
        OUT.print(partition_table(shards.summary))
        options.print_notes(shards.notes)
    result = _run_demo(experiment, shards.edges_kept, root, first_port, keep=keep, shown=not as_json)
    if as_json:
        return options.print_json(_demo_json(result))
    _print_demo(result)
    _print_next_steps(result, task, keep=keep)


def _run_demo(
    experiment: Experiment, edges_kept: float | None, root: Path, first_port: int, *, keep: bool, shown: bool
) -> DemoResult:
    from simulation.demo import run_demonstration
    from simulation.experiments.processes import choose_addresses

    places = choose_addresses(experiment, first_port)
    if first_port and (moved := _describe_moved_ports(places, first_port)):
        print_on_stderr("\n".join(moved))
    try:
        return run_demonstration(experiment, places, edges_kept=edges_kept, shown=shown, root=root, keep=keep)
    except KeyboardInterrupt:
        print_on_stderr(f"interrupted: the services have ended; their logs are in {experiment.folder / 'logs'}")
        raise typer.Exit(options.INTERRUPTED_CODE) from None


def _describe_moved_ports(places: Addresses, first_port: int) -> list[str]:
    """Describes each service whose usual port is taken, in a line each."""
    wished = enumerate({"aggregator": places.aggregator, **places.clients}.items(), first_port)
    return [
        f"port {port} is taken: the {name} answers at {url}"
        for port, (name, url) in wished
        if not url.endswith(f":{port}")
    ]


def _demo_json(result: DemoResult) -> dict[str, Any]:
    ways = [way.model_dump() for way in result.ways]
    return {
        "report": result.report,
        "ways": ways,
        "url": result.url,
        "key_file": str(result.key_file),
        "pages": {
            "aggregator": {"url": result.places.aggregator, "password_file": str(result.token_file)},
            **{
                name: {"url": url, "password_file": str(result.page_key_file)}
                for name, url in result.places.clients.items()
            },
        },
        "answer": result.answer,
        "shops": [shop.model_dump() for shop in result.shops],
        "new": None if result.new is None else asdict(result.new),
    }


def _print_demo(result: DemoResult) -> None:
    from simulation.reports.tables import (
        crossing_table,
        field_table,
        joining_value_table,
        quality_table,
        sent_value_lines,
        shop_table,
    )

    first = next(iter(result.ledgers.values()))
    tables = (
        quality_table(result.report),
        crossing_table(result.ledgers),
        field_table(first),
        answer_table(result.example.caption, result.answer),
        joining_value_table(result.ways),
    )
    OUT.print(*tables, *sent_value_lines(result.ways), sep="\n")
    if result.shops:
        OUT.print("", shop_table(result.shops), sep="\n")


def _print_next_steps(result: DemoResult, task: options.TaskName, *, keep: bool) -> None:
    """Prints what joining brought, where the services answer, and what to do next."""
    from simulation.reports.tables import describe_joining_value

    OUT.print(f"\n{describe_joining_value(result.ways)}\n", style="bold", soft_wrap=True)
    if result.new is not None:
        OUT.print(f"{result.new.line}\n", soft_wrap=True)
    if not keep:
        again = shlex.join(["lpsfed", *sys.argv[1:], "--keep"])
        OUT.print("The services have ended. Next:")
        OUT.print(f"  {again}    keeps the services and their pages running", soft_wrap=True)
        own = "lpsfed simulate FILE" + ("" if task is options.TaskName.items else f" --task {task}")
        OUT.print(f"  {own}    trains silos on your own data", soft_wrap=True)
        return
    OUT.print("Pages. A browser asks for user and password: operator, and the content of the file:\n")
    pages = {"operator": (result.places.aggregator, result.token_file)}
    pages |= {name: (url, result.page_key_file) for name, url in result.places.clients.items()}
    for name, (url, file) in pages.items():
        sys.stdout.write(f"  {name:<10} {url}/    {file}\n")
    body = "" if result.example.body is None else f" --json '{json.dumps(result.example.body)}'"
    OUT.print(f"\nThe services run until `lpsfed demo --stop`. To ask for {result.example.asks}:\n")
    asking = f'curl -H "Authorization: Bearer $(cat {result.key_file})"'
    sys.stdout.write(f"{asking}{body} '{result.url}'\n")
    if result.new is not None:
        OUT.print("\nFor the list with the new item, and why each item is in it:\n")
        sys.stdout.write(f"{asking} '{result.new.url}'\n")
