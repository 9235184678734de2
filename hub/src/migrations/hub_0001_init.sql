-- The state store: catalog, devices and their progress, history, outbox, ranges.
-- State rows live in tables of their own, one a dataspace, made when the dataspace is.

CREATE TABLE hub_state (k TEXT PRIMARY KEY, v NOT NULL) WITHOUT ROWID;

-- One line each time the store is opened to serve. outbox_before: the highest outbox id until then.
CREATE TABLE terms (
    ordinal INTEGER PRIMARY KEY,
    term INTEGER NOT NULL UNIQUE,
    outbox_before INTEGER NOT NULL,
    opened_at INTEGER NOT NULL
);

CREATE TABLE projects (id TEXT PRIMARY KEY, created_at INTEGER NOT NULL) WITHOUT ROWID;
INSERT INTO projects (id, created_at) VALUES ('default', unixepoch() * 1000);

CREATE TABLE tokens (
    id INTEGER PRIMARY KEY,
    project TEXT NOT NULL REFERENCES projects (id),
    sha256 BLOB NOT NULL UNIQUE,
    kind TEXT NOT NULL CHECK (kind IN ('device', 'api')),
    name TEXT NOT NULL,
    roles TEXT NOT NULL,
    created_at INTEGER NOT NULL
);

CREATE TABLE dataspaces (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL UNIQUE,
    project TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL COLLATE NOCASE,
    modality TEXT NOT NULL,
    authority TEXT NOT NULL,
    scope TEXT NOT NULL,
    layout TEXT NOT NULL,
    natural_key TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    UNIQUE (project, name)
);

CREATE TABLE fields (
    dataspace INTEGER NOT NULL REFERENCES dataspaces (number),
    position INTEGER NOT NULL,
    name TEXT NOT NULL COLLATE NOCASE,
    type TEXT NOT NULL,
    PRIMARY KEY (dataspace, position),
    UNIQUE (dataspace, name)
) WITHOUT ROWID;

CREATE TABLE devices (
    project TEXT NOT NULL REFERENCES projects (id),
    name TEXT NOT NULL,
    source_id BLOB UNIQUE,
    last_seen INTEGER,
    PRIMARY KEY (project, name)
) WITHOUT ROWID;

-- ceiling: no version that was given to a row of this database is higher.
CREATE TABLE databases (
    number INTEGER PRIMARY KEY,
    device BLOB NOT NULL,
    name TEXT NOT NULL,
    ceiling INTEGER NOT NULL,
    applied_term INTEGER NOT NULL DEFAULT 0,
    applied_hi INTEGER NOT NULL DEFAULT 0,
    applied_lo INTEGER NOT NULL DEFAULT 0,
    highest INTEGER NOT NULL DEFAULT 0,
    UNIQUE (device, name)
);

CREATE TABLE epochs (
    number INTEGER PRIMARY KEY,
    database INTEGER NOT NULL REFERENCES databases (number),
    epoch BLOB NOT NULL,
    instance BLOB NOT NULL,
    base INTEGER NOT NULL,
    opened_at INTEGER NOT NULL,
    closed_at INTEGER,
    UNIQUE (database, epoch)
);

CREATE UNIQUE INDEX epochs_open ON epochs (database) WHERE closed_at IS NULL;

CREATE TABLE lanes (
    epoch INTEGER NOT NULL REFERENCES epochs (number),
    lane TEXT NOT NULL,
    watermark INTEGER NOT NULL,
    token BLOB NOT NULL,
    head INTEGER NOT NULL,
    last_receipt INTEGER NOT NULL,
    applied INTEGER NOT NULL DEFAULT 0,
    duplicate INTEGER NOT NULL DEFAULT 0,
    stale INTEGER NOT NULL DEFAULT 0,
    diverged INTEGER NOT NULL DEFAULT 0,
    conflict INTEGER NOT NULL DEFAULT 0,
    rejected INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (epoch, lane)
) WITHOUT ROWID;

