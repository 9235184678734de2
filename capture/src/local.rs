//! The one check of what was logged for cloud-authoritative tables: echo, or a local write.
//!
//! A logged key whose row stands as it was recorded is the echo of our own write, or an edit that
//! changed nothing: its entries are dropped, and nothing goes up. A row that differs was written by
//! the application and is put back from its copy, hub or no hub. A row that triggers change while
//! it is put back is accepted as it stands then, and a key is put back at most once in
//! [`REVERT_PAUSE`], so that no two writers fight faster than that.

mod keys;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use serde::Serialize;
use sync_proto::message::{Outcome, TableState};
use sync_proto::{NaturalKey, Seq, Value};

use crate::apply::{self, Settled};
use crate::connection::{Connections, ReadTx};
use crate::error::Result;
use crate::log::{self, LoggedKey};
use crate::pending::{self, Place};
use crate::registry::{Phase, Registry, Table, TableId};

use keys::{CheckedKey, LocalKeys};

/// How long a key that was put back is left alone.
pub(crate) const REVERT_PAUSE: Duration = Duration::from_secs(1);

/// Keys of one step: what it holds in memory.
const KEYS_MAX: usize = 256;

/// Entries of the log read at a time.
const ENTRIES_MAX: usize = 512;

/// The last local write that was put back, for status.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct LastRevert {
    /// The table.
    pub table: String,
    /// The row's key.
    pub key: String,
    /// When (RFC 3339, UTC, by the device's clock).
    pub at: String,
}

/// What a step of the check did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Checked {
    /// Keys whose entries were dropped: echoes and edits that changed nothing.
    pub(crate) dropped: usize,
    /// Rows that were put back.
    pub(crate) reverted: usize,
    /// When to look again, if something is left.
    pub(crate) again: Option<Duration>,
}

/// The check's memory between steps. Losing it costs a scan of the log.
#[derive(Debug, Default)]
pub(crate) struct LocalCheck {
    /// Up to here nothing in the unfolded log is left to check.
    after: Seq,
    /// The tables' lives that `after` holds for.
    lives: Vec<(TableId, Phase, bool)>,
    /// Keys that were put back within [`REVERT_PAUSE`].
    recent: HashMap<(TableId, NaturalKey), Instant>,
    last: Option<LastRevert>,
}

/// What a look at the log found.
#[derive(Debug, Default)]
struct Found {
    keys: Vec<CheckedKey>,
    index: HashMap<(TableId, NaturalKey), usize>,
    /// Up to where the log was read.
    scanned: Seq,
    /// The oldest entry of a key that waits for its pause to end.
    waits_from: Option<Seq>,
    waits: bool,
    /// The look ended at a bound.
    more: bool,
}

impl LocalCheck {
    /// The last local write that was put back since the start.
    pub(crate) const fn last_revert(&self) -> Option<&LastRevert> {
        self.last.as_ref()
    }

    /// Checks some of the logged keys, in short transactions with pauses. Without logged keys it
    /// writes nothing and takes no lock.
    ///
    /// # Errors
    /// SQLite's. After an error the step may be taken again.
    pub(crate) fn step(&mut self, conns: &mut Connections, registry: &Registry) -> Result<Checked> {
        self.forget_old(registry);
        let found = conns.read(|tx| self.look(tx, registry))?;
        let mut checked = Checked::default();
        if !found.keys.is_empty() {
            let keys = LocalKeys::new(found.keys);
            let settled = apply::run(conns, registry, &keys, 0..keys.keys().len())?;
            checked = self.note(conns, registry, keys.keys(), &settled)?;
        }
        self.after = match found.waits_from {
            Some(seq) => Seq(seq.0 - 1),
            None => found.scanned,
        };
        checked.again = if found.more {
            Some(conns.pause())
        } else if found.waits || checked.reverted > 0 {
            Some(REVERT_PAUSE)
        } else {
            None
        };
        Ok(checked)
    }

    fn forget_old(&mut self, registry: &Registry) {
        self.recent.retain(|_, reverted| reverted.elapsed() < REVERT_PAUSE);
        let lives: Vec<(TableId, Phase, bool)> = registry
            .tables()
            .iter()
            .map(|table| (table.id, table.phase, is_checked(table)))
            .collect();
        if lives != self.lives {
            self.lives = lives;
            self.after = Seq::ZERO;
        }
    }

