"""A state directory -> all that exists while the coordinator runs, resumed as it was left."""

from __future__ import annotations

from dataclasses import dataclass

from aggregator_service.aggregation import computation
from aggregator_service.aggregation.run_cost import estimate_costs, require_affordable
from aggregator_service.process import Clock
from aggregator_service.rounds.conductor import Conductor
from aggregator_service.rounds.members import Members, Quarantines
from aggregator_service.rounds.metrics import AggregatorMetrics
from aggregator_service.rounds.secure_intake import Intake
from aggregator_service.rounds.uploads import Uploads
from aggregator_service.settings import AggregatorSettings
from aggregator_service.signatures import RegisteredKeys, Signatures
from aggregator_service.storage.archive import Archive, read_start
from aggregator_service.storage.arrivals import ArrivalRecord
from aggregator_service.storage.clients import joined_clients
from aggregator_service.storage.database import Database
from aggregator_service.storage.disk import Blobs
from aggregator_service.storage.nonces import Nonces
from aggregator_service.storage.objects import Bucket, BucketBlobs, read_place
from aggregator_service.storage.runs import blob_names
from shared.errors import SettingsError
from shared.method.declaration import PARTS
from shared.protocol.signing.enrolment import kept_pair
from shared.protocol.signing.keys import PrivateKey, raw_hex, read_private

OWN = "aggregator"  # the name of its key's two files


STATE_OF_UPDATES = 8  # bodies of updates that a kept state is no longer than: a mean, moments, what was reported


@dataclass(frozen=True)
class OpenFederation:
    """What exists only while the coordinator is running."""

    archive: Archive
    members: Members
    conductor: Conductor
    uploads: Uploads
    intake: Intake
    quarantines: Quarantines
    arrivals: ArrivalRecord
    signatures: Signatures
    key: PrivateKey

    def close(self) -> None:
        self.signatures.close()
        self.archive.database.close()


def open_federation(settings: AggregatorSettings, metrics: AggregatorMetrics, *, clock: Clock) -> OpenFederation:
    """All that the directory holds, once what a crash has left in it is cleared away. SettingsError also where runs of
    these settings take more memory than there is."""
    for part in PARTS if settings.declaration().basis is not None else PARTS[:1]:
        costs = estimate_costs(settings.declaration(), settings.method, part, clients=1)
        require_affordable(costs, settings.most_memory_bytes)
    database = Database(settings.state_directory, settings.declaration(), settings.database_url())
    try:
        return _resume_federation(database, settings, metrics, clock)
    except BaseException:
        database.close()
        raise


def _resume_federation(
    database: Database, settings: AggregatorSettings, metrics: AggregatorMetrics, clock: Clock
) -> OpenFederation:
    declaration, members, key = settings.declaration(), Members(joined_clients(database)), _own_key(settings)
    blobs = _open_blobs(database, settings, key, members)
    blobs.keep_only(blob_names(database))
    start = None if settings.start is None else read_start(settings.start, declaration.tensors)
    archive = Archive(database, blobs, declaration, settings.longest_update, settings.retention_rounds, start)
    metrics.clients.set(len(members))
    conductor = Conductor(archive, metrics, computation, clock=clock)
    computation.require_same_start(archive, conductor.run)
    keys = RegisteredKeys(settings.registry)
    return OpenFederation(
        archive=archive,
        members=members,
        conductor=conductor,
        uploads=Uploads(conductor, declaration, clock=clock),
        intake=Intake(conductor, keys, clock=clock),
        quarantines=Quarantines(conductor, members, limit=settings.quarantine_refusals, clock=clock),
        arrivals=ArrivalRecord(database, clock=clock, count_unrecorded=metrics.unrecorded.inc),
        signatures=_open_signatures(database, settings, keys),
        key=key,
    )


def _open_blobs(database: Database, settings: AggregatorSettings, key: PrivateKey, members: Members) -> Blobs:
    """In the state directory; or in a bucket, with copies there. A database without clients has sent none there."""
    directory = settings.state_directory / "blobs"
    if settings.blobs is None:
        return Blobs(directory, database.disk)
    owner = raw_hex(key.public_key())
    bucket, most = Bucket(read_place(settings.blobs)), STATE_OF_UPDATES * settings.longest_update
    return BucketBlobs(directory, database.disk, bucket, owner=owner, may_hold=len(members) > 0, most=most)


def _own_key(settings: AggregatorSettings) -> PrivateKey:
    """The key in the given file; else the one in the state directory, made at the first start. Its public half lies
    beside it: silos pin it."""
    path = settings.signing_key_file or kept_pair(OWN, settings.state_directory).private
    if not path.exists():
        raise SettingsError(f"signing_key_file: expected a private key at {path}, got none")
    return read_private(path)


def _open_signatures(database: Database, settings: AggregatorSettings, keys: RegisteredKeys) -> Signatures:
    seconds = settings.signature_seconds
    nonces = Nonces(settings.state_directory, database.disk, seconds=seconds)
    return Signatures(keys, nonces, seconds=seconds)
