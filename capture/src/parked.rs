//! Rows set aside with a reason: `_rowtide_parked`, in both directions.
//!
//! One bad row must not stop the others, and must not be lost: it waits here, counted and visible,
//! until a newer version replaces it or a retry succeeds. A key has at most one entry for each
//! direction, so the table is no larger than the keys that fail. Who retries is not decided here.

use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};
use sync_proto::message::Reason;
use sync_proto::{Seq, Value};

use crate::error::Result;
use crate::registry::{Registry, TableId, decode, encode};

/// Where a parked row was going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Direction {
    /// To the hub.
    Up,
    /// Into the application's table.
    Down,
}

/// A row to set aside.
#[derive(Debug)]
pub(crate) struct Parking<'a> {
    /// Its table.
    pub(crate) table: TableId,
    /// Its key's canonical text.
    pub(crate) key: &'a str,
    /// Where it was going.
    pub(crate) direction: Direction,
    /// The commit_seq of a row that goes up, the version of one that came down.
    pub(crate) number: i64,
    /// Why.
    pub(crate) reason: &'a Reason,
    /// What came down; `None` for a row that goes up, which is still in its table.
    pub(crate) payload: Option<&'a Payload>,
}

/// A row as it came down.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Payload {
    /// Whether it is a delete; then only the key columns count.
    pub(crate) deleted: bool,
    /// Names of the columns that came.
    pub(crate) columns: Vec<String>,
    /// One value for each.
    pub(crate) values: Vec<Value>,
}

/// A parked row that came down, for a retry.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Waiting {
    /// The entry's number.
    pub(crate) id: i64,
    /// Its table.
    pub(crate) table: TableId,
    /// Its key's canonical text.
    pub(crate) key: String,
    /// Its version.
    pub(crate) number: i64,
    /// What came.
    pub(crate) payload: Payload,
}

/// A parked row as `quarantine` lists it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct QuarantinedRow {
    /// The table's name.
    pub table: String,
    /// The row's key in canonical text.
    pub key: String,
    /// `up` (not taken by the hub) or `down` (not taken by the file).
    pub direction: String,
    /// The commit_seq of a row that goes up, the version of one that came down.
    pub number: i64,
    /// A stable word for the reason.
    pub code: String,
    /// What happened and what to do.
    pub message: String,
    /// When it was first set aside (RFC 3339, UTC, by the device's clock).
    pub parked_at: String,
    /// How often it was tried.
    pub attempts: i64,
}

impl Direction {
    /// The direction's name in the table and in lists.
    #[must_use]
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Up => "up",
            Self::Down => "down",
        }
    }
}

/// Sets a row aside, or records one more attempt at it.
///
/// # Errors
/// SQLite's.
pub(crate) fn park(conn: &Connection, parking: &Parking<'_>) -> Result<()> {
    conn.prepare_cached(
        "INSERT INTO _rowtide_parked\
         (t, key, direction, number, code, message, payload, parked_at, attempts) \
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'), 1) \
         ON CONFLICT(t, key, direction) DO UPDATE SET number = excluded.number, \
         code = excluded.code, message = excluded.message, payload = excluded.payload, \
         attempts = CASE number WHEN excluded.number THEN attempts + 1 ELSE 1 END",
    )?
    .execute(params![
        parking.table.0,
        parking.key,
        parking.direction.name(),
        parking.number,
        parking.reason.code,
        parking.reason.message,
        parking.payload.map(encode).transpose()?,
    ])?;
    Ok(())
}

/// Sets a row aside that was to go up.
///
/// # Errors
/// SQLite's.
pub(crate) fn park_up(
    conn: &Connection,
    table: TableId,
    key: &str,
    seq: Seq,
    reason: &Reason,
) -> Result<()> {
    let direction = Direction::Up;
    park(conn, &Parking { table, key, direction, number: seq.0, reason, payload: None })
}

/// The number and reason of a key's entry, if it has one.
///
/// # Errors
/// SQLite's.
pub(crate) fn entry(
    conn: &Connection,
    table: TableId,
    key: &str,
    direction: Direction,
) -> Result<Option<(i64, Reason)>> {
    Ok(conn
        .prepare_cached(
            "SELECT number, code, message FROM _rowtide_parked \
             WHERE t = ?1 AND key = ?2 AND direction = ?3",
        )?
        .query_row(params![table.0, key, direction.name()], |row| {
            Ok((row.get(0)?, Reason { code: row.get(1)?, message: row.get(2)? }))
        })
        .optional()?)
}

