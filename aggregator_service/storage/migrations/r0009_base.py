"""Tables of revision 0009, created at once; no version in use knows earlier ones.

They are SQL and not columns, so that they stay as they are whatever becomes of `storage/tables.py`.
"""

from __future__ import annotations

from alembic import op

revision = "0009"
down_revision = None

TABLES = """
CREATE TABLE anchors (run VARCHAR NOT NULL, round INTEGER NOT NULL, kernel JSON NOT NULL, source VARCHAR NOT NULL,
  size JSON, PRIMARY KEY (run, round), FOREIGN KEY(run) REFERENCES runs (name));
CREATE TABLE arrivals (sequence INTEGER NOT NULL, time FLOAT NOT NULL, client VARCHAR NOT NULL, call VARCHAR NOT
  NULL, run VARCHAR, round INTEGER, size INTEGER NOT NULL, digest VARCHAR NOT NULL, status INTEGER NOT NULL, code
  VARCHAR, nonce VARCHAR, head JSON, PRIMARY KEY (sequence));
CREATE TABLE clients (name VARCHAR NOT NULL, declaration JSON NOT NULL, counts JSON, joined_at FLOAT NOT NULL,
  PRIMARY KEY (name));
CREATE TABLE enrolments (run VARCHAR NOT NULL, client VARCHAR NOT NULL, since_round INTEGER NOT NULL, PRIMARY KEY
  (run, client), FOREIGN KEY(run) REFERENCES runs (name), FOREIGN KEY(client) REFERENCES clients (name));
CREATE TABLE federation (id INTEGER NOT NULL, declaration JSON NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY
  (id));
CREATE TABLE losses (run VARCHAR NOT NULL, round INTEGER NOT NULL, client VARCHAR NOT NULL, digest VARCHAR NOT NULL,
  found_at FLOAT NOT NULL, PRIMARY KEY (run, round, client), FOREIGN KEY(run, round) REFERENCES rounds (run,
  number), FOREIGN KEY(client) REFERENCES clients (name));
CREATE TABLE quarantines (sequence INTEGER NOT NULL, client VARCHAR NOT NULL, cause VARCHAR NOT NULL, reason VARCHAR
  NOT NULL, run VARCHAR, round INTEGER, since FLOAT NOT NULL, lifted_at FLOAT, PRIMARY KEY (sequence), FOREIGN
  KEY(client) REFERENCES clients (name));
CREATE TABLE refusals (run VARCHAR NOT NULL, client VARCHAR NOT NULL, refused INTEGER NOT NULL, PRIMARY KEY (run,
  client), FOREIGN KEY(run) REFERENCES runs (name), FOREIGN KEY(client) REFERENCES clients (name));
CREATE TABLE rounds (run VARCHAR NOT NULL, number INTEGER NOT NULL, phase VARCHAR NOT NULL, opened_at FLOAT NOT
  NULL, closed_at FLOAT, PRIMARY KEY (run, number), FOREIGN KEY(run) REFERENCES runs (name));
CREATE TABLE runs (number INTEGER NOT NULL, name VARCHAR NOT NULL, request JSON NOT NULL, started_at FLOAT NOT NULL,
  deadline FLOAT NOT NULL, phase VARCHAR NOT NULL, round INTEGER NOT NULL, reason VARCHAR, pledge JSON, PRIMARY KEY
  (number), UNIQUE (name));
CREATE TABLE secure_messages (run VARCHAR NOT NULL, round INTEGER NOT NULL, phase VARCHAR NOT NULL, client VARCHAR
  NOT NULL, message JSON NOT NULL, PRIMARY KEY (run, round, phase, client), FOREIGN KEY(run, round) REFERENCES
  rounds (run, number), FOREIGN KEY(client) REFERENCES clients (name));
CREATE TABLE secure_rounds (run VARCHAR NOT NULL, round INTEGER NOT NULL, phase VARCHAR NOT NULL, terms JSON NOT
  NULL, PRIMARY KEY (run, round), FOREIGN KEY(run, round) REFERENCES rounds (run, number));
CREATE TABLE states (run VARCHAR NOT NULL, round INTEGER NOT NULL, digest VARCHAR NOT NULL, latest JSON NOT NULL,
  blob VARCHAR, PRIMARY KEY (run, round), FOREIGN KEY(run, round) REFERENCES rounds (run, number));
CREATE TABLE sums (start VARCHAR NOT NULL, method VARCHAR NOT NULL, seed INTEGER NOT NULL, run VARCHAR NOT NULL,
  members JSON NOT NULL, PRIMARY KEY (start), FOREIGN KEY(run) REFERENCES runs (name));
CREATE TABLE updates (run VARCHAR NOT NULL, round INTEGER NOT NULL, client VARCHAR NOT NULL, digest VARCHAR NOT
  NULL, size INTEGER NOT NULL, received_at FLOAT NOT NULL, scalars JSON NOT NULL, blob VARCHAR, PRIMARY KEY (run,
  round, client), FOREIGN KEY(run, round) REFERENCES rounds (run, number), FOREIGN KEY(client) REFERENCES clients
  (name));
CREATE INDEX quarantines_by_client ON quarantines (client, lifted_at);
CREATE INDEX arrivals_by_client ON arrivals (client, status)
"""


def upgrade() -> None:
    for statement in TABLES.split(";"):
        op.execute(statement)
