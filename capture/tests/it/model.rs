//! A device and a hub for the tests of the way up: a real file with a real handle on it, and a hub
//! that is a map under the one version rule. The hub checks what may never happen: one (row,
//! version) with two contents, a version that falls, a range that does not chain.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use capture::config::{DatabaseConfig, TableConfig};
use capture::{Capture, TailBounds};
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use sync_proto::continuity::{Continuity, compare};
use sync_proto::limits::BATCH_TARGET_BYTES;
use sync_proto::message::{
    Hello, LanePosition, Limits, Outcome, Receipt, RowOutcome, TableState, TableStatus, ToHub,
    UpBatch, Welcome,
};
use sync_proto::range::{LaneProgress, Offer};
use sync_proto::session::OutBatch;
use sync_proto::{
    Epoch, Incarnation, Lane, NaturalKey, RowHash, Seq, SourceId, Stamp, Token, Value, Verdict,
    Version, decide, rows, wire,
};
use tempfile::TempDir;
use uuid::Uuid;

/// The row as the hub holds it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) version: Version,
    pub(crate) hash: RowHash,
    /// Values by column; none for a tombstone.
    pub(crate) values: Option<BTreeMap<String, Value>>,
    pub(crate) base: Option<Version>,
}

/// A hub that is a map.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) incarnation: Incarnation,
    pub(crate) rows: BTreeMap<(String, String), Stored>,
    pub(crate) states: BTreeMap<String, TableState>,
    pub(crate) adopt: bool,
    /// Outcomes to answer instead of the rule's, by key text, once each.
    pub(crate) answers: BTreeMap<String, Outcome>,
    pub(crate) last_welcome: Option<Welcome>,
    pub(crate) heads: BTreeMap<Lane, Seq>,
    pub(crate) counts: BTreeMap<&'static str, usize>,
    pub(crate) batches: Vec<UpBatch>,
    bases: BTreeMap<Epoch, Version>,
    lanes: BTreeMap<(Epoch, Lane), LaneProgress>,
    contents: BTreeMap<(String, String, Version), RowHash>,
}

impl Hub {
    pub(crate) fn new() -> Self {
        Self {
            incarnation: Incarnation(Uuid::new_v4()),
            rows: BTreeMap::new(),
            states: BTreeMap::new(),
            adopt: false,
            answers: BTreeMap::new(),
            last_welcome: None,
            heads: BTreeMap::new(),
            counts: BTreeMap::new(),
            batches: Vec::new(),
            bases: BTreeMap::new(),
            lanes: BTreeMap::new(),
            contents: BTreeMap::new(),
        }
    }

    pub(crate) fn greet(&mut self, hello: &Hello) -> Welcome {
        let highest = self.rows.values().map(|row| row.version).max().unwrap_or_default();
        let first = self.bases.is_empty();
        let base = *self.bases.entry(hello.epoch).or_insert_with(|| {
            if first { Version(0) } else { Version(highest.max(hello.floor).0 + 1) }
        });
        let lanes = Lane::ALL
            .iter()
            .filter_map(|lane| self.lanes.get(&(hello.epoch, *lane)))
            .map(LaneProgress::watermark)
            .filter(|position| position.seq > Seq::ZERO)
            .collect();
        let tables = hello.tables.iter().map(|table| TableStatus {
            table: table.name.clone(),
            state: self.states.get(&table.name).cloned().unwrap_or(TableState::Flowing),
            adopt: self.adopt,
        });
        let welcome = Welcome {
            database: hello.database.clone(),
            epoch: hello.epoch,
            incarnation: self.incarnation,
            term: 1,
            base,
            generation: 1,
            lanes,
            tables: tables.collect(),
            limits: Limits {
                frame_bytes_max: 17 << 20,
                batch_bytes_max: 16 << 20,
                batch_rows_max: 16_384,
                window: 4,
            },
        };
        self.last_welcome = Some(welcome.clone());
        welcome
    }

