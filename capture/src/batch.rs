//! Drafts batches from one snapshot: labelled keys in, rows with their numbers out.
//!
//! A draft is a prefix of a lane above where it starts, cut by bytes and rows while stepping. A key
//! that cannot be sent as it is becomes a [`Move`], which must be carried out before the range that
//! covers it is closed. Nothing is written here, and nothing here outlives the read transaction but
//! the plan itself.

use std::collections::{BTreeMap, HashMap};

use rusqlite::ErrorCode;
use sync_proto::limits::{BATCH_CELLS_MAX, BATCH_TARGET_ROWS};
use sync_proto::message::Reason;
use sync_proto::rows::{Row, TableRows};
use sync_proto::{Lane, NaturalKey, Seq, Token, Value, Version};

use crate::connection::ReadTx;
use crate::error::{CaptureError, Result};
use crate::log::LoggedKey;
use crate::pending::{self, PendingKey, Place};
use crate::quarantine;
use crate::registry::{Registry, Table, TableId};
use crate::row::{Found, Shape};
use crate::snapshot::Labels;

/// Keys that one plan moves aside, at most: they are carried out before anything is sent.
const MOVES_MAX: usize = 512;

/// Bytes of all drafts of a plan at which no more rows are read: with the rows' own weight in
/// memory and their packed form, what one call to fill holds.
const PLAN_BYTES_MAX: usize = 4 << 20;

/// Bytes that a row takes in a batch beside its values.
const ROW_OVERHEAD_BYTES: usize = 16;

/// What is wanted of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    /// The lane.
    pub(crate) lane: Lane,
    /// Where its next range starts.
    pub(crate) prev: Seq,
    /// Batches, at most.
    pub(crate) batches: usize,
    /// Up to where its receipts are settled.
    pub(crate) received: Seq,
}

/// Bounds of one batch, in raw bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sizes {
    /// At which a batch is closed.
    pub(crate) target: usize,
    /// Above which a row is set aside.
    pub(crate) row_max: usize,
}

/// A batch before it is packed.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Draft {
    /// The lane.
    pub(crate) lane: Lane,
    /// Where the range starts.
    pub(crate) prev: Seq,
    /// Where it ends: the label of the last row.
    pub(crate) last: Seq,
    /// The token of that entry.
    pub(crate) token: Token,
    /// The greatest label of the lane in the snapshot.
    pub(crate) head: Seq,
    /// The rows, by table.
    pub(crate) tables: BTreeMap<TableId, TableRows>,
    /// The rows' keys, in the order of their labels.
    pub(crate) keys: Vec<LoggedKey>,
    bytes: usize,
    cells: usize,
}

/// What happens to a key that is not sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Action {
    /// Set aside with a reason.
    Park(Reason),
    /// Nothing is to be sent.
    Drop,
    /// Nothing is to be sent, and what was set aside of it is over.
    Unpark,
    /// Kept until its table flows.
    Hold(Token),
    /// Logged again, so that it gets a new number.
    Relabel {
        /// As a seed, or as a change.
        seed: bool,
    },
}

/// A key that is not sent, and what happens to it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Move {
    /// The key, with everything logged of it.
    pub(crate) key: LoggedKey,
    /// What happens.
    pub(crate) action: Action,
}

/// Everything that one snapshot led to.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Plan {
    /// The drafts, lane by lane.
    pub(crate) drafts: Vec<Draft>,
    /// What must be moved before a range is closed.
    pub(crate) moves: Vec<Move>,
    /// Anchors to remove.
    pub(crate) anchors: Vec<Seq>,
    /// The newest entry of the snapshot.
    pub(crate) newest: Seq,
    /// Whether every key of every asked lane was reached.
    pub(crate) complete: bool,
    /// The snapshot was given up because its time was over.
    pub(crate) out_of_time: bool,
}

impl Plan {
    /// Keys that it sees to.
    pub(crate) fn len(&self) -> usize {
        self.moves.len() + self.drafts.iter().map(|draft| draft.keys.len()).sum::<usize>()
    }
}

