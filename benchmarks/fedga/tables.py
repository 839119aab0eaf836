"""results.jsonl -> docs/session-results.md with its figures.

python -m benchmarks.fedga.tables [--check]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.fedga.claims import KINDS, write_claims
from benchmarks.fedga.figures import draw_control, draw_curves, draw_steps
from benchmarks.fedga.rows import Row, read_rows
from benchmarks.fedga.sets import NAMES
from benchmarks.fedga.statistics import describe_mean, describe_value, group_cells, rounds_to

ROOT = Path(__file__).parents[2]
PAGE, FIGURES = ROOT / "docs" / "session-results.md", ROOT / "docs" / "figures"
MEASURES = ("hr10", "mrr10", "hr20", "mrr20")
HEAD = """# Tables: session models and server optimisers

Written by `python -m benchmarks.fedga.tables` from `benchmarks/fedga/results.jsonl`, to which
`python -m benchmarks.fedga.silos`, `devices` and `items` append. Rates and rounds are chosen on validation examples,
rates with a seed of their own; test examples are read once. Intervals are 95 %, Student's, over seeds. MB are what a
client sends in a round, in the open. What is not in a table was not measured.
"""
SILOS = """## Silos: every silo in every round

Each silo is judged on its own test examples among its own items: means over examples, and HR@20 and MRR@20 also as
means over silos. `local`: the same network, of each silo alone. `central`: one silo that has all sessions, with a tenth
of the rate after every third epoch. The others need no network. Adam at the clients, rate .001, batches of 100; a round
is one local epoch.

| data, cut, silos, JD | model | method | HR@10 | MRR@10 | HR@20 | MRR@20 | silo means | best round | seconds | MB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
DEVICES = """Batches of 50, one local epoch, width 64, 200 rounds; judged among all items. First, in italics,
what needs no network, from all sessions in one place. *repeats*: the visit's own items, the last click first.

| method | rates | HR@10 | MRR@10 | HR@20 | MRR@20 | best round | rounds to 95 % of its best | MB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |"""
SWEEP = """## Local epochs K, the server's rate eta, and what clicks are told from

Devices by Adam as above, one setting changed and no rate chosen anew. The paper: K = 1 is best, K = 50 costs less than
2 %; eta = .005 is best, .001 and .01 are near.

| data | method | changed | HR@20 | MRR@20 | best round |
| --- | --- | --- | --- | --- | --- |"""
ITEMS = """## Server optimisers with lists for users

LPSFed and FedMF on {data}, divided by users among {clients} silos; settings chosen by the search of `lpsfed tune`
on validation items, with the same number of trials for each row; user means. The floors of the same silos stand first.

| strategy | server | chosen | NDCG@20 | Recall@20 | validation NDCG@20, best | rounds to 95 % of it |
| --- | --- | --- | --- | --- | --- | --- |"""


def write_silos(rows: Sequence[Row]) -> str:
    """Methods on a few large silos."""
    own = [row for row in rows if row["part"] == "silos"]
    cells = group_cells(own, "data", "cut", "clients", "jd", "model", "method", "set")
    lines = [SILOS]
    for (data, cut, clients, jd, model, method, changes), cell in sorted(
        cells.items(), key=lambda one: str(one[0][:4])
    ):
        seeds = list(cell.values())
        means = [describe_mean([row["examples"][name] for row in seeds]) for name in MEASURES]
        silos = " / ".join(describe_mean([row["silos"][name] for row in seeds]) for name in MEASURES[2:])
        where = f"{NAMES[data]}, {cut}, {clients}, {jd:.3f}"
        named = f"{method}{f', {changes}' if changes else ''}"
        lines.append(_line(where, model or "", named, *means, silos, *_costs(seeds)))
    return "\n".join([*lines, ""])


def _costs(seeds: Sequence[Row]) -> list[str]:
    rounds, seconds = ([row[name] for row in seeds if name in row] for name in ("best_round", "seconds"))
    mean = f"{np.mean(seconds):.0f}" if seconds else ""
    return [_join_values(rounds), mean, _megabytes(seeds)]


def _megabytes(seeds: Sequence[Row]) -> str:
    return f"{seeds[0]['bytes'] / 1e6:.1f}" if "bytes" in seeds[0] else ""


