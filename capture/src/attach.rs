//! Attaches a cloud-authoritative table: takes the rows that are there before the hub's come.
//!
//! In short transactions, each resumable: every local row that the hub has not written gets a
//! shadow copy at version 0, and where the hub has nothing yet, the row is offered to it. A table
//! that was attached before is verified first, because it may have been built anew: rows that
//! differ from what was applied are logged, and the local check puts them back. Once attached, a
//! row without a copy is a local write. No row is deleted here.

use rusqlite::Connection;
use sync_proto::{Cursor, NaturalKey, RowHash, Value, Version};

use crate::apply::{self, Change, RowError, Stands};
use crate::connection::{Connections, Durability, WriteTx};
use crate::error::{CaptureError, Result};
use crate::log;
use crate::meta;
use crate::parked;
use crate::pending::{self, Place};
use crate::registry::{self, Phase, Registry, Table, TableId};
use crate::row::{Found, Shape};
use crate::shadow;

/// Rows looked at in one transaction, at most: what it holds in memory.
const ROWS_MAX: usize = 256;

/// Logged keys beyond which no more are logged here: the log stays short.
const BACKLOG_MAX: usize = 2_048;

/// How far a step came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attach {
    /// Call again.
    More,
    /// The log is long; call again once it is shorter.
    Waits,
    /// The table is attached, or not to be attached now.
    Done,
}

/// Where the work on a table stands, as its `seed_after` says.
enum Stage {
    /// Comparing what was applied before, after this key text.
    Verify(Option<String>),
    /// Taking the file's rows, after this key.
    Take(Option<Vec<Value>>),
}

/// Starts attaching a table, and answers it as it was saved. The feed is taken from its start
/// again, because rows of the table may have passed by.
///
/// # Errors
/// SQLite's.
pub(crate) fn begin(conn: &Connection, registry: &Registry, table: &Table) -> Result<Table> {
    for old in registry.tables() {
        let replaced = old.phase == Phase::Gone && old.id != table.id;
        if replaced && old.name().eq_ignore_ascii_case(table.name()) {
            // What waited for the old table comes again for this one.
            parked::forget(conn, old.id)?;
        }
    }
    let mut table = table.clone();
    let stage = if shadow::after(conn, table.id, None, 1)?.is_empty() {
        Stage::Take(None)
    } else {
        Stage::Verify(None)
    };
    table.phase = Phase::Attaching;
    table.seed_after = stage.into_seed_after();
    registry::save(conn, &table)?;
    if meta::cursor(conn)? != Cursor::ZERO {
        meta::set_cursor(conn, Cursor::ZERO)?;
    }
    Ok(table)
}

/// Takes one step in attaching a table.
///
/// # Errors
/// SQLite's. The step may then be taken again.
pub(crate) fn step(
    conns: &mut Connections,
    registry: &mut Registry,
    id: TableId,
) -> Result<Attach> {
    let Some(table) = registry.get(id).filter(|table| table.phase == Phase::Attaching).cloned()
    else {
        return Ok(Attach::Done);
    };
    let (table, attach) = conns.write(Durability::Relaxed, |tx| {
        let mut table = table.clone();
        let attach = match apply::shape_of(tx, &table) {
            Ok(shape) => advance(tx, &mut table, &shape)?,
            Err(RowError::Failed(error)) => return Err(error),
            // The table is on its way out of the file; enrolment sees to it.
            Err(RowError::Refused(_) | RowError::Lost(_)) => Attach::Done,
        };
        if attach != Attach::Waits {
            registry::save(tx, &table)?;
        }
        Ok((table, attach))
    })?;
    registry.put(table);
    Ok(attach)
}

fn advance(tx: &WriteTx<'_>, table: &mut Table, shape: &Shape) -> Result<Attach> {
    if log::count_up_to(tx, BACKLOG_MAX)? >= BACKLOG_MAX {
        return Ok(Attach::Waits);
    }
    let next = match Stage::of(table.seed_after.as_deref())? {
        Stage::Verify(after) => verify(tx, table, shape, after.as_deref())?,
        Stage::Take(after) => take(tx, table, shape, after.as_deref())?,
    };
    Ok(match next {
        Step::Waits => Attach::Waits,
        Step::To(stage) => {
            table.seed_after = stage.into_seed_after();
            Attach::More
        }
        Step::Over => {
            table.seed_after = None;
            table.phase = Phase::Attached;
            Attach::Done
        }
    })
}

