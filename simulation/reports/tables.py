"""Tables of run figures and ledgers for a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from audit.terminal import as_one_line
from client_service.boundary.call_attempts import Attempt, list_attempts
from client_service.boundary.secure_bodies import FETCHED, MESSAGES
from client_service.evaluation.metrics import TITLE
from shared.words import count_noun
from simulation.reports.averages import (
    CLIENT_MEAN,
    FEW_SIGN,
    FEW_WORDS,
    MEANS,
    MOST_ROWS,
    describe_harmed,
    mark_few_users,
    quantile_figures,
    shorten_notes,
)
from simulation.reports.joining_value import ALONE, ServingOption, ShopGain
from simulation.reports.report import best_floor, floor_means, measure_labels
from simulation.reports.terminal import figure_table

if TYPE_CHECKING:
    from client_service.joining_value.forecast import JoiningValue

BESIDE = {
    "alone": "alone",
    "together": "together",
    "centralised": "with all silos' data",
}


def joining_value_table(ways: Sequence[ServingOption]) -> Table:
    """Renders the value of joining: user means of each way, and bytes sent."""
    keys = [
        key
        for key in ("ndcg@20", "recall@20", "hr@20", "mrr@20", "auc", "accuracy")
        if all(key in way.figures for way in ways)
    ]
    table = figure_table("What joining is worth, test data, user mean", "", *keys, "bytes a client")
    for way in ways:
        figures = ("-" if (figure := way.figures[key]) is None else _format_figure(figure) for key in keys)
        table.add_row(way.name, *figures, f"{way.bytes:,}", end_section=way.name == ALONE)
    return table


def describe_joining_value(ways: Sequence[ServingOption]) -> str:
    """Describes the value of joining in a sentence.

    It compares the best federated way with a silo alone.
    """
    keys = [key for key in ("ndcg@20", "mrr@20", "auc") if all(way.figures.get(key) is not None for way in ways)]
    own, joined = ([way for way in ways if bool(way.bytes) is crossed] for crossed in (False, True))
    if not (keys and own and joined):
        return "What joining was worth: unknown, because there are no test data."
    [key, *_] = keys

    def figure(way: ServingOption) -> float:
        return way.figures[key] or 0.0

    best = max(joined, key=figure)
    before = next((way for way in own if way.name == ALONE), max(own, key=figure))
    change = f": {figure(best) / figure(before) - 1:+.1%}" if figure(before) else ""
    said = f"{key.upper()} over all users, {_format_figure(figure(best))} {best.name}"
    said = said.replace("MRR@20 over all users", "MRR@20 over all visits").replace("AUC over all users", "AUC")
    return f"What joining was worth: {said}, {_format_figure(figure(before))} {before.name}{change.replace('%', ' %')}."


def shop_table(shops: Sequence[ShopGain]) -> Table:
    """Renders each silo's gain by the last run, with the ratio's interval."""
    nodes = shops[0].measure in ("auc", "accuracy")
    table = figure_table(
        f"{shops[0].measure.upper()} of each {'silo, its own test nodes' if nodes else 'shop, its own test items'}",
        "",
        "nodes" if nodes else "users",
        "alone",
        "together",
        "ratio",
        "95 %",
    )
    for shop in shops:
        low, mid, high = shop.ratio or (None, None, None)
        ratio = "-" if mid is None else f"x {mid:.3f}"
        interval = "" if mid is None else f"{low:.3f} to {high:.3f}"
        name = f"{shop.name}, which shares no item" if shop.lone else shop.name
        table.add_row(
            name, f"{shop.users:,}", _format_figure(shop.alone), _format_figure(shop.together), ratio, interval
        )
    return table


def sent_value_lines(ways: Sequence[ServingOption]) -> list[str]:
    """Lists the tensors and scalars sent in each federated way."""
    return [f"{way.name}: {way.crossed}" for way in ways if way.bytes]


def quality_table(report: Mapping[str, Any]) -> Group:
    """Renders the measures of every client on test items, with floors, means and notes.

    Of many clients it has the quantiles of each column and those who lose most; report.json has every client.
    A model that is worse than a floor, by either mean, is red.
    """
    labels = [label for label in measure_labels(report).values() if label.brief]
    keys, floors = [label.key for label in labels], report["floors"]
    table = figure_table(f"{' / '.join(label.title for label in labels)}, test data", "client", *floors)
    own = Text(as_one_line(report["strategy"]), f"bold {'red' if _loses(report, keys) else 'green'}")
    table.add_column(own, justify="right", no_wrap=True)
    if len(report["clients"]) > MOST_ROWS:
        by_client = report["floors_by_client"].values()
        columns = [quantile_figures(keys, (one.get(name) for one in by_client)) for name in floors]
        columns.append(quantile_figures(keys, report["clients"]))
        for name in columns[-1]:
            table.add_row(name, *(_join_figures(column[name], keys) for column in columns))
    else:
        for client in report["clients"]:
            of_floors = report["floors_by_client"].get(client["client"], {})
            cells = [_join_figures(of_floors.get(name), keys) for name in floors]
            table.add_row(mark_few_users(client), *cells, _join_figures(client, keys))
    table.add_section()
    for mean in MEANS:
        cells = [_join_figures(floor_means(figures, mean), keys) for figures in floors.values()]
        table.add_row(mean.replace("_", " "), *cells, _join_figures(report[mean], keys))
    return Group(table, *(Text(note) for note in _quality_notes(report, keys)))


def _loses(report: Mapping[str, Any], keys: list[str]) -> bool:
    for mean in MEANS:
        best = {key: best_floor(report, key, mean) for key in keys}
        if any(floor is not None and (report[mean][key] or 0.0) < floor[1] for key, floor in best.items()):
            return True
    return False


def _quality_notes(report: Mapping[str, Any], keys: list[str]) -> list[str]:
    """Lists notes on the table's other figures and on single clients."""
    start, joined = report.get("untrained"), partial(_join_figures, keys=keys)
    own = "LPSFed before any training" if report["strategy"] == "lpsfed" else "Alone"
    notes = [] if start is None else [f"{own}, client mean: {joined(floor_means(start, CLIENT_MEAN))}"]
    known = [(said, report[name]) for name, said in BESIDE.items() if report.get(name) is not None]
    if len(known) > 1:
        notes.append(f"User mean: {', '.join(f'{said} {joined(figures)}' for said, figures in known)}")
    if (gain := report.get("gain")) is not None:
        interval = f"[{gain['low']:+.4f}, {gain['high']:+.4f}]"
        notes.append(
            f"Gain of {count_noun(gain['silos'], 'silo')}, {gain['measure']}: {gain['mean']:+.4f} {interval} (95 %)"
        )
    few = sum(bool(client.get("few_test_users")) for client in report["clients"])
    if len(report["clients"]) > MOST_ROWS:
        harmed = describe_harmed(report.get("silos", ()))
        notes += [] if harmed is None else [harmed]
        notes += [f"{count_noun(few, 'client')} of {len(report['clients']):,} with {FEW_WORDS}"] if few else []
    elif few:
        notes.append(f"{FEW_SIGN} {FEW_WORDS}: its figures are mostly chance")
    return [*notes, *shorten_notes(report.get("notes", ()))]


