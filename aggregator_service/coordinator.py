"""Coordinator of a federation: what clients and the operator can ask for, without HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import anyio

from aggregator_service.aggregation import computation
from aggregator_service.aggregation.bodies import Body
from aggregator_service.aggregation.common_items import count_common_items, resolve_item_list
from aggregator_service.aggregation.run_cost import estimate_costs, require_affordable
from aggregator_service.process import LOGGER, Clock, run_in_worker
from aggregator_service.registrar import Registrar
from aggregator_service.rounds import transitions
from aggregator_service.rounds.basis_runs import (
    choose_sum,
    find_usable_run,
    leaves_no_model,
    new_basis_pledge,
    newest_list,
    require_training,
    resolve_request,
)
from aggregator_service.rounds.broadcaster import StateBroadcaster
from aggregator_service.rounds.history import StateTexts, run_histories, run_history, state_of_all
from aggregator_service.rounds.members import LastCalls, Members, Quarantines, require_same_declaration
from aggregator_service.rounds.metrics import AggregatorMetrics
from aggregator_service.rounds.round_loop import RoundLoop
from aggregator_service.rounds.run import Run, load_run
from aggregator_service.rounds.secure_intake import MessageIntake
from aggregator_service.rounds.secure_run import Pledge
from aggregator_service.rounds.uploads import Address, Uploads
from aggregator_service.settings import AggregatorSettings
from aggregator_service.signatures import RegisteredKeys, Signatures
from aggregator_service.storage import run_store
from aggregator_service.storage.arrivals import ArrivalRecord
from aggregator_service.storage.clients import add_client, joined_clients
from aggregator_service.storage.database import Database
from aggregator_service.storage.disk import Blobs
from aggregator_service.storage.locations import Archive, read_start
from aggregator_service.storage.nonces import Nonces
from aggregator_service.storage.objects import Bucket, BucketBlobs, read_place
from aggregator_service.storage.records import Anchor, Receipt
from aggregator_service.storage.run_store import blob_names, last_update
from aggregator_service.storage.shared_nonces import SharedNonces
from aggregator_service.storage.shared_records import SharedRecords
from shared.errors import (
    ConflictError,
    DamagedError,
    NotFoundError,
    ProtocolError,
    QuarantinedError,
    SettingsError,
    UnavailableError,
)
from shared.method.anchor import choose_size, draw_anchor, load_solver
from shared.method.declaration import TRAINING
from shared.method.settings import complete_settings
from shared.protocol.schemas import JoinIn, JoinOut, RunHistoryOut, RunIn, RunOut
from shared.protocol.secure.server import RelayedMessage
from shared.protocol.signing.enrolment import ensure_key_pair
from shared.protocol.signing.keys import PrivateKey, raw_hex, read_private
from shared.strategies import build_strategy
from shared.strategies.agreement import choose_similarity_floor
from shared.sums import method_of_part
from shared.web.server import run_background_jobs

OWN = "aggregator"  # the name of its key's two files
MODELS_OF_SUM = "; silos have no common item, so they make their models from these sums only"
STATE_OF_UPDATES = 8  # largest state in bodies of updates: a mean, moments, reports


@dataclass(frozen=True)
class OpenFederation:
    """Parts of a running federation: its storage, round loop, members and keys."""

    archive: Archive
    members: Members
    round_loop: RoundLoop
    uploads: Uploads
    intake: MessageIntake
    quarantines: Quarantines
    arrivals: ArrivalRecord
    signatures: Signatures
    key: PrivateKey
    broadcaster: StateBroadcaster
    registrar: Registrar

    async def find_member(self, name: str) -> None:
        """Looks for a member that has joined by another worker."""
        await self.members.take_joined(self.archive.database, name)

    async def take_members(self) -> None:
        """Takes the members that have joined by other workers."""
        await self.members.take_joined(self.archive.database)

    async def require_joined(self, name: str) -> None:
        """Raises AuthenticationError for a client that has not joined."""
        await self.find_member(name)
        self.members.require_joined(name)

    def close(self) -> None:
        self.signatures.close()
        self.archive.database.close()


def open_federation(
    settings: AggregatorSettings, metrics: AggregatorMetrics, last_calls: LastCalls, *, clock: Clock
) -> OpenFederation:
    """Opens the state directory and removes the remains of a crash.

    Also raises SettingsError if runs with these settings need more memory than there is.
    """
    for part in (TRAINING, *settings.declaration().sums):
        costs = estimate_costs(settings.declaration(), method_of_part(settings.method, part), part, clients=1)
        require_affordable(costs, settings.most_memory_bytes)
    url = settings.database_url()
    database = Database(settings.state_directory, settings.declaration(), url, shared=settings.shared)
    try:
        return _resume_federation(database, settings, metrics, last_calls, clock)
    except BaseException:
        database.close()
        raise


def _resume_federation(
    database: Database, settings: AggregatorSettings, metrics: AggregatorMetrics, last_calls: LastCalls, clock: Clock
) -> OpenFederation:
    if database.workers is not None:
        clock = database.workers.now
    declaration, members, key = settings.declaration(), Members(joined_clients(database)), _read_signing_key(settings)
    blobs = _open_blobs(database, settings, key, members)
    if not settings.shared:  # another worker's body may be stored, and its row not yet
        blobs.keep_only(blob_names(database))
    start = None if settings.start is None else read_start(settings.start, declaration.tensors)
    archive = Archive(database, blobs, declaration, settings.longest_update, settings.retention_rounds, start)
    metrics.clients.set(len(members))
    round_loop = RoundLoop(archive, metrics, computation, clock=clock)
    computation.require_same_start(archive, round_loop.run)
    registrar = Registrar(database, settings.registry)
    keys = registrar.keys
    records = None if database.workers is None else SharedRecords(database, database.workers)
    return OpenFederation(
        archive=archive,
        members=members,
        round_loop=round_loop,
        uploads=Uploads(round_loop, declaration, records, clock=clock),
        intake=MessageIntake(round_loop, keys, clock=clock),
        quarantines=Quarantines(round_loop, members, limit=settings.quarantine_refusals, clock=clock),
        arrivals=ArrivalRecord(database, records, clock=clock, count_unrecorded=metrics.unrecorded.inc),
        signatures=_open_signatures(round_loop, settings, keys, had_clients=len(members) > 0),
        key=key,
        broadcaster=StateBroadcaster(key, keys.registered_key, metrics, last_calls.record_call),
        registrar=registrar,
    )


def _open_blobs(database: Database, settings: AggregatorSettings, key: PrivateKey, members: Members) -> Blobs:
    """Opens the storage of bodies: the state directory, or a bucket with local copies.

    A database without clients has sent no body to the bucket, so that must be empty then.
    """
    directory = settings.state_directory / "blobs"
    if settings.blobs is None or settings.blobs.startswith("/"):
        return Blobs(Path(settings.blobs or directory), database.disk)
    owner = raw_hex(key.public_key())
    bucket, most = Bucket(read_place(settings.blobs)), STATE_OF_UPDATES * settings.longest_update
    return BucketBlobs(directory, database.disk, bucket, owner=owner, may_hold=len(members) > 0, most=most)


def _read_signing_key(settings: AggregatorSettings) -> PrivateKey:
    """Reads the aggregator's signing key from the given file or the state directory.

    The key in the state directory is made at the first start. Its public half lies beside it: silos pin it.
    """
    path = settings.signing_key_file or ensure_key_pair(OWN, settings.state_directory).private
    if not path.exists():
        raise SettingsError(f"signing_key_file: expected a private key at {path}, got none")
    return read_private(path)


def _open_signatures(
    round_loop: RoundLoop, settings: AggregatorSettings, keys: RegisteredKeys, *, had_clients: bool
) -> Signatures:
    seconds, database = settings.signature_seconds, round_loop.archive.database
    nonces: Nonces | SharedNonces

    async def follow(number: int, version: int) -> None:
        await keys.follow(version)
        await round_loop.follow(number)

    if settings.shared:
        nonces = SharedNonces(database, seconds=seconds, had_clients=had_clients, follow=follow)
    else:
        nonces = Nonces(settings.state_directory, database.disk, seconds=seconds)
    return Signatures(keys, nonces, seconds=seconds)


class Coordinator:
    """Aggregator without HTTP, for use within `running()`; before that it opens nothing."""

    def __init__(self, settings: AggregatorSettings, *, clock: Clock) -> None:
        self.settings = settings
        self.metrics = AggregatorMetrics(lambda: self._clock())
        self.operator_token = settings.token()
        self._clock = clock
        self.last_calls = LastCalls(lambda: self._clock())
        self.declaration = settings.declaration()
        self._federation: OpenFederation | None = None
        self._drawing, self._states = anyio.Lock(), StateTexts()
        self._initial: tuple[tuple[str, float], Body] | None = None  # small one that was asked for last, with its run
        self._anchor: tuple[str, int, Anchor] | None = None  # the last one that was asked for, with its run and round

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Opens the federation and runs its rounds until the context ends."""
        federation = self._federation = await run_in_worker(
            open_federation, self.settings, self.metrics, self.last_calls, clock=self._clock
        )
        if (workers := federation.round_loop.workers) is not None:
            self._clock = workers.now
        await self._fail_unaffordable_run(federation)
        disk = federation.archive.database.disk
        self.metrics.watch_state(self.settings.state_directory, lambda: self.unready_reason, lambda: disk.refusal)
        round_loop_task = asyncio.create_task(federation.round_loop.run_rounds())
        broadcasts = [asyncio.create_task(one) for one in (self._publish_changes(), federation.broadcaster.follow())]
        if build_strategy(self.settings.strategy, self.settings.method).spectral_scalar:
            broadcasts.append(asyncio.create_task(run_in_worker(load_solver)))
        try:
            async with run_background_jobs(*federation.round_loop.list_jobs(), *federation.registrar.keys.list_jobs()):
                try:
                    yield
                finally:
                    self.wind_down()
                    for task in broadcasts:
                        task.cancel()
                    await asyncio.gather(*broadcasts, return_exceptions=True)
                    await round_loop_task  # it ends after its current step, with the signs of life that this needs
        finally:
            self._federation = None
            federation.close()

    async def _fail_unaffordable_run(self, here: OpenFederation) -> None:
        """Fails a run of an earlier process that needs more memory than there is.

        Its round would otherwise end each process that aggregates it.
        """
        run = here.round_loop.run
        if run is not None and run.active:
            try:
                self._require_affordable(here, run.request, run.clients)
            except SettingsError as error:
                await here.round_loop.fail_run(run.name, str(error))

    def _require_affordable(self, here: OpenFederation, request: RunIn, clients: Set[str]) -> None:
        """Raises SettingsError for a run that needs too much memory with its number of clients."""
        counts = [one for one in (here.members[name].counts for name in sorted(clients)) if one is not None]
        most = max(len(clients), request.clients)
        costs = estimate_costs(self.declaration, request.method, request.part, most, counts)
        require_affordable(costs, self.settings.most_memory_bytes)

    @property
    def federation(self) -> OpenFederation:
        """Running federation; raises UnavailableError before `running()` and after it."""
        if self._federation is None:
            raise UnavailableError("the aggregator is not running")
        return self._federation

    @property
    def unready_reason(self) -> str | None:
        """Reason why clients should not call now; None if they may.

        For example a full disk or a shutdown.
        """
        round_loop = self._federation.round_loop if self._federation else None
        if round_loop is None or round_loop.phase_changes.closing:
            return "the aggregator is starting or stopping"
        return round_loop.unready_reason

    def wind_down(self) -> None:
        """Ends every long poll and held stream at once: a shutdown need not wait."""
        if self._federation is not None:
            self._federation.round_loop.close()
            self._federation.broadcaster.close()

    @property
    def signing_key(self) -> PrivateKey | None:
        """Key that signs every answer to a client; None before the service runs."""
        return None if self._federation is None else self._federation.key

    @property
    def now(self) -> float:
        """Seconds since the epoch, by the clock of the rounds."""
        return self._clock()

    @property
    def client_names(self) -> tuple[str, ...]:
        """Names of all clients of the federation, sorted."""
        return tuple(sorted(self.federation.members.names))

    async def join_client(self, message: JoinIn, signer: str) -> JoinOut:
        require_same_declaration(self.declaration, message.declaration)
        here = self.federation
        await here.find_member(signer)
        async with here.round_loop.lock:
            client = here.members.admit_client(message, signer, now=self._clock())
            if client not in here.members:
                await run_in_worker(add_client, here.archive.database, client, declaration=self.declaration)
                here.members.add_client(client)
                self.metrics.clients.set(len(here.members))
            if here.round_loop.run is not None:
                run = transitions.enrol_client(here.round_loop.run, client.name, now=self._clock())
                await here.round_loop.commit_transition(run)
        return JoinOut(
            client=client.name,
            clients=len(here.members),
            warnings=here.members.warnings,
            signature_seconds=self.settings.signature_seconds,
            nonce=await here.arrivals.last_nonce(client.name),
        )

    async def start_run(self, request: RunIn) -> RunHistoryOut:
        """Starts a run; settings that the request leaves out are those of the federation.

        Raises ConflictError while a run is active, ProtocolError or SettingsError for a run that this federation
        cannot carry out.
        """
        here, declared = self.federation, self.settings.method
        await here.take_members()
        request = await run_in_worker(
            resolve_item_list, here.archive, request.model_copy(update={"why": None}), declared
        )
        request = choose_sum(request, complete_settings(request.method, declared), declared)
        method = choose_similarity_floor(request.method, secure=self.settings.secure)
        request = request.model_copy(update={"method": method})
        self.settings.require_same_shape(request.method)
        require_training(build_strategy(self.settings.strategy, self.settings.method), request)
        self.settings.require_time(request)
        self.settings.require_summable(request)
        self._require_affordable(here, request, here.members.names)
        request = computation.add_start_digest(here.archive, request)
        request = await run_in_worker(resolve_request, here.archive.database, request)
        if request.part != TRAINING and request.why is None:
            why = self.settings.explain_sum(request.method) + (MODELS_OF_SUM if request.makes_models else "")
            request = request.model_copy(update={"why": why})
        async with here.round_loop.lock:
            await here.take_members()  # one may have joined by another worker since, before there was a run to enrol in
            name = transitions.next_name(here.round_loop.run)
            # A round does not wait for a client whose key was removed.
            known = await here.registrar.registered_names()
            run = transitions.start_run(
                name,
                request,
                clients=here.members.names & known,
                pledge=await self._new_pledge(here, name, request),
                quarantined=await here.quarantines.quarantine_causes(),
                now=self._clock(),
            )
            await here.round_loop.commit_transition(run)
        return await self.run_history(name)

    async def _new_pledge(self, here: OpenFederation, name: str, request: RunIn) -> Pledge | None:
        """Returns the pledge to the clients of a secure run; None in an open federation."""
        if not self.declaration.secure:
            return None
        start = await here.archive.tensors.run_in_worker(computation.start_digest, here.archive, request)
        own = raw_hex(here.key.public_key())
        bounds = {
            "colluders": self.settings.colluders if request.colluders is None else request.colluders,
            "dropouts": self.settings.dropouts if request.dropouts is None else request.dropouts,
        }
        pledge = Pledge(declaration=self.declaration.of_part(request.part), aggregator=own, start=start, **bounds)
        if request.part != TRAINING:
            basis = await run_in_worker(new_basis_pledge, here.archive.database, request)
            return pledge.model_copy(update={"basis": basis})
        earlier = await here.round_loop.earlier_sum_members(name, start)
        return pledge.model_copy(update={"earlier": earlier})

    async def cancel_run(self, name: str) -> RunHistoryOut:
        """Cancels a run; a run that is cancelled already stays so.

        Raises NotFoundError for an unknown name, ConflictError if the run has ended in another way.
        """
        round_loop = self.federation.round_loop
        if (
            not await round_loop.fail_run(name, None)
            and (ended := await round_loop.find_run(name)).phase != "cancelled"
        ):
            raise ConflictError(f"{name} has ended before ({ended.phase}); nothing was changed")
        return await self.run_history(name)

    async def run_histories(self) -> list[RunHistoryOut]:
        found = await run_in_worker(run_histories, self.federation.archive.database)
        await self.federation.round_loop.wait_for_commit()
        return found

    async def run_history(self, name: str) -> RunHistoryOut:
        """Returns a run with all its rounds.

        While it waits, `missing` lists the registered clients that have not joined. A caller who then asks for the
        current run gets no older state than this one.
        """
        found = await run_in_worker(self._describe_run, name)
        await self.federation.round_loop.wait_for_commit()
        if found.phase != "waiting":
            return found
        known = await self.federation.registrar.registered_names()
        return found.model_copy(update={"missing": tuple(sorted(known - set(found.enrolled)))})

    def _describe_run(self, name: str) -> RunHistoryOut:
        """Reads the history of a run.

        The run that made the current list of common items also has their number.
        """
        archive = self.federation.archive
        found, listed = run_history(archive, name), newest_list(archive.database)
        with archive.database.reading() as connection:
            run = load_run(connection, name)
        if run is not None and (weights := computation.describe_collaboration(archive, run)) is not None:
            found = found.model_copy(update={"collaboration": weights})
        if found.sum is None or listed is None or listed.name != name:
            return found
        common = count_common_items(archive, listed).items
        return found.model_copy(update={"sum": found.sum.model_copy(update={"common": common})})

    async def initial_body(self, name: str) -> Body:
        """Returns the initial parameters of a run; makes a small body once for all clients."""
        run, archive = await self.federation.round_loop.find_run(name), self.federation.archive
        known = run.name, run.started_at
        if self._initial is not None and self._initial[0] == known:
            return self._initial[1].copy()
        body = await archive.tensors.run_in_worker(computation.initial_body, archive, run)
        if (kept := body.kept_in_memory()) is not None:
            self._initial = known, kept
            return kept.copy()
        return body

    async def current_run(self, client: str, *, after: int | None, wait: float) -> str:
        """Writes the federation's state, a `RunOut`, for a client.

        It waits until the sequence differs from `after`, or until the wait is over.

        A client that joined after a run learns of the run whose sums it can use, where the newest has none for it.
        """
        here = self.federation
        await here.round_loop.wait_until(lambda: here.round_loop.sequence != after, wait)
        run, sequence = here.round_loop.run, here.round_loop.sequence
        if run is None:
            return RunOut(sequence=sequence, joined=len(here.members)).model_dump_json(by_alias=True)
        if leaves_no_model(run):
            served = await run_in_worker(find_usable_run, here.archive.database)
            run = run if served is None or client in served.clients else served
        run = await here.uploads.add_own_receipt(run, client)
        return self._states.write(run, client, sequence=sequence, now=self._clock())

    async def _publish_changes(self) -> None:
        """Publishes each change of the federation, until cancelled."""
        changes = self.federation.round_loop.phase_changes
        while not changes.closing:
            seen = changes.count
            self.publish_state()
            await changes.wait_for_change(seen)

    def publish_state(self) -> None:
        """Publishes the present state to held streams, where they do not have it."""
        here = self.federation
        run, sequence = here.round_loop.run, here.round_loop.sequence
        if sequence == here.broadcaster.sequence:
            return
        state = (
            None
            if run is not None and leaves_no_model(run)
            else state_of_all(run, here.members.names, sequence=sequence, now=self._clock())
        )
        here.broadcaster.publish(sequence, state)

    async def round_anchor(self, name: str, number: int) -> Anchor:
        """Returns the anchor kernel K^R of an opened round, drawn when first asked for.

        Everybody gets the same one, also after a restart.
        """
        here = self.federation
        run = await here.round_loop.find_run(name)
        if not 1 <= number <= run.round:
            raise NotFoundError(f"round {number} of {name} has not opened")
        key = number if run.request.method.anchor.every_round else 0
        async with self._drawing:
            if self._anchor is None or self._anchor[:2] != (name, key):
                held = await run_in_worker(run_store.stored_anchor, here.archive.database, name, number=key)
                self._anchor = name, key, held or await self._draw_anchor(here, run, key)
            return self._anchor[2]

    async def _draw_anchor(self, here: OpenFederation, run: Run, key: int) -> Anchor:
        """Draws the anchor of a round; fails the run where its memory is not enough.

        Clients may have declared its size since the run began. Raises ConflictError then.
        """
        try:
            await here.take_members()
            self._require_affordable(here, run.request, run.clients)
        except SettingsError as error:
            await here.round_loop.fail_run(run.name, str(error))
            raise ConflictError(f"{run.name} has failed: {error}") from None
        return await run_in_worker(_draw_anchor, here, run, key)

    async def receive_update(
        self, address: Address, body: AsyncIterator[bytes], digest: Callable[[], str] | None = None
    ) -> tuple[Receipt, bool]:
        """Stores one update, masked if secure; returns its receipt and whether it is new.

        digest: sha256 in hex of the body once it has ended, where the caller has counted it.
        """
        try:
            receipt, new = await self.federation.uploads.receive_update(address, body, digest)
        except ProtocolError:
            await self.federation.quarantines.count_refused_update(address)
            raise
        self.metrics.uploads.labels("accepted" if new else "repeated").inc()
        self.metrics.upload_bytes.inc(receipt.size if new else 0)
        return receipt, new

    async def relay_message(self, address: Address, message: RelayedMessage) -> None:
        """Stores a message of a secure round; an invalid one counts as a refused update."""
        try:
            await self.federation.intake.relay_message(address, message)
        except ProtocolError:
            await self.federation.quarantines.count_refused_update(address)
            raise

    async def personalised_body(self, address: Address, *, wait: float) -> Body | None:
        """Returns a client's parameters after a round; None if not aggregated within the wait.

        Raises ConflictError if the run has failed, or waits for this client to send an update again.
        """
        here = self.federation
        run = await here.round_loop.find_run(address.run)
        if run.request.part != TRAINING:
            await self._require_not_quarantined(run, address.client)
        if not 1 <= address.round <= run.request.rounds:
            raise NotFoundError(f"expected a round from 1 to {run.request.rounds} of {run.name}, got {address.round}")
        run = await here.uploads.wait_for_answer(run, address, wait)
        if run.is_aggregated(address.round):
            return await self._compute_body(run, address)
        run.require_not_ended()
        return None

    async def _compute_body(self, run: Run, address: Address) -> Body:
        """Computes a client's parameters; fails the run where stored files are damaged.

        The updates of an aggregated round cannot be asked for again.
        """
        compute = partial(computation.personalised_body, number=address.round, client=address.client)
        try:
            return await self.federation.archive.tensors.run_in_worker(compute, self.federation.archive, run)
        except DamagedError as error:
            LOGGER.error("stored_damaged", run=run.name, round=address.round, client=address.client, reason=str(error))
            self.metrics.damaged.inc()
            await self.federation.round_loop.fail_run(run.name, str(error))
            raise

    async def _require_not_quarantined(self, run: Run, client: str) -> None:
        """Raises QuarantinedError for a quarantined client that added nothing to the sums."""
        if client not in await self.federation.quarantines.quarantine_causes():
            return
        database = self.federation.archive.database
        if await run_in_worker(last_update, database, run.name, number=run.request.rounds, client=client) is None:
            raise QuarantinedError(f"expected a client that is not quarantined, {client!r} is: it gets no sums")


def _draw_anchor(here: OpenFederation, run: Run, key: int) -> Anchor:
    counts = [c for c in (here.members[client].counts for client in sorted(run.clients)) if c is not None]
    size, source = choose_size(run.request.method.anchor, counts)
    kernel = draw_anchor(run.request.method, size, seed=run.request.seed, number=key)
    drawn = Anchor(tuple(kernel.tolist()), source, size)
    run_store.add_anchor(here.archive.database, run.name, number=key, anchor=drawn)
    if here.round_loop.workers is None:
        return drawn
    return run_store.stored_anchor(here.archive.database, run.name, number=key) or drawn  # another worker's came first
