"""Computation of a round's state from updates, and of a client's parameters from it.

Tensors are read from files one at a time, so no whole update lies in memory; only the answer that a strategy makes
for one client does, until it is written. The digest of a file is checked before anything is read from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from aggregator_service.aggregation.bodies import LONGEST_IN_MEMORY, Body, pack_state, prepare_body, unpack_state
from aggregator_service.aggregation.shared_sums import RoundInputs, SharedSum, find_blocks, open_shared_sum
from aggregator_service.rounds.run import Run, load_run
from aggregator_service.storage.body_parts import DamagedUpdatesError
from aggregator_service.storage.locations import AnsweredRound, Archive
from aggregator_service.storage.records import StoredState, StoredUpdate
from aggregator_service.storage.run_store import last_update, stored_state, stored_states, stored_update, stored_updates
from shared.errors import DamagedError, NotFoundError, ProtocolError, SettingsError
from shared.method.declaration import TRAINING
from shared.method.parameters import Parameters, Scalars, State, Update
from shared.protocol.schemas import CollaborationOut, RunIn
from shared.protocol.secure import server
from shared.protocol.secure.common import digest_start
from shared.protocol.secure.server import SecureRound
from shared.protocol.secure.vectors import Vector
from shared.protocol.wire import StoredArrays, body_pieces, open_checked, read_parameters
from shared.strategies import robust_aggregation
from shared.strategies.aggregation import mean_of_updates
from shared.strategies.blockwise import combine_by_blocks, has_blocks
from shared.strategies.strategy import Strategy


def initial_parameters(archive: Archive, request: RunIn) -> Parameters:
    """Returns the parameters that every client of a run starts from."""
    drawn = archive.strategy(request).start(request.method, request.seed)
    start = archive.start if request.part == TRAINING else None
    return Parameters(drawn | ({} if start is None else dict(start.arrays)))


def add_start_digest(archive: Archive, request: RunIn) -> RunIn:
    """Adds the digest of the start file to a request.

    Raises ProtocolError if the request names another file.
    """
    digest = None if archive.start is None else archive.start.digest
    if request.start not in (None, digest):
        raise ProtocolError(
            f"start: expected {digest or 'none'}, the digest of this federation's start file, got {request.start}"
        )
    return request.model_copy(update={"start": digest})


def require_same_start(archive: Archive, run: Run | None) -> None:
    """Raises SettingsError if an active run began with another start file.

    The first round of that run is computed from the file again.
    """
    digest = None if archive.start is None else archive.start.digest
    if run is not None and run.active and run.request.start != digest:
        expected = run.request.start or "none"
        raise SettingsError(f"start: expected the file that {run.name} began with, {expected}, got {digest or 'none'}")


def start_digest(archive: Archive, request: RunIn) -> str:
    """Computes the digest of the initial parameters, which clients of a secure run compare."""
    return digest_start(_initial_answer(archive, request))


def _initial_answer(archive: Archive, request: RunIn) -> Parameters:
    return archive.strategy(request).common_answer(State(initial_parameters(archive, request).arrays))


def state_digest(archive: Archive, run: Run, state: StoredState) -> str:
    """Computes the digest of a stored state, which clients of a secure run compare."""
    what = f"{state.run}: the state after round {state.round}"
    found = unpack_state(_load_content(archive, state.blob, state.digest, what=what), state.latest)
    answered = archive.strategy(run.request).common_answer(found)
    return digest_start(Parameters(answered.arrays, found.scalars))


def damaged_updates(archive: Archive, run: Run) -> list[StoredUpdate]:
    """Lists the updates of the current round whose files no longer have their digest."""
    held = _stored_round_updates(archive, run)
    if run.exchange is None and (shared := open_shared_sum(archive, _round_inputs(archive, run, held))) is not None:
        if shared.checks_ranges:
            return []  # the sum finds them: to check them before would read each body twice
        shared.check_bodies()
    return [one for one in held if archive.blobs.damage(str(one.blob), one.receipt.digest) is not None]


def distant_clients(archive: Archive, run: Run) -> dict[str, float]:
    """Finds the clients whose update lies farther from the round's start than the run allows.

    Maps each client to its distance as a multiple of the median. Empty in a run without such a limit, and in a run
    that sums statistics, which have no start to be far from.
    """
    factor = run.request.method.quarantine_factor
    if factor == 0 or run.exchange is not None or run.request.part != TRAINING:
        return {}
    return robust_aggregation.find_far_clients(robust_aggregation.update_distances(*_load_round(archive, run)), factor)


def aggregate_round(archive: Archive, run: Run) -> StoredState:
    """Aggregates the current round and stores the state after it.

    Eq. 13, or the strategy's own rule.
    """
    after = _state_after(archive, run) if run.exchange is None else _state_after_secure_sum(archive, run, run.exchange)
    blob = archive.blobs.save(body_pieces(pack_state(after)))
    return StoredState(
        run=run.name,
        round=run.round,
        digest=blob.digest,
        latest=dict(after.latest),
        blob=blob.name,
        opened_at=run.opened_at,
        closed_at=run.phase_began_at,
    )


def _state_after(archive: Archive, run: Run) -> State:
    inputs = _round_inputs(archive, run, _stored_round_updates(archive, run))
    shared = open_shared_sum(archive, inputs) if has_blocks(inputs.combine) else None
    if shared is not None:
        try:
            return archive.strategy(run.request).advance(inputs.before(), shared.combine())
        except DamagedUpdatesError as error:
            _require_sound(archive, error.updates)
    before = inputs.before()
    return archive.strategy(run.request).advance(before, combine_by_blocks(inputs.combine, before, inputs.load()))


def _require_sound(archive: Archive, updates: Sequence[StoredUpdate]) -> None:
    """Raises DamagedUpdatesError for those whose bodies no longer have their digest.

    Of others only the digests of parts are wrong, or another worker's copy: they can be summed whole.
    """
    lost = [one for one in updates if archive.blobs.damage(str(one.blob), one.receipt.digest) is not None]
    if lost:
        raise DamagedUpdatesError(lost)


def join_shared_sum(archive: Archive) -> Callable[[], bool] | None:
    """Finds the step of a round that another worker shares; None without one.

    Returns a function that works on one block of it; False if there is none for this worker.
    """
    if (blocks := find_blocks(archive)) is None or (plan := blocks.find_plan()) is None:
        return None
    with archive.database.reading() as connection:
        run = load_run(connection, plan.run)
    if run is None or run.round != plan.round:
        return None
    inputs = _round_inputs(archive, run, _stored_round_updates(archive, run))
    return partial(SharedSum(archive, blocks, inputs).take_block, plan)


def _round_inputs(archive: Archive, run: Run, held: Sequence[StoredUpdate]) -> RoundInputs:
    combine = archive.strategy(run.request).combine or mean_of_updates
    load_before, load = partial(_state_before, archive, run), partial(_load_updates, archive, held)
    forms = {spec.name: spec.form for spec in archive.declaration.of_part(run.request.part).uploaded}
    return RoundInputs(run, held, combine, load_before, load, forms)


def _load_round(archive: Archive, run: Run) -> tuple[State, list[Update]]:
    """Loads the state before the current round and the updates of this round."""
    return _state_before(archive, run), _load_updates(archive, _stored_round_updates(archive, run))


def _load_updates(archive: Archive, held: Sequence[StoredUpdate]) -> list[Update]:
    return [_load_update(archive, one) for one in held]


def _stored_round_updates(archive: Archive, run: Run) -> list[StoredUpdate]:
    with archive.database.reading() as connection:
        return stored_updates(connection, run.name, number=run.round, with_parts=archive.reads_ranges)


def _state_before(archive: Archive, run: Run) -> State:
    """Loads the state before the current round, without the scalars of quarantined clients.

    Their last rho would otherwise still change everybody's rhobar (Eq. 12).
    """
    state = load_state(archive, run, run.round - 1)
    return replace(state, latest={name: said for name, said in state.latest.items() if name not in run.quarantined})


def _state_after_secure_sum(archive: Archive, run: Run, exchange: SecureRound) -> State:
    """Computes the state after a secure round, of which only the sum can be read."""
    held = _stored_round_updates(archive, run)
    paths = {one.receipt.client: archive.blobs.path(str(one.blob)) for one in held}
    vectors = {client: StoredArrays(path) for client, path in paths.items()}
    before = _state_before(archive, run)
    return archive.strategy(run.request).advance(before, average_secure_sum(exchange, before, vectors))


def describe_collaboration(archive: Archive, run: Run) -> CollaborationOut | None:
    """Describes how much each client learns from each other after the last aggregated round.

    None if all clients get the same, or if no state of the run is stored.
    """
    if (recall := archive.strategy(run.request).collaboration) is None:
        return None
    with archive.database.reading() as connection:
        kept = [one for one in stored_states(connection, run.name) if one.blob is not None]
    if not kept:
        return None
    last = max(kept, key=lambda one: one.round)
    try:
        found = recall(load_state(archive, run, last.round).memory)
    except (DamagedError, NotFoundError, FileNotFoundError):
        return None
    if found is None:
        return None
    low, high = (tuple(round(float(value), 1) for value in side) for side in found.columns)
    weights = tuple(tuple(round(float(value), 4) for value in row) for row in found.overall)
    return CollaborationOut(
        round=last.round, clients=found.clients, weights=weights, columns_low=low, columns_high=high
    )


def initial_body(archive: Archive, run: Run) -> Body:
    """Returns the body with the initial parameters of a run."""
    return _prepare_body(archive, _initial_answer(archive, run.request))


def personalised_body(archive: Archive, run: Run, *, number: int, client: str) -> Body:
    """Returns the body that one client may fetch after a round.

    Eq. 14, or the strategy's own rule.
    """
    try:
        return _personalise_state(archive, run, number, client)
    except (DamagedError, FileNotFoundError):
        # Retention may delete a file after its row was read. Asked again, the row says so.
        archive.recent.clear()
        return _personalise_state(archive, run, number, client)


def _personalise_state(archive: Archive, run: Run, number: int, client: str) -> Body:
    state, strategy = _load_answered_round(archive, run, number)
    if archive.declaration.secure:
        summed = stored_update(archive.database, run.name, number=number, client=client) is not None
        return _prepare_body(archive, client_answer(strategy, state, client, summed=summed))
    held = last_update(archive.database, run.name, number=number, client=client)
    update = None if held is None else _load_update(archive, held, most_in_memory=LONGEST_IN_MEMORY)
    return _prepare_body(archive, strategy.personalise(state, update))


def _prepare_body(archive: Archive, parameters: Parameters) -> Body:
    return prepare_body(parameters, archive.blobs.directory, archive.database.disk)


def _load_answered_round(archive: Archive, run: Run, number: int) -> tuple[State, Strategy]:
    """Loads a state and the run's strategy, once for all answers.

    The scalars of all clients lie in its row: to read them for each answer takes the square of the clients. The file is
    checked each time.
    """
    if (kept := archive.recent.find(run.name, number)) is not None:
        row, state, strategy = kept
        _require_content(archive, row.blob, row.digest, what=_name_state(run, number))
        return state, strategy
    state, strategy = load_state(archive, run, number, most_in_memory=LONGEST_IN_MEMORY), archive.strategy(run.request)
    if number > 0:
        row = stored_state(archive.database, run.name, number=number)
        archive.recent.keep(AnsweredRound(row, state, strategy))
    return state, strategy


def load_state(archive: Archive, run: Run, number: int, *, most_in_memory: int = 0) -> State:
    """Loads the state after a round of the run; round 0 is its start.

    most_in_memory: bytes of a file up to which its arrays are read now. Raises DamagedError if the stored file has
    changed.
    """
    if number == 0:
        return State(initial_parameters(archive, run.request).arrays)
    held = stored_state(archive.database, run.name, number=number)
    what = _name_state(run, number)
    content = _load_content(archive, held.blob, held.digest, what=what, most_in_memory=most_in_memory)
    return unpack_state(content, held.latest)


def _name_state(run: Run, number: int) -> str:
    return f"{run.name}: the state after round {number}"


def _load_update(archive: Archive, held: StoredUpdate, *, most_in_memory: int = 0) -> Update:
    receipt = held.receipt
    what = f"{receipt.run}: the update of {receipt.client} of round {receipt.round}"
    content = _load_content(archive, held.blob, receipt.digest, what=what, most_in_memory=most_in_memory)
    return Update(receipt.client, content.arrays, content.scalars)


def _load_content(archive: Archive, blob: str | None, digest: str, *, what: str, most_in_memory: int = 0) -> Parameters:
    """Loads the parameters of a stored file; raises as `_require_content` does."""
    path = archive.blobs.path(_require_content(archive, blob, digest, what=what))
    return read_parameters(path) if os.path.getsize(path) <= most_in_memory else open_checked(path)


def _require_content(archive: Archive, blob: str | None, digest: str, *, what: str) -> str:
    """Returns the name of a stored file.

    Raises NotFoundError after the retention time, DamagedError if the content has changed.
    """
    if blob is None:
        raise NotFoundError(f"{what} was deleted after the retention time")
    if (damage := archive.blobs.damage(blob, digest)) is not None:
        raise DamagedError(f"{what} is damaged: {damage}; check the aggregator's disk, then start a new run")
    return blob


def average_secure_sum(exchange: SecureRound, before: State, vectors: Mapping[str, Vector]) -> State:
    """Computes the mean over the survivors of a secure round (Eq. 13).

    Of single clients it holds only the scalars that they send openly.
    """
    mean = server.unmask_mean(exchange, vectors)
    latest: dict[str, Scalars] = {**before.latest, **exchange.open_scalars}
    arrays = {name: mean.arrays[name] for name in before.arrays}
    reports = {name: value for name, value in mean.arrays.items() if name not in before.arrays}
    return State(arrays, mean.scalars, latest, reports=reports)


def client_answer(strategy: Strategy, state: State, client: str, *, summed: bool) -> Parameters:
    """Returns the mean, with the scalars by which one client mixes it (Eq. 12, 14).

    A client that is not in this round's sum has nothing to mix with: its scalars say to take the mean alone.
    """
    mean, mixing = strategy.common_answer(state), strategy.mixing
    if mixing is None:
        return mean
    server_scalars = mixing.scalars_of(state.latest, client) if summed else mixing.mean_alone
    return Parameters(mean.arrays, {**mean.scalars, **server_scalars})