/// Removes a key's entry when its number is not above `number`; answers whether there was one.
///
/// # Errors
/// SQLite's.
pub(crate) fn clear(
    conn: &Connection,
    table: TableId,
    key: &str,
    direction: Direction,
    number: i64,
) -> Result<bool> {
    let cleared = conn
        .prepare_cached(
            "DELETE FROM _rowtide_parked \
             WHERE t = ?1 AND key = ?2 AND direction = ?3 AND number <= ?4",
        )?
        .execute(params![table.0, key, direction.name(), number])?;
    Ok(cleared > 0)
}

/// Removes every entry of a table.
///
/// # Errors
/// SQLite's.
pub(crate) fn forget(conn: &Connection, table: TableId) -> Result<()> {
    conn.prepare_cached("DELETE FROM _rowtide_parked WHERE t = ?1")?.execute([table.0])?;
    Ok(())
}

/// Rows that came down and wait, at most `limit`, in the order of their entries after `after`.
///
/// # Errors
/// SQLite's, and [`crate::CaptureError::Corrupt`] for a payload that cannot be read.
pub(crate) fn waiting(conn: &Connection, after: i64, limit: usize) -> Result<Vec<Waiting>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, t, key, number, payload FROM _rowtide_parked \
         WHERE id > ?1 AND direction = 'down' ORDER BY id LIMIT ?2",
    )?;
    read_waiting(statement.query([after, i64::try_from(limit).unwrap_or(i64::MAX)])?)
}

/// Rows that came down and wait for one of two reasons, at most `limit`: those that were tried
/// least often first.
///
/// # Errors
/// Like [`waiting`].
pub(crate) fn waiting_for(
    conn: &Connection,
    codes: [&str; 2],
    limit: usize,
) -> Result<Vec<Waiting>> {
    let mut statement = conn.prepare_cached(
        "SELECT id, t, key, number, payload FROM _rowtide_parked \
         WHERE direction = 'down' AND code IN (?1, ?2) ORDER BY attempts, id LIMIT ?3",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    read_waiting(statement.query(params![codes[0], codes[1], limit])?)
}

fn read_waiting(mut rows: rusqlite::Rows<'_>) -> Result<Vec<Waiting>> {
    let mut waiting = Vec::new();
    while let Some(row) = rows.next()? {
        let payload: Vec<u8> = row.get(4)?;
        waiting.push(Waiting {
            id: row.get(0)?,
            table: TableId(row.get(1)?),
            key: row.get(2)?,
            number: row.get(3)?,
            payload: decode(&payload, "a parked row")?,
        });
    }
    Ok(waiting)
}

/// Whether any row is set aside in that direction.
///
/// # Errors
/// SQLite's.
pub(crate) fn any(conn: &Connection, direction: Direction) -> Result<bool> {
    let sql = "SELECT 1 FROM _rowtide_parked WHERE direction = ?1 LIMIT 1";
    Ok(conn.prepare_cached(sql)?.exists([direction.name()])?)
}

/// How many rows of a table are set aside, in both directions.
///
/// # Errors
/// SQLite's.
pub(crate) fn count(conn: &Connection, table: TableId) -> Result<u64> {
    let count: i64 = conn
        .prepare_cached("SELECT count(*) FROM _rowtide_parked WHERE t = ?1")?
        .query_row([table.0], |row| row.get(0))?;
    Ok(count.unsigned_abs())
}

/// Why a table's last row was set aside.
///
/// # Errors
/// SQLite's.
pub(crate) fn last_reason(conn: &Connection, table: TableId) -> Result<Option<String>> {
    Ok(conn
        .prepare_cached(
            "SELECT code || ': ' || message FROM _rowtide_parked WHERE +t = ?1 \
             ORDER BY id DESC LIMIT 1",
        )?
        .query_row([table.0], |row| row.get(0))
        .optional()?)
}

/// Every row that is set aside, in the order in which they came.
///
/// # Errors
/// SQLite's.
pub(crate) fn list(conn: &Connection, registry: &Registry) -> Result<Vec<QuarantinedRow>> {
    let mut statement = conn.prepare(
        "SELECT t, key, direction, number, code, message, parked_at, attempts \
         FROM _rowtide_parked ORDER BY id",
    )?;
    let mut rows = statement.query([])?;
    let mut list = Vec::new();
    while let Some(row) = rows.next()? {
        let table = TableId(row.get(0)?);
        list.push(QuarantinedRow {
            table: registry.get(table).map_or_else(String::new, |table| table.name().to_owned()),
            key: row.get(1)?,
            direction: row.get(2)?,
            number: row.get(3)?,
            code: row.get(4)?,
            message: row.get(5)?,
            parked_at: row.get(6)?,
            attempts: row.get(7)?,
        });
    }
    Ok(list)
}
