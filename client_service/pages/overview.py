"""Overview at the top of the page: state, gain of joining, main figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from client_service.evaluation.metrics import MeasureLabel, find_title
from client_service.federation.messages import BasisOut, QualityOut, StatusOut
from client_service.pages.ledger_view import Summary
from client_service.privacy.accounting import PrivacyOut
from client_service.tasks.page_texts import USERS, Nouns
from shared.method.declaration import Part
from shared.sums import SUMS, describe_part
from shared.sums.content import CONTENT
from shared.web.pages import Fact, Verdict
from shared.words import count_noun, format_bytes, format_number, format_time

BUSY = {
    "starting": "Starting",
    "joining": "Joining",
    "preparing": "Preparing",
    "training": "Training",
    "uploading": "Uploading",
    "waiting for the round": "Waiting",
    "evaluating": "Evaluating",
    "summing": "Summing statistics",
}
DOING = {
    "starting": "The client loads its kept model.",
    "joining": "This client registers with the aggregator.",
    "preparing": "The client computes the spectrum and the model of the run.",
    "waiting for the round": "The update is sent; some other clients' are missing.",
}

Labels = Mapping[str, MeasureLabel]
"""Labels of a task's measures, by name."""


@dataclass(frozen=True)
class SiloOverview:
    """Overview of a silo.

    `done` of `rounds` rounds; no bar without a run. worth: gain of the last run, and what the silo's policy forgoes.
    next_step: what the operator does next. warnings: need an action. limits: what the federation's settings reveal or
    cannot prevent; they hold in every run.
    """

    verdict: Verdict
    worth: tuple[str, ...]
    next_step: str
    done: int
    rounds: int
    problem: str | None
    warnings: tuple[str, ...]
    limits: tuple[str, ...]
    facts: tuple[Fact, ...]


def build_overview(
    status: StatusOut,
    quality: QualityOut,
    summary: Summary,
    labels: Labels,
    nouns: Nouns = USERS,
    *,
    strict: bool = False,
    declared: Collection[Part] = (),
    limits: Collection[str] = (),
) -> SiloOverview:
    """Builds the overview of the page.

    declared: parts of the federation's sums. limits: warnings that follow from the settings alone.
    """
    warnings = tuple(one for one in status.warnings if one not in limits)
    done = max((entry.round for entry in quality.rounds), default=0) if quality.run == status.run else 0
    return SiloOverview(
        verdict=_verdict(status, done),
        worth=(*_worth_lines(quality, labels, nouns), *((STRICT,) if strict else ())),
        next_step=_next_step(status, quality, summary, warns=bool(warnings)),
        done=done,
        rounds=status.rounds,
        problem=status.problem,
        warnings=warnings,
        limits=tuple(one for one in status.warnings if one in limits),
        facts=(
            _bytes_sent(summary),
            *_budget_facts(status.privacy),
            *_sum_facts(status.sums, declared),
            _ledger_fact(summary),
            *_quality_facts(quality, labels, nouns),
            _serving_fact(status, nouns),
        ),
    )


STRICT = (
    "This silo stays in the strict boundary: it shares no statistics of its items (policy.common_basis = no). lpsfed"
    " worth SHARD forecasts what sharing them would bring; lpsfed join INVITATION --accept sums shares them."
)


def _worth_lines(quality: QualityOut, labels: Labels, nouns: Nouns) -> tuple[str, ...]:
    """Describes the gain of the last run in one line; empty before one has ended."""
    compared = quality.comparison
    if compared is None or not compared.groups:
        return ()
    whole = compared.groups[0]
    measure = find_title(compared.measure, labels.values())
    alone, together = (format_number(one.mean) for one in (whole.alone, whole.federated))
    gain = f"Joining: {measure} alone {alone} → together {together}"
    if (ratio := whole.ratio) is not None:
        gain += f": × {ratio.mean:.3f}, 95 % interval [{ratio.low:.3f}, {ratio.high:.3f}]"
    return (f"{gain}, measured after {quality.run} on test data of {count_noun(whole.users, nouns.judged)}.",)


def _next_step(status: StatusOut, quality: QualityOut, summary: Summary, *, warns: bool) -> str:
    """Describes whether the silo is well, and what its operator does next."""
    if summary.broken is not None or any(one.other for one in summary.totals):
        return "Next: see the finding above; until it is explained, stop this client."
    if status.problem is not None:
        return "Next: remove the cause above; the client tries again by itself."
    if warns:
        return "Next: read the warnings below."
    if status.phase == "refused":
        return "Next: the client’s log has the reason. The next run is open to this silo again."
    if status.phase in ("failed", "cancelled"):
        return "Next: nothing here; the federation’s operator starts the next run."
    if status.phase in BUSY or (status.rounds and status.phase == "waiting"):
        return "All is well. Nothing to do: the run continues by itself, and this silo answers requests meanwhile."
    if status.model is None:
        return "All is well. Next: wait until the federation’s operator starts a run; until then answers need no model."
    if quality.comparison is None:
        return "All is well. Next: try an answer below. The gain of joining appears here when a run has ended."
    return "All is well. Next: try an answer below, then let your application ask this address with its key."