-- Ranges above the watermark that wait for one before them.
CREATE TABLE waiting_ranges (
    epoch INTEGER NOT NULL REFERENCES epochs (number),
    lane TEXT NOT NULL,
    prev INTEGER NOT NULL,
    last INTEGER NOT NULL,
    token BLOB NOT NULL,
    PRIMARY KEY (epoch, lane, prev)
) WITHOUT ROWID;

-- The receipts of the newest ranges: a batch that comes again is answered from here.
CREATE TABLE ranges (
    id INTEGER PRIMARY KEY,
    epoch INTEGER NOT NULL REFERENCES epochs (number),
    lane TEXT NOT NULL,
    prev INTEGER NOT NULL,
    last INTEGER NOT NULL,
    digest BLOB NOT NULL,
    term INTEGER NOT NULL,
    row_count INTEGER NOT NULL,
    outcomes TEXT NOT NULL,
    UNIQUE (epoch, lane, prev, last, digest)
);

CREATE TABLE lineages (
    number INTEGER PRIMARY KEY,
    database INTEGER NOT NULL REFERENCES databases (number),
    table_name TEXT NOT NULL,
    dataspace INTEGER REFERENCES dataspaces (number),
    spec TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    status TEXT NOT NULL,
    message TEXT,
    paused INTEGER NOT NULL DEFAULT 0,
    snapshot INTEGER NOT NULL DEFAULT 0,
    device_status TEXT,
    pending INTEGER,
    quarantine INTEGER NOT NULL DEFAULT 0,
    UNIQUE (database, table_name)
);

-- Rows that could not be stored: the newest of each key.
CREATE TABLE orphans (
    database INTEGER NOT NULL REFERENCES databases (number),
    table_name TEXT NOT NULL,
    natural_key TEXT NOT NULL,
    version INTEGER NOT NULL,
    code TEXT NOT NULL,
    message TEXT NOT NULL,
    value TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (database, table_name, natural_key)
);

CREATE INDEX orphans_at ON orphans (at);

-- Rows of the feed that a device did not apply: the newest of each key.
CREATE TABLE down_outcomes (
    database INTEGER NOT NULL REFERENCES databases (number),
    table_name TEXT NOT NULL,
    natural_key TEXT NOT NULL,
    version INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    message TEXT NOT NULL,
    at INTEGER NOT NULL,
    PRIMARY KEY (database, table_name, natural_key)
);

-- What was decided about a row, by whom and on what ground.
CREATE TABLE history (
    id INTEGER PRIMARY KEY,
    dataspace INTEGER NOT NULL REFERENCES dataspaces (number),
    source_id BLOB NOT NULL,
    natural_key TEXT NOT NULL,
    version INTEGER NOT NULL,
    row_hash BLOB NOT NULL,
    op TEXT NOT NULL CHECK (op IN ('put', 'delete')),
    outcome TEXT NOT NULL,
    author TEXT NOT NULL,
    identity_strength TEXT NOT NULL,
    evidence TEXT,
    expected_version INTEGER,
    based_on TEXT,
    inferred INTEGER NOT NULL DEFAULT 0,
    invocation TEXT,
    value TEXT,
    at INTEGER NOT NULL
);

CREATE INDEX history_row ON history (dataspace, source_id, natural_key, version);
CREATE INDEX history_at ON history (at);

-- The feed: (kind, container, item) changed. Ids rise in commit order and are never reused.
-- superseded: a later entry of the same item follows.
CREATE TABLE outbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    term INTEGER NOT NULL,
    kind TEXT NOT NULL,
    container INTEGER NOT NULL,
    source_id BLOB NOT NULL,
    natural_key TEXT NOT NULL,
    version INTEGER NOT NULL,
    superseded INTEGER NOT NULL DEFAULT 0,
    at INTEGER NOT NULL
);

CREATE INDEX outbox_feed ON outbox (container, source_id, id) WHERE superseded = 0;
CREATE UNIQUE INDEX outbox_newest ON outbox (container, source_id, natural_key)
    WHERE superseded = 0;
CREATE INDEX outbox_superseded ON outbox (at) WHERE superseded = 1;
