"""A closed round's spooled updates -> the next state; a state and one client's update -> that client's parameters.

Everything is read tensor by tensor from files, so that no client's whole update lies in memory. What a strategy makes
for each client does, once, until it is written. A file is held against its digest before anything is read from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from aggregator_service.aggregation.bodies import Body, pack_state, prepare_body, unpack_state
from aggregator_service.rounds.run import Run
from aggregator_service.storage.locations import Archive
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
from shared.protocol.wire import StoredArrays, open_parameters, pieces
from shared.strategies import robust_aggregation
from shared.strategies.strategy import Strategy


def initial_parameters(archive: Archive, request: RunIn) -> Parameters:
    """What every client of a run starts from."""
    drawn = archive.strategy(request).start(request.method, request.seed)
    start = archive.start if request.part == TRAINING else None
    return Parameters(drawn | ({} if start is None else dict(start.arrays)))


def add_start_digest(archive: Archive, request: RunIn) -> RunIn:
    """The request with the digest of the start file. ProtocolError where it asks for another one."""
    digest = None if archive.start is None else archive.start.digest
    if request.start not in (None, digest):
        raise ProtocolError(f"start: expected {digest or 'none'}, the digest of this federation's, got {request.start}")
    return request.model_copy(update={"start": digest})


def require_same_start(archive: Archive, run: Run | None) -> None:
    """SettingsError where an active run began with another start file: its first round is computed from it anew."""
    digest = None if archive.start is None else archive.start.digest
    if run is not None and run.active and run.request.start != digest:
        expected = run.request.start or "none"
        raise SettingsError(f"start: expected the file that {run.name} began with, {expected}, got {digest or 'none'}")


def start_digest(archive: Archive, request: RunIn) -> str:
    """Of that, as the clients of a secure run compare it."""
    return digest_start(_initial_answer(archive, request))


def _initial_answer(archive: Archive, request: RunIn) -> Parameters:
    return archive.strategy(request).common_answer(State(initial_parameters(archive, request).arrays))


def state_digest(archive: Archive, run: Run, state: StoredState) -> str:
    """The same of the state after a round, which is on disk."""
    what = f"{state.run}: the state after round {state.round}"
    found = unpack_state(_load_content(archive, state.blob, state.digest, what=what), state.latest)
    answered = archive.strategy(run.request).common_answer(found)
    return digest_start(Parameters(answered.arrays, found.scalars))


def damaged_updates(archive: Archive, run: Run) -> list[StoredUpdate]:
    """Those of the current round's updates that the disk no longer gives back as they were accepted."""
    held = _stored_round_updates(archive, run)
    return [one for one in held if archive.blobs.damage(str(one.blob), one.receipt.digest) is not None]


def distant_clients(archive: Archive, run: Run) -> dict[str, float]:
    """Whose update of the current round is further from where the round began than the run allows, and how many times
    the median that is. Nobody in a run without such a limit, or of statistics, which have no start to be far from."""
    factor = run.request.method.quarantine_factor
    if factor == 0 or run.exchange is not None or run.request.part != TRAINING:
        return {}
    return robust_aggregation.far(robust_aggregation.distances(*_load_round(archive, run)), factor)


def aggregate_round(archive: Archive, run: Run) -> StoredState:
    """Eq. 13, or what the strategy puts in its place: the state after the run's current round, on disk."""
    after = _state_after(archive, run) if run.exchange is None else _state_after_secure_sum(archive, run, run.exchange)
    blob = archive.blobs.save(pieces(pack_state(after)))
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
    return archive.strategy(run.request).aggregate(*_load_round(archive, run))


def _load_round(archive: Archive, run: Run) -> tuple[State, list[Update]]:
    """Where the current round began, and what came in it."""
    held = _stored_round_updates(archive, run)
    return _state_before(archive, run), [_load_update(archive, one) for one in held]


def _stored_round_updates(archive: Archive, run: Run) -> list[StoredUpdate]:
    with archive.database.reading() as connection:
        return stored_updates(connection, run.name, number=run.round)


def _state_before(archive: Archive, run: Run) -> State:
    """The state before the current round. The last scalars of quarantined clients are not in it: their rho
    would go on moving everybody's rhobar (Eq. 12)."""
    state = load_state(archive, run, run.round - 1)
    return replace(state, latest={name: said for name, said in state.latest.items() if name not in run.quarantined})


