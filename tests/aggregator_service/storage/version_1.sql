-- What the service wrote before its tables had revisions.
PRAGMA user_version=1;
CREATE TABLE federation (id INTEGER NOT NULL, declaration JSON NOT NULL, sequence INTEGER NOT NULL, PRIMARY KEY (id));
CREATE TABLE clients (name VARCHAR NOT NULL, secret_hash VARCHAR NOT NULL, declaration JSON NOT NULL, counts JSON, joined_at FLOAT NOT NULL, PRIMARY KEY (name), UNIQUE (secret_hash));
CREATE TABLE runs (number INTEGER NOT NULL, name VARCHAR NOT NULL, request JSON NOT NULL, started_at FLOAT NOT NULL, deadline FLOAT NOT NULL, phase VARCHAR NOT NULL, round INTEGER NOT NULL, reason VARCHAR, PRIMARY KEY (number), UNIQUE (name));
CREATE TABLE enrolments (run VARCHAR NOT NULL, client VARCHAR NOT NULL, since_round INTEGER NOT NULL, PRIMARY KEY (run, client), FOREIGN KEY(run) REFERENCES runs (name), FOREIGN KEY(client) REFERENCES clients (name));
CREATE TABLE rounds (run VARCHAR NOT NULL, number INTEGER NOT NULL, phase VARCHAR NOT NULL, opened_at FLOAT NOT NULL, closed_at FLOAT, PRIMARY KEY (run, number), FOREIGN KEY(run) REFERENCES runs (name));
CREATE TABLE anchors (run VARCHAR NOT NULL, round INTEGER NOT NULL, kernel JSON NOT NULL, source VARCHAR NOT NULL, PRIMARY KEY (run, round), FOREIGN KEY(run) REFERENCES runs (name));
CREATE TABLE arrivals (sequence INTEGER NOT NULL, time FLOAT NOT NULL, client VARCHAR NOT NULL, call VARCHAR NOT NULL, run VARCHAR, round INTEGER, size INTEGER NOT NULL, digest VARCHAR NOT NULL, status INTEGER NOT NULL, code VARCHAR, PRIMARY KEY (sequence), FOREIGN KEY(client) REFERENCES clients (name));
CREATE INDEX arrivals_by_client ON arrivals (client, status);
CREATE TABLE updates (run VARCHAR NOT NULL, round INTEGER NOT NULL, client VARCHAR NOT NULL, digest VARCHAR NOT NULL, size INTEGER NOT NULL, received_at FLOAT NOT NULL, scalars JSON NOT NULL, blob VARCHAR, PRIMARY KEY (run, round, client), FOREIGN KEY(run, round) REFERENCES rounds (run, number), FOREIGN KEY(client) REFERENCES clients (name));
CREATE TABLE states (run VARCHAR NOT NULL, round INTEGER NOT NULL, digest VARCHAR NOT NULL, latest JSON NOT NULL, blob VARCHAR, PRIMARY KEY (run, round), FOREIGN KEY(run, round) REFERENCES rounds (run, number));
