"""Commands of the federation's operator: run, status, cancel."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shared.errors import ConflictError, FederationError, NotFoundError
from shared.words import count_noun
from simulation.cli import options
from simulation.operating.operator_calls import PATIENCE_SECONDS
from simulation.progress import print_progress
from simulation.reports.terminal import OUT, print_on_stderr, round_lines

if TYPE_CHECKING:
    from shared.protocol.schemas import RunHistoryOut
    from simulation.operating.operator import Observe
    from simulation.operating.operator_calls import Operator
    from simulation.operating.silo_worth import SiloAccess

IfNone = Annotated[
    bool, typer.Option("--if-none", help="Follow the latest run with this common basis, unless it failed")
]
WaitSeconds = Annotated[float, typer.Option(min=0, help="Seconds of retries while the aggregator does not answer")]


@options.spread_records
def run(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrlOrNone = None,
    clients: options.Clients = 4,
    rounds: Annotated[int | None, typer.Option(min=1, help="Number of rounds (default: the preset's)")] = None,
    quorum: Annotated[
        int | None, typer.Option(min=1, help="Updates that a round needs at its deadline (default: of all clients)")
    ] = None,
    deadline_seconds: Annotated[float, typer.Option(min=1, help="Longest wait in a phase, in seconds")] = 3600.0,
    preset: options.Preset = options.PresetName.default,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all draws")] = 0,
    changes: options.Changes = None,
    *,
    basis: options.BasisFlags,
    renew_basis: Annotated[
        bool, typer.Option("--renew-basis", help="Sum again, although a matching run of the sum has finished")
    ] = False,
    changing_members: Annotated[
        bool,
        typer.Option("--changing-members", help="Let silos that allow it leave or join a secure run alone"),
    ] = False,
    colluders: Annotated[
        float | None,
        typer.Option(metavar="<share>", help="Secure, 64 clients or more: may collude (default: the aggregator's)"),
    ] = None,
    dropouts: Annotated[
        float | None, typer.Option(metavar="<share>", help="As --colluders: may drop out of a round")
    ] = None,
    if_none: IfNone = False,
    silo: options.Silos = None,
    wait_seconds: WaitSeconds = PATIENCE_SECONDS,
    call: options.CallFlags,
    as_json: options.AsJson = False,
) -> None:
    """Starts a run at an aggregator and follows it. Prints missing clients on stderr.

    If the federation declares sums, it first runs each sum that no matching run has finished. If only sums are
    shared, no training run follows.
    """
    from shared.method.settings import PRESET_ROUNDS, method_settings, validate_settings
    from shared.protocol.schemas import RunIn
    from shared.sums import is_basis, list_sums
    from simulation.operating.operator import (
        apply_declared_sums,
        describe_sum,
        fetch_federation,
        fetch_run,
        follow_run,
        has_sums_alone,
        list_members,
        list_runs,
        resolve_basis,
        run_sums,
        start_or_follow_run,
        start_run,
    )
    from simulation.operating.operator_calls import open_operator

    as_declared = basis.common_basis is None and "basis.kind" not in options.parse_pairs(changes or [])
    values = {
        "rounds": rounds or PRESET_ROUNDS[preset.value],
        "seed": seed,
        "clients": clients,
        "quorum": quorum,
        "deadline_seconds": deadline_seconds,
        "method": method_settings(preset.value, **options.parse_method_changes(changes, basis)),
        "changing_members": changing_members,
        "colluders": colluders,
        "dropouts": dropouts,
    }
    request = validate_settings(RunIn, values)
    accesses = _read_accesses(silo)
    tls = call.make_tls()
    url = _choose_url(aggregator_url, accesses)
    words = OperatorFlags(operator_token_file, url, call)
    with (
        open_operator(url, operator_token_file, tls, patience=wait_seconds) as operator,
        _explain_active_run(operator, words) as note,
    ):
        if request.method.basis.kind != "off":
            request = request.model_copy(update={"method": resolve_basis(operator, request.method)})
        if as_declared or rounds is None:
            federation = fetch_federation(operator)
            request = apply_declared_sums(request, federation, basis=as_declared, rounds=rounds is None)
        if accesses:
            _require_members(operator, accesses, {one.client for one in list_members(operator)})
        before = {one.run for one in list_runs(operator)} if list_sums(request.method) else set[str]()
        with round_lines(shown=not as_json) as observe:
            request, held = run_sums(operator, request, note(observe), renew=renew_basis)
        summed = [fetch_run(operator, one.run) or one for one in held]
        for one in summed if not as_json else ():
            print_progress(describe_sum(one) or one.run)
        made = [one for one in summed if is_basis(one.request.method.basis) or one.request.makes_models]
        if made and has_sums_alone(operator):
            history = made[-1]
            if history.run in before:
                print_progress(
                    f"{history.run} has finished earlier, so nothing is summed now: --renew-basis sums again"
                )
        else:
            started = start_or_follow_run(operator, request) if if_none else start_run(operator, request)
            with round_lines(shown=not as_json) as observe:
                note(ignore_history)(started)
                history = follow_run(operator, started.run, note(observe))
    if as_json:
        return options.print_json(history.model_dump(mode="json"))
    lines = _await_results(accesses, history.run)
    rounds_held = count_noun(len(history.rounds), "round")
    print_progress(f"{history.run} has finished after {rounds_held}; each silo serves its best model by validation")
    if not lines:
        print_progress("what a silo gained: on its own machine, lpsfed worth --silo NAME/silo.toml, or its page")
    for line in lines:
        OUT.print(line, soft_wrap=True)


def _read_accesses(silos: list[Path] | None) -> list[SiloAccess]:
    """Reads how to call the silos of these settings files.

    Imports what that needs only where there is one.
    """
    if not silos:
        return []
    from simulation.operating.silo_worth import read_access

    return [read_access(file) for file in silos]


def _choose_url(given: str | None, accesses: list[SiloAccess]) -> str:
    if given is not None or not accesses:
        return given or options.DEFAULT_URL
    from simulation.operating.silo_worth import choose_aggregator_url

    return choose_aggregator_url(given, accesses, options.DEFAULT_URL)


def _require_members(operator: Operator, accesses: list[SiloAccess], names: Collection[str]) -> None:
    from simulation.operating.operator import fetch_federation
    from simulation.operating.silo_worth import require_members

    require_members(accesses, fetch_federation(operator).aggregator, names)


def _await_results(accesses: list[SiloAccess], run: str) -> list[str]:
    """Waits until each silo has evaluated the run, and returns a line for each."""
    if not accesses:
        return []
    from simulation.operating.silo_worth import wait_for_worth

    return [wait_for_worth(access, run).line for access in accesses]


@dataclass(frozen=True)
class OperatorFlags:
    """Options by which a command calls the same aggregator as the same operator."""

    token_file: Path
    url: str
    call: options.CallFlags

    def command(self, *words: str) -> str:
        """Returns a `lpsfed` command of these words, to be copied."""
        flags = ["--operator-token-file", str(self.token_file)]
        flags += [] if self.url == options.DEFAULT_URL else ["--aggregator-url", self.url]
        given = (
            ("--ca", self.call.ca),
            ("--certificate", self.call.certificate),
            ("--certificate-key", self.call.certificate_key),
        )
        flags += [word for flag, path in given if path is not None for word in (flag, str(path))]
        return shlex.join(["lpsfed", *words, *flags])

    def hint(self, run: str) -> str:
        """Describes how to follow an active run, and how to end it."""
        follow, end = self.command("status", "--follow", "--run", run), self.command("cancel", "--run", run)
        return f"to follow it: {follow}\nto end it: {end}"


def ignore_history(history: RunHistoryOut) -> None:
    """Observes a run without output."""
    del history


@contextmanager
def _explain_active_run(operator: Operator, words: OperatorFlags) -> Iterator[Callable[[Observe], Observe]]:
    """Prints how to follow or end the active run after Ctrl-C or a conflict."""
    from shared.protocol.schemas import ENDED
    from simulation.operating.operator import latest_run

    seen: list[RunHistoryOut] = []

    def note(observe: Observe) -> Observe:
        def observe_and_note(history: RunHistoryOut) -> None:
            seen[:] = [history]
            observe(history)

        return observe_and_note

    try:
        yield note
    except ConflictError as error:
        try:
            active = latest_run(operator)
        except FederationError:
            raise error from None
        if active is None or active.phase in ENDED:
            raise
        raise ConflictError(f"{error}\n{words.hint(active.run)}") from None
    except KeyboardInterrupt:
        if seen:
            print_on_stderr(f"interrupted: {seen[0].run} continues at the aggregator")
            print_on_stderr(words.hint(seen[0].run))
        else:
            print_on_stderr(f"interrupted: to see whether a run has started: {words.command('status')}")
        raise typer.Exit(options.INTERRUPTED_CODE) from None


@options.spread_records
def status(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrlOrNone = None,
    run: Annotated[str | None, typer.Option(help="Run, as run-3 (default: the newest)")] = None,
    *,
    silo: options.Silos = None,
    call: options.CallFlags,
    follow: Annotated[bool, typer.Option("--follow", help="Show each round until the run has ended")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Shows the state of a run: missing clients, deadline, or why it failed.

    Exit code 1 for a run that has failed.
    """
    from shared.protocol.schemas import ENDED
    from simulation.operating.operator import (
        describe_run,
        describe_sum,
        fetch_run,
        list_members,
        list_newest_sums,
        watch_run,
    )
    from simulation.operating.operator_calls import open_operator

    accesses = _read_accesses(silo)
    tls = call.make_tls()
    url = _choose_url(aggregator_url, accesses)
    words = OperatorFlags(operator_token_file, url, call)
    with (
        open_operator(url, operator_token_file, tls) as operator,
        _explain_active_run(operator, words) as note,
    ):
        history = fetch_run(operator, run)
        if accesses:  # also silos that have joined since the run
            _require_members(operator, accesses, {one.client for one in list_members(operator)})
        if follow and history is not None and history.phase not in ENDED:
            with round_lines(shown=not as_json) as observe:
                history = watch_run(operator, history.run, note(observe))
        shown = [] if as_json or history is None or history.phase == "failed" else list_newest_sums(operator, history)
        sums = [line for one in shown if (line := describe_sum(one)) is not None]
    if as_json:
        options.print_json(None if history is None else history.model_dump(mode="json"))
    elif history is None or history.phase != "failed":
        OUT.print("no run yet" if history is None else describe_run(history), soft_wrap=True)
        for line in sums:
            OUT.print(line, soft_wrap=True)
    if history is not None and history.phase == "failed":
        raise FederationError(describe_run(history))
    if accesses and not as_json:
        from simulation.operating.silo_worth import fetch_worth

        for access in accesses:
            OUT.print(fetch_worth(access).line, soft_wrap=True)


@options.spread_records
def cancel(
    operator_token_file: options.OperatorToken,
    aggregator_url: options.AggregatorUrl = options.DEFAULT_URL,
    run: Annotated[str | None, typer.Option(help="Run, as run-3 (default: the newest)")] = None,
    *,
    call: options.CallFlags,
    as_json: options.AsJson = False,
) -> None:
    """Cancels a run. Each silo stops at its next call, and keeps its best model."""
    from simulation.operating.operator import cancel_run, describe_run, latest_run
    from simulation.operating.operator_calls import open_operator

    tls = call.make_tls()
    with open_operator(aggregator_url, operator_token_file, tls) as operator:
        name = run or (newest.run if (newest := latest_run(operator)) else None)
        if name is None:
            raise NotFoundError("expected a run to cancel, the aggregator has had none")
        history = cancel_run(operator, name)
    if as_json:
        options.print_json(history.model_dump(mode="json"))
    else:
        OUT.print(describe_run(history), soft_wrap=True)
