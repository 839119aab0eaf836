"""`lpsfed quarantine`: lists, excludes and readmits clients of an aggregator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from simulation.cli import options
from simulation.reports.terminal import OUT, word_table

if TYPE_CHECKING:
    from shared.protocol.schemas import MemberOut

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    help="Lists, excludes and readmits clients of an aggregator.",
)

Name = Annotated[str, typer.Argument(help="Name of the client")]


@app.command("list")
@options.spread_records
def show(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    *,
    call: options.CallFlags,
    as_json: options.AsJson = False,
) -> None:
    """Lists all clients: refused calls in the newest run, and the reason of a quarantine."""
    from simulation.operating import operator as operate
    from simulation.operating.operator_calls import open_operator

    with open_operator(aggregator_url, operator_token_file, call.make_tls()) as operator:
        members = operate.list_members(operator)
    if as_json:
        return options.print_json([member.model_dump(mode="json") for member in members])
    table = word_table(
        "client", "refused", "quarantined since", "cause", "reason", whole=("refused", "quarantined since")
    )
    for member in members:
        held = member.quarantine
        table.add_row(member.client, f"{member.refused}", *((held.since, held.cause, held.reason) if held else ()))
    OUT.print(table)


@app.command("set")
@options.spread_records
def set_quarantine(
    name: Name,
    operator_token_file: options.OperatorToken,
    reason: Annotated[str, typer.Option(help="Reason, for operators; the client does not see it")],
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    *,
    call: options.CallFlags,
    as_json: options.AsJson = False,
) -> None:
    """Excludes a client: the aggregator accepts nothing from it, and no round waits for it."""
    from simulation.operating import operator as operate
    from simulation.operating.operator_calls import open_operator

    with open_operator(aggregator_url, operator_token_file, call.make_tls()) as operator:
        _print_member(operate.quarantine_client(operator, name, reason), "quarantined", as_json=as_json)


@app.command()
@options.spread_records
def lift(
    name: Name,
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    *,
    call: options.CallFlags,
    as_json: options.AsJson = False,
) -> None:
    """Readmits a client from the current round on."""
    from simulation.operating import operator as operate
    from simulation.operating.operator_calls import open_operator

    with open_operator(aggregator_url, operator_token_file, call.make_tls()) as operator:
        _print_member(operate.lift_quarantine(operator, name), "not quarantined", as_json=as_json)


def _print_member(member: MemberOut, standing: str, *, as_json: bool) -> None:
    if as_json:
        return options.print_json(member.model_dump(mode="json"))
    OUT.print(f"{member.client}: {standing}")