def describe_sizes(quality: QualityOut, nouns: Nouns = USERS, *, counts_given: bool) -> str:
    """Describes the size of the shard, and whether the silo's policy lets it leave.

    `/metrics` does not have it.
    """
    if quality.run is None:
        return "Figures appear with the first run."
    counts = ((quality.users, nouns.owner), (quality.items, nouns.thing), (quality.edges, nouns.event))
    sharing = (
        "These numbers are sent when the silo joins." if counts_given else "None of these numbers leaves the silo."
    )
    return f"The shard has {', '.join(count_noun(count, word) for count, word in counts)}. {sharing}"


def _verdict(status: StatusOut, done: int) -> Verdict:
    if status.phase in BUSY:
        progress = f"{status.run}, round {status.round} of {status.rounds}"
        return Verdict("busy", BUSY[status.phase], DOING.get(status.phase, progress))
    if status.phase == "cancelled":
        return Verdict("idle", "Cancelled", f"The federation’s operator cancelled {status.run}.")
    if status.phase == "refused":
        return Verdict("bad", "Refused", f"This client left {status.run}: its log has the reason.")
    if status.phase == "failed":
        return Verdict("bad", "Failed", f"The aggregator ended {status.run} as failed.")
    if status.phase == "finished":
        held = done or status.round  # a run of sums has rounds too, and no figures of them
        return Verdict("good", "Finished", f"{status.run} ended after {count_noun(held, 'round')}.")
    next_one = f"{status.run}: {done} of {status.rounds} rounds are done." if status.rounds else "No run is open."
    next_one += " The next change is told at once, by a stream." if status.streams else ""
    return Verdict("idle", "Waiting", next_one)


def _bytes_sent(summary: Summary) -> Fact:
    times = {total.call: total.count for total in summary.totals}
    sent = sum(total.bytes_out for total in summary.totals)
    note = f"{count_noun(times.get('update', 0), 'update')} and {count_noun(times.get('join', 0), 'join')}"
    return Fact("Sent by this silo", format_bytes(sent), note)


def _budget_facts(privacy: PrivacyOut | None) -> tuple[Fact, ...]:
    """Describes how much of the privacy budget is spent; empty without differential privacy."""
    if privacy is None:
        return ()
    at = f", delta {privacy.delta:g}" if privacy.delta is not None else ""
    note = "spent: no further update leaves" if privacy.exhausted else f"epsilon spent of the budget{at}"
    return (Fact("Privacy", f"{privacy.epsilon:.3g} of {privacy.budget:.3g}", note),)


def _sum_facts(sums: Sequence[BasisOut], declared: Collection[Part]) -> tuple[Fact, ...]:
    """Lists the kept sums over all silos, and agreed sums that were not opened."""
    kept = [Fact(_title(one.part, one.kind), f"of {one.run}", _describe_kept(one)) for one in sums]
    if sums and CONTENT in declared and all(one.part != CONTENT for one in sums):
        kept.append(Fact(_title(CONTENT, ""), "not opened", NOT_OPENED))
    return tuple(kept)


NOT_OPENED = "not summed yet, or too few silos know titles or attributes of their items"


def _describe_kept(one: BasisOut) -> str:
    hidden = f", {count_noun(one.hidden, 'own item')} hidden by another" if one.hidden else ""
    late = "" if one.included else "; made before this silo joined: its own part is added here alone"
    row = SUMS[one.kind].row if one.kind in SUMS else SUMS[CONTENT if one.part == CONTENT else "exact"].row
    noun, _, rest = row.partition(" ")
    over = f"{count_noun(one.items, noun)} {rest}{hidden}, " if row else ""
    return f"{over}kept {format_time(one.kept_at)}{late}"


def _title(part: Part, kind: str) -> str:
    words = describe_part(part, kind)
    return words[0].upper() + words[1:]


def _ledger_fact(summary: Summary) -> Fact:
    note = f"{summary.read:,} checked so far" if summary.read < summary.written else "none was changed"
    note = note if summary.broken is None else f"damaged at line {summary.broken}"
    return Fact("Ledger", count_noun(summary.written, "entry", "entries"), note)


def _quality_facts(quality: QualityOut, labels: Labels, nouns: Nouns) -> tuple[Fact, ...]:
    """Lists the figures on test items, or before the end those on validation items."""
    before = ", before the model was fitted on all data" if quality.refitted else ""
    if quality.test is not None:
        test = quality.test if quality.test_users else {}
        note = f"on test items, {count_noun(quality.test_users, nouns.judged)}{before}" if test else "no test items"
        return tuple(Fact(label.title, format_number(test.get(label.key)), note) for label in labels.values())
    best = next((entry for entry in quality.rounds if entry.round == quality.best_round), None)
    note = "no figures yet" if best is None else f"on validation items, round {best.round}{before}"
    values = {} if best is None else best.values
    if quality.valid_users == 0:
        note, values = "no validation items", {}
    return tuple(Fact(label.title, format_number(values.get(name)), note) for name, label in labels.items())


def _serving_fact(status: StatusOut, nouns: Nouns) -> Fact:
    model = nouns.popular if status.model is None else status.model
    form = "" if status.form is None else f"answers baskets in the form {status.form}: {status.form_reason}; "
    return Fact("Answers from", model, f"{form}trains on {status.device}: {status.device_reason}")
