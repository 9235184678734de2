//! Folding: the oldest entries of the tail become one row per key, in short transactions.
//!
//! A key's newest number and the removal of its entries commit together, so no number is lost and
//! none is seen twice. This bounds both what a snapshot has to read and how far the log grows while
//! the hub is away. The newest entry stays, as always.

use rusqlite::{Connection, OptionalExtension as _};
use sync_proto::{NaturalKey, Seq, Value};

use crate::connection::{Durability, WriteTx};
use crate::error::Result;
use crate::handle::Capture;
use crate::inspect;
use crate::log::{self, Entry, Remover};
use crate::parked::{self, Direction};
use crate::pending::{self, PendingKey, Place};
use crate::quarantine;
use crate::registry::Registry;

/// Entries read at a time inside the transaction.
const CHUNK: usize = 256;

/// Bytes of one key above which it is set aside: it would not fit beside others in a snapshot.
const KEY_BYTES_MAX: usize = 1 << 20;

/// Characters of such a key that its entry in quarantine shows.
const KEY_SHOWN_CHARS: usize = 200;

impl Capture {
    /// Folds for one transaction's time, down to half of what fits. `fits` is how many entries a
    /// look could take before it met a bound.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn fold_below(&mut self, fits: usize) -> Result<()> {
        let keep = fits.min(self.tail.entries) / 2;
        let (registry, schema) = (&self.registry, self.schema_version);
        let parked = self.connections.write(Durability::Relaxed, |tx| {
            let fold = Fold { registry, fits: inspect::schema_version(tx)? == schema };
            fold.run(tx, keep)
        })?;
        self.alarms_changed |= parked;
        Ok(())
    }

    /// Whether the tail is longer than a snapshot may be.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn is_fold_due(&mut self) -> Result<bool> {
        let max = self.tail.entries;
        self.connections.read(|tx| Ok(log::count_up_to(tx, max + 1)? > max))
    }
}

struct Fold<'a> {
    registry: &'a Registry,
    /// The registry fits the schema, so rows can be looked at.
    fits: bool,
}

impl Fold<'_> {
    /// Folds all but the newest `keep` entries, until the lock was held long enough. Answers
    /// whether a key was set aside.
    fn run(&self, tx: &WriteTx<'_>, keep: usize) -> Result<bool> {
        let Some(end) = nth_newest(tx, keep)? else { return Ok(false) };
        let remover = Remover::new(tx)?;
        let (mut after, mut parked) = (Seq(i64::MIN), false);
        while after < end && !tx.spent() {
            let mut entries = log::entries(tx, self.registry, after, CHUNK)?;
            entries.retain(|entry| entry.seq <= end);
            let Some(last) = entries.last().map(|entry| entry.seq) else { break };
            for entry in &entries {
                parked |= self.fold(tx, entry)?;
            }
            remover.remove_between(tx, after, last)?;
            after = last;
        }
        Ok(parked)
    }

    /// Folds one entry; answers whether its key was set aside.
    fn fold(&self, conn: &Connection, entry: &Entry) -> Result<bool> {
        let Some(table) = self.registry.get(entry.table) else {
            // An anchor, or an entry that belongs to no table.
            return Ok(false);
        };
        let key = NaturalKey::of(&entry.key);
        if entry.key.iter().map(Value::len_bytes).sum::<usize>() > KEY_BYTES_MAX {
            let shown: String = key.as_str().chars().take(KEY_SHOWN_CHARS).collect();
            let reason = quarantine::key_too_large(KEY_BYTES_MAX);
            parked::park_up(conn, table.id, &shown, entry.seq, &reason)?;
            return Ok(true);
        }
        if NaturalKey::has_null(&entry.key) && !table.is_cloud() && self.fits {
            let there = quarantine::has_null_key_row(conn, table, &entry.key)?;
            if there {
                let reason = quarantine::null_key();
                parked::park_up(conn, table.id, key.as_str(), entry.seq, &reason)?;
            } else {
                parked::clear(conn, table.id, key.as_str(), Direction::Up, entry.seq.0)?;
            }
            return Ok(there);
        }
        let place = Place::of(table, entry.seed);
        let row = PendingKey { table: table.id, key, seq: entry.seq, token: entry.token };
        pending::put(conn, &row, place)?;
        Ok(false)
    }
}

/// The entry that has exactly `keep` newer ones, if there are so many.
fn nth_newest(conn: &Connection, keep: usize) -> Result<Option<Seq>> {
    let offset = i64::try_from(keep).unwrap_or(i64::MAX);
    let seq: Option<i64> = conn
        .prepare_cached("SELECT seq FROM _rowtide_log ORDER BY seq DESC LIMIT 1 OFFSET ?1")?
        .query_row([offset], |row| row.get(0))
        .optional()?;
    Ok(seq.map(Seq))
}
