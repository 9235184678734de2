//! Tries parked rows of the hub again.
//!
//! Rows that wait for others (a value to become free, a parent to come) are tried after every batch
//! that wrote something; all of them when the schema or a table's state changed. A row of a newer
//! version has replaced its older one already, so whatever waits is the newest that came.

use sync_proto::message::Outcome;
use sync_proto::{NaturalKey, Version};

use crate::connection::Connections;
use crate::error::{CaptureError, Result};
use crate::parked::{self, Waiting};
use crate::registry::Registry;

use super::down::{DownRow, DownRows};
use super::refusal::{FOREIGN_KEY, UNIQUE};
use super::slices::{Rows as _, run};

/// Rows of one retry: what a step holds in memory and tries between two looks at other work.
const RETRY_ROWS_MAX: usize = 64;

/// How far a retry came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retried {
    /// Rows that are in the file now.
    pub(crate) applied: usize,
    /// The entry to go on after; `None`: all were tried.
    pub(crate) next: Option<i64>,
}

/// Tries some of the parked rows, from the entry after `after` on (0: from the first). Without
/// parked rows it takes no lock.
///
/// # Errors
/// SQLite's.
pub(crate) fn retry_down(
    conns: &mut Connections,
    registry: &Registry,
    after: i64,
) -> Result<Retried> {
    let waiting = conns.read(|tx| parked::waiting(tx, after, RETRY_ROWS_MAX))?;
    let next = waiting.last().filter(|_| waiting.len() == RETRY_ROWS_MAX).map(|row| row.id);
    let applied = retry(conns, registry, &waiting)?;
    Ok(Retried { applied, next })
}

/// Tries those parked rows that other rows may have unblocked: those tried least often first.
///
/// # Errors
/// SQLite's.
pub(super) fn retry_blocked(conns: &mut Connections, registry: &Registry) -> Result<()> {
    let codes = [UNIQUE, FOREIGN_KEY];
    let waiting = conns.read(|tx| parked::waiting_for(tx, codes, RETRY_ROWS_MAX))?;
    retry(conns, registry, &waiting)?;
    Ok(())
}

fn retry(conns: &mut Connections, registry: &Registry, waiting: &[Waiting]) -> Result<usize> {
    let rows: Result<Vec<DownRow<'_>>> = waiting.iter().map(row_of).collect();
    let rows = DownRows::new(rows?, None);
    if rows.len() == 0 {
        return Ok(0);
    }
    let settled = run(conns, registry, &rows, 0..rows.len())?;
    Ok(settled.iter().filter(|row| row.outcome == Outcome::Applied).count())
}

fn row_of(waiting: &Waiting) -> Result<DownRow<'_>> {
    let unreadable =
        |error: sync_proto::key::KeyError| CaptureError::corrupt(format!("a parked row: {error}"));
    let key = NaturalKey::from_canonical(&waiting.key).map_err(unreadable)?;
    Ok(DownRow {
        table: waiting.table,
        key_values: key.parts().map_err(unreadable)?,
        key,
        version: Version(waiting.number),
        deleted: waiting.payload.deleted,
        columns: &waiting.payload.columns,
        values: &waiting.payload.values,
    })
}
