//! The folded part of the log: one row per key with its newest number.
//!
//! Each row stands in one place: a lane that it waits to be sent in, the local check of its cloud
//! table, or held because its table does not flow. Which place that is, is decided by [`Place::of`]
//! alone.

use rusqlite::{Connection, OptionalExtension as _, params};
use sync_proto::{Lane, NaturalKey, Seq, Token};

use crate::error::{CaptureError, Result};
use crate::registry::{Table, TableId};

/// What a logged key waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// To be sent in this lane.
    Lane(Lane),
    /// To be compared with what the hub wrote: a change of a cloud-authoritative table.
    Local(TableId),
    /// For its table to flow.
    Held(TableId),
}

/// Held rows' codes start here; table numbers never get so far.
const HELD: i64 = 1 << 40;

impl Place {
    /// Where a key of `table` belongs, by whether every entry of it is a seed.
    pub(crate) fn of(table: &Table, seeds_only: bool) -> Self {
        if table.is_cloud() && !seeds_only {
            Self::Local(table.id)
        } else if !table.flows() {
            Self::Held(table.id)
        } else if seeds_only {
            Self::Lane(Lane::Backfill)
        } else {
            Self::Lane(table.live_lane())
        }
    }

    /// The place's code in the `lane` column.
    pub(crate) const fn code(self) -> i64 {
        match self {
            Self::Lane(lane) => lane_code(lane),
            Self::Local(table) => -table.0,
            Self::Held(table) => HELD + table.0,
        }
    }

    fn from_code(code: i64) -> Result<Self> {
        if let Some(lane) = Lane::ALL.into_iter().find(|lane| lane_code(*lane) == code) {
            return Ok(Self::Lane(lane));
        }
        match code {
            ..0 => Ok(Self::Local(TableId(-code))),
            HELD.. => Ok(Self::Held(TableId(code - HELD))),
            _ => Err(CaptureError::corrupt(format!("lane {code} of a waiting key"))),
        }
    }
}

/// A lane's number in our tables.
pub(crate) const fn lane_code(lane: Lane) -> i64 {
    match lane {
        Lane::State => 0,
        Lane::Mutable => 1,
        Lane::Backfill => 2,
    }
}

/// One folded key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PendingKey {
    /// The table.
    pub(crate) table: TableId,
    /// The key.
    pub(crate) key: NaturalKey,
    /// Its newest folded commit_seq.
    pub(crate) seq: Seq,
    /// The token of that entry.
    pub(crate) token: Token,
}

/// Puts a key, or moves it to a newer number. A change stays a change: a seed that comes later
/// does not take it back to the backfill lane.
///
/// # Errors
/// SQLite's.
pub(crate) fn put(conn: &Connection, row: &PendingKey, place: Place) -> Result<()> {
    conn.prepare_cached(
        "INSERT INTO _rowtide_pending(t, key, seq, token, lane) VALUES(?1, ?2, ?3, ?4, ?5) \
         ON CONFLICT(t, key) DO UPDATE SET seq = excluded.seq, token = excluded.token, \
         lane = CASE WHEN excluded.lane = 2 AND lane < 2 THEN lane ELSE excluded.lane END",
    )?
    .execute(params![
        row.table.0,
        row.key.as_str(),
        row.seq.0,
        row.token.0.as_slice(),
        place.code()
    ])?;
    Ok(())
}

/// Removes a key unless it was logged again above `label`.
///
/// # Errors
/// SQLite's.
pub(crate) fn clear(conn: &Connection, table: TableId, key: &NaturalKey, label: Seq) -> Result<()> {
    conn.prepare_cached("DELETE FROM _rowtide_pending WHERE t = ?1 AND key = ?2 AND seq <= ?3")?
        .execute(params![table.0, key.as_str(), label.0])?;
    Ok(())
}

/// Where a folded key stands, if it is there.
///
/// # Errors
/// SQLite's.
pub(crate) fn place(conn: &Connection, table: TableId, key: &NaturalKey) -> Result<Option<Place>> {
    let code: Option<i64> = conn
        .prepare_cached("SELECT lane FROM _rowtide_pending WHERE t = ?1 AND key = ?2")?
        .query_row(params![table.0, key.as_str()], |row| row.get(0))
        .optional()?;
    code.map(Place::from_code).transpose()
}

/// Whether any folded key is a change: one that waits in a live lane or for the local check.
///
/// # Errors
/// SQLite's.
pub(crate) fn has_changes(conn: &Connection) -> Result<bool> {
    Ok(conn.prepare_cached("SELECT 1 FROM _rowtide_pending WHERE lane < 2 LIMIT 1")?.exists([])?)
}

/// Calls `each` for the keys of a place above `after`, oldest first, until it returns false.
///
/// # Errors
/// SQLite's, and those of `each`.
pub(crate) fn walk(
    conn: &Connection,
    place: Place,
    after: Seq,
    mut each: impl FnMut(PendingKey) -> Result<bool>,
) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "SELECT t, key, seq, token FROM _rowtide_pending WHERE lane = ?1 AND seq > ?2 ORDER BY seq",
    )?;
    let mut rows = statement.query([place.code(), after.0])?;
    while let Some(row) = rows.next()? {
        if !each(read(row)?)? {
            break;
        }
    }
    Ok(())
}

/// The keys of a place from the newest down, until `each` returns false.
///
/// # Errors
/// SQLite's.
pub(crate) fn walk_down(
    conn: &Connection,
    place: Place,
    mut each: impl FnMut(PendingKey) -> bool,
) -> Result<()> {
    let mut statement = conn.prepare_cached(
        "SELECT t, key, seq, token FROM _rowtide_pending WHERE lane = ?1 ORDER BY seq DESC",
    )?;
    let mut rows = statement.query([place.code()])?;
    while let Some(row) = rows.next()? {
        if !each(read(row)?) {
            break;
        }
    }
    Ok(())
}

/// Counts the keys of a place, but no further than `max`.
///
/// # Errors
/// SQLite's.
pub(crate) fn count_up_to(conn: &Connection, place: Place, max: usize) -> Result<usize> {
    let limit = i64::try_from(max).unwrap_or(i64::MAX);
    let count: i64 = conn
        .prepare_cached(
            "SELECT count(*) FROM (SELECT 1 FROM _rowtide_pending WHERE lane = ?1 LIMIT ?2)",
        )?
        .query_row([place.code(), limit], |row| row.get(0))?;
    Ok(usize::try_from(count).unwrap_or(0))
}

fn read(row: &rusqlite::Row<'_>) -> Result<PendingKey> {
    let key: String = row.get(1)?;
    let token = row.get_ref(3)?.as_blob().ok().and_then(|bytes| bytes.try_into().ok());
    Ok(PendingKey {
        table: TableId(row.get(0)?),
        key: NaturalKey::from_canonical(&key)
            .map_err(|error| CaptureError::corrupt(format!("a waiting key: {error}")))?,
        seq: Seq(row.get(2)?),
        token: token.map_or_else(Token::default, Token),
    })
}
