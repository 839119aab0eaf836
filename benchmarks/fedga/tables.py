"""results.jsonl -> docs/session-results.md with its figures.

python -m benchmarks.fedga.tables [--check]
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.fedga.figures import draw_control, draw_curves
from benchmarks.fedga.rows import Row, read_rows

ROOT = Path(__file__).parents[2]
PAGE, FIGURES = ROOT / "docs" / "session-results.md", ROOT / "docs" / "figures"
STUDENT = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}  # two-sided 95 %, by the number of seeds
NAMES = {"yoochoose1_64": "Yoochoose 1/64", "diginetica": "Diginetica", "retailrocket": "Retailrocket"}
NOT_MEASURED = "not measured"
BySeed = dict[int, Row]
HEAD = """# Tables: session models and server optimisers

Written by `python -m benchmarks.fedga.tables` from `benchmarks/fedga/results.jsonl`, to which `python -m
benchmarks.fedga.devices` and `silos` append. Rates and rounds are chosen on validation examples, rates with a seed of
their own; test examples are read once. Intervals are 95 %, Student's, over seeds. What is not in a table was not
measured.
"""


def group_cells(rows: Iterable[Row], *names: str) -> dict[tuple[Any, ...], BySeed]:
    """Rows of one cell by their seeds."""
    cells: defaultdict[tuple[Any, ...], BySeed] = defaultdict(dict)
    for row in rows:
        cells[tuple(_plain(row.get(name)) for name in names)][row.get("seed", 0)] = row
    return dict(cells)


def _plain(value: Any) -> Any:
    return ", ".join(f"{name} {number}" for name, number in value.items()) if isinstance(value, dict) else value


def describe_mean(values: Sequence[float]) -> str:
    """The mean, and half of its interval where there are several seeds."""
    mean = float(np.mean(values))
    if len(values) == 1:
        return f"{mean:.4f}"
    half = STUDENT[len(values)] * float(np.std(values, ddof=1)) / np.sqrt(len(values))
    return f"{mean:.4f} ± {half:.4f}"


def rounds_to(row: Row, share: float, best: float | None = None) -> int | None:
    """The first judged round with this share of the best validation MRR@20, its own or a given one."""
    goal = share * (max(point["mrr20"] for point in row["curve"]) if best is None else best)
    return next((point["round"] for point in row["curve"] if point["mrr20"] >= goal), None)


def device_section(rows: list[Row], data: str) -> str:
    """Methods on devices, beside the floors of all devices' sessions together."""
    own = [row for row in rows if row["part"] == "devices" and row["data"] == data]
    floors = next((row for row in own if row["method"] == "floors"), None)
    if floors is None:
        return ""
    head = f"## {NAMES[data]}: {floors['clients']:,} devices of about 50 sessions, 20 a round, JD {floors['jd']:.3f}\n"
    lines = [
        "| method | rates | HR@20 | MRR@20 | best round | rounds to 95 % of its best |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, values in floors["test"].items():
        lines.append(f"| *{name}, all sessions in one place* | | {values['hr20']:.4f} | {values['mrr20']:.4f} | | |")
    for (method,), cell in group_cells((row for row in own if row["method"] != "floors"), "method").items():
        seeds = list(cell.values())
        hr, mrr = (describe_mean([row["test"][name] for row in seeds]) for name in ("hr20", "mrr20"))
        best, needed = ([row["best_round"] for row in seeds], [rounds_to(row, 0.95) for row in seeds])
        rates = _plain(seeds[0]["rates"])
        lines.append(f"| {method} | {rates} | {hr} | {mrr} | {_join_values(best)} | {_join_values(needed)} |")
    lines += [
        "",
        "*repeats*: the visit's own items, the last click first; a method below it has learnt less than that.",
    ]
    return "\n".join([head, *lines, "", f"![Curves](figures/fedga_{data}.svg)", ""])


def _join_values(values: Iterable[object]) -> str:
    return ", ".join("-" if value is None else str(value) for value in values)


def silo_section(rows: list[Row]) -> str:
    """Methods on a few large silos, each judged on its own examples with its own items as candidates."""
    own = [row for row in rows if row["part"] in ("silos", "central")]
    lines = [
        "## Silos: every silo in every round, cut at random\n",
        "Each silo is judged on its own test examples, its own items candidates; means over examples. `local` is",
        "SR-GNN of each silo alone; 1 silo: one model on all sessions, with a tenth of the rate after every third",
        "epoch, every item of the data a candidate. Client rate .001 (Adam), batches of 100, width 64; a round is one",
        "local epoch.\n",
        "| data | silos | method | settings | HR@20 | MRR@20 | best round | seconds of a run |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for (data, clients, method, changes), cell in sorted(
        group_cells(own, "data", "clients", "method", "set").items(), key=lambda one: str(one[0][:2])
    ):
        seeds = list(cell.values())
        hr, mrr = (describe_mean([row["examples"][name] for row in seeds]) for name in ("hr20", "mrr20"))
        rounds, seconds = ([row[name] for row in seeds if name in row] for name in ("best_round", "seconds"))
        cost = f"{np.mean(seconds):.0f}" if seconds else ""
        cells = (NAMES[data], clients, method, changes or "", hr, mrr, _join_values(rounds), cost)
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join([*lines, ""])


def compare(cells: dict[tuple[Any, ...], BySeed], ours: str, theirs: str, name: str) -> tuple[str, str]:
    """The mean difference in percent, and whether it is above or below 0 by its interval over common seeds."""
    one, other = cells.get((ours,)), cells.get((theirs,))
    common = sorted(set(one or {}) & set(other or {}))
    if one is None or other is None or len(common) < 2:
        return "", NOT_MEASURED
    gains = [one[seed]["test"][name] - other[seed]["test"][name] for seed in common]
    half = STUDENT[len(gains)] * float(np.std(gains, ddof=1)) / np.sqrt(len(gains))
    base = float(np.mean([other[seed]["test"][name] for seed in common]))
    mean = float(np.mean(gains))
    said = f"{100 * mean / base:+.1f} %"
    return said, "above" if mean - half > 0 else "below" if mean + half < 0 else "no difference seen"


CLAIMS = (
    ("FedGA over FedAvg", "up to +166.59 % HR@20, +146.23 % MRR@20", "fedga", "fedavg", "above"),
    ("FedGA over FedYogi", "+1.49 % HR@20, +2.4 % MRR@20", "fedga", "fedyogi", "above"),
    ("FedProx slightly under FedAvg", "", "fedprox", "fedavg", "below"),
    ("FedAdam + DRA over FedAdam", "+12.55 % HR@20, +16.61 % MRR@20", "adam + DRA", "fedadam", "above"),
    ("FedYogi + DRA over FedYogi", "MRR slightly", "yogi + DRA", "fedyogi", "above"),
    ("C-SME alone over FedAdam (clip)", "", "clip, no DRA", "fedadam", "above"),
    ("C-SME alone over FedAdam (ramp)", "", "ramp, no DRA", "fedadam", "above"),
    ("C-SME alone under FedYogi (clip)", "", "clip, no DRA", "fedyogi", "below"),
    ("FedGA over C-SME alone (clip)", "", "fedga", "clip, no DRA", "above"),
)


def claim_section(rows: list[Row]) -> str:
    """What the paper says, and what these tables say of it."""
    devices = [row for row in rows if row["part"] == "devices" and row["method"] != "floors"]
    lines = [
        "## What the paper says\n",
        "FedGA's tables are not in the text that we have: its figures are those that the text narrates. `holds`: the",
        "difference is on the claimed side by its whole interval, for both measures; `does not hold`: it is on the",
        "other side by the whole interval for one of them; `not seen`: neither.\n",
        "| claim | the paper | data | ours, HR@20 / MRR@20 | verdict |",
        "| --- | --- | --- | --- | --- |",
    ]
    for data in NAMES:
        cells = group_cells((row for row in devices if row["data"] == data), "method")
        for claim, paper, ours, theirs, side in CLAIMS if cells else ():
            found = [compare(cells, ours, theirs, name) for name in ("hr20", "mrr20")]
            cell = (claim, paper, NAMES[data], " / ".join(said for said, _ in found), judge(found, side))
            lines += [] if cell[-1] == NOT_MEASURED else ["| " + " | ".join(cell) + " |"]
    lines += ["", "Not measured: the other claims on the other data, and that K = 50 local epochs cost less than 2 %."]
    return "\n".join([*lines, "", "![Second moments](figures/fedga_control.svg)", ""])


def judge(found: Sequence[tuple[str, str]], side: str) -> str:
    """One word for both measures."""
    sides = {where for _, where in found}
    if sides == {side}:
        return "holds"
    if NOT_MEASURED in sides:
        return NOT_MEASURED
    return "does not hold" if sides & ({"above", "below"} - {side}) else "not seen"


def write_page(rows: list[Row]) -> str:
    """The whole page."""
    sections: list[Callable[[], str]] = [lambda: silo_section(rows)]
    parts = [*(section() for section in sections), *(device_section(rows, data) for data in NAMES), claim_section(rows)]
    return HEAD + "\n" + "\n".join(part for part in parts if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="fail where the page is not what the results give")
    arguments = parser.parse_args()
    rows = read_rows()
    page = write_page(rows)
    if arguments.check:
        raise SystemExit(PAGE.read_text(encoding="utf-8") != page)
    PAGE.write_text(page, encoding="utf-8")
    for data in {row["data"] for row in rows if row["part"] == "devices"}:
        draw_curves([row for row in rows if row["part"] == "devices" and row["data"] == data], FIGURES, data)
    draw_control(FIGURES)


if __name__ == "__main__":
    main()