enum Step {
    Waits,
    To(Stage),
    Over,
}

/// Compares rows that were applied before with the file.
fn verify(
    tx: &WriteTx<'_>,
    table: &Table,
    shape: &Shape,
    after: Option<&str>,
) -> Result<Step> {
    let keys = shadow::after(tx, table.id, after, ROWS_MAX)?;
    let Some(last) = keys.last() else { return Ok(Step::To(Stage::Take(None))) };
    let mut reached = last.as_str().to_owned();
    for key in &keys {
        let parts = key.parts().map_err(|error| CaptureError::corrupt(error.to_string()))?;
        let stands = match shape.read(tx, &parts)? {
            Found::None => RowHash::TOMBSTONE,
            Found::One(row) => shape.hash_of(&row),
            // Which of them is meant cannot be told; the local check says so.
            Found::Many => RowHash([0xff; 16]),
        };
        let known = shadow::known(tx, table.id, key)?;
        match known.filter(|known| known.stored != stands) {
            Some(known) if known.version == Version::NONE => {
                // The application's own row: it is taken as it stands.
                shadow::forget(tx, table.id, key)?;
                shadow::add_surplus(tx, table.id, -1)?;
            }
            Some(_) => {
                log::append(tx, table, &parts, false)?;
            }
            None => {}
        }
        if tx.spent() {
            key.as_str().clone_into(&mut reached);
            break;
        }
    }
    Ok(Step::To(Stage::Verify(Some(reached))))
}

/// Takes rows that the hub has not written.
fn take(tx: &WriteTx<'_>, table: &Table, shape: &Shape, after: Option<&[Value]>) -> Result<Step> {
    let adopt = table.hub.as_ref().is_some_and(|hub| hub.adopt);
    let backfill = Place::Lane(sync_proto::Lane::Backfill);
    if adopt && pending::count_up_to(tx, backfill, BACKLOG_MAX)? >= BACKLOG_MAX {
        return Ok(Step::Waits);
    }
    let rows = shape.page(tx, after, ROWS_MAX)?;
    let mut reached = None;
    for row in rows {
        let parts = shape.key_of(&row);
        let key = NaturalKey::of(&parts);
        if shadow::known(tx, table.id, &key)?.is_none() {
            let stands =
                Stands { version: Version::NONE, sent: shape.hash_of(&row), adopted: adopt };
            let change = Change { before: None, after: Some(row) };
            apply::record(tx, table.id, &key, shape, &change, &stands)?;
            shadow::add_surplus(tx, table.id, 1)?;
            if adopt {
                log::append(tx, table, &parts, true)?;
            }
        }
        reached = Some(parts);
        if tx.spent() {
            break;
        }
    }
    Ok(reached.map_or(Step::Over, |parts| Step::To(Stage::Take(Some(parts)))))
}

impl Stage {
    /// A key has no NULL in it, so one in the first place marks the other stage.
    fn of(seed_after: Option<&[Value]>) -> Result<Self> {
        match seed_after {
            Some([Value::Null]) => Ok(Self::Verify(None)),
            Some([Value::Null, Value::Text(key)]) => match String::from_utf8(key.clone()) {
                Ok(key) => Ok(Self::Verify(Some(key))),
                Err(error) => Err(CaptureError::corrupt(error.to_string())),
            },
            Some(key) => Ok(Self::Take(Some(key.to_vec()))),
            None => Ok(Self::Take(None)),
        }
    }

    fn into_seed_after(self) -> Option<Vec<Value>> {
        match self {
            Self::Verify(None) => Some(vec![Value::Null]),
            Self::Verify(Some(key)) => Some(vec![Value::Null, Value::text(key)]),
            Self::Take(key) => key,
        }
    }
}