    /// Stores a frame's rows, and answers its receipt.
    pub(crate) fn take(&mut self, frame: &[u8]) -> Receipt {
        let ToHub::Up(batch) = wire::decode_to_hub(frame).unwrap() else {
            panic!("a frame of fill is an UpBatch");
        };
        let base = self.bases[&batch.epoch];
        let start = LanePosition { lane: batch.lane, seq: Seq::ZERO, token: Token::default() };
        let lane = self
            .lanes
            .entry((batch.epoch, batch.lane))
            .or_insert_with(|| LaneProgress::new(start, Vec::new()));
        match lane.offer(batch.prev, batch.last, batch.token) {
            Offer::Extended { .. } | Offer::Pending | Offer::Duplicate => {}
            refused @ (Offer::Full | Offer::Invalid) => panic!("{refused:?}: {batch:?}"),
        }
        let watermark = lane.watermark().seq;
        let head = self.heads.entry(batch.lane).or_default();
        *head = batch.head.max(*head);
        assert!(batch.head >= batch.last, "the head is the greatest label: {batch:?}");
        let mut outcomes = Vec::new();
        let mut numbers = Vec::new();
        for table in rows::unpack(&batch.rows).unwrap() {
            for row in &table.rows {
                let seq = Seq(row.number);
                assert!(seq > batch.prev && seq <= batch.last, "{seq} in {batch:?}");
                numbers.push(seq);
                let outcome = self.take_row(&table, row, Version::of(base, seq).unwrap());
                *self.counts.entry(outcome.name()).or_default() += 1;
                if outcome != Outcome::Applied {
                    outcomes.push(RowOutcome { seq, outcome });
                }
            }
        }
        assert_eq!(numbers.iter().max(), Some(&batch.last), "the last row ends the range");
        let receipt = Receipt {
            database: batch.database.clone(),
            epoch: batch.epoch,
            lane: batch.lane,
            prev: batch.prev,
            last: batch.last,
            digest: batch.rows.digest,
            watermark,
            term: 1,
            outcomes,
        };
        self.batches.push(batch);
        receipt
    }

    fn take_row(&mut self, table: &rows::TableRows, row: &rows::Row, version: Version) -> Outcome {
        let key = table.key_of(row);
        let hash = table.hash_of(row);
        let content = (table.table.clone(), key.as_str().to_owned(), version);
        let known = *self.contents.entry(content).or_insert(hash);
        assert_eq!(known, hash, "{} {key} {version}: two contents", table.table);
        if let Some(outcome) = self.answers.remove(key.as_str()) {
            return outcome;
        }
        let at = (table.table.clone(), key.as_str().to_owned());
        let stored = self.rows.get(&at);
        if row.base.is_some_and(|base| stored.is_some_and(|stored| stored.version != base)) {
            return Outcome::Conflict;
        }
        let stamp = stored.map(|row| Stamp { version: row.version, hash: row.hash });
        match decide(stamp, Stamp { version, hash }) {
            Verdict::Apply => {
                let values = (!row.deleted).then(|| {
                    table.columns.iter().cloned().zip(row.values.iter().cloned()).collect()
                });
                self.rows.insert(at, Stored { version, hash, values, base: row.base });
                Outcome::Applied
            }
            Verdict::Duplicate => Outcome::Duplicate,
            Verdict::Stale => Outcome::Stale,
            Verdict::Diverged => Outcome::Diverged,
            Verdict::OutOfRange => panic!("{version} of {key} is out of range"),
        }
    }

    /// The rows of a table that are not deleted, by key text.
    pub(crate) fn live(&self, table: &str) -> BTreeMap<String, BTreeMap<String, Value>> {
        self.rows
            .iter()
            .filter(|((name, _), _)| name == table)
            .filter_map(|((_, key), row)| Some((key.clone(), row.values.clone()?)))
            .collect()
    }

    pub(crate) fn watermark(&self, epoch: Epoch, lane: Lane) -> Seq {
        self.lanes.get(&(epoch, lane)).map_or(Seq::ZERO, |lane| lane.watermark().seq)
    }
}

/// A device: an application's file and the agent's handle on it.
pub(crate) struct Device {
    pub(crate) capture: Capture,
    pub(crate) config: DatabaseConfig,
    pub(crate) hub: Hub,
    pub(crate) dir: TempDir,
    bounds: TailBounds,
    ends: BTreeMap<Lane, Seq>,
}

