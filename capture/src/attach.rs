//! Attaches a cloud-authoritative table: takes the rows that are there before the hub's come.
//!
//! In short transactions, each resumable: every local row that the hub has not written gets a
//! shadow copy at version 0, and where the hub has nothing yet, the row is offered to it. A table
//! that was attached before is verified first, because it may have been built anew: rows that
//! differ from what was applied are logged, and the local check puts them back. Where the hub has
//! lost its history, versions of the old one are forgotten instead. Once attached, a row without a
//! copy is a local write. No row is deleted here.

use rusqlite::Connection;
use sync_proto::{Cursor, Lane, NaturalKey, RowHash, Value, Version};

use crate::apply::{self, Change, Stands};
use crate::batch;
use crate::connection::{Connections, Durability, ReadTx, WriteTx};
use crate::error::{CaptureError, Result};
use crate::keys::{self, Keys};
use crate::log;
use crate::meta;
use crate::parked;
use crate::pending::{self, Place};
use crate::registry::{self, Phase, Registry, Table, TableId};
use crate::row::{Found, Shape};
use crate::shadow;

/// Rows looked at in one step: what it holds in memory.
const ROWS_MAX: usize = 512;

/// Logged keys beyond which no more are logged here: the log stays short.
const BACKLOG_MAX: usize = 2_048;

/// Where the work on a table stands, as its `seed_after` says.
enum Stage {
    /// Comparing what was applied before, after this key text.
    Verify(Option<String>),
    /// Forgetting the versions of a hub that is no more, after this key text.
    Reset(Option<String>),
    /// Taking the file's rows, after this key.
    Take(Option<Vec<Value>>),
}