def crossing_table(ledgers: Mapping[str, list[dict[str, Any]]]) -> Table:
    """Renders how often each client made each call, and the bytes sent, from its ledger."""
    made = {entry["call"] for ledger in ledgers.values() for entry in ledger if entry["kind"] == "intent"}
    columns = {call: (call,) for call in ("join", "model", "current", "anchor")}
    if masking := tuple(sorted(made & {*MESSAGES, *FETCHED})):
        columns["masking"] = masking
    columns |= {call: (call,) for call in ("update", "personalized")}
    table = figure_table("What left each client: calls and bytes, from its ledger", "client", *columns)
    for name, ledger in ledgers.items():
        made_here = list_attempts(ledger)
        sent = ([one for one in made_here if one.call in calls] for calls in columns.values())
        table.add_row(name, *map(_sent_text, sent))
    return table


def field_table(ledger: list[dict[str, Any]]) -> Table:
    """Renders the fields of a client's last update."""
    updates = [entry for entry in ledger if entry["kind"] == "intent" and entry["call"] == "update"]
    table = figure_table("All fields of an update", "field", "shape", "bytes")
    for tensor in updates[-1]["tensors"] if updates else ():
        table.add_row(tensor["name"], " x ".join(map(str, tensor["shape"])), f"{tensor['bytes']:,}")
    for name in updates[-1]["scalars"] if updates else ():
        table.add_row(name, "one number", "8")
    return table


def forecast_table(worth: JoiningValue) -> Table:
    """Renders trials with small silos of a silo's own users, alone and together."""
    caption = f"of {count_noun(worth.users, 'user')}, {count_noun(worth.draws, 'draw')}; means over measured users"
    table = figure_table(
        f"{TITLE}, validation data", "small silos", "joined", "alone", "together", "ratio", caption=caption
    )
    rows = [(one, f"{one.times} of them") for one in worth.measured]
    rows += [] if worth.text is None else [(worth.text, f"text of {worth.text.times}")]
    for one, together in rows:
        ratio = f"x {one.together / one.alone:.3f}" if one.alone else "-"
        figures = (_format_figure(value) for value in (one.alone, one.together))
        table.add_row(f"of {count_noun(one.users, 'user')}", together, *figures, ratio)
    return table


def _sent_text(made: list[Attempt]) -> str:
    size, count = sum(attempt.bytes for attempt in made), sum(attempt.times for attempt in made)
    return f"{count} x\n{size:,}" if size else f"{count} x"


def _join_figures(figures: Mapping[str, float | None] | None, keys: list[str]) -> str:
    if figures is None or all(figures[key] is None for key in keys):
        return "-"
    return "/".join(_format_figure(figures[key]) for key in keys)


def _format_figure(value: float | None) -> str:
    """Formats a figure without its leading zero, .1234 for 0.1234."""
    return "-" if value is None else f"{value:.4f}".removeprefix("0")
