"""Attacks on real clients by an honest-but-curious aggregator or another client.

Shadow shards teach the attacker how updates differ with and without each target; other shards are then attacked.
Controls accompany the questions: leaks that must be found, and one that cannot be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks.attacks import views
from benchmarks.attacks.attack import Blocks, run_attack
from benchmarks.attacks.noise import gaussian_auc, largest_auc, private_mode, settings_for_epsilon
from benchmarks.attacks.population import Draw, Population, draw_populations
from benchmarks.attacks.scores import Bool, judge_scores
from benchmarks.attacks.shadows import (
    ASKED,
    CLIENTS,
    ITEM,
    PAIR,
    POPULAR,
    USER,
    Rows,
    Series,
    answer_questions,
    collect_transcripts,
    draw_shadow,
    play_replays,
)
from benchmarks.attacks.silo import AttackedRun, Mode, Release, Transcript, open_mode
from benchmarks.attacks.views import Replays, Transcripts, View
from benchmarks.attacks.worlds import CHANNELS, Pair, Target, compare_worlds, make_pair, squared_distance
from benchmarks.common import locate_data, render_table
from client_service.privacy.settings import PrivacySettings
from client_service.training.item_trainer import ItemTrainer
from shared.method.parameters import Parameters

HIDING_PLACE = "predictive.hidden.bias"


def hiding_place_features(seen: Transcripts, parts: Mapping[str, slice]) -> Blocks:
    """Computes the change of the tensor with the planted leak, (S, R d).

    Only sizes: the signs of a silo's basis are arbitrary.
    """
    place = parts[HIDING_PLACE]
    moved = np.abs(seen.sent[..., place].astype(np.float64) - seen.received[..., place])
    return {"hiding place": moved.reshape(len(moved), -1)}


def plant_embedding(user: str, weight: float) -> Mode:
    """Returns a client with changed code that hides a user's embedding in a bias.

    The gate lets it through, as names, shapes and types are declared. An embedding's entries are of order one.
    """

    def release_embedding(training: ItemTrainer, received: Parameters, made: Parameters) -> Parameters:
        del received
        row = training.shard.user_row(user)
        if row is None:
            return made
        bias = made.arrays[HIDING_PLACE]
        embedding = training.model.encoder.embedding[row].detach().numpy()[: len(bias)]
        hidden = np.asarray(bias + weight * embedding, dtype=np.float32)
        return Parameters({**made.arrays, HIDING_PLACE: hidden}, made.scalars)

    def begin_run(secret: np.random.Generator) -> Release:
        del secret
        return release_embedding

    return begin_run


Row = dict[str, Any]


def render(rows: list[Row]) -> str:
    """Renders each attacker's results, the controls, and the two worlds."""
    shadows, controls = ([row for row in rows if row["part"] == part] for part in ("shadows", "control"))
    return "\n\n".join(
        [
            _question_counts(shadows),
            _question_grid(shadows),
            _exposed_grid(shadows),
            _controls_section(controls),
            _worlds_section(rows),
            _best_test_section(rows),
        ]
    )