impl Device {
    /// A file with this schema in WAL mode, every table enrolled, welcomed.
    pub(crate) fn new(schema: &str) -> Self {
        Self::with(schema, |_config| {})
    }

    /// Like [`Device::new`], with another configuration.
    pub(crate) fn with(schema: &str, adjust: impl FnOnce(&mut DatabaseConfig)) -> Self {
        let dir = folder();
        let path = dir.path().join("app.db");
        connect(&path).execute_batch(&format!("PRAGMA journal_mode = WAL; {schema}")).unwrap();
        Self::on(dir, adjust)
    }

    /// A device on a file `app.db` that is in the folder already.
    pub(crate) fn on(dir: TempDir, adjust: impl FnOnce(&mut DatabaseConfig)) -> Self {
        Self::meet(dir, Hub::new(), adjust)
    }

    /// Like [`Device::on`], with a hub that may know more.
    pub(crate) fn meet(dir: TempDir, hub: Hub, adjust: impl FnOnce(&mut DatabaseConfig)) -> Self {
        let mut config = config(&dir.path().join("app.db"));
        adjust(&mut config);
        let capture = open(&config, dir.path());
        let bounds = TailBounds::default();
        let mut device = Self { capture, config, hub, dir, bounds, ends: BTreeMap::new() };
        device.greet();
        device
    }

    /// The agent ends; the file stays.
    pub(crate) fn close(self) -> TempDir {
        self.dir
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.config.path.clone()
    }

    /// A connection as the application opens one.
    pub(crate) fn app(&self) -> Connection {
        connect(&self.config.path)
    }

    pub(crate) fn sql(&self, sql: &str) {
        self.app().execute_batch(sql).unwrap();
    }

    /// The agent is gone without a word, and comes back.
    pub(crate) fn reopen(&mut self) {
        self.capture = open(&self.config, self.dir.path());
        self.capture.set_tail_bounds(self.bounds);
        self.greet();
    }

    pub(crate) fn set_bounds(&mut self, entries: usize) {
        self.bounds = TailBounds { entries, ..TailBounds::default() };
        self.capture.set_tail_bounds(self.bounds);
    }

    /// One handshake, as the session does it.
    pub(crate) fn greet(&mut self) -> Continuity {
        let facts = self.capture.facts().unwrap();
        let welcome = self.hub.greet(&facts.hello);
        let continuity =
            compare(facts.hello.incarnation, &facts.known, welcome.incarnation, &welcome.lanes);
        self.capture.adopt_welcome(&welcome, &continuity).unwrap();
        if let Continuity::DeviceForked { .. } = continuity {
            self.greet();
            return continuity;
        }
        let ends = welcome.lanes.iter().map(|position| (position.lane, position.seq));
        self.ends = ends.collect();
        continuity
    }

    /// Housekeeping until it is done, or waits for receipts.
    pub(crate) fn housekeep(&mut self) {
        for _step in 0..100_000 {
            let step = self.capture.housekeep().unwrap();
            if step.greet_again {
                self.greet();
            }
            if step.again.is_none() {
                return;
            }
        }
        panic!("housekeeping comes to no end");
    }

    /// What every lane has to send now, at most `batches` of each.
    pub(crate) fn fill(&mut self, batches: usize) -> Vec<OutBatch> {
        self.fill_sized(batches, BATCH_TARGET_BYTES)
    }

    pub(crate) fn fill_sized(&mut self, batches: usize, bytes: usize) -> Vec<OutBatch> {
        let end = |lane| self.ends.get(&lane).copied().unwrap_or_default();
        let lanes = Lane::ALL.map(|lane| (lane, end(lane), batches));
        let filled = self.capture.fill(&lanes, bytes).unwrap();
        for batch in &filled {
            assert_eq!(batch.prev, self.ends.get(&batch.lane).copied().unwrap_or_default());
            assert!(batch.last > batch.prev);
            self.ends.insert(batch.lane, batch.last);
        }
        filled
    }