def write_devices(rows: Sequence[Row], data: str, model: str, optimiser: str) -> str:
    """Methods on devices, beside the floors of all devices' sessions together."""
    own = [row for row in rows if row["part"] == "devices" and row["data"] == data]
    floors = next((row for row in own if row["method"] == "floors"), None)
    kind = (model, optimiser)
    trained = [row for row in own if (row.get("model"), row.get("optimiser")) == kind and not row["set"]]
    if floors is None or not trained:
        return ""
    cut = f"{floors['clients']:,} devices of about 50 sessions, 20 a round, JD {floors['jd']:.3f}"
    title = f"## {NAMES[data]}, {model}, devices by {optimiser}: {cut}\n"
    lines = [title, DEVICES]
    for name, values in floors["test"].items():
        lines.append(_line(f"*{name}*", "", *(f"{values[measure]:.4f}" for measure in MEASURES), "", "", ""))
    for (method,), cell in group_cells(trained, "method").items():
        seeds = list(cell.values())
        means = (describe_mean([row["test"][name] for row in seeds]) for name in MEASURES)
        best, needed = ([row["best_round"] for row in seeds], [rounds_to(row, 0.95) for row in seeds])
        rates = describe_value(seeds[0]["rates"])
        lines.append(_line(method, rates, *means, _join_values(best), _join_values(needed), _megabytes(seeds)))
    name = f"figures/fedga_{data}_{model}_{optimiser}"
    pictures = f"![Curves]({name}.svg)\n\n![Steps]({name}_steps.svg)\n"
    return "\n".join([*lines, "", pictures])


def write_sweep(rows: Sequence[Row]) -> str:
    """One setting changed at a time."""
    trained = [row for row in rows if row["part"] == "devices" and row["method"] != "floors"]
    own = [row for row in trained if (row["model"], row["optimiser"]) == ("srgnn", "adam")]
    swept = {(row["data"], row["method"]) for row in own if row["set"]}
    lines = [SWEEP] if swept else []
    for (data, method, changes), cell in group_cells(own, "data", "method", "set").items():
        if (data, method) in swept:
            means = (describe_mean([row["test"][name] for row in cell.values()]) for name in ("hr20", "mrr20"))
            rounds = _join_values(row["best_round"] for row in cell.values())
            lines.append(_line(NAMES[data], method, changes or "nothing", *means, rounds))
    return "\n".join([*lines, ""]) if lines else ""


def write_items(rows: Sequence[Row]) -> str:
    """Strategies of interactions with each server."""
    own = [row for row in rows if row["part"] == "items"]
    lines = [ITEMS.format(data=own[0]["data"], clients=own[0]["clients"])] if own else []
    for (strategy, server), cell in group_cells(own, "method", "server").items():
        seeds = list(cell.values())
        means = [describe_mean([row["test"][name] for row in seeds]) for name in ("ndcg@20", "recall@20")]
        best = [max(row["curve"]) for row in seeds if "curve" in row]
        needed = _join_values(_rounds_to(row["curve"], 0.95) for row in seeds if "curve" in row)
        chosen = describe_value(seeds[0].get("rates")) or ""
        lines.append(_line(strategy, server or "", chosen, *means, describe_mean(best) if best else "", needed))
    return "\n".join([*lines, ""]) if lines else ""


def _rounds_to(curve: Sequence[float], share: float) -> int:
    """The first round with this share of the curve's best; the curve begins at round 0."""
    return int(np.argmax(np.array(curve) >= share * max(curve)))


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) or "-" for cell in cells) + " |"


def _join_values(values: Iterable[object]) -> str:
    return ", ".join("-" if value is None else str(value) for value in values)


def write_page(rows: Sequence[Row]) -> str:
    """The whole page."""
    trained = [row for row in rows if row["part"] == "devices" and row["method"] != "floors" and not row["set"]]
    sections: list[Callable[[], str]] = [
        lambda: write_silos(rows),
        *(partial(write_devices, rows, data, *kind) for data in NAMES for kind in KINDS),
        lambda: write_sweep(rows),
        lambda: write_items(rows),
        lambda: write_claims(trained),
    ]
    parts = [section() for section in sections]
    return (
        HEAD + "\n" + "\n".join([*(part for part in parts if part), "![Second moments](figures/fedga_control.svg)", ""])
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the page is not what the results give")
    arguments = parser.parse_args()
    rows = read_rows()
    page = write_page(rows)
    if arguments.check:
        raise SystemExit(PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    trained = [row for row in rows if row["part"] == "devices" and row["method"] != "floors" and not row["set"]]
    for kind in sorted({(row["data"], row["model"], row["optimiser"]) for row in trained}):
        own = [row for row in trained if (row["data"], row["model"], row["optimiser"]) == kind]
        draw_curves(own, FIGURES / f"fedga_{'_'.join(kind)}.svg")
        draw_steps(own, FIGURES / f"fedga_{'_'.join(kind)}_steps.svg")
    draw_control(FIGURES / "fedga_control.svg")


if __name__ == "__main__":
    main()
