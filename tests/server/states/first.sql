BEGIN TRANSACTION;
CREATE TABLE answers (id TEXT PRIMARY KEY, answer TEXT NOT NULL, created REAL NOT NULL);
INSERT INTO "answers" VALUES('k','kept',1.0);
CREATE TABLE audit (
        n INTEGER PRIMARY KEY, time REAL NOT NULL, owner TEXT NOT NULL, event TEXT NOT NULL,
        model_id TEXT, tinker_path TEXT, details TEXT NOT NULL
    );
INSERT INTO "audit" VALUES(1,2.0,'ann','checkpoint.created',NULL,'tinker://a/weights/b','{}');
CREATE TABLE checkpoints (
        path TEXT PRIMARY KEY, run_id TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
        owner TEXT NOT NULL, base_model TEXT NOT NULL, rank INTEGER NOT NULL, created REAL NOT NULL,
        size INTEGER NOT NULL, folder TEXT NOT NULL, train_attn INTEGER NOT NULL,
        train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL, optimizer TEXT NOT NULL,
        version TEXT NOT NULL, public INTEGER NOT NULL, expires REAL, user_metadata TEXT,
        project_id TEXT, session_id TEXT NOT NULL
    ) WITHOUT ROWID
    ;
INSERT INTO "checkpoints" VALUES('tinker://a/weights/b','s:train:0','training','b','ann','tiny',8,1.0,100,'checkpoints/a/b',1,1,1,'{"type":"adamw"}','',0,NULL,NULL,NULL,'s');
CREATE TABLE losses (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, created REAL NOT NULL,
        name TEXT NOT NULL, definition TEXT NOT NULL
    );
INSERT INTO "losses" VALUES('l','s','ann',1.0,'mine','{}');
CREATE TABLE migrations (name TEXT PRIMARY KEY, applied REAL NOT NULL);
INSERT INTO "migrations" VALUES('first',1.0);
CREATE TABLE models (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL,
        created REAL NOT NULL, last_request REAL NOT NULL, rank INTEGER NOT NULL, seed INTEGER NOT NULL,
        train_attn INTEGER NOT NULL, train_mlp INTEGER NOT NULL, train_unembed INTEGER NOT NULL,
        optimizer TEXT NOT NULL, user_metadata TEXT, state TEXT NOT NULL, note TEXT NOT NULL,
        watermark INTEGER NOT NULL, snapshot INTEGER NOT NULL, skipped TEXT NOT NULL
    ) WITHOUT ROWID
    ;
INSERT INTO "models" VALUES('s:train:0','s','ann','tiny',1.0,1.0,8,7,1,1,1,'{"type":"adamw"}',NULL,'live','',1,-1,'[7]');
CREATE TABLE operations (
        n INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, model_id TEXT NOT NULL, seq INTEGER NOT NULL,
        kind TEXT NOT NULL, owner TEXT NOT NULL, arrived REAL NOT NULL, content TEXT NOT NULL,
        body_file TEXT, body BLOB
    );
INSERT INTO "operations" VALUES(1,'s:train:0:1','s:train:0',1,'forward_backward','ann',2.0,'json',NULL,X'61736B6564');
INSERT INTO "operations" VALUES(2,'s:train:0:2','s:train:0',2,'forward_backward','ann',2.0,'json',NULL,X'61736B6564');
CREATE TABLE outcomes (
        n INTEGER PRIMARY KEY, state TEXT NOT NULL, ended REAL, form TEXT NOT NULL, error TEXT NOT NULL,
        category TEXT NOT NULL, result_file TEXT, result BLOB NOT NULL
    );
INSERT INTO "outcomes" VALUES(1,'done',3.0,'json','','',NULL,X'676F74');
CREATE TABLE samplers (
        id TEXT PRIMARY KEY, session_id TEXT NOT NULL, owner TEXT NOT NULL, base_model TEXT NOT NULL,
        created REAL NOT NULL, model_path TEXT, model_id TEXT, version TEXT NOT NULL,
        folder TEXT NOT NULL, joined INTEGER NOT NULL
    ) WITHOUT ROWID
    ;
INSERT INTO "samplers" VALUES('s:sample:0','s','ann','tiny',1.0,NULL,NULL,'','',0);
CREATE TABLE sessions (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, created REAL NOT NULL, last_seen REAL NOT NULL,
        tags TEXT NOT NULL, user_metadata TEXT NOT NULL, sdk_version TEXT NOT NULL, project_id TEXT,
        display_name TEXT, status TEXT NOT NULL, reason TEXT, detail TEXT, ended REAL
    ) WITHOUT ROWID
    ;
INSERT INTO "sessions" VALUES('s','ann',1.0,1.0,'["a"]','{"n":1}','',NULL,NULL,'active',NULL,NULL,NULL);
CREATE TABLE usage (
        owner TEXT NOT NULL, hour INTEGER NOT NULL, kind TEXT NOT NULL, session_id TEXT NOT NULL,
        base_model TEXT NOT NULL, project_id TEXT NOT NULL, count INTEGER NOT NULL,
        PRIMARY KEY (owner, hour, kind, session_id, base_model, project_id)
    ) WITHOUT ROWID
    ;
INSERT INTO "usage" VALUES('ann',3,'training','s','tiny','',12);
CREATE INDEX sessions_of_owner ON sessions (owner, created, id);
CREATE INDEX sessions_live ON sessions (created, id) WHERE status = 'active';
CREATE INDEX models_of_owner ON models (owner, created, id);
CREATE INDEX models_of_session ON models (session_id);
CREATE INDEX samplers_of_session ON samplers (session_id);
CREATE INDEX checkpoints_of_owner ON checkpoints (owner, created, path);
CREATE INDEX checkpoints_of_run ON checkpoints (run_id, created, path);
CREATE INDEX checkpoints_of_session ON checkpoints (session_id);
CREATE INDEX checkpoints_that_expire ON checkpoints (expires, path) WHERE expires IS NOT NULL;
CREATE INDEX losses_of_session ON losses (session_id);
CREATE INDEX operations_of_model ON operations (model_id, seq);
CREATE INDEX operations_with_body ON operations (model_id, seq) WHERE body IS NOT NULL;
CREATE INDEX operations_with_file ON operations (body_file) WHERE body_file IS NOT NULL;
CREATE INDEX outcomes_by_time ON outcomes (ended);
CREATE INDEX outcomes_with_file ON outcomes (result_file) WHERE result_file IS NOT NULL;
CREATE INDEX answers_by_time ON answers (created);
CREATE INDEX audit_of_owner ON audit (owner, time);
COMMIT;
