//! A device with cloud-authoritative tables, for the tests of apply, parked and local: a real file,
//! a real handle on it, and connections as an application opens them. The hub's side is played by
//! the test: it packs rows into batches and says where the feed stands.

use std::path::{Path, PathBuf};
use std::time::Duration;

use capture::config::{DatabaseConfig, TableConfig};
use capture::{ApplyOutcome, Capture, QuarantinedRow};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sync_proto::continuity::Continuity;
use sync_proto::message::{
    DownBatch, DownReceipt, Limits, Outcome, TableState, TableStatus, Welcome,
};
use sync_proto::rows::{Row, TableRows, pack};
use sync_proto::schema::{Authority, Modality};
use sync_proto::{Cursor, Incarnation, SourceId, Value, Version};
use tempfile::TempDir;
use uuid::Uuid;

/// A device, its file and its agent's handle.
pub(crate) struct Device {
    pub(crate) capture: Capture,
    config: DatabaseConfig,
    dir: TempDir,
    cursor: Cursor,
    adopt: bool,
}

impl Device {
    /// The journal that the application chose.
    fn set_journal(app: &Connection, mode: &str) {
        let set: String =
            app.query_row(&format!("PRAGMA journal_mode = {mode}"), [], |row| row.get(0)).unwrap();
        assert_eq!(set, mode);
    }

    /// Like [`Device::new`], with a rollback journal instead of a write-ahead log.
    pub(crate) fn with_rollback_journal(schema: &str, cloud: &[&str]) -> Self {
        let device = Self::new(schema, cloud);
        // Only a single connection may change the mode.
        let Self { capture, config, dir, cursor, adopt } = device;
        drop(capture);
        Self::set_journal(&connect(&config.path), "delete");
        let capture = open(&config, dir.path());
        Self { capture, config, dir, cursor, adopt }
    }

    /// A file with this schema whose named tables are cloud-authoritative, welcomed and attached.
    pub(crate) fn new(schema: &str, cloud: &[&str]) -> Self {
        let overrides = cloud.iter().map(|name| cloud_table(name)).collect();
        Self::with(schema, overrides, false)
    }

    /// Like [`Device::new`], with tables as given; `adopt`: the hub has nothing of them yet.
    pub(crate) fn with(schema: &str, overrides: Vec<TableConfig>, adopt: bool) -> Self {
        let mut device = Self::unwelcomed(schema, overrides, adopt);
        device.welcome();
        device.settle();
        device
    }

    /// Like [`Device::with`], before the hub spoke.
    pub(crate) fn unwelcomed(schema: &str, overrides: Vec<TableConfig>, adopt: bool) -> Self {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("app.db");
        let app = connect(&path);
        Self::set_journal(&app, "wal");
        app.execute_batch(schema).unwrap();
        Self::open(dir, path, overrides, adopt)
    }

    fn open(dir: TempDir, path: PathBuf, overrides: Vec<TableConfig>, adopt: bool) -> Self {
        let config = DatabaseConfig {
            name: "app".to_owned(),
            path,
            tables: Vec::new(),
            exclude: Vec::new(),
            overrides,
        };
        let capture = open(&config, dir.path());
        Self { capture, config, dir, cursor: Cursor::ZERO, adopt }
    }

    /// A device whose file is a copy of another one's, from before its feed moved.
    pub(crate) fn on_copy(copy: &Path, cloud: &[&str]) -> Self {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("app.db");
        std::fs::copy(copy, &path).unwrap();
        let mut device =
            Self::open(dir, path, cloud.iter().map(|name| cloud_table(name)).collect(), false);
        device.welcome();
        device
    }

    /// The hub's Welcome.
    pub(crate) fn welcome(&mut self) {
        let same = Continuity::Same { lost_receipts: Vec::new() };
        self.welcome_as(&TableState::Flowing, &same);
    }

    /// The Welcome of a hub that has lost what it had; its feed starts over.
    pub(crate) fn welcome_after_loss(&mut self, adopt: bool) {
        self.adopt = adopt;
        self.cursor = Cursor::ZERO;
        self.welcome_as(&TableState::Flowing, &Continuity::HubLost);
    }

    /// A Welcome with this state for every table.
    pub(crate) fn welcome_as(&mut self, state: &TableState, continuity: &Continuity) {
        let facts = self.capture.facts().unwrap();
        let tables = facts.hello.tables.iter().map(|table| TableStatus {
            table: table.name.clone(),
            state: state.clone(),
            adopt: self.adopt,
        });
        let welcome = Welcome {
            database: facts.hello.database.clone(),
            epoch: facts.hello.epoch,
            incarnation: Incarnation(Uuid::from_u128(7)),
            term: 1,
            base: Version(0),
            generation: 1,
            lanes: Vec::new(),
            tables: tables.collect(),
            limits: Limits {
                frame_bytes_max: 1 << 24,
                batch_bytes_max: 1 << 20,
                batch_rows_max: 16_384,
                window: 4,
            },
        };
        self.capture.adopt_welcome(&welcome, continuity).unwrap();
    }

    /// The agent's process ends and starts again.
    pub(crate) fn restart(self) -> Self {
        let Self { capture, config, dir, cursor, adopt } = self;
        drop(capture);
        let capture = open(&config, dir.path());
        Self { capture, config, dir, cursor, adopt }
    }