def _state_after_secure_sum(archive: Archive, run: Run, exchange: SecureRound) -> State:
    """The same where nobody's update but the sum of all can be read."""
    held = _stored_round_updates(archive, run)
    paths = {one.receipt.client: archive.blobs.path(str(one.blob)) for one in held}
    vectors = {client: StoredArrays(path) for client, path in paths.items()}
    before = _state_before(archive, run)
    return archive.strategy(run.request).advance(before, average_secure_sum(exchange, before, vectors))


def describe_collaboration(archive: Archive, run: Run) -> CollaborationOut | None:
    """Reads who learns from whom after the run's last aggregated round.

    None where all clients get the same, or where nothing is kept of the run.
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
    """The body that every client of the run starts from."""
    return _prepare_body(archive, _initial_answer(archive, run.request))


def personalised_body(archive: Archive, run: Run, *, number: int, client: str) -> Body:
    """Eq. 14, or what the strategy puts in its place: the body that this client alone may fetch after a round."""
    try:
        return _personalise_state(archive, run, number, client)
    except (DamagedError, FileNotFoundError):
        # Retention may delete a file between the query and the reading. Asked again, its row says so.
        return _personalise_state(archive, run, number, client)


def _personalise_state(archive: Archive, run: Run, number: int, client: str) -> Body:
    state = load_state(archive, run, number)
    if archive.declaration.secure:
        return _prepare_body(archive, _secure_parameters(archive, run, state, number, client))
    held = last_update(archive.database, run.name, number=number, client=client)
    update = None if held is None else _load_update(archive, held)
    return _prepare_body(archive, archive.strategy(run.request).personalise(state, update))


def _secure_parameters(archive: Archive, run: Run, state: State, number: int, client: str) -> Parameters:
    summed = stored_update(archive.database, run.name, number=number, client=client) is not None
    return client_answer(archive.strategy(run.request), state, client, summed=summed)


def _prepare_body(archive: Archive, parameters: Parameters) -> Body:
    return prepare_body(parameters, archive.blobs.directory, archive.database.disk)


def load_state(archive: Archive, run: Run, number: int) -> State:
    """The state after a round of the run; 0: where it begins. DamagedError where the disk gives back another."""
    if number == 0:
        return State(initial_parameters(archive, run.request).arrays)
    held = stored_state(archive.database, run.name, number=number)
    what = f"{run.name}: the state after round {number}"
    return unpack_state(_load_content(archive, held.blob, held.digest, what=what), held.latest)


def _load_update(archive: Archive, held: StoredUpdate) -> Update:
    receipt = held.receipt
    what = f"{receipt.run}: the update of {receipt.client} of round {receipt.round}"
    content = _load_content(archive, held.blob, receipt.digest, what=what)
    return Update(receipt.client, content.arrays, content.scalars)


def _load_content(archive: Archive, blob: str | None, digest: str, *, what: str) -> Parameters:
    """The parameters in a file; NotFoundError after the retention time, DamagedError where it is another content."""
    if blob is None:
        raise NotFoundError(f"{what} was deleted after the retention time")
    if (damage := archive.blobs.damage(blob, digest)) is not None:
        raise DamagedError(f"{what} is damaged: {damage}; check the aggregator's disk, then start a new run")
    return open_parameters(archive.blobs.path(blob))[1]


def average_secure_sum(exchange: SecureRound, before: State, vectors: Mapping[str, Vector]) -> State:
    """Eq. 13 of the survivors. Of single clients it holds what they have sent openly: the latest visible scalars."""
    mean = server.mean(exchange, vectors)
    latest: dict[str, Scalars] = {**before.latest, **exchange.open_scalars}
    arrays = {name: mean.arrays[name] for name in before.arrays}
    reports = {name: value for name, value in mean.arrays.items() if name not in before.arrays}
    return State(arrays, mean.scalars, latest, reports=reports)


def client_answer(strategy: Strategy, state: State, client: str, *, summed: bool) -> Parameters:
    """The mean, and the scalars by which the client mixes for itself (Eq. 12, 14), where the strategy mixes.

    One that is not in this round's sum has nothing to mix with: it is told to take the mean alone.
    """
    mean, mixing = strategy.common_answer(state), strategy.mixing
    if mixing is None:
        return mean
    told = mixing.tell(state.latest, client) if summed else mixing.mean_alone
    return Parameters(mean.arrays, {**mean.scalars, **told})