def _question_counts(rows: Sequence[Row]) -> str:
    targets = {row["question"]: row["trials"] // row["attacked"] for row in rows}
    lines = [
        f"- *{question}*: {ASKED[question]} ({count:,} targets in each shard)" for question, count in targets.items()
    ]
    head = "AUC with its 95 % interval; .500 is guessing. In brackets the share of targets found at 1 % false alarms."
    return "\n".join([head, "", *lines])


def _question_grid(rows: Sequence[Row]) -> str:
    """Renders one row per mode and one column per question."""
    return _mode_table(rows, "attacker sees", lambda row: f"{_area_text(row)}{_rate_text(row)}")


def _exposed_grid(rows: Sequence[Row]) -> str:
    said = "The tenth of the targets that looked easiest to the attacker before it began:"
    return said + "\n\n" + _mode_table(rows, "attacker sees", lambda row: _area_text(row, "exposed_"))


def _mode_table(rows: Sequence[Row], first: str, cell: Any) -> str:
    questions = list(dict.fromkeys(row["question"] for row in rows))
    attacked = {row["mode"]: str(row["attacked"]) for row in rows}
    cells = {(row["mode"], row["question"]): cell(row) for row in rows}
    lines = [[mode, count, *(cells.get((mode, name), "") for name in questions)] for mode, count in attacked.items()]
    return render_table([first, "shards", *questions], lines)


def _area_text(row: Row, prefix: str = "") -> str:
    auc, low, high = (row[f"{prefix}{name}"] for name in ("auc", "low", "high"))
    return f"{auc:.3f} ({low:.3f} to {high:.3f})"


def _rate_text(row: Row) -> str:
    return "" if row["tpr"] is None else f" [{100 * row['tpr']:.1f} %]"


def _controls_section(rows: Sequence[Row]) -> str:
    said = "Controls: leaks that are there and must be found, and a truth that was shuffled, which cannot be."
    return said + "\n\n" + _mode_table(rows, "control", lambda row: f"{_area_text(row)}{_rate_text(row)}")


def _worlds_section(rows: Sequence[Row]) -> str:
    """Renders how many targets an attacker who knows all other data finds for certain."""
    own = [row for row in rows if row["part"] == "worlds"]
    lines = [[row["question"], row["channel"], f"{row['told']} of {row['targets']}"] for row in own]
    said = "Two worlds, open mode: an attacker who knows the shard but for the target, and the run's seed, trains both."
    return said + "\n\n" + render_table(["target", "what it looks at", "told apart for certain"], lines)


def _best_test_section(rows: Sequence[Row]) -> str:
    """Renders the AUC of the best possible attack with noise."""
    own = [row for row in rows if row["part"] == "best"]
    lines = [
        [row["mode"], row["question"], f"{row['mean']:.4f}", f"{row['most']:.4f}", f"{row['allowed']:.4f}"]
        for row in own
    ]
    said = f"The same attacker with noise: the AUC of the best possible test, of {own[0]['targets']} targets of a kind."
    head = ["mode", "target", "mean", "most exposed", "what the noise allows at most"]
    return said + "\n\n" + render_table(head, lines)


OPEN = "open"
VIEWS: Mapping[str, View] = {
    OPEN: views.aggregator_view,
    "open, tensors alone": views.tensors_view,
    "open, rho and M alone": views.scalars_view,
    "secure": views.secure_view,
    "another client": views.neighbour_view,
}
PLANTED, ITEM_TABLES, SHUFFLED = "planted embedding", "FedMF's item table", "shuffled truth"


def run(config: dict[str, Any], *, quick: bool, data: Path | None, out: Path) -> list[Row]:
    """Measures each mode and question, the controls, and worlds that differ in one target."""
    del quick
    populations, rows = draw_populations(locate_data(config["data"], data), config), Rows(config, out)
    with threadpool_limits(1):
        results = [*_lpsfed_rows(config, *populations, rows, out), *_item_table_rows(config, *populations, rows, out)]
        return [{"data": config["data"], **row} for row in results]


def _lpsfed_rows(
    config: dict[str, Any], own: Population, elsewhere: Population, rows: Rows, out: Path
) -> Iterator[Row]:
    """Measures LPSFed in each mode, two controls, and two worlds."""
    run, noises = AttackedRun.from_config(config), _noise_settings(config)
    planted = plant_embedding(f"{own.coins[0]:06d}", config["planted"])
    modes = {OPEN: (open_mode, config["shadows"]), PLANTED: (planted, config["controls"])}
    opened = Series("open", run, modes, _series_key(config, "planted"))
    noised = {name: (private_mode(settings), config["noised"]) for name, settings in noises.items()}
    others = play_replays(opened, elsewhere, config["federations"], out)
    seen = collect_transcripts(opened, own, others, out)
    seen |= collect_transcripts(Series("noised", run, noised, _series_key(config, "privacy")), own, others, out)
    parts, truth = views.tensor_slices(run.specification), _shadow_truth(config, own, "shadows")
    for mode, view in VIEWS.items():
        yield from _question_rows(rows, "shadows", mode, view(seen[OPEN], others, parts), truth)
    truth = _shadow_truth(config, own, "noised")
    for mode in noises:
        yield from _question_rows(rows, "shadows", mode, views.aggregator_view(seen[mode], others, parts), truth)
    yield from _control_rows(config, own, rows, seen, others)
    yield from _certain_rows(config, own, rows)
    yield from _best_test_rows(config, own, rows, others, noises)


def _noise_settings(config: dict[str, Any]) -> dict[str, PrivacySettings]:
    how = config["privacy"]
    return {
        f"DP, epsilon {epsilon:g}": settings_for_epsilon(epsilon, how["delta"], how["clip_norm"], config["rounds"])
        for epsilon in how["epsilons"]
    }


def _control_rows(
    config: dict[str, Any], own: Population, rows: Rows, seen: dict[str, Transcripts], others: Replays
) -> Iterator[Row]:
    """Measures the open mode with shuffled truth and with a planted leak."""
    parts = views.tensor_slices(AttackedRun.from_config(config).specification)
    truth = _shadow_truth(config, own, "shadows")[USER]
    shuffled = np.random.default_rng(config["seed"]).permutation(truth)
    yield from _question_rows(
        rows, "control", SHUFFLED, views.aggregator_view(seen[OPEN], others, parts), {USER: shuffled}
    )
    first = {USER: _shadow_truth(config, own, "controls")[USER][:, :1]}
    names = [spec.name for spec in AttackedRun.from_config(config).specification]
    yield from _question_rows(
        rows, "control", PLANTED, hiding_place_features(seen[PLANTED], dict(zip(names, parts, strict=True))), first
    )


def _item_table_rows(
    config: dict[str, Any], own: Population, elsewhere: Population, rows: Rows, out: Path
) -> Iterator[Row]:
    """Measures the control with FedMF, whose item table shows a silo's items."""
    run = AttackedRun.from_config(config, "fedmf", catalogue=config["items"])
    series = Series("fedmf", run, {OPEN: (open_mode, config["controls"])}, _series_key(config))
    others = play_replays(series, elsewhere, 1, out)
    seen, parts = collect_transcripts(series, own, others, out)[OPEN], views.tensor_slices(run.specification)
    truth = _shadow_truth(config, own, "controls")
    asked = {question: truth[question] for question in (USER, PAIR, POPULAR)}
    yield from _question_rows(rows, "control", ITEM_TABLES, views.aggregator_view(seen, others, parts), asked)
    moved = views.change_norms(seen, parts)[:, own.rare]
    head = {"part": "control", "mode": ITEM_TABLES, "question": ITEM}
    yield rows.make_row(lambda: {"attacked": len(moved), **vars(judge_scores(moved, truth[ITEM]))}, **head)


def _certain_rows(config: dict[str, Any], own: Population, rows: Rows) -> Iterator[Row]:
    """Counts the targets that each channel reveals for certain in the open mode.

    The attacker knows everything else.
    """
    run, draw = AttackedRun.from_config(config), draw_shadow(own, config["seed"], 0)
    for question, targets in _first_targets(config["told"], own).items():
        results = rows.make_row(partial(_compare_targets, own, run, draw, targets), part="told", question=question)
        yield from ({"part": "worlds", "question": question, "mode": OPEN, **results[channel]} for channel in CHANNELS)


def _compare_targets(own: Population, run: AttackedRun, draw: Draw, targets: Sequence[Target]) -> Row:
    return {result.channel: vars(result) for result in compare_worlds(own, run, draw, targets)}


def _best_test_rows(
    config: dict[str, Any], own: Population, rows: Rows, others: Replays, noises: Mapping[str, PrivacySettings]
) -> Iterator[Row]:
    """Measures the AUC of the best possible test of some targets, with noise."""
    run, draw = AttackedRun.from_config(config), draw_shadow(own, config["seed"], 0)
    beside = [Transcript(others.sent[k], others.sent[k], others.scalars[k]) for k in range(CLIENTS - 1)]
    for question, targets in _first_targets(config["worlds"], own).items():
        pairs = cache(partial(_make_pairs, own, run, draw, targets))
        for mode, settings in noises.items():
            made = partial(_measure_areas, run, pairs, beside, settings)
            yield rows.make_row(made, part="best", mode=mode, question=question)


def _first_targets(count: int, own: Population) -> dict[str, list[Target]]:
    among = {USER: own.coins, PAIR: own.hosts}
    return {
        question: [Target(question, place) for place in range(min(count, len(candidates)))]
        for question, candidates in among.items()
    }


def _make_pairs(own: Population, run: AttackedRun, draw: Draw, targets: Sequence[Target]) -> list[Pair]:
    return [make_pair(own, run, draw, target) for target in targets]


def _measure_areas(
    run: AttackedRun, pairs: Callable[[], Sequence[Pair]], beside: Sequence[Transcript], settings: PrivacySettings
) -> Row:
    """Measures the AUC of each target, and the bound that the noise gives."""
    secret = np.random.default_rng(run.seed)
    areas = [gaussian_auc(squared_distance(run, pair, beside, settings, secret)) for pair in pairs()]
    limit = largest_auc(settings, run.rounds)
    return {"targets": len(areas), "mean": float(np.mean(areas)), "most": max(areas), "allowed": limit}


def _series_key(config: dict[str, Any], *more: str) -> Row:
    """Returns the settings that determine the updates of a shadow.

    The number of shadows is not among them. more: further settings, for some series.
    """
    names = ("data", "seed", "users", "items", "hosts", "coins", "rare", "rounds", "federations", "method", *more)
    return {name: config[name] for name in names}


def _shadow_truth(config: dict[str, Any], own: Population, count: str) -> dict[str, Bool]:
    return answer_questions(own, config["seed"], _attacked_half(config[count]), config[count])


def _attacked_half(shadows: int) -> slice:
    """Returns the second half of the shadows."""
    return slice(shadows // 2, shadows)


def _question_rows(rows: Rows, part: str, mode: str, seen: Blocks, truth: Mapping[str, Bool]) -> Iterator[Row]:
    """Yields one row per question."""
    for question, answer in truth.items():
        yield rows.make_row(partial(_attack_row, seen, answer), part=part, mode=mode, question=question)


def _attack_row(seen: Blocks, truth: Bool) -> Row:
    attack, attacked = run_attack(seen, truth, _attacked_half(len(truth))), len(truth) - len(truth) // 2
    exposed = {f"exposed_{name}": getattr(attack.exposed, name) for name in ("auc", "low", "high")}
    return {"attacked": attacked, "features": attack.features, **vars(attack.every), **exposed}


def check(rows: list[Row]) -> list[str]:
    """Lists failed expectations: planted leaks are found, absent ones are not, noise keeps its bound."""
    controls = {(row["mode"], row["question"]): row for row in rows if row["part"] == "control"}
    complaints = []
    if not (known := controls[ITEM_TABLES, ITEM]["auc"]) > 0.9:
        complaints.append(f"{ITEM_TABLES}: expected the attack to find the items, AUC above .9, got {known:.3f}")
    if not (least := controls[PLANTED, USER]["low"]) > 0.5:
        complaints.append(f"{PLANTED}: expected the whole interval above .5, got it from {least:.3f}")
    low, high = (controls[SHUFFLED, USER][end] for end in ("low", "high"))
    if not low <= 0.5 <= high:
        complaints.append(f"{SHUFFLED}: expected .5 within the interval, got {low:.3f} to {high:.3f}")
    return complaints + _world_complaints(rows)


def _world_complaints(rows: list[Row]) -> list[str]:
    blind = [
        row for row in rows if row["part"] == "worlds" and row["channel"] == "tensors" and row["told"] < row["targets"]
    ]
    loud = [row for row in rows if row["part"] == "best" and row["most"] > row["allowed"]]
    return [
        *(f"{row['question']}: expected tensors to tell all worlds apart, got {row['told']}" for row in blind),
        *(f"{row['mode']}: expected an AUC of at most {row['allowed']:.3f}, got {row['most']:.3f}" for row in loud),
    ]
