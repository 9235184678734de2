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
use crate::parked::{self, Direction};
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
        let found = self.in_flight.take(receipt.lane, receipt.last, receipt.digest);
        let Some(flight) = found else {
            tracing::debug!(database = self.config.name, "a receipt of no known batch is ignored");
            return Ok(());
        };
        let outcomes: HashMap<Seq, &Outcome> =
            receipt.outcomes.iter().map(|row| (row.seq, &row.outcome)).collect();
        if let Err(error) = self.clear(&flight, &outcomes) {
            // What was cleared is cleared; the receipt may come again for the rest.
            self.in_flight.add(flight);
            return Err(error);
        }
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

    /// Clears a batch's keys, then marks its range.
    fn clear(&mut self, flight: &Flight, outcomes: &HashMap<Seq, &Outcome>) -> Result<()> {
        let mut done = 0;
        while done < flight.keys.len() {
            let registry = &self.registry;
            done += self.connections.write(Durability::Relaxed, |tx| {
                Clearing::new(tx, registry, outcomes).run(&flight.keys[done..])
            })?;
        }
        self.close(flight)
    }

    /// Marks the range, and the tables that had rows in it.
    fn close(&mut self, flight: &Flight) -> Result<()> {
        let tables: BTreeSet<TableId> = flight.keys.iter().map(|key| key.table).collect();
        let received = self.settled.settle(flight.lane, flight.prev, flight.last);
        self.connections.write(Durability::Relaxed, |tx| {
            progress::receive(tx, flight.lane, received)?;
            tables.iter().try_for_each(|table| registry::note_receipt(tx, *table))
        })
    }

    /// Clears what the hub holds of a lane although its receipts got lost: every key of the lane
    /// with a number up to `seq` was in a batch, because batches are prefixes of their lane.
    pub(crate) fn settle_lost(&mut self, lane: Lane, seq: Seq) -> Result<()> {
        // Looked at first: what is cleared of the folded part could put a key into another lane.
        let tail = self.lost_tail(lane, seq)?;
        while self.connections.write(Durability::Relaxed, |tx| clear_folded(tx, lane, seq))? {}
        let mut done = 0;
        while done < tail.len() {
            done +=
                self.connections.write(Durability::Relaxed, |tx| clear_plain(tx, &tail[done..]))?;
        }
        self.connections.write(Durability::Relaxed, |tx| progress::receive(tx, lane, seq))?;
        self.settled.settle_up_to(lane, seq);
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
                Some(Look::FoldFirst { entries }) => self.fold_below(entries)?,
                None => self.refresh()?,
            }
        }
    }
}

/// One transaction that clears sent keys.
struct Clearing<'a> {
    tx: &'a WriteTx<'a>,
    registry: &'a Registry,
    outcomes: &'a HashMap<Seq, &'a Outcome>,
    /// Whether anything of a table is set aside, as far as that was asked for.
    parked: HashMap<TableId, bool>,
}

impl<'a> Clearing<'a> {
    fn new(
        tx: &'a WriteTx<'a>,
        registry: &'a Registry,
        outcomes: &'a HashMap<Seq, &'a Outcome>,
    ) -> Self {
        Self { tx, registry, outcomes, parked: HashMap::new() }
    }

    /// Clears keys until the lock was held long enough; answers how many.
    fn run(mut self, keys: &[LoggedKey]) -> Result<usize> {
        let mut cleared = 0;
        for key in keys {
            if cleared > 0 && self.tx.spent() {
                break;
            }
            forget(self.tx, key)?;
            self.record(key)?;
            cleared += 1;
        }
        Ok(cleared)
    }

    fn record(&mut self, key: &LoggedKey) -> Result<()> {
        match self.outcomes.get(&key.label) {
            Some(Outcome::Rejected(reason)) => {
                parked::park_up(self.tx, key.table, key.key.as_str(), key.label, reason)
            }
            Some(Outcome::Diverged) => match self.registry.get(key.table) {
                Some(table) => {
                    log::append(self.tx, table, &batch::parts(&key.key)?, true).map(|_seq| ())
                }
                None => Ok(()),
            },
            // A row that was offered to the hub and taken gets its version from the feed.
            Some(Outcome::Applied | Outcome::Duplicate | Outcome::Conflict | Outcome::Stale)
            | None => self.unpark(key),
        }
    }

    /// What was set aside of a key is over once the key was taken.
    fn unpark(&mut self, key: &LoggedKey) -> Result<()> {
        let any = match self.parked.get(&key.table) {
            Some(any) => *any,
            None => parked::count(self.tx, key.table)? > 0,
        };
        self.parked.insert(key.table, any);
        if any {
            let (table, text) = (key.table, key.key.as_str());
            parked::clear(self.tx, table, text, Direction::Up, key.label.0)?;
        }
        Ok(())
    }
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
