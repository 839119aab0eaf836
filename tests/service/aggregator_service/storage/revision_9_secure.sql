BEGIN TRANSACTION;
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0009');
CREATE TABLE anchors (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	kernel JSON NOT NULL, 
	source VARCHAR NOT NULL, size JSON, 
	PRIMARY KEY (run, round), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE arrivals (
	sequence INTEGER NOT NULL, 
	time FLOAT NOT NULL, 
	client VARCHAR NOT NULL, 
	call VARCHAR NOT NULL, 
	run VARCHAR, 
	round INTEGER, 
	size INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	status INTEGER NOT NULL, 
	code VARCHAR, 
	nonce VARCHAR, 
	head JSON, 
	PRIMARY KEY (sequence)
);
INSERT INTO "arrivals" VALUES(1,1.7875866852696216106e+09,'ada','join',NULL,NULL,590,'b450c91eab73989cf7f7d84351c37fb4d63bad98fcce920657fa9c19fc98c684',200,NULL,'972b5cf086e938fcc021cd6d2353ab26','{"bytes": 517, "sha256": "b915f48d01d3d3258735219e074dfdcb285a19afd437bb1c5614201522ddf965", "others": [], "more": 0}');
INSERT INTO "arrivals" VALUES(2,1.78758668529046964648e+09,'bob','join',NULL,NULL,590,'e683c3d00aa1e2f09545d6a3935bdd5c79a544983df61425e845e42249695cd2',200,NULL,'aa9a0ea574b67bb0b458b1a22885a7ad','{"bytes": 517, "sha256": "b915f48d01d3d3258735219e074dfdcb285a19afd437bb1c5614201522ddf965", "others": [], "more": 0}');
INSERT INTO "arrivals" VALUES(3,1.78758668530664086341e+09,'cyd','join',NULL,NULL,590,'1f03d6024b60eb4b6feefba0b002f2f60c70747821149acb50dffb9472069683',200,NULL,'6339b87c70f7f5f50378dea505a88b4c','{"bytes": 517, "sha256": "b915f48d01d3d3258735219e074dfdcb285a19afd437bb1c5614201522ddf965", "others": [], "more": 0}');
INSERT INTO "arrivals" VALUES(4,1.78758668538967442507e+09,'ada','keys','run-1',1,1152,'9decab155ec4813023682f9b225825e8fb52361ed57bb9d994a45e4ce350c2ce',204,NULL,'6f6232c3fdcca3f6bb10eded00f64a18','{"bytes": 546, "sha256": "cb499209a945f0904f6db11bf893582c8ee8d9d8b14888ee3f0cce181b464366", "others": [], "more": 0}');
INSERT INTO "arrivals" VALUES(5,1.78758668542563176158e+09,'bob','keys','run-1',1,1152,'7e71e02e3ae653a0daefee48c084d201b7d8addecbdcd3526a374bf18b47aac7',204,NULL,'16f3b1bedc07977214b7a1465e3ab981','{"bytes": 546, "sha256": "b50c90e2992e0ba4bb2ffeb6d3c62c1c46078a46ff940b2ca9c45c7f4f9ea910", "others": [], "more": 0}');
CREATE TABLE blob_files (name text, content blob);
CREATE TABLE clients (
	name VARCHAR NOT NULL, 
	declaration JSON NOT NULL, 
	counts JSON, 
	joined_at FLOAT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "clients" VALUES('ada','{"strategy": "lpsfed", "tensors": [{"name": "pooling.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.hidden.weight", "dtype": "F32", "shape": [4, 8]}, {"name": "pooling.output.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.output.weight", "dtype": "F32", "shape": [4, 4]}, {"name": "predictive.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "predictive.hidden.weight", "dtype": "F32", "shape": [4, 12]}, {"name": "predictive.output.bias", "dtype": "F32", "shape": [1]}, {"name": "predictive.output.weight", "dtype": "F32", "shape": [1, 4]}], "scalars": ["margin", "rho"], "secure": true}',NULL,1.78758668525925087933e+09);
INSERT INTO "clients" VALUES('bob','{"strategy": "lpsfed", "tensors": [{"name": "pooling.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.hidden.weight", "dtype": "F32", "shape": [4, 8]}, {"name": "pooling.output.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.output.weight", "dtype": "F32", "shape": [4, 4]}, {"name": "predictive.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "predictive.hidden.weight", "dtype": "F32", "shape": [4, 12]}, {"name": "predictive.output.bias", "dtype": "F32", "shape": [1]}, {"name": "predictive.output.weight", "dtype": "F32", "shape": [1, 4]}], "scalars": ["margin", "rho"], "secure": true}',NULL,1.78758668528034091e+09);
INSERT INTO "clients" VALUES('cyd','{"strategy": "lpsfed", "tensors": [{"name": "pooling.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.hidden.weight", "dtype": "F32", "shape": [4, 8]}, {"name": "pooling.output.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.output.weight", "dtype": "F32", "shape": [4, 4]}, {"name": "predictive.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "predictive.hidden.weight", "dtype": "F32", "shape": [4, 12]}, {"name": "predictive.output.bias", "dtype": "F32", "shape": [1]}, {"name": "predictive.output.weight", "dtype": "F32", "shape": [1, 4]}], "scalars": ["margin", "rho"], "secure": true}',NULL,1.78758668529664349559e+09);
CREATE TABLE enrolments (
	run VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	since_round INTEGER NOT NULL, 
	PRIMARY KEY (run, client), 
	FOREIGN KEY(run) REFERENCES runs (name), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
INSERT INTO "enrolments" VALUES('run-1','ada',1);
INSERT INTO "enrolments" VALUES('run-1','bob',1);
INSERT INTO "enrolments" VALUES('run-1','cyd',1);
CREATE TABLE federation (
	id INTEGER NOT NULL, 
	declaration JSON NOT NULL, 
	sequence INTEGER NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "federation" VALUES(1,'{"strategy": "lpsfed", "tensors": [{"name": "pooling.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.hidden.weight", "dtype": "F32", "shape": [4, 8]}, {"name": "pooling.output.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.output.weight", "dtype": "F32", "shape": [4, 4]}, {"name": "predictive.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "predictive.hidden.weight", "dtype": "F32", "shape": [4, 12]}, {"name": "predictive.output.bias", "dtype": "F32", "shape": [1]}, {"name": "predictive.output.weight", "dtype": "F32", "shape": [1, 4]}], "scalars": ["margin", "rho"], "secure": true}',1);
CREATE TABLE losses (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	client VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	found_at FLOAT NOT NULL, 
	PRIMARY KEY (run, round, client), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
CREATE TABLE quarantines (
	sequence INTEGER NOT NULL, 
	client VARCHAR NOT NULL, 
	cause VARCHAR NOT NULL, 
	reason VARCHAR NOT NULL, 
	run VARCHAR, 
	round INTEGER, 
	since FLOAT NOT NULL, 
	lifted_at FLOAT, 
	PRIMARY KEY (sequence), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
CREATE TABLE refusals (
	run VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	refused INTEGER NOT NULL, 
	PRIMARY KEY (run, client), 
	FOREIGN KEY(run) REFERENCES runs (name), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
CREATE TABLE rounds (
	run VARCHAR NOT NULL, 
	number INTEGER NOT NULL, 
	phase VARCHAR NOT NULL, 
	opened_at FLOAT NOT NULL, 
	closed_at FLOAT, 
	PRIMARY KEY (run, number), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
INSERT INTO "rounds" VALUES('run-1',1,'open',1.78758668532137465472e+09,NULL);
CREATE TABLE runs (
	number INTEGER NOT NULL, 
	name VARCHAR NOT NULL, 
	request JSON NOT NULL, 
	started_at FLOAT NOT NULL, 
	deadline FLOAT NOT NULL, 
	phase VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	reason VARCHAR, pledge JSON, 
	PRIMARY KEY (number), 
	UNIQUE (name)
);
INSERT INTO "runs" VALUES(1,'run-1','{"rounds": 1, "seed": 0, "clients": 3, "quorum": null, "deadline_seconds": 3600.0, "method": {"width": 4, "model": "lgcn", "catalogue": 0, "layers": 1, "cutoff": 12, "start": "exact", "fusion": true, "optimiser": "adam", "learning_rate": 0.001, "mlp_learning_rate": 3e-05, "table_learning_rate": 0.05, "decay": 0.0, "local_epochs": 1, "leave_one_out": true, "batch_size": 2048, "negatives": 16, "loss": "bc", "temperature": 0.1, "margin_strength": 1.0, "refinement": 0.25, "warmup_rounds": 2, "warmup_trains": "all", "signal": "eigenvalues", "similarity_floor": 0.0, "aggregate": "mean", "tolerated": 0, "krum_kept": 1, "clip_factor": 0.0, "quarantine_factor": 0.0, "anchor": {"graph": "gnmk", "size": "declared", "users": 40, "items": 30, "edges": 200, "every_round": false}}, "changing_members": false}',1.78758668532137465472e+09,4102444800.0,'open',1,NULL,'{"declaration": {"strategy": "lpsfed", "tensors": [{"name": "pooling.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.hidden.weight", "dtype": "F32", "shape": [4, 8]}, {"name": "pooling.output.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.output.weight", "dtype": "F32", "shape": [4, 4]}, {"name": "predictive.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "predictive.hidden.weight", "dtype": "F32", "shape": [4, 12]}, {"name": "predictive.output.bias", "dtype": "F32", "shape": [1]}, {"name": "predictive.output.weight", "dtype": "F32", "shape": [1, 4]}], "scalars": ["margin", "rho"], "secure": true}, "aggregator": "f1845c8859f4037adabcd04ab04934b91614582cf87ac9c633c863059552ac35", "start": "467ed9af9b2452c95bf4e8748d042dba7b86e130757d0864cac02135f62b8a90", "threshold": 3, "sums": [], "proven": [], "earlier": null}');
CREATE TABLE secure_messages (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	phase VARCHAR NOT NULL, 
	client VARCHAR NOT NULL, 
	message JSON NOT NULL, 
	PRIMARY KEY (run, round, phase, client), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
INSERT INTO "secure_messages" VALUES('run-1',1,'keys','ada','{"version": 2, "run": "run-1", "round": 1, "client": "ada", "signature": "06082c2dcdcb73032f7875634ecb0eb367398d4cf4f028fe07017d84d0093b407b0720772b17db9a260b92e95ea48caf879e61ffe295e2c41c1116c7355ed307", "identity": "047b6b39f76fa00d5e82d6a830c39b6e5880f4cd8cb63db4364665c90b851b0c", "deal": "f2caf95e386897406a449881d790711c3070f8319141e52acc621033e572b23d", "possession": {"challenge": "0f948a273975531b5df1304733d0976162fd3faca91692801e2cee8b26571bf5", "response": "0e7c0a1c08ec00e10f274e0f445aae4f9f5e3a34a70b8558f8c3d4eefa79b85d"}, "cipher": "a58773ec3c868acb8e5ae0d629f291267a59f21fad4881d34d114e12d7cf7920", "mask": "068320e6e589e49639c7cc7ca293ba8e6a402128b622f2c060cd1f4b38573ced", "commitment": "4c8b49a961a182a138768b82ba7a6a75222165d3e17d2dbf59f4e38a93f638be", "common": {"aggregator": "f1845c8859f4037adabcd04ab04934b91614582cf87ac9c633c863059552ac35", "start": "467ed9af9b2452c95bf4e8748d042dba7b86e130757d0864cac02135f62b8a90", "method": "37a810254384a9b084bef37e1ef7efa0c907a48a75a19c9bfbfe40cae60438de", "seed": 0, "rounds": 1, "anchor": "c4a4edbc41497b90cab2508987dec7e0b10ec4c6beb88f68e199c6bed455836d", "changing_members": false}, "noised": false, "changing_members": false}');
INSERT INTO "secure_messages" VALUES('run-1',1,'keys','bob','{"version": 2, "run": "run-1", "round": 1, "client": "bob", "signature": "72cac78eca405b5b0cfeead10f1c3fceaa9e8b237a806fa9978f5231eeaab3569c93414392ec055128ee9a4b0e356e286718deee9119539633b7fec5c5146005", "identity": "ecc1b58727f3f12b3194881a9ecb9de0b28ce7b207230d8e930fe1bce75e256c", "deal": "5860f3f7ad3eb888c6980aeed3d83b55f8bfdc2b600482613aaf650798e2f638", "possession": {"challenge": "0ad1cb4479e3eea183a3f5cb062f4860d52521dbdcbec0b5ec77d54837cfa252", "response": "0e9cb1eee5cbfc8cedef8199efd68f2c09e4a92d8cbdd7d4b254c61947fce8a0"}, "cipher": "afaf89f61e8bb3d1427d3484db2afb9ed9dae1a05b0333d47f5e01116c311239", "mask": "2821db477403d8d9c5a87d9d5bc3eb6e77e1f056605bacec8b72d5b8273213b5", "commitment": "ca5856c1ba6e9c912c028e4d456be2a552055028a9971fc2f37a02a06cc9a67b", "common": {"aggregator": "f1845c8859f4037adabcd04ab04934b91614582cf87ac9c633c863059552ac35", "start": "467ed9af9b2452c95bf4e8748d042dba7b86e130757d0864cac02135f62b8a90", "method": "37a810254384a9b084bef37e1ef7efa0c907a48a75a19c9bfbfe40cae60438de", "seed": 0, "rounds": 1, "anchor": "c4a4edbc41497b90cab2508987dec7e0b10ec4c6beb88f68e199c6bed455836d", "changing_members": false}, "noised": false, "changing_members": false}');
CREATE TABLE secure_rounds (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	phase VARCHAR NOT NULL, 
	terms JSON NOT NULL, 
	PRIMARY KEY (run, round), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number)
);
INSERT INTO "secure_rounds" VALUES('run-1',1,'keys','{"version": 2, "run": "run-1", "round": 1, "threshold": 3, "declaration": {"strategy": "lpsfed", "tensors": [{"name": "pooling.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.hidden.weight", "dtype": "F32", "shape": [4, 8]}, {"name": "pooling.output.bias", "dtype": "F32", "shape": [4]}, {"name": "pooling.output.weight", "dtype": "F32", "shape": [4, 4]}, {"name": "predictive.hidden.bias", "dtype": "F32", "shape": [4]}, {"name": "predictive.hidden.weight", "dtype": "F32", "shape": [4, 12]}, {"name": "predictive.output.bias", "dtype": "F32", "shape": [1]}, {"name": "predictive.output.weight", "dtype": "F32", "shape": [1, 4]}], "scalars": ["margin", "rho"], "secure": true}, "common": {"aggregator": "f1845c8859f4037adabcd04ab04934b91614582cf87ac9c633c863059552ac35", "start": "467ed9af9b2452c95bf4e8748d042dba7b86e130757d0864cac02135f62b8a90", "method": "37a810254384a9b084bef37e1ef7efa0c907a48a75a19c9bfbfe40cae60438de", "seed": 0, "rounds": 1, "anchor": "c4a4edbc41497b90cab2508987dec7e0b10ec4c6beb88f68e199c6bed455836d", "changing_members": false}}');
CREATE TABLE states (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	digest VARCHAR NOT NULL, 
	latest JSON NOT NULL, 
	blob VARCHAR, 
	PRIMARY KEY (run, round), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number)
);
CREATE TABLE sums (
	start VARCHAR NOT NULL, 
	method VARCHAR NOT NULL, 
	seed INTEGER NOT NULL, 
	run VARCHAR NOT NULL, 
	members JSON NOT NULL, 
	PRIMARY KEY (start), 
	FOREIGN KEY(run) REFERENCES runs (name)
);
CREATE TABLE updates (
	run VARCHAR NOT NULL, 
	round INTEGER NOT NULL, 
	client VARCHAR NOT NULL, 
	digest VARCHAR NOT NULL, 
	size INTEGER NOT NULL, 
	received_at FLOAT NOT NULL, 
	scalars JSON NOT NULL, 
	blob VARCHAR, 
	PRIMARY KEY (run, round, client), 
	FOREIGN KEY(run, round) REFERENCES rounds (run, number), 
	FOREIGN KEY(client) REFERENCES clients (name)
);
CREATE INDEX quarantines_by_client ON quarantines (client, lifted_at);
CREATE INDEX arrivals_by_client ON arrivals (client, status);
COMMIT;