/// Drafts what is asked for.
///
/// # Errors
/// SQLite's.
pub(crate) fn plan(
    tx: &ReadTx<'_>,
    registry: &Registry,
    labels: &Labels,
    asks: &[Ask],
    sizes: Sizes,
) -> Result<Plan> {
    let mut planner = Planner {
        tx,
        registry,
        labels,
        sizes,
        shapes: HashMap::new(),
        bytes: 0,
        plan: Plan {
            anchors: labels.anchors().to_vec(),
            newest: labels.newest(),
            complete: true,
            ..Plan::default()
        },
    };
    for ask in asks.iter().filter(|ask| ask.batches > 0) {
        planner.lane(*ask)?;
    }
    planner.hold()?;
    Ok(planner.plan)
}

/// A labelled key, from the tail or from the folded part.
struct Candidate {
    key: LoggedKey,
    token: Token,
}

/// A lane while it is drafted.
struct Drafting {
    ask: Ask,
    drafts: Vec<Draft>,
    open: Draft,
}

struct Planner<'a> {
    tx: &'a ReadTx<'a>,
    registry: &'a Registry,
    labels: &'a Labels,
    sizes: Sizes,
    shapes: HashMap<TableId, Shape>,
    /// Bytes of all drafts.
    bytes: usize,
    plan: Plan,
}

