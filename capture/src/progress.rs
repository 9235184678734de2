//! Range ends per lane: what was sent, what is received, and the token of each.
//!
//! An end is written by the barrier before its batch leaves, and stays until an end at or above it
//! is received, so that a lost receipt can be told from another history. An end counts as received
//! when the receipts of everything up to it are settled here, which may be later than the hub's
//! watermark says.

use rusqlite::{Connection, params};
use sync_proto::continuity::KnownLane;
use sync_proto::message::LanePosition;
use sync_proto::range::LaneProgress;
use sync_proto::{Lane, Seq, Token};

use crate::error::Result;
use crate::pending::lane_code;

/// Up to where each lane's receipts are settled, with those that came ahead of others. Kept in
/// memory: after a restart, what came ahead counts as a lost receipt.
#[derive(Clone, Debug)]
pub(crate) struct Settled {
    lanes: [LaneProgress; 3],
}

impl Settled {
    /// Goes on from what the file says.
    pub(crate) fn new(known: &[KnownLane]) -> Self {
        let received = |lane| known.iter().map(|known| known.received).find(|at| at.lane == lane);
        Self { lanes: Lane::ALL.map(|lane| at(received(lane).unwrap_or_else(|| start(lane)))) }
    }

    /// The receipt of a range is settled; answers up to where all are.
    pub(crate) fn settle(&mut self, lane: Lane, prev: Seq, last: Seq) -> Seq {
        let progress = self.lane(lane);
        // When no more can come ahead, this one counts as lost after a restart.
        progress.offer(prev, last, Token::default());
        progress.watermark().seq
    }

    /// Everything of a lane up to `seq` is settled.
    pub(crate) fn settle_up_to(&mut self, lane: Lane, seq: Seq) {
        if seq > Seq::ZERO {
            self.settle(lane, Seq::ZERO, seq);
        }
    }

    /// Up to where a lane is settled.
    pub(crate) fn position(&self, lane: Lane) -> Seq {
        let [state, mutable, backfill] = &self.lanes;
        let progress = match lane {
            Lane::State => state,
            Lane::Mutable => mutable,
            Lane::Backfill => backfill,
        };
        progress.watermark().seq
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneProgress {
        let [state, mutable, backfill] = &mut self.lanes;
        match lane {
            Lane::State => state,
            Lane::Mutable => mutable,
            Lane::Backfill => backfill,
        }
    }
}

fn at(position: LanePosition) -> LaneProgress {
    LaneProgress::new(position, Vec::new())
}

fn start(lane: Lane) -> LanePosition {
    LanePosition { lane, seq: Seq::ZERO, token: Token::default() }
}

/// Records a range end that is about to be sent.
///
/// # Errors
/// SQLite's.
pub(crate) fn record(conn: &Connection, end: &LanePosition) -> Result<()> {
    conn.prepare_cached(
        "INSERT OR IGNORE INTO _rowtide_ranges(lane, seq, token, received) VALUES(?1, ?2, ?3, 0)",
    )?
    .execute(params![lane_code(end.lane), end.seq.0, end.token.0.as_slice()])?;
    Ok(())
}

/// Marks every end up to `seq` as received and forgets all but the greatest of them.
///
/// # Errors
/// SQLite's.
pub(crate) fn receive(conn: &Connection, lane: Lane, seq: Seq) -> Result<()> {
    let params = params![lane_code(lane), seq.0];
    conn.prepare_cached(
        "UPDATE _rowtide_ranges SET received = 1 WHERE lane = ?1 AND seq <= ?2 AND received = 0",
    )?
    .execute(params)?;
    conn.prepare_cached(
        "DELETE FROM _rowtide_ranges WHERE lane = ?1 AND seq < \
         (SELECT max(seq) FROM _rowtide_ranges WHERE lane = ?1 AND seq <= ?2)",
    )?
    .execute(params)?;
    Ok(())
}

/// Forgets every end: another epoch begins.
///
/// # Errors
/// SQLite's.
pub(crate) fn forget(conn: &Connection) -> Result<()> {
    conn.execute("DELETE FROM _rowtide_ranges", [])?;
    Ok(())
}

/// What is known of each lane, for the continuity check.
///
/// # Errors
/// SQLite's.
pub(crate) fn known(conn: &Connection) -> Result<Vec<KnownLane>> {
    Lane::ALL.into_iter().map(|lane| known_lane(conn, lane)).collect()
}

/// The last range end that is received, per lane; lanes without one are left out.
pub(crate) fn received(known: &[KnownLane]) -> Vec<LanePosition> {
    known.iter().map(|lane| lane.received).filter(|position| position.seq > Seq::ZERO).collect()
}

fn known_lane(conn: &Connection, lane: Lane) -> Result<KnownLane> {
    let mut known = KnownLane { received: start(lane), sent: Vec::new() };
    let mut statement = conn.prepare_cached(
        "SELECT seq, token, received FROM _rowtide_ranges WHERE lane = ?1 ORDER BY seq",
    )?;
    let mut rows = statement.query([lane_code(lane)])?;
    while let Some(row) = rows.next()? {
        let end = LanePosition { lane, seq: Seq(row.get(0)?), token: Token(row.get(1)?) };
        if row.get(2)? {
            known.received = end;
        } else {
            known.sent.push(end);
        }
    }
    Ok(known)
}
