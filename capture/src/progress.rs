//! Range ends per lane: what was sent, what is received, and the token of each.
//!
//! An end is written by the barrier before its batch leaves, and stays until an end at or above it
//! is received, so that a lost receipt can be told from another history. Only a receipt, or the
//! hub's word in a Welcome, marks one as received.

use rusqlite::{Connection, params};
use sync_proto::continuity::KnownLane;
use sync_proto::message::LanePosition;
use sync_proto::{Lane, Seq, Token};

use crate::error::Result;
use crate::pending::lane_code;

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

/// Marks every end up to `watermark` as received and forgets all but the greatest of them.
///
/// # Errors
/// SQLite's.
pub(crate) fn receive(conn: &Connection, lane: Lane, watermark: Seq) -> Result<()> {
    let params = params![lane_code(lane), watermark.0];
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
    let mut known = KnownLane {
        received: LanePosition { lane, seq: Seq::ZERO, token: Token::default() },
        sent: Vec::new(),
    };
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
