"""Page of the session models' tables and its figures, written from results.jsonl.

python -m benchmarks.fedga.tables [--out FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.fedga.figures import draw_control, draw_curves, draw_steps
from benchmarks.fedga.rows import Row, read_rows
from benchmarks.fedga.sets import NAMES

NOT_MEASURED = "not measured"
BySeed = dict[int, Row]
Cells = dict[tuple[Any, ...], BySeed]


def group_cells(rows: Iterable[Row], *names: str) -> Cells:
    """Groups rows of one cell by their seeds; changed settings become text."""
    cells: defaultdict[tuple[Any, ...], BySeed] = defaultdict(dict)
    for row in rows:
        cells[tuple(describe_value(row.get(name)) for name in names)][row.get("seed", 0)] = row
    return dict(cells)


def describe_value(value: Any) -> Any:
    """Formats changed settings as text, such as server_step.rate 0.1.

    Any other value stays as it is.
    """
    if not isinstance(value, dict):
        return value
    return ", ".join(f"{name} {_round_number(number)}" for name, number in value.items())


def _round_number(value: Any) -> Any:
    return f"{value:.3g}" if isinstance(value, float) else value


def half_interval(values: Sequence[float]) -> float:
    """Computes half of Student's 95 % interval of the mean; NaN for one value."""
    if len(values) < 2:
        return float("nan")
    factor = float(stats.t.ppf(0.975, len(values) - 1))
    return factor * float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))


def describe_mean(values: Sequence[float]) -> str:
    """Formats the mean, with half of its interval for several seeds."""
    mean = f"{float(np.mean(values)):.4f}"
    return mean if len(values) == 1 else f"{mean} ± {half_interval(values):.4f}"


def compare_methods(cells: Cells, ours: str, theirs: str, name: str) -> tuple[str, str]:
    """Compares two methods' test figures over common seeds.

    Returns the mean difference in percent, or as a multiple where it is above ten, and the side of 0 on which its
    interval lies.
    """
    one, other = cells.get((ours,), {}), cells.get((theirs,), {})
    common = sorted(set(one) & set(other))
    if len(common) < 2:
        return "", NOT_MEASURED
    gains = [one[seed]["test"][name] - other[seed]["test"][name] for seed in common]
    mean, half = float(np.mean(gains)), half_interval(gains)
    base = float(np.mean([other[seed]["test"][name] for seed in common]))
    side = "above" if mean - half > 0 else "below" if mean + half < 0 else "no difference seen"
    return f"{mean / base + 1.0:.0f} times" if mean > 9.0 * base else f"{100 * mean / base:+.1f} %", side


def rounds_to(row: Row, share: float) -> int | None:
    """Finds the first evaluated round with this share of the best validation MRR@20."""
    goal = share * max(point["mrr20"] for point in row["curve"])
    return next((point["round"] for point in row["curve"] if point["mrr20"] >= goal), None)


CLAIMS = (
    ("FedGA over FedAvg", "up to +166.59 % HR@20, +146.23 % MRR@20", "fedga", "fedavg", "above"),
    ("FedGA over FedYogi", "+1.49 % HR@20, +2.4 % MRR@20", "fedga", "fedyogi", "above"),
    ("FedProx slightly under FedAvg", "", "fedprox", "fedavg", "below"),
    ("FedAdam + DRA over FedAdam", "+12.55 % HR@20, +16.61 % MRR@20", "adam + DRA", "fedadam", "above"),
    ("FedYogi + DRA over FedYogi", "MRR slightly", "yogi + DRA", "fedyogi", "above"),
    ("C-SME alone over FedAdam (clip)", "", "clip, no DRA", "fedadam", "above"),
    ("C-SME alone over FedAdam (ramp)", "", "ramp, no DRA", "fedadam", "above"),
    ("C-SME alone under FedYogi (clip)", "", "clip, no DRA", "fedyogi", "below"),
    ("C-SME alone under FedYogi (ramp)", "", "ramp, no DRA", "fedyogi", "below"),
    ("FedGA over C-SME alone (clip)", "", "fedga", "clip, no DRA", "above"),
    ("FedGA over C-SME alone (ramp)", "", "ramp", "ramp, no DRA", "above"),
)
KINDS = tuple(itertools.product(("srgnn", "tagnn"), ("sgd", "adam")))
"""Models, and the optimisers by which the devices train them."""
SETTLED = 20  # the round from which on the notes expect a steady loss
CLAIMS_HEAD = """## What the paper says

FedGA's tables are not in the text that we have: its figures are those that the text narrates. `holds`: the
difference is on the claimed side by its whole interval, for both measures; `does not hold`: it is on the
other side by the whole interval for one of them; `not seen`: neither.

| claim | the paper | data, model, devices by | ours, HR@20 / MRR@20 | verdict |
| --- | --- | --- | --- | --- |"""


