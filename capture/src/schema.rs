//! Every object of ours inside the application's file: names and DDL, in one place.
//!
//! The persisted text parses on SQLite 3.8: no AUTOINCREMENT, WITHOUT ROWID, UPSERT, STRICT,
//! partial index, JSON or function of our own, because the application's library reads it on every
//! open. Statements that only this crate runs are not bound by that.

use rusqlite::Connection;

use crate::error::Result;

/// What every object's name starts with.
pub(crate) const PREFIX: &str = "_rowtide_";

/// The layout of these objects. Another number is another program's.
pub(crate) const FORMAT: i64 = 1;

/// The tables and indexes, in the order of creation. The log starts with one key column; more are
/// added when a table with a wider key is enrolled.
pub(crate) const OBJECTS: [&str; 8] = [
    "CREATE TABLE _rowtide_meta(k TEXT PRIMARY KEY, v)",
    "CREATE TABLE _rowtide_tables(id INTEGER PRIMARY KEY, name TEXT, spec BLOB, \
     key_width INTEGER, state TEXT, seed_after BLOB, hub_state BLOB, fence INTEGER, \
     rebuilt INTEGER, releasing INTEGER, reverted INTEGER, surplus INTEGER, last_receipt TEXT)",
    "CREATE TABLE _rowtide_log(seq INTEGER PRIMARY KEY, t INTEGER, seed INTEGER, \
     token DEFAULT (randomblob(8)), k1)",
    "CREATE TABLE _rowtide_pending(t INTEGER, key TEXT, seq INTEGER, token BLOB, lane INTEGER, \
     PRIMARY KEY(t, key))",
    "CREATE INDEX _rowtide_pending_lane ON _rowtide_pending(lane, seq)",
    "CREATE TABLE _rowtide_ranges(lane INTEGER, seq INTEGER, token BLOB, received INTEGER, \
     PRIMARY KEY(lane, seq))",
    "CREATE TABLE _rowtide_rows(t INTEGER, key TEXT, version INTEGER, deleted INTEGER, \
     stored BLOB, shadow BLOB, PRIMARY KEY(t, key))",
    "CREATE TABLE _rowtide_parked(id INTEGER PRIMARY KEY, t INTEGER, key TEXT, direction TEXT, \
     number INTEGER, code TEXT, message TEXT, payload BLOB, parked_at TEXT, attempts INTEGER, \
     UNIQUE(t, key, direction))",
];

/// Names of the tables, in the order in which `uninstall` empties and drops them.
pub(crate) const TABLES: [&str; 7] = [
    "_rowtide_log",
    "_rowtide_pending",
    "_rowtide_ranges",
    "_rowtide_rows",
    "_rowtide_parked",
    "_rowtide_tables",
    "_rowtide_meta",
];

/// The name of the object that one of [`OBJECTS`] creates.
pub(crate) fn object_name(sql: &str) -> &str {
    let after_kind = sql.splitn(3, ' ').nth(2).unwrap_or(sql);
    after_kind.split(['(', ' ']).next().unwrap_or(after_kind)
}

/// Adds the log's n-th key column.
pub(crate) fn widen_log(ordinal: usize) -> String {
    format!("ALTER TABLE _rowtide_log ADD COLUMN k{ordinal}")
}

/// Whether the file carries our facts.
///
/// # Errors
/// SQLite's.
pub(crate) fn is_installed(conn: &Connection) -> Result<bool> {
    let mut statement =
        conn.prepare_cached("SELECT 1 FROM main.sqlite_master WHERE name = '_rowtide_meta'")?;
    Ok(statement.exists([])?)
}

/// A name as an SQL identifier: whatever it holds, it stays a name.
pub(crate) fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Whether a name is one of ours.
pub(crate) fn is_ours(name: &str) -> bool {
    name.get(..PREFIX.len()).is_some_and(|start| start.eq_ignore_ascii_case(PREFIX))
}
