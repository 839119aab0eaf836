"""Tables of the database; times are seconds since the epoch.

A blob is a file name, NULL once deleted. A change here needs a new revision in `migrations/`, which makes it in
existing databases. Whole numbers have 64 bits and texts sort by their bytes in every database, as SQLite has them by
itself: updates are summed in the order of names.
"""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table

METADATA = MetaData()
WHOLE = BigInteger().with_variant(Integer, "sqlite")
TEXT = String().with_variant(String(collation="C"), "postgresql")

FEDERATION = Table(
    "federation",
    METADATA,
    Column("id", WHOLE, primary_key=True),
    Column("declaration", JSON, nullable=False),
    Column("sequence", WHOLE, nullable=False),
)

CLIENTS = Table(
    "clients",
    METADATA,
    Column("name", TEXT, primary_key=True),
    Column("declaration", JSON, nullable=False),
    Column("counts", JSON(none_as_null=True)),
    Column("joined_at", Float, nullable=False),
)

# `document`: JSON text of `rounds.run`.
RUNS = Table(
    "runs",
    METADATA,
    Column("number", WHOLE, primary_key=True),
    Column("name", TEXT, nullable=False, unique=True),
    Column("document", TEXT, nullable=False),
)

# `parts`: see `body_parts`; where workers share a bucket, until the blob is deleted.
UPDATES = Table(
    "updates",
    METADATA,
    Column("run", TEXT, ForeignKey("runs.name"), primary_key=True),
    Column("round", WHOLE, primary_key=True),
    Column("client", TEXT, ForeignKey("clients.name"), primary_key=True),
    Column("digest", TEXT, nullable=False),
    Column("size", WHOLE, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("scalars", JSON, nullable=False),
    Column("blob", TEXT),
    Column("parts", LargeBinary),
)

STATES = Table(
    "states",
    METADATA,
    Column("run", TEXT, ForeignKey("runs.name"), primary_key=True),
    Column("round", WHOLE, primary_key=True),
    Column("digest", TEXT, nullable=False),
    Column("latest", JSON, nullable=False),
    Column("blob", TEXT),
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float, nullable=False),
)

# Messages of clients in each phase of a secure round; they are deleted once the round's mean is stored.
SECURE_MESSAGES = Table(
    "secure_messages",
    METADATA,
    Column("run", TEXT, ForeignKey("runs.name"), primary_key=True),
    Column("round", WHOLE, primary_key=True),
    Column("phase", TEXT, primary_key=True),
    Column("client", TEXT, ForeignKey("clients.name"), primary_key=True),
    Column("message", JSON, nullable=False),
)

# `cause`: refusals, distance, shares or operator; `reason`: in the operator's words or in ours. At most one of a
# client's rows is not lifted.
QUARANTINES = Table(
    "quarantines",
    METADATA,
    Column("sequence", WHOLE, primary_key=True),
    Column("client", TEXT, ForeignKey("clients.name"), nullable=False),
    Column("cause", TEXT, nullable=False),
    Column("reason", TEXT, nullable=False),
    Column("run", TEXT),
    Column("round", WHOLE),
    Column("since", Float, nullable=False),
    Column("lifted_at", Float),
    Index("quarantines_by_client", "client", "lifted_at"),
)

# Updates of one client that were refused as invalid in one run, since its last quarantine was lifted.
REFUSALS = Table(
    "refusals",
    METADATA,
    Column("run", TEXT, ForeignKey("runs.name"), primary_key=True),
    Column("client", TEXT, ForeignKey("clients.name"), primary_key=True),
    Column("refused", WHOLE, nullable=False),
)

ANCHORS = Table(
    "anchors",
    METADATA,
    Column("run", TEXT, ForeignKey("runs.name"), primary_key=True),
    Column("round", WHOLE, primary_key=True),
    Column("kernel", JSON, nullable=False),
    Column("source", TEXT, nullable=False),
    Column("size", JSON(none_as_null=True)),
)

# Members of the opened sum that began with these parameters: no sum of other members is opened from them.
SUMS = Table(
    "sums",
    METADATA,
    Column("start", TEXT, primary_key=True),
    Column("method", TEXT, nullable=False),
    Column("seed", WHOLE, nullable=False),
    Column("run", TEXT, ForeignKey("runs.name"), nullable=False),
    Column("members", JSON, nullable=False),
)

# `key`: 32 bytes in hexadecimal, NULL once removed; `version`: of the last change, greater than that of all before.
REGISTERED_KEYS = Table(
    "registered_keys",
    METADATA,
    Column("name", TEXT, primary_key=True),
    Column("key", TEXT, unique=True),
    Column("version", WHOLE, nullable=False),
    Index("registered_keys_by_version", "version"),
)

# Open ones; `digest`: sha256 of the code.
INVITATIONS = Table(
    "invitations",
    METADATA,
    Column("name", TEXT, primary_key=True),
    Column("digest", TEXT, nullable=False),
    Column("expires", Float, nullable=False),
)

# `client`: registered, joined or not; `head`: names and sizes of headers, never values, and the signature.
ARRIVALS = Table(
    "arrivals",
    METADATA,
    Column("sequence", WHOLE, primary_key=True),
    Column("time", Float, nullable=False),
    Column("client", TEXT, nullable=False),
    Column("call", TEXT, nullable=False),
    Column("run", TEXT),
    Column("round", WHOLE),
    Column("size", WHOLE, nullable=False),
    Column("digest", TEXT, nullable=False),
    Column("status", WHOLE, nullable=False),
    Column("code", TEXT),
    Column("nonce", TEXT),
    Column("head", JSON(none_as_null=True)),
    Index("arrivals_by_client", "client", "status"),
)