def write_claims(rows: Sequence[Row]) -> str:
    """Writes the table of claims, and how steady the losses were.

    It has every data set and model that has both sides.
    """
    lines = [CLAIMS_HEAD]
    for data, name in NAMES.items():
        for model, optimiser in KINDS:
            own = [row for row in rows if (row["data"], row["model"], row["optimiser"]) == (data, model, optimiser)]
            lines += _claims_of(own, f"{name}, {model}, {optimiser}")
    return "\n".join([*lines, "", *_describe_losses(rows), ""])


def _claims_of(rows: Sequence[Row], where: str) -> list[str]:
    cells, lines = group_cells(rows, "method"), list[str]()
    for claim, paper, ours, theirs, side in CLAIMS:
        found = [compare_methods(cells, ours, theirs, name) for name in ("hr20", "mrr20")]
        if (verdict := judge_sides([where_ for _, where_ in found], side)) != NOT_MEASURED:
            lines.append(f"| {claim} | {paper} | {where} | {' / '.join(said for said, _ in found)} | {verdict} |")
    return lines


def judge_sides(sides: Sequence[str], claimed: str) -> str:
    """Returns one verdict for all measures."""
    if set(sides) == {claimed}:
        return "holds"
    if NOT_MEASURED in sides:
        return NOT_MEASURED
    return "does not hold" if set(sides) & ({"above", "below"} - {claimed}) else "not seen"


def _describe_losses(rows: Sequence[Row]) -> list[str]:
    """Describes how far the clients' loss rose above its earlier minimum.

    From round SETTLED on.
    """
    said = []
    for (data, model, optimiser, method), cell in group_cells(rows, "data", "model", "optimiser", "method").items():
        if method in ("fedavg", "fedadam", "fedyogi", "fedga"):
            losses = ([point["loss"] for point in row["curve"] if point["round"] >= SETTLED] for row in cell.values())
            rises = ", ".join(f"{100 * largest_rise(one):+.0f} %" for one in losses)
            said.append(f"| {NAMES[data]}, {model}, {optimiser} | {method} | {rises} |")
    head = [
        "How steady is the loss at the clients? Each seed's largest rise above the least loss of an earlier judged",
        "round, from round 20 on. (Losses of a round are of 20 drawn devices, so that they vary without any fault.)",
        "",
        "| data, model, devices by | method | largest rise |",
        "| --- | --- | --- |",
    ]
    return [*head, *said] if said else []


def largest_rise(losses: Sequence[float]) -> float:
    """Computes the largest relative rise of a loss above its earlier minimum, at least 0."""
    least, found = float("inf"), 0.0
    for loss in losses:
        found, least = max(found, loss / least - 1.0), min(least, loss)
    return found


ROOT = Path(__file__).parents[2]
PAGE, FIGURES, TABLES = "session-tables.md", "figures", ROOT / "build" / "results"
MEASURES = ("hr10", "mrr10", "hr20", "mrr20")
HEAD = """# Tables: session models and server optimisers

Written by `make site` and `python -m benchmarks.fedga.tables` (into build/results) from
`benchmarks/fedga/results.jsonl`, to which `python -m benchmarks.fedga.silos`, `devices` and `items` append. Rates and
rounds are chosen on validation examples, rates with a seed of their own; test examples are read once. Intervals are
95 %, Student's, over seeds. MB are what a client sends in a round, in the open. What is not in a table was not
measured.
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
    """Writes the table of methods on a few large silos."""
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
    """Writes the table of methods on devices, with the floors of all sessions."""
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
    """Writes the table of single changed settings."""
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
    """Writes the table of strategies with each server."""
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
    """Finds the first round with this share of the curve's best.

    Round 0 is the start.
    """
    return int(np.argmax(np.array(curve) >= share * max(curve)))


def _line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) or "-" for cell in cells) + " |"


def _join_values(values: Iterable[object]) -> str:
    return ", ".join("-" if value is None else str(value) for value in values)


def write_page(rows: Sequence[Row]) -> str:
    """Writes the whole page."""
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


def write_tables(docs: Path) -> Path:
    """Writes the page and its figures into the folder `docs`."""
    rows, figures = read_rows(), docs / FIGURES
    figures.mkdir(parents=True, exist_ok=True)
    (docs / PAGE).write_text(write_page(rows), encoding="utf-8")
    trained = [row for row in rows if row["part"] == "devices" and row["method"] != "floors" and not row["set"]]
    for kind in sorted({(row["data"], row["model"], row["optimiser"]) for row in trained}):
        own = [row for row in trained if (row["data"], row["model"], row["optimiser"]) == kind]
        draw_curves(own, figures / f"fedga_{'_'.join(kind)}.svg")
        draw_steps(own, figures / f"fedga_{'_'.join(kind)}_steps.svg")
    draw_control(figures / "fedga_control.svg")
    return docs / PAGE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TABLES, help="folder that the page and its figures are written to")
    print(f"written: {write_tables(parser.parse_args().out)}")


if __name__ == "__main__":
    main()
