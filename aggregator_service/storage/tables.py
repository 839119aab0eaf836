"""The database's tables. Times are seconds since the epoch; a blob is a file name, NULL once deleted.

A change here goes with a new revision in `migrations/`, which makes it in the databases that are there already.
"""

from __future__ import annotations

from sqlalchemy import JSON, Column, Float, ForeignKey, Index, Integer, MetaData, String, Table

METADATA = MetaData()

FEDERATION = Table(
    "federation",
    METADATA,
    Column("id", Integer, primary_key=True),
    Column("declaration", JSON, nullable=False),
    Column("sequence", Integer, nullable=False),
)

CLIENTS = Table(
    "clients",
    METADATA,
    Column("name", String, primary_key=True),
    Column("declaration", JSON, nullable=False),
    Column("counts", JSON(none_as_null=True)),
    Column("joined_at", Float, nullable=False),
)

# `document`: JSON text of `rounds.run_document`.
RUNS = Table(
    "runs",
    METADATA,
    Column("number", Integer, primary_key=True),
    Column("name", String, nullable=False, unique=True),
    Column("document", String, nullable=False),
)

UPDATES = Table(
    "updates",
    METADATA,
    Column("run", String, ForeignKey("runs.name"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("client", String, ForeignKey("clients.name"), primary_key=True),
    Column("digest", String, nullable=False),
    Column("size", Integer, nullable=False),
    Column("received_at", Float, nullable=False),
    Column("scalars", JSON, nullable=False),
    Column("blob", String),
)

STATES = Table(
    "states",
    METADATA,
    Column("run", String, ForeignKey("runs.name"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("digest", String, nullable=False),
    Column("latest", JSON, nullable=False),
    Column("blob", String),
    Column("opened_at", Float, nullable=False),
    Column("closed_at", Float, nullable=False),
)

# What one client has sent in one phase, for the others or for all; a round's are deleted once its mean is stored.
SECURE_MESSAGES = Table(
    "secure_messages",
    METADATA,
    Column("run", String, ForeignKey("runs.name"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("phase", String, primary_key=True),
    Column("client", String, ForeignKey("clients.name"), primary_key=True),
    Column("message", JSON, nullable=False),
)

# `cause`: refusals, distance, shares or operator; `reason`: in the operator's words or in ours. At most one of a
# client's rows is not lifted.
QUARANTINES = Table(
    "quarantines",
    METADATA,
    Column("sequence", Integer, primary_key=True),
    Column("client", String, ForeignKey("clients.name"), nullable=False),
    Column("cause", String, nullable=False),
    Column("reason", String, nullable=False),
    Column("run", String),
    Column("round", Integer),
    Column("since", Float, nullable=False),
    Column("lifted_at", Float),
    Index("quarantines_by_client", "client", "lifted_at"),
)

# Updates of one client that were refused for what they were, in one run, since it was last let in.
REFUSALS = Table(
    "refusals",
    METADATA,
    Column("run", String, ForeignKey("runs.name"), primary_key=True),
    Column("client", String, ForeignKey("clients.name"), primary_key=True),
    Column("refused", Integer, nullable=False),
)

ANCHORS = Table(
    "anchors",
    METADATA,
    Column("run", String, ForeignKey("runs.name"), primary_key=True),
    Column("round", Integer, primary_key=True),
    Column("kernel", JSON, nullable=False),
    Column("source", String, nullable=False),
    Column("size", JSON(none_as_null=True)),
)

# Whose sum was uncovered that began with these parameters: never other members', whatever the settings.
SUMS = Table(
    "sums",
    METADATA,
    Column("start", String, primary_key=True),
    Column("method", String, nullable=False),
    Column("seed", Integer, nullable=False),
    Column("run", String, ForeignKey("runs.name"), nullable=False),
    Column("members", JSON, nullable=False),
)

# `client`: of whoever is registered, joined or not; `head`: names and sizes, never words.
ARRIVALS = Table(
    "arrivals",
    METADATA,
    Column("sequence", Integer, primary_key=True),
    Column("time", Float, nullable=False),
    Column("client", String, nullable=False),
    Column("call", String, nullable=False),
    Column("run", String),
    Column("round", Integer),
    Column("size", Integer, nullable=False),
    Column("digest", String, nullable=False),
    Column("status", Integer, nullable=False),
    Column("code", String),
    Column("nonce", String),
    Column("head", JSON(none_as_null=True)),
    Index("arrivals_by_client", "client", "status"),
)