/// Starts attaching a table, and answers it as it was saved. The feed is taken from its start
/// again, because rows of the table may have passed by. `hub_lost`: what was applied before came
/// from a hub that has lost it or is another one, so its versions say nothing any more.
///
/// # Errors
/// SQLite's.
pub(crate) fn begin(
    conn: &Connection,
    registry: &Registry,
    table: &Table,
    hub_lost: bool,
) -> Result<Table> {
    for old in registry.tables() {
        let replaced = old.phase == Phase::Gone && old.id != table.id;
        if replaced && old.name().eq_ignore_ascii_case(table.name()) {
            // What waited for the old table comes again for this one.
            parked::forget(conn, old.id)?;
        }
    }
    let mut table = table.clone();
    if hub_lost {
        parked::forget(conn, table.id)?;
    }
    let stage = if shadow::after(conn, table.id, None, 1)?.is_empty() {
        Stage::Take(None)
    } else if hub_lost {
        Stage::Reset(None)
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

/// Attaches a few rows of a table.
///
/// # Errors
/// SQLite's, also when the schema is another one than the registry's. The step may then be taken
/// again.
pub(crate) fn step(
    conns: &mut Connections,
    registry: &mut Registry,
    id: TableId,
) -> Result<Attach> {
    let attaching = |table: &&Table| table.phase == Phase::Attaching && table.flows();
    let Some(table) = registry.get(id).filter(attaching).cloned() else {
        return Ok(Attach::Done);
    };
    let Some((keys, stage)) = conns.read(|tx| look(tx, &table))? else {
        return Ok(Attach::Waits);
    };
    let table = conns.write(Durability::Relaxed, |tx| {
        // Another process may have changed the table's life meanwhile.
        let now = Registry::load(tx)?.get(id).cloned().unwrap_or_else(|| table.clone());
        if now != table {
            return Ok(now);
        }
        let table = advance(tx, &table, &keys, &stage)?;
        registry::save(tx, &table)?;
        Ok(table)
    })?;
    let done = table.phase != Phase::Attaching;
    registry.put(table);
    Ok(if done { Attach::Done } else { Attach::More })
}

/// The keys to see to and their stage; `None`: the log is too long.
fn look(tx: &ReadTx<'_>, table: &Table) -> Result<Option<(Keys, Stage)>> {
    let backfill = Place::Lane(Lane::Backfill);
    if log::count_up_to(tx, BACKLOG_MAX)? >= BACKLOG_MAX
        || (offers(table) && pending::count_up_to(tx, backfill, BACKLOG_MAX)? >= BACKLOG_MAX)
    {
        return Ok(None);
    }
    let stage = Stage::of(table.seed_after.as_deref())?;
    let keys = match &stage {
        Stage::Verify(after) | Stage::Reset(after) => {
            let known = shadow::after(tx, table.id, after.as_deref(), ROWS_MAX)?;
            let keys: Result<Vec<Vec<Value>>> = known.iter().map(batch::parts).collect();
            Keys { end: known.len() < ROWS_MAX, keys: keys? }
        }
        Stage::Take(after) => keys::after(tx, table, after.as_deref(), ROWS_MAX)?,
    };
    Ok(Some((keys, stage)))
}

/// Whether the hub has nothing of the table, so that the rows that are there are offered to it.
fn offers(table: &Table) -> bool {
    table.hub.as_ref().is_some_and(|hub| hub.adopt)
}

/// Sees to keys until the lock was held long enough; answers the table as it is then.
fn advance(tx: &WriteTx<'_>, table: &Table, work: &Keys, stage: &Stage) -> Result<Table> {
    let shape = table.shape();
    let mut seen = 0;
    for parts in &work.keys {
        if seen > 0 && tx.spent() {
            break;
        }
        match stage {
            Stage::Verify(_) => verify(tx, table, &shape, parts)?,
            Stage::Reset(_) => reset(tx, table, parts)?,
            Stage::Take(_) => take(tx, table, &shape, parts)?,
        }
        seen += 1;
    }
    let over = work.end && seen == work.keys.len();
    let mut table = table.clone();
    if over && matches!(stage, Stage::Take(_)) {
        table.seed_after = None;
        table.phase = Phase::Attached;
    } else if over {
        table.seed_after = Stage::Take(None).into_seed_after();
    } else if let Some(reached) = work.keys[..seen].last() {
        let text = || Some(NaturalKey::of(reached).as_str().to_owned());
        let stage = match stage {
            Stage::Verify(_) => Stage::Verify(text()),
            Stage::Reset(_) => Stage::Reset(text()),
            Stage::Take(_) => Stage::Take(Some(reached.clone())),
        };
        table.seed_after = stage.into_seed_after();
    }
    Ok(table)
}

/// Compares a row that was applied before with the file.
fn verify(tx: &WriteTx<'_>, table: &Table, shape: &Shape, parts: &[Value]) -> Result<()> {
    let key = NaturalKey::of(parts);
    let Some(known) = shadow::known(tx, table.id, &key)? else { return Ok(()) };
    let as_recorded = match shape.read(tx, parts)? {
        Found::None => known.stored == RowHash::TOMBSTONE,
        Found::One(row) => known.stored == shape.hash_of(&row),
        // Which of them is meant cannot be told; the local check says so.
        Found::Many => false,
    };
    if as_recorded {
        return Ok(());
    }
    if known.version == Version::NONE {
        // The application's own row: it is taken as it stands.
        shadow::forget(tx, table.id, &key)?;
        return shadow::add_surplus(tx, table.id, -1);
    }
    log::append(tx, table, parts, false)?;
    Ok(())
}

/// Makes a row that the hub wrote one that it has not written. A delete leaves nothing.
fn reset(tx: &WriteTx<'_>, table: &Table, parts: &[Value]) -> Result<()> {
    let key = NaturalKey::of(parts);
    let Some(known) = shadow::known(tx, table.id, &key)? else { return Ok(()) };
    if known.stored == RowHash::TOMBSTONE {
        return shadow::forget(tx, table.id, &key);
    }
    let adopted = offers(table);
    shadow::reset(tx, table.id, &key, adopted)?;
    if known.version > Version::NONE {
        shadow::add_surplus(tx, table.id, 1)?;
    }
    if adopted {
        log::append(tx, table, parts, true)?;
    }
    Ok(())
}

/// Takes a row that the hub has not written. One without an identity cannot be taken.
fn take(tx: &WriteTx<'_>, table: &Table, shape: &Shape, parts: &[Value]) -> Result<()> {
    let key = NaturalKey::of(parts);
    if NaturalKey::has_null(parts) || shadow::known(tx, table.id, &key)?.is_some() {
        return Ok(());
    }
    let Found::One(row) = shape.read(tx, parts)? else { return Ok(()) };
    let adopted = offers(table);
    let stands = Stands { version: Version::NONE, sent: shape.hash_of(&row), adopted };
    let change = Change { before: None, after: Some(row) };
    apply::record(tx, table.id, &key, shape, &change, &stands)?;
    shadow::add_surplus(tx, table.id, 1)?;
    if adopted {
        log::append(tx, table, parts, true)?;
    }
    Ok(())
}

impl Stage {
    /// A key has no NULL in it, so NULLs in front mark the other stages: one to verify, two to
    /// reset, then the key's text.
    fn of(seed_after: Option<&[Value]>) -> Result<Self> {
        let text = |key: &[u8]| {
            let text = std::str::from_utf8(key);
            text.map(str::to_owned).map_err(|error| CaptureError::corrupt(error.to_string()))
        };
        Ok(match seed_after {
            Some([Value::Null]) => Self::Verify(None),
            Some([Value::Null, Value::Text(key)]) => Self::Verify(Some(text(key)?)),
            Some([Value::Null, Value::Null]) => Self::Reset(None),
            Some([Value::Null, Value::Null, Value::Text(key)]) => Self::Reset(Some(text(key)?)),
            Some(key) => Self::Take(Some(key.to_vec())),
            None => Self::Take(None),
        })
    }

    fn into_seed_after(self) -> Option<Vec<Value>> {
        let (marks, key) = match self {
            Self::Take(key) => return key,
            Self::Verify(key) => (1, key),
            Self::Reset(key) => (2, key),
        };
        let mut parts = vec![Value::Null; marks];
        parts.extend(key.map(Value::text));
        Some(parts)
    }
}