    fn look(&self, tx: &ReadTx<'_>, registry: &Registry) -> Result<Found> {
        let mut found = Found { scanned: self.after, ..Found::default() };
        loop {
            let entries = log::entries(tx, registry, found.scanned, ENTRIES_MAX)?;
            let whole = entries.len() < ENTRIES_MAX;
            for entry in entries {
                found.scanned = entry.seq;
                let table = registry.get(entry.table).filter(|table| is_checked(table));
                let Some(table) = table.filter(|_| !entry.seed) else { continue };
                let key = NaturalKey::of(&entry.key);
                if self.waits(tx, table, &key, &entry.key)? {
                    found.waits = true;
                    found.waits_from.get_or_insert(entry.seq);
                } else {
                    found.add(table.id, key, entry.key, entry.seq, true);
                }
            }
            if whole {
                break;
            }
            if found.keys.len() >= KEYS_MAX || tx.spent() {
                found.more = true;
                return Ok(found);
            }
        }
        for table in registry.tables().iter().filter(|table| is_checked(table)) {
            pending::walk(tx, Place::Local(table.id), Seq::ZERO, |row| {
                let parts = row.key.parts().map_err(keys::unreadable)?;
                if self.waits(tx, table, &row.key, &parts)? {
                    found.waits = true;
                } else {
                    found.add(table.id, row.key, parts, row.seq, false);
                }
                found.more = found.keys.len() >= KEYS_MAX || tx.spent();
                Ok(!found.more)
            })?;
        }
        Ok(found)
    }

    /// Whether the key was put back lately and differs again.
    fn waits(
        &self,
        tx: &ReadTx<'_>,
        table: &Table,
        key: &NaturalKey,
        parts: &[Value],
    ) -> Result<bool> {
        if !self.recent.contains_key(&(table.id, key.clone())) {
            return Ok(false);
        }
        keys::differs(tx, table, key, parts)
    }

    /// Remembers what was put back.
    fn note(
        &mut self,
        conns: &mut Connections,
        registry: &Registry,
        keys: &[CheckedKey],
        settled: &[Settled],
    ) -> Result<Checked> {
        let mut checked = Checked::default();
        let mut last = None;
        for row in settled {
            let key = &keys[row.at].logged;
            match &row.outcome {
                Outcome::Applied => {
                    checked.reverted += 1;
                    self.recent.insert((key.table, key.key.clone()), Instant::now());
                    last = Some(key);
                }
                Outcome::Rejected(reason) => tracing::warn!(
                    table = registry.get(key.table).map_or("", Table::name),
                    code = reason.code,
                    "a local write could not be put back; the row is in quarantine",
                ),
                Outcome::Duplicate | Outcome::Stale | Outcome::Diverged | Outcome::Conflict => {
                    checked.dropped += 1;
                }
            }
        }
        if let Some(last) = last {
            let now = "SELECT strftime('%Y-%m-%dT%H:%M:%SZ', 'now')";
            self.last = Some(LastRevert {
                table: registry.get(last.table).map_or_else(String::new, |t| t.name().to_owned()),
                key: last.key.as_str().to_owned(),
                at: conns.read(|tx| Ok(tx.query_row(now, [], |row| row.get(0))?))?,
            });
        }
        Ok(checked)
    }
}

impl Found {
    fn add(&mut self, table: TableId, key: NaturalKey, parts: Vec<Value>, seq: Seq, tail: bool) {
        let at = *self.index.entry((table, key.clone())).or_insert(self.keys.len());
        if at == self.keys.len() {
            let logged = LoggedKey { table, key, label: seq, tail: Vec::new() };
            self.keys.push(CheckedKey { logged, parts });
        }
        let logged = &mut self.keys[at].logged;
        logged.label = logged.label.max(seq);
        if tail {
            logged.tail.push(seq);
        }
    }
}

/// Whether local writes of a table are looked at. While device and hub disagree about who is
/// right, nothing is put back.
fn is_checked(table: &Table) -> bool {
    let disputed = table
        .hub
        .as_ref()
        .is_some_and(|hub| matches!(hub.state, TableState::AuthorityMismatch { .. }));
    table.is_cloud() && table.phase != Phase::Gone && !disputed
}