    /// Sends a batch and settles its receipt.
    pub(crate) fn deliver(&mut self, batch: &OutBatch) {
        let receipt = self.hub.take(&batch.frame);
        self.capture.settle(&receipt).unwrap();
    }

    /// Everything goes up and is settled.
    pub(crate) fn sync(&mut self) {
        for _round in 0..100_000 {
            self.housekeep();
            let batches = self.fill(2);
            if batches.is_empty() && !self.capture.housekeep().unwrap().pending {
                return;
            }
            for batch in &batches {
                self.deliver(batch);
            }
        }
        panic!("syncing comes to no end");
    }

    /// The hub has exactly the rows of the file's table.
    pub(crate) fn assert_equal(&self, table: &str, key: &[&str]) {
        assert_eq!(self.hub.live(table), rows_of(&self.app(), table, key), "table {table}");
    }

    /// How many entries and folded keys wait.
    pub(crate) fn waiting(&self) -> (i64, i64) {
        let app = self.app();
        let count = |sql: &str| app.query_row(sql, [], |row| row.get(0)).unwrap();
        (
            count("SELECT count(*) FROM _rowtide_log WHERE t <> 0"),
            count("SELECT count(*) FROM _rowtide_pending"),
        )
    }

    /// Parked rows: (table, key, code).
    pub(crate) fn parked(&mut self) -> Vec<(String, String, String)> {
        let rows = self.capture.quarantine().unwrap();
        rows.into_iter().map(|row| (row.table, row.key, row.code)).collect()
    }
}

pub(crate) const DEVICE: SourceId = SourceId(Uuid::from_u128(1));

pub(crate) fn open(config: &DatabaseConfig, state_dir: &Path) -> Capture {
    Capture::open(config, &state_dir.join("state"), DEVICE).unwrap()
}

/// A folder in memory where there is one: an fsync costs nothing there, and the pauses that follow
/// every lock are short.
pub(crate) fn folder() -> TempDir {
    TempDir::new_in("/dev/shm").or_else(|_missing| TempDir::new()).unwrap()
}

/// Every table, with nothing but defaults.
pub(crate) fn config(path: &Path) -> DatabaseConfig {
    DatabaseConfig {
        name: "app".to_owned(),
        path: path.to_owned(),
        tables: vec!["*".to_owned()],
        exclude: Vec::new(),
        overrides: Vec::new(),
    }
}

/// A table with a declared key.
pub(crate) fn keyed(name: &str, key: &[&str]) -> TableConfig {
    let key = key.iter().map(|&column| column.to_owned()).collect();
    TableConfig { key: Some(key), ..TableConfig::new(name) }
}

pub(crate) fn connect(path: &Path) -> Connection {
    let conn = Connection::open(path).unwrap();
    conn.busy_timeout(Duration::from_secs(2)).unwrap();
    conn
}

/// A table's rows by key text, generated columns left out.
pub(crate) fn rows_of(
    conn: &Connection,
    table: &str,
    key: &[&str],
) -> BTreeMap<String, BTreeMap<String, Value>> {
    let columns: Vec<String> = conn
        .prepare("SELECT name FROM pragma_table_xinfo(?1) WHERE hidden = 0")
        .unwrap()
        .query_map([table], |row| row.get(0))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap();
    let quote = |name: &str| format!("\"{}\"", name.replace('"', "\"\""));
    let list: Vec<String> = columns.iter().map(|name| quote(name)).collect();
    let sql = format!("SELECT {} FROM {}", list.join(", "), quote(table));
    let mut statement = conn.prepare(&sql).unwrap();
    let mut rows = statement.query([]).unwrap();
    let mut found = BTreeMap::new();
    while let Some(row) = rows.next().unwrap() {
        let values: BTreeMap<String, Value> = columns
            .iter()
            .enumerate()
            .map(|(at, name)| (name.clone(), value(row.get_ref(at).unwrap())))
            .collect();
        let parts: Vec<Value> = key.iter().map(|name| values[*name].clone()).collect();
        found.insert(NaturalKey::of(&parts).as_str().to_owned(), values);
    }
    found
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Real(n) => Value::Real(n),
        ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}