impl Planner<'_> {
    fn lane(&mut self, ask: Ask) -> Result<()> {
        self.relabel_stragglers(ask)?;
        let head = self.head(ask.lane)?;
        let mut drafting =
            Drafting { ask, drafts: Vec::new(), open: Draft::new(ask.lane, ask.prev, head) };
        let mut going = true;
        // Folded numbers are all below the tail's.
        pending::walk(self.tx, Place::Lane(ask.lane), ask.prev, |row| {
            going = if self.labels.has(row.table, &row.key) {
                !self.must_stop(&drafting)
            } else {
                self.offer(&mut drafting, Candidate::folded(row))?
            };
            Ok(going)
        })?;
        let labels = self.labels;
        let tail = labels.lane(ask.lane);
        let from = tail.partition_point(|labelled| labelled.label <= ask.prev);
        for labelled in &tail[from..] {
            if !going {
                break;
            }
            let Some(token) = labels.token(labelled) else { continue };
            let Some(key) = labels.logged(labelled) else { continue };
            going = self.offer(&mut drafting, Candidate { key, token })?;
        }
        self.plan.complete &= going;
        if drafting.drafts.len() < ask.batches && !drafting.open.keys.is_empty() {
            drafting.drafts.push(drafting.open);
        }
        self.plan.drafts.append(&mut drafting.drafts);
        Ok(())
    }

    /// Keys that stand where everything is received came into the lane late: what had kept them in
    /// another one was settled there. They get a new number, or no range would cover them.
    fn relabel_stragglers(&mut self, ask: Ask) -> Result<()> {
        let action = Action::Relabel { seed: ask.lane == Lane::Backfill };
        let (labels, moves, tx) = (self.labels, &mut self.plan.moves, self.tx);
        pending::walk(tx, Place::Lane(ask.lane), Seq::ZERO, |row| {
            if row.seq > ask.received || moves.len() >= MOVES_MAX || tx.spent() {
                return Ok(false);
            }
            if !labels.has(row.table, &row.key) {
                let key = Candidate::folded(row).key;
                moves.push(Move { key, action: action.clone() });
            }
            Ok(true)
        })?;
        for key in labels.logged_up_to(ask.lane, ask.received) {
            moves.push(Move { key, action: action.clone() });
        }
        Ok(())
    }

    /// Takes one key; answers whether to go on.
    fn offer(&mut self, drafting: &mut Drafting, candidate: Candidate) -> Result<bool> {
        if self.must_stop(drafting) {
            return Ok(false);
        }
        let ready = match self.judge(drafting.ask.lane, &candidate)? {
            Judged::Move(action) => {
                self.plan.moves.push(Move { key: candidate.key, action });
                return Ok(true);
            }
            Judged::Send(ready) => ready,
        };
        if drafting.open.is_full(&ready, self.sizes.target) {
            let Draft { lane, last, head, .. } = drafting.open;
            let full = std::mem::replace(&mut drafting.open, Draft::new(lane, last, head));
            drafting.drafts.push(full);
        }
        if drafting.drafts.len() == drafting.ask.batches {
            return Ok(false);
        }
        let Some(table) = self.registry.get(candidate.key.table) else { return Ok(true) };
        self.bytes += ready.bytes;
        drafting.open.push(table, candidate, ready);
        Ok(true)
    }

    /// Whether the snapshot was held long enough, or enough is to be moved. One key is always
    /// taken, so that a slow machine gets on too.
    fn must_stop(&mut self, drafting: &Drafting) -> bool {
        let some = !self.plan.moves.is_empty()
            || !self.plan.drafts.is_empty()
            || !drafting.drafts.is_empty()
            || !drafting.open.keys.is_empty();
        let late = some && self.tx.spent();
        self.plan.out_of_time |= late;
        late || self.plan.moves.len() >= MOVES_MAX || self.bytes >= PLAN_BYTES_MAX
    }

    fn judge(&mut self, lane: Lane, candidate: &Candidate) -> Result<Judged> {
        let logged = &candidate.key;
        let Some(table) = self.registry.get(logged.table) else {
            return Ok(Judged::Move(Action::Drop));
        };
        let seed = lane == Lane::Backfill;
        match Place::of(table, seed) {
            Place::Held(_) => return Ok(Judged::Move(Action::Hold(candidate.token))),
            Place::Lane(place) if place == lane => {}
            // The table's lane is another one than when the key was folded.
            Place::Lane(_) | Place::Local(_) => {
                return Ok(Judged::Move(Action::Relabel { seed }));
            }
        }
        let key = parts(&logged.key)?;
        if NaturalKey::has_null(&key) {
            let there = quarantine::has_null_key_row(self.tx, table, &key)?;
            let action = if there { Action::Park(quarantine::null_key()) } else { Action::Unpark };
            return Ok(Judged::Move(action));
        }
        let shape = self.shapes.entry(table.id).or_insert_with(|| table.shape());
        let found = match shape.read(self.tx, &key) {
            Ok(found) => found,
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::TooBig) => {
                return Ok(Judged::Move(Action::Park(quarantine::row_too_large(
                    self.sizes.row_max,
                ))));
            }
            Err(error) => return Err(error.into()),
        };
        let absent = found == Found::None;
        if absent && logged.label <= table.rebuilt {
            return Ok(Judged::Move(Action::Park(quarantine::row_absent())));
        }
        if logged.label <= table.fence {
            return Ok(Judged::Move(Action::Relabel { seed }));
        }
        Ok(self.weigh(table, key, found))
    }

    /// Sizes a row up that may be sent.
    fn weigh(&self, table: &Table, key: Vec<Value>, found: Found) -> Judged {
        let (values, deleted) = match found {
            Found::Many => return Judged::Move(Action::Park(quarantine::many_rows(table))),
            // A row that was offered for adoption and is gone has nothing to offer.
            Found::None if table.is_cloud() => return Judged::Move(Action::Drop),
            Found::None => (tombstone(table, key), true),
            Found::One(values) => (values, false),
        };
        let bytes = ROW_OVERHEAD_BYTES + values.iter().map(Value::len_bytes).sum::<usize>();
        if bytes > self.sizes.row_max {
            return Judged::Move(Action::Park(quarantine::row_too_large(self.sizes.row_max)));
        }
        // A cloud table's row is only ever offered: it is taken where the hub has none.
        let base = table.is_cloud().then_some(Version::NONE);
        Judged::Send(Ready { values, deleted, base, bytes })
    }

    /// The greatest label of a lane that is going to be sent.
    fn head(&self, lane: Lane) -> Result<Seq> {
        let mut newest_first = self.labels.lane(lane).iter().rev();
        if let Some(last) = newest_first.find(|labelled| !is_null_key(&labelled.key)) {
            return Ok(last.label);
        }
        let mut head = Seq::ZERO;
        pending::walk_down(self.tx, Place::Lane(lane), |row| {
            let flows = self.registry.get(row.table).is_some_and(Table::flows);
            if flows && !is_null_key(&row.key) && !self.labels.has(row.table, &row.key) {
                head = row.seq;
                return false;
            }
            true
        })?;
        Ok(head)
    }

    /// Keys of tables that do not flow are put aside before a range closes over them: later their
    /// place could not be told from that of a key that was sent.
    fn hold(&mut self) -> Result<()> {
        let Some(last) = self.plan.drafts.iter().map(|draft| draft.last).max() else {
            return Ok(());
        };
        let held = self.labels.held.iter().map(|labelled| (labelled, true));
        let strays = self.labels.strays.iter().map(|labelled| (labelled, false));
        for (labelled, keep) in held.chain(strays) {
            if labelled.label > last {
                continue;
            }
            let Some(token) = self.labels.token(labelled) else { continue };
            let Some(key) = self.labels.logged(labelled) else { continue };
            let action = if keep { Action::Hold(token) } else { Action::Drop };
            self.plan.moves.push(Move { key, action });
        }
        Ok(())
    }
}

