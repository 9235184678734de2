//! Hands out batches: plan them in one snapshot, move aside what cannot go, and close their ranges
//! with the barrier.
//!
//! The barrier is one commit with synchronous=FULL. It puts every earlier commit of the file on
//! disk, whatever the application's own setting is, so that nothing is published that a power cut
//! can still undo. It happens after the snapshot and before a batch is returned, and only when
//! there is one.

use sync_proto::limits::BATCH_RAW_BYTES_MAX;
use sync_proto::message::{LanePosition, ToHub, UpBatch};
use sync_proto::rows::{self, RowsError, TableRows};
use sync_proto::session::OutBatch;
use sync_proto::{Lane, Seq, wire};

use crate::batch::{self, Action, Ask, Draft, Move, Plan, Sizes};
use crate::connection::{Connections, Durability, moved};
use crate::error::{CaptureError, Result};
use crate::handle::Capture;
use crate::in_flight::Flight;
use crate::inspect;
use crate::log::{self, LoggedKey, Remover};
use crate::meta::{self, Life, Stamp};
use crate::parked::{self, Direction};
use crate::pending::{self, PendingKey, Place};
use crate::progress;
use crate::quarantine;
use crate::registry::Registry;
use crate::snapshot::{self, Look};

/// Fold steps that one call makes when the application logs faster than the tail is folded.
const FOLDS_MAX: u32 = 3;

/// Keys below which a plan that ran out of time got nowhere.
const STARVED_KEYS: usize = 64;

/// Entries that may stay unfolded on the slowest machine.
const TAIL_ENTRIES_MIN: usize = 256;

/// Bytes of a batch that its columns' names and lengths may take beside the counted values.
const ENVELOPE_BYTES: usize = 64 << 10;

/// Anchors that one barrier removes, at most; there are as many as settled receipts since the last.
const ANCHORS_MAX: usize = 256;

/// What a look at the file led to.
enum Planned {
    Plan(Plan, u64),
    FoldFirst(usize),
    Drifted,
}

impl Capture {
    /// Builds up to so many batches per lane, each starting where the one before ends, and makes
    /// their range ends and everything in them durable. `batch_bytes` is the raw size at which a
    /// batch is closed. No transaction is open afterwards.
    ///
    /// Nothing to send is an empty answer. So is a schema that moved and a log that grew too long;
    /// [`Capture::housekeep`] sees to both and says so.
    ///
    /// # Errors
    /// Every [`CaptureError`]; nothing was handed out then.
    pub fn fill(
        &mut self,
        lanes: &[(Lane, Seq, usize)],
        batch_bytes: usize,
    ) -> Result<Vec<OutBatch>> {
        let asks: Vec<Ask> = lanes
            .iter()
            .map(|&(lane, prev, batches)| {
                let received = self.settled.position(lane).min(prev);
                Ask { lane, prev, batches, received }
            })
            .collect();
        for ask in &asks {
            self.in_flight.forget_above(ask.lane, ask.prev);
        }
        self.unseen = true;
        for _fold in 0..FOLDS_MAX {
            match self.plan(&asks, batch_bytes)? {
                Planned::Plan(plan, generation) => {
                    let everything = Lane::ALL
                        .into_iter()
                        .all(|lane| asks.iter().any(|ask| ask.lane == lane && ask.batches > 0));
                    if plan.out_of_time && plan.len() < STARVED_KEYS {
                        // Reading the tail took the time: keep it shorter from here on.
                        let half = (self.tail.entries / 2).max(TAIL_ENTRIES_MIN);
                        self.tail.entries = half.min(self.tail.entries);
                    }
                    if plan.complete && everything {
                        self.unseen = false;
                        self.seen = plan.newest;
                    }
                    return self.hand_out(plan, generation);
                }
                Planned::FoldFirst(entries) => self.fold_below(entries)?,
                Planned::Drifted => break,
            }
        }
        Ok(Vec::new())
    }

    fn plan(&mut self, asks: &[Ask], batch_bytes: usize) -> Result<Planned> {
        let (registry, bounds, schema) = (&self.registry, self.tail, self.schema_version);
        self.connections.read(|tx| {
            if inspect::schema_version(tx)? != schema {
                return Ok(Planned::Drifted);
            }
            let hub_max = meta::batch_bytes_max(tx)?.unwrap_or(BATCH_RAW_BYTES_MAX);
            let row_max = hub_max.min(BATCH_RAW_BYTES_MAX).saturating_sub(ENVELOPE_BYTES);
            // The encoding of many small values is longer than what is counted of them.
            let sizes = Sizes { target: batch_bytes.min(row_max / 2), row_max };
            match snapshot::look(tx, registry, bounds)? {
                Look::FoldFirst { entries } => Ok(Planned::FoldFirst(entries)),
                Look::Labels(labels) => {
                    let plan = batch::plan(tx, registry, &labels, asks, sizes)?;
                    Ok(Planned::Plan(plan, meta::generation(tx)?))
                }
            }
        })
    }

