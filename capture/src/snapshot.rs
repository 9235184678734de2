//! One snapshot's labels: every key of the unfolded tail, with the lane that it waits in.
//!
//! The version trap: a row read in a snapshot has to carry the newest number of its key over
//! everything logged in that snapshot, or one number could name two contents. So the whole tail is
//! read first, and a key that stands in it overrides its folded row. Rows are read by
//! [`crate::batch`].

use sync_proto::{Lane, NaturalKey, Seq, Token};

use crate::connection::ReadTx;
use crate::error::Result;
use crate::log::{LoadedTail, LoggedKey, Tail, TailKey};
use crate::pending::{self, Place};
use crate::registry::{Registry, Table, TableId};

/// How much of the log may be unfolded, so that a snapshot of it fits memory and time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TailBounds {
    /// Entries.
    pub entries: usize,
    /// Bytes of their keys.
    pub bytes: usize,
}

impl Default for TailBounds {
    /// 4,096 entries are read in about 3 ms on a small board; their keys are bounded for the few
    /// tables that have long ones.
    fn default() -> Self {
        Self { entries: 4096, bytes: 2 << 20 }
    }
}

/// The tail of one snapshot, sorted into places.
#[derive(Debug)]
pub(crate) struct Labels {
    tail: Tail,
    lanes: [Vec<Labelled>; 3],
    /// Keys of tables that do not flow.
    pub(crate) held: Vec<Labelled>,
    /// Keys of tables that the registry does not know.
    pub(crate) strays: Vec<Labelled>,
}

/// One key of the tail.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Labelled {
    /// The greatest commit_seq of the key.
    pub(crate) label: Seq,
    /// The table.
    pub(crate) table: TableId,
    /// The key.
    pub(crate) key: NaturalKey,
}

/// What a look at the tail came to.
#[derive(Debug)]
pub(crate) enum Look {
    /// Labels for everything.
    Labels(Labels),
    /// The tail is over its bounds and has to be folded first.
    FoldFirst {
        /// Entries that fitted.
        entries: usize,
    },
}

/// Labels everything logged in the snapshot.
///
/// # Errors
/// SQLite's.
pub(crate) fn look(tx: &ReadTx<'_>, registry: &Registry, bounds: TailBounds) -> Result<Look> {
    let tail = match Tail::load(tx, registry, bounds.entries, bounds.bytes)? {
        LoadedTail::Whole(tail) => tail,
        LoadedTail::TooLong { entries } => return Ok(Look::FoldFirst { entries }),
    };
    let mut lanes = [Vec::new(), Vec::new(), Vec::new()];
    let (mut held, mut strays) = (Vec::new(), Vec::new());
    let mut folded = FoldedChanges::new(tx);
    for ((id, key), logged) in &tail.keys {
        let labelled = Labelled { label: logged.label, table: *id, key: key.clone() };
        let Some(table) = registry.get(*id) else {
            strays.push(labelled);
            continue;
        };
        let seeds_only = logged.seeds_only && !folded.has(table, key)?;
        match Place::of(table, seeds_only) {
            Place::Lane(lane) => lanes[index(lane)].push(labelled),
            Place::Held(_) => held.push(labelled),
            // The local check takes these.
            Place::Local(_) => {}
        }
    }
    for lane in &mut lanes {
        lane.sort_unstable_by_key(|labelled| labelled.label);
    }
    Ok(Look::Labels(Labels { tail, lanes, held, strays }))
}

impl Labels {
    /// The tail's keys of a lane, in the order of their labels.
    pub(crate) fn lane(&self, lane: Lane) -> &[Labelled] {
        &self.lanes[index(lane)]
    }

    /// Whether a key stands in the tail.
    pub(crate) fn has(&self, table: TableId, key: &NaturalKey) -> bool {
        self.get(table, key).is_some()
    }

    /// The token of the entry that labels one of the tail's keys.
    pub(crate) fn token(&self, labelled: &Labelled) -> Option<Token> {
        self.get(labelled.table, &labelled.key).map(|logged| logged.token)
    }

    fn get(&self, table: TableId, key: &NaturalKey) -> Option<&TailKey> {
        // A tuple of references cannot look up a tuple of values; keys are short.
        self.tail.keys.get(&(table, key.clone()))
    }

    /// Everything that is logged of the tail's keys of a lane up to `seq`.
    pub(crate) fn logged_up_to(&self, lane: Lane, seq: Seq) -> Vec<LoggedKey> {
        let keys = self.lane(lane).iter().take_while(|labelled| labelled.label <= seq);
        keys.filter_map(|labelled| self.logged(labelled)).collect()
    }

    /// Everything that is logged of one of the tail's keys.
    pub(crate) fn logged(&self, labelled: &Labelled) -> Option<LoggedKey> {
        self.get(labelled.table, &labelled.key).map(|logged| LoggedKey {
            table: labelled.table,
            key: labelled.key.clone(),
            label: labelled.label,
            tail: logged.seqs.clone(),
        })
    }

    /// Anchors that are not the newest entry any more.
    pub(crate) fn anchors(&self) -> &[Seq] {
        &self.tail.anchors
    }

    /// The newest entry of the snapshot.
    pub(crate) fn newest(&self) -> Seq {
        self.tail.newest
    }
}

/// Finds keys whose folded row is a change, so that a later seed does not take them back to the
/// backfill lane. Most files have none, and then no key is looked up.
struct FoldedChanges<'a> {
    tx: &'a ReadTx<'a>,
    any: Option<bool>,
}

impl<'a> FoldedChanges<'a> {
    const fn new(tx: &'a ReadTx<'a>) -> Self {
        Self { tx, any: None }
    }

    fn has(&mut self, table: &Table, key: &NaturalKey) -> Result<bool> {
        let any = match self.any {
            Some(any) => any,
            None => pending::has_changes(self.tx)?,
        };
        self.any = Some(any);
        if !any {
            return Ok(false);
        }
        Ok(match pending::place(self.tx, table.id, key)? {
            Some(Place::Lane(lane)) => lane != Lane::Backfill,
            Some(Place::Local(_)) => true,
            Some(Place::Held(_)) | None => false,
        })
    }
}

const fn index(lane: Lane) -> usize {
    match lane {
        Lane::State => 0,
        Lane::Mutable => 1,
        Lane::Backfill => 2,
    }
}