/// A row that may be sent.
struct Ready {
    values: Vec<Value>,
    deleted: bool,
    base: Option<Version>,
    bytes: usize,
}

enum Judged {
    Send(Ready),
    Move(Action),
}

impl Candidate {
    fn folded(row: PendingKey) -> Self {
        let PendingKey { table, key, seq, token } = row;
        Self { key: LoggedKey { table, key, label: seq, tail: Vec::new() }, token }
    }
}

impl Draft {
    fn new(lane: Lane, prev: Seq, head: Seq) -> Self {
        Self {
            lane,
            prev,
            last: prev,
            token: Token::default(),
            head,
            tables: BTreeMap::new(),
            keys: Vec::new(),
            bytes: 0,
            cells: 0,
        }
    }

    /// Whether one more row would be too much. An empty draft takes any row.
    fn is_full(&self, row: &Ready, target: usize) -> bool {
        !self.keys.is_empty()
            && (self.keys.len() >= BATCH_TARGET_ROWS
                || self.bytes + row.bytes > target
                || self.cells + row.values.len() > BATCH_CELLS_MAX / CELL_MARGIN)
    }

    fn push(&mut self, table: &Table, candidate: Candidate, row: Ready) {
        self.last = candidate.key.label;
        self.token = candidate.token;
        self.bytes += row.bytes;
        self.cells += row.values.len();
        self.tables.entry(table.id).or_insert_with(|| empty(table)).rows.push(Row {
            number: candidate.key.label.0,
            base: row.base,
            values: row.values,
            deleted: row.deleted,
        });
        self.keys.push(candidate.key);
    }
}

/// A batch's cells in memory are bounded below what the wire takes: each is 32 bytes.
const CELL_MARGIN: usize = 32;

fn empty(table: &Table) -> TableRows {
    TableRows {
        table: table.name().to_owned(),
        columns: table.column_names(),
        key: table.key_indexes().iter().filter_map(|index| u16::try_from(*index).ok()).collect(),
        rows: Vec::new(),
    }
}

fn tombstone(table: &Table, key: Vec<Value>) -> Vec<Value> {
    let mut values = vec![Value::Null; table.spec.columns.len()];
    for (index, part) in table.key_indexes().into_iter().zip(key) {
        values[index] = part;
    }
    values
}

fn is_null_key(key: &NaturalKey) -> bool {
    key.as_str().split(',').any(|part| part == "n:")
}

/// The parts of a key that this crate wrote.
///
/// # Errors
/// [`CaptureError::Corrupt`] when it is not canonical.
pub(crate) fn parts(key: &NaturalKey) -> Result<Vec<Value>> {
    key.parts().map_err(|error| CaptureError::corrupt(format!("a logged key: {error}")))
}
