//! Seeding: keys of rows that were there before go into the log, a few at a time.
//!
//! One path for the first backfill, for repair and after a rebuilt table. The cursor and the seeds
//! commit together, so it goes on at any instant where it stopped; a row that changes meanwhile
//! logs itself. Seeds wait while many of them are unsent, so that they never make the log long.
//! Keys that were held while their table did not flow come back into the log the same way.

use sync_proto::{Lane, NaturalKey, Seq, Value};

use crate::batch;
use crate::connection::{Durability, WriteTx};
use crate::error::Result;
use crate::handle::Capture;
use crate::inspect;
use crate::keys::{self, Keys};
use crate::log;
use crate::meta;
use crate::parked;
use crate::pending::{self, PendingKey, Place};
use crate::quarantine;
use crate::registry::{self, Phase, Table};
use crate::row::Found;

/// Keys of one step.
const KEYS_MAX: usize = 2048;

/// Unsent seeds at which no more are made: more than the batches that can be on their way.
const BACKLOG_MAX: usize = 16_384;

/// What a step came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seeded {
    /// There is nothing to do.
    Nothing,
    /// There is something to do once fewer seeds are unsent.
    Waits,
    /// Something was done; there may be more.
    Some,
}

impl Capture {
    /// Seeds a few keys of one table.
    ///
    /// # Errors
    /// SQLite's. The step may then be taken again.
    pub(crate) fn seed_step(&mut self) -> Result<Seeded> {
        let next = |table: &&Table| table.phase == Phase::Seeding && table.flows();
        let Some(table) = self.registry.live().find(next).cloned() else {
            return Ok(Seeded::Nothing);
        };
        if self.is_backlog_full()? {
            return Ok(Seeded::Waits);
        }
        let schema = self.schema_version;
        let read = self.connections.read(|tx| {
            if inspect::schema_version(tx)? != schema {
                return Ok(None);
            }
            keys::after(tx, &table, table.seed_after.as_deref(), KEYS_MAX).map(Some)
        })?;
        let Some(found) = read else { return Ok(Seeded::Some) };
        let revision = self.revision;
        let seeded = self.connections.write(Durability::Relaxed, |tx| {
            if meta::revision(tx)? != revision {
                return Ok(None);
            }
            let table = seed(tx, &table, &found)?;
            registry::save(tx, &table)?;
            Ok(Some(table))
        })?;
        if let Some(table) = seeded {
            self.alarms_changed |= table.phase != Phase::Seeding;
            self.registry.put(table);
            self.unseen = true;
        }
        Ok(Seeded::Some)
    }

    /// Logs a few keys again that were held while their table did not flow.
    ///
    /// # Errors
    /// SQLite's. The step may then be taken again.
    pub(crate) fn release_step(&mut self) -> Result<Seeded> {
        let next = |table: &&Table| table.releasing && table.flows();
        let Some(table) = self.registry.live().find(next).cloned() else {
            return Ok(Seeded::Nothing);
        };
        if self.is_backlog_full()? {
            return Ok(Seeded::Waits);
        }
        let (revision, schema) = (self.revision, self.schema_version);
        let released = self.connections.write(Durability::Relaxed, |tx| {
            if meta::revision(tx)? != revision || inspect::schema_version(tx)? != schema {
                return Ok(None);
            }
            let mut table = table.clone();
            if release(tx, &table)? {
                table.releasing = false;
                registry::save(tx, &table)?;
            }
            Ok(Some(table))
        })?;
        if let Some(table) = released {
            self.registry.put(table);
            self.unseen = true;
            self.alarms_changed = true;
        }
        Ok(Seeded::Some)
    }

    fn is_backlog_full(&mut self) -> Result<bool> {
        let tail_max = self.tail.entries;
        self.connections.read(|tx| {
            Ok(log::count_changes_up_to(tx, tail_max)? >= tail_max
                || pending::count_up_to(tx, Place::Lane(Lane::Backfill), BACKLOG_MAX)?
                    >= BACKLOG_MAX)
        })
    }
}

/// Logs keys until the lock was held long enough; answers the table as it is then.
fn seed(tx: &WriteTx<'_>, table: &Table, found: &Keys) -> Result<Table> {
    let mut table = table.clone();
    let mut seeded = 0;
    for key in &found.keys {
        if seeded > 0 && tx.spent() {
            break;
        }
        seed_one(tx, &table, key)?;
        table.seed_after = Some(key.clone());
        seeded += 1;
    }
    if found.end && seeded == found.keys.len() {
        table.phase = Phase::Live;
        table.seed_after = None;
    }
    Ok(table)
}

fn seed_one(tx: &WriteTx<'_>, table: &Table, key: &[Value]) -> Result<()> {
    if !NaturalKey::has_null(key) {
        log::append(tx, table, key, true)?;
        return Ok(());
    }
    let reason = quarantine::null_key();
    parked::park_up(tx, table.id, NaturalKey::of(key).as_str(), meta::newest_seq(tx)?, &reason)
}

/// Moves held keys back into the log until the lock was held long enough; answers whether none is
/// left.
fn release(tx: &WriteTx<'_>, table: &Table) -> Result<bool> {
    let mut places = vec![Place::Held(table.id)];
    if !table.is_cloud() {
        // Left from a time when the cloud was right about the table.
        places.push(Place::Local(table.id));
    }
    for place in places {
        let mut keys = Vec::new();
        pending::walk(tx, place, Seq::ZERO, |row| {
            keys.push(row);
            Ok(keys.len() < KEYS_MAX)
        })?;
        let more = keys.len() == KEYS_MAX;
        for (at, row) in keys.iter().enumerate() {
            if at > 0 && tx.spent() {
                return Ok(false);
            }
            release_one(tx, table, row)?;
        }
        if more {
            return Ok(false);
        }
    }
    Ok(true)
}

fn release_one(tx: &WriteTx<'_>, table: &Table, row: &PendingKey) -> Result<()> {
    let key = batch::parts(&row.key)?;
    let rebuilt_away = row.seq <= table.rebuilt
        && !NaturalKey::has_null(&key)
        && table.shape().read(tx, &key)? == Found::None;
    if rebuilt_away {
        let reason = quarantine::row_absent();
        parked::park_up(tx, table.id, row.key.as_str(), row.seq, &reason)?;
    } else {
        // Of a cloud table only rows that are offered to the hub are ever held.
        log::append(tx, table, &key, table.is_cloud())?;
    }
    pending::clear(tx, row.table, &row.key, row.seq)
}
