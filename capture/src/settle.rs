//! Clears what a receipt covers, and nothing else: only a receipt moves a cursor.
//!
//! A key is cleared up to the number that was sent; what was logged of it later stays. Outcomes
//! are recorded in the transaction that clears their key. A long receipt is settled in several
//! short transactions, and the range counts as received only in the last, so a crash between them
//! costs nothing but a second look.

use std::collections::{BTreeSet, HashMap};

use sync_proto::message::{Outcome, Receipt};
use sync_proto::{Lane, Seq};

use crate::batch;
use crate::connection::{Durability, WriteTx};
use crate::error::Result;
use crate::fill::forget;
use crate::handle::Capture;
use crate::in_flight::Flight;
use crate::inspect;
use crate::log::{self, LoggedKey};
use crate::parked::{self, Direction, Parking};
use crate::pending::{self, Place};
use crate::progress;
use crate::registry::{self, Registry, TableId};
use crate::snapshot::{self, Look};

/// Folded keys that one transaction clears after a lost receipt, at most.
const LOST_CHUNK: usize = 512;

impl Capture {
    /// Clears what a receipt covers and records its outcomes. A receipt of another epoch, or of a
    /// batch that this handle did not hand out, settles nothing.
    ///
    /// # Errors
    /// SQLite's. The receipt may then be settled again.
    pub fn settle(&mut self, receipt: &Receipt) -> Result<()> {
        if receipt.database != self.config.name || receipt.epoch != self.life.epoch {
            tracing::debug!(database = self.config.name, "a receipt of another epoch is ignored");
            return Ok(());
        }
        let found = self.in_flight.find(receipt.lane, receipt.last, receipt.digest);
        let Some(flight) = found.cloned() else {
            tracing::debug!(database = self.config.name, "a receipt of no known batch is ignored");
            return Ok(());
        };
        let outcomes: HashMap<Seq, &Outcome> =
            receipt.outcomes.iter().map(|row| (row.seq, &row.outcome)).collect();
        let mut done = 0;
        while done < flight.keys.len() {
            let registry = &self.registry;
            done += self.connections.write(Durability::Relaxed, |tx| {
                clear_some(tx, registry, &flight.keys[done..], &outcomes)
            })?;
        }
        self.close(&flight, receipt.watermark)?;
        self.in_flight.remove(receipt.lane, receipt.last, receipt.digest);
        for key in &flight.keys {
            if let Some(outcome) = outcomes.get(&key.label) {
                self.outcomes.count(key.table, outcome);
                self.alarms_changed |= matches!(outcome, Outcome::Rejected(_));
                // A diverged key was logged again.
                self.unseen |= **outcome == Outcome::Diverged;
            }
        }
        Ok(())
    }

    /// Marks the range, and the tables that had rows in it.
    fn close(&mut self, flight: &Flight, watermark: Seq) -> Result<()> {
        let tables: BTreeSet<TableId> = flight.keys.iter().map(|key| key.table).collect();
        self.connections.write(Durability::Relaxed, |tx| {
            progress::receive(tx, flight.lane, watermark)?;
            tables.iter().try_for_each(|table| registry::note_receipt(tx, *table))
        })
    }

    /// Clears what the hub holds of a lane although its receipts got lost: every key of the lane
    /// with a number up to `seq` was in a batch, because batches are prefixes of their lane.
    pub(crate) fn settle_lost(&mut self, lane: Lane, seq: Seq) -> Result<()> {
        loop {
            let more =
                self.connections.write(Durability::Relaxed, |tx| clear_folded(tx, lane, seq))?;
            if !more {
                break;
            }
        }
        let tail = self.lost_tail(lane, seq)?;
        let mut done = 0;
        while done < tail.len() {
            done +=
                self.connections.write(Durability::Relaxed, |tx| clear_plain(tx, &tail[done..]))?;
        }
        self.connections.write(Durability::Relaxed, |tx| progress::receive(tx, lane, seq))?;
        self.in_flight.forget_up_to(lane, seq);
        Ok(())
    }

    /// The tail's keys of a lane up to `seq`.
    fn lost_tail(&mut self, lane: Lane, seq: Seq) -> Result<Vec<LoggedKey>> {
        loop {
            let (registry, bounds, schema) = (&self.registry, self.tail, self.schema_version);
            let look = self.connections.read(|tx| {
                if inspect::schema_version(tx)? == schema {
                    snapshot::look(tx, registry, bounds).map(Some)
                } else {
                    Ok(None)
                }
            })?;
            match look {
                Some(Look::Labels(labels)) => return Ok(labels.logged_up_to(lane, seq)),
                Some(Look::FoldFirst { entries }) => {
                    self.fold_below(entries)?;
                    // What was folded just now belongs to the folded part.
                    while self
                        .connections
                        .write(Durability::Relaxed, |tx| clear_folded(tx, lane, seq))?
                    {
                    }
                }
                None => self.refresh()?,
            }
        }
    }
}

/// Clears sent keys until the lock was held long enough; answers how many.
fn clear_some(
    tx: &WriteTx<'_>,
    registry: &Registry,
    keys: &[LoggedKey],
    outcomes: &HashMap<Seq, &Outcome>,
) -> Result<usize> {
    let mut parked_in: HashMap<TableId, bool> = HashMap::new();
    let mut cleared = 0;
    for key in keys {
        if cleared > 0 && tx.spent() {
            break;
        }
        forget(tx, key)?;
        match outcomes.get(&key.label) {
            Some(Outcome::Rejected(reason)) => parked::park(
                tx,
                &Parking {
                    table: key.table,
                    key: key.key.as_str(),
                    direction: Direction::Up,
                    number: key.label.0,
                    reason,
                    payload: None,
                },
            )?,
            Some(Outcome::Diverged) => {
                if let Some(table) = registry.get(key.table) {
                    log::append(tx, table, &batch::parts(&key.key)?, true)?;
                }
            }
            Some(Outcome::Applied | Outcome::Duplicate | Outcome::Stale | Outcome::Conflict)
            | None => {
                let any = match parked_in.get(&key.table) {
                    Some(any) => *any,
                    None => parked::count(tx, key.table)? > 0,
                };
                parked_in.insert(key.table, any);
                if any {
                    parked::clear(tx, key.table, key.key.as_str(), Direction::Up, key.label.0)?;
                }
            }
        }
        cleared += 1;
    }
    Ok(cleared)
}

fn clear_plain(tx: &WriteTx<'_>, keys: &[LoggedKey]) -> Result<usize> {
    let mut cleared = 0;
    for key in keys {
        if cleared > 0 && tx.spent() {
            break;
        }
        forget(tx, key)?;
        cleared += 1;
    }
    Ok(cleared)
}

/// Clears folded keys of a lane up to `seq`; answers whether there may be more.
fn clear_folded(tx: &WriteTx<'_>, lane: Lane, seq: Seq) -> Result<bool> {
    let mut keys = Vec::new();
    pending::walk(tx, Place::Lane(lane), Seq::ZERO, |row| {
        if row.seq > seq || keys.len() == LOST_CHUNK {
            return Ok(false);
        }
        keys.push(row);
        Ok(true)
    })?;
    for (at, row) in keys.iter().enumerate() {
        if at > 0 && tx.spent() {
            return Ok(true);
        }
        pending::clear(tx, row.table, &row.key, seq)?;
    }
    Ok(keys.len() == LOST_CHUNK)
}