    /// Housekeeping until nothing is left to do.
    pub(crate) fn settle(&mut self) {
        for _step in 0..2_000 {
            match self.capture.housekeep().unwrap().again {
                Some(pause) => std::thread::sleep(pause.min(Duration::from_millis(50))),
                None => return,
            }
        }
        panic!("housekeeping does not come to an end");
    }

    /// The file's path.
    pub(crate) fn path(&self) -> &Path {
        &self.config.path
    }

    /// A connection as the application opens it.
    pub(crate) fn app(&self) -> Connection {
        connect(&self.config.path)
    }

    /// The next batch of the feed with these rows.
    pub(crate) fn batch(&self, tables: &[TableRows]) -> DownBatch {
        let next = Cursor { term: 1, hi: self.cursor.hi + 1, lo: 0 };
        DownBatch {
            database: "app".to_owned(),
            prev: self.cursor,
            next,
            generation: 1,
            rows: pack(tables).unwrap(),
        }
    }

    /// Applies a batch, which has to be taken.
    pub(crate) fn apply(&mut self, batch: &DownBatch) -> DownReceipt {
        match self.capture.apply(batch).unwrap() {
            ApplyOutcome::Applied(receipt) => {
                self.cursor = receipt.cursor;
                receipt
            }
            ApplyOutcome::Misplaced(cursor) => panic!("the file stands at {cursor}"),
        }
    }

    /// Sends rows down in a batch of their own.
    pub(crate) fn down(&mut self, tables: &[TableRows]) -> DownReceipt {
        let batch = self.batch(tables);
        self.apply(&batch)
    }

    /// Sends rows down, all of which have to be applied.
    pub(crate) fn take(&mut self, tables: &[TableRows]) {
        assert_eq!(self.down(tables).outcomes, []);
    }

    /// The rows of a query, exact.
    pub(crate) fn rows(&self, sql: &str) -> Vec<Vec<Value>> {
        query(&self.app(), sql)
    }

    /// What is set aside.
    pub(crate) fn quarantine(&mut self) -> Vec<QuarantinedRow> {
        self.capture.quarantine().unwrap()
    }

    /// (key, code) of what is set aside.
    pub(crate) fn parked(&mut self) -> Vec<(String, String)> {
        self.quarantine().into_iter().map(|row| (row.key, row.code)).collect()
    }

    /// The bytes of the file and of its write-ahead log.
    pub(crate) fn bytes(&self) -> (Vec<u8>, Vec<u8>) {
        let wal = self.config.path.with_file_name("app.db-wal");
        (std::fs::read(&self.config.path).unwrap(), std::fs::read(wal).unwrap_or_default())
    }
}

fn open(config: &DatabaseConfig, dir: &Path) -> Capture {
    let state: PathBuf = dir.join("state");
    std::fs::create_dir_all(&state).unwrap();
    Capture::open(config, &state, SourceId(Uuid::from_u128(1))).unwrap()
}

/// A connection as an application opens it.
pub(crate) fn connect(path: &Path) -> Connection {
    let app = Connection::open(path).unwrap();
    app.busy_timeout(Duration::from_millis(100)).unwrap();
    app.pragma_update(None, "foreign_keys", true).unwrap();
    app
}

/// A cloud-authoritative table.
pub(crate) fn cloud_table(name: &str) -> TableConfig {
    TableConfig { modality: Modality::State, authority: Authority::Cloud, ..TableConfig::new(name) }
}

/// The rows of a query, exact.
pub(crate) fn query(conn: &Connection, sql: &str) -> Vec<Vec<Value>> {
    let mut statement = conn.prepare(sql).unwrap();
    let width = statement.column_count();
    let mut rows = statement.query([]).unwrap();
    let mut found = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let values = (0..width).map(|column| match row.get_ref(column).unwrap() {
            ValueRef::Null => Value::Null,
            ValueRef::Integer(n) => Value::Int(n),
            ValueRef::Real(n) => Value::Real(n),
            ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
            ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
        });
        found.push(values.collect());
    }
    found
}

/// Rows of one table whose first column is its key.
pub(crate) fn table(name: &str, columns: &[&str], rows: Vec<Row>) -> TableRows {
    keyed(name, columns, &[0], rows)
}

/// Rows of one table.
pub(crate) fn keyed(name: &str, columns: &[&str], key: &[u16], rows: Vec<Row>) -> TableRows {
    TableRows {
        table: name.to_owned(),
        columns: columns.iter().map(|&name| name.to_owned()).collect(),
        key: key.to_vec(),
        rows,
    }
}

/// A row of this version.
pub(crate) fn put(version: i64, values: Vec<Value>) -> Row {
    Row { number: version, base: None, values, deleted: false }
}

/// A delete of this version; only the key among the values counts.
pub(crate) fn gone(version: i64, values: Vec<Value>) -> Row {
    Row { number: version, base: None, values, deleted: true }
}

/// An integer.
pub(crate) fn int(n: i64) -> Value {
    Value::Int(n)
}

/// A text.
pub(crate) fn text(text: &str) -> Value {
    Value::text(text)
}

/// (key, outcome's name, code of a rejection) of every row that was not applied.
pub(crate) fn outcomes(receipt: &DownReceipt) -> Vec<(&str, &'static str, &str)> {
    let outcomes = receipt.outcomes.iter();
    outcomes.map(|row| (row.key.as_str(), row.outcome.name(), code(&row.outcome))).collect()
}

fn code(outcome: &Outcome) -> &str {
    if let Outcome::Rejected(reason) = outcome { &reason.code } else { "" }
}