    fn hand_out(&mut self, plan: Plan, generation: u64) -> Result<Vec<OutBatch>> {
        let Plan { drafts, mut moves, anchors, .. } = plan;
        let (mut batches, mut flights): (Vec<OutBatch>, Vec<Flight>) = (Vec::new(), Vec::new());
        let mut cut_short: Vec<Lane> = Vec::new();
        for draft in drafts {
            if cut_short.contains(&draft.lane) {
                continue;
            }
            let lane = draft.lane;
            match self.pack(draft, generation)? {
                Packed::Batch(batch, flight) => {
                    batches.push(batch);
                    flights.push(flight);
                }
                Packed::TooLarge(parked) => {
                    moves.push(parked);
                    // The next range of the lane would start where none ends.
                    cut_short.push(lane);
                    self.unseen = true;
                }
            }
        }
        carry_out(&mut self.connections, &self.registry, &moves)?;
        if batches.is_empty() {
            return Ok(batches);
        }
        let ends: Vec<LanePosition> = batches
            .iter()
            .map(|batch| LanePosition { lane: batch.lane, seq: batch.last, token: batch.token })
            .collect();
        self.barrier(&ends, &anchors)?;
        for flight in flights {
            self.in_flight.add(flight);
        }
        Ok(batches)
    }

    fn pack(&self, draft: Draft, generation: u64) -> Result<Packed> {
        let Draft { lane, prev, last, token, head, tables, mut keys, .. } = draft;
        let tables: Vec<TableRows> = tables.into_values().collect();
        let rows = match rows::pack(&tables) {
            Ok(rows) => rows,
            Err(RowsError::TooLarge { max, .. }) if keys.len() == 1 => {
                let action = Action::Park(quarantine::row_too_large(max));
                let key = keys.swap_remove(0);
                return Ok(Packed::TooLarge(Move { key, action }));
            }
            Err(error) => return Err(CaptureError::Message { reason: error.to_string() }),
        };
        let digest = rows.digest;
        let message = ToHub::Up(UpBatch {
            database: self.config.name.clone(),
            epoch: self.life.epoch,
            lane,
            prev,
            last,
            token,
            head,
            generation,
            rows,
        });
        let frame = wire::encode_to_hub(&message);
        let batch = OutBatch { lane, prev, last, token, digest, frame };
        Ok(Packed::Batch(batch, Flight { lane, prev, last, digest, keys }))
    }

    /// Closes ranges: their ends are recorded, the stamp is replaced inside and then outside.
    fn barrier(&mut self, ends: &[LanePosition], anchors: &[Seq]) -> Result<()> {
        if self.outside_behind {
            self.save_outside()?;
        }
        let before = self.life;
        let path = self.connections.path().to_owned();
        let after = Life { stamp: Stamp::random(), stamp_prev: Some(before.stamp), ..before };
        self.connections.write(Durability::Full, |tx| {
            if meta::life(tx)? != Some(before) {
                return Err(moved(&path, "its content is not the one that was open"));
            }
            for end in ends {
                progress::record(tx, end)?;
            }
            let remover = Remover::new(tx)?;
            for anchor in anchors.iter().take(ANCHORS_MAX) {
                remover.remove(tx, *anchor)?;
            }
            meta::set_life(tx, &after)
        })?;
        self.life = after;
        self.outside_behind = true;
        self.connections.sync_file()?;
        self.save_outside()
    }
}

enum Packed {
    Batch(OutBatch, Flight),
    TooLarge(Move),
}

/// Carries moves out, in as many short transactions as it takes.
///
/// # Errors
/// SQLite's. What was not carried out is planned again.
pub(crate) fn carry_out(
    connections: &mut Connections,
    registry: &Registry,
    moves: &[Move],
) -> Result<()> {
    let mut done = 0;
    while done < moves.len() {
        done += connections.write(Durability::Relaxed, |tx| {
            let mut carried = 0;
            for one in &moves[done..] {
                if carried > 0 && tx.spent() {
                    break;
                }
                carry(tx, registry, one)?;
                carried += 1;
            }
            Ok(carried)
        })?;
    }
    Ok(())
}

fn carry(conn: &rusqlite::Connection, registry: &Registry, one: &Move) -> Result<()> {
    let LoggedKey { table, key, label, .. } = &one.key;
    match &one.action {
        Action::Park(reason) => {
            parked::park_up(conn, *table, key.as_str(), *label, reason)?;
        }
        Action::Unpark => {
            parked::clear(conn, *table, key.as_str(), Direction::Up, label.0)?;
        }
        Action::Relabel { seed } => {
            if let Some(table) = registry.get(*table) {
                log::append(conn, table, &batch::parts(key)?, *seed)?;
            }
        }
        Action::Drop | Action::Hold(_) => {}
    }
    forget(conn, &one.key)?;
    if let Action::Hold(token) = &one.action {
        let held = PendingKey { table: *table, key: key.clone(), seq: *label, token: *token };
        pending::put(conn, &held, Place::Held(*table))?;
    }
    Ok(())
}

/// Removes everything that is logged of a key up to its label.
///
/// # Errors
/// SQLite's.
pub(crate) fn forget(conn: &rusqlite::Connection, logged: &LoggedKey) -> Result<()> {
    pending::clear(conn, logged.table, &logged.key, logged.label)?;
    let remover = Remover::new(conn)?;
    logged.tail.iter().try_for_each(|seq| remover.remove(conn, *seq))
}
