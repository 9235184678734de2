//! Writes many rows in short transactions, so that the application's writers pass between them.
//!
//! Rows that the file refuses are tried again after the others, for as long as that helps: a value
//! may become free, a parent may come. What is refused then is given up, one by one, and only the
//! last transaction runs the end of the work. A crash between two transactions leaves whole rows
//! with their versions, so doing all of it again changes nothing twice.

use std::collections::VecDeque;

use rusqlite::Connection;
use sync_proto::message::{Outcome, Reason};

use crate::connection::{Connections, Durability, WriteTx};
use crate::error::{CaptureError, Result};
use crate::registry::{Registry, TableId};

use super::foreign::ForeignKeys;
use super::refusal::{self, RowError};
use super::target::Targets;
use super::write::Change;

/// The rows of one piece of work, known by their positions `0..len`.
pub(crate) trait Rows {
    /// How many rows there are.
    fn len(&self) -> usize;

    /// Writes one row, or finds that there is nothing to write.
    ///
    /// # Errors
    /// [`RowError`]; of a refused row nothing may be left.
    fn write(
        &self,
        conn: &Connection,
        targets: &mut Targets<'_>,
        at: usize,
    ) -> Result<Step, RowError>;

    /// Sets aside a row that the file refuses for good.
    ///
    /// # Errors
    /// SQLite's.
    fn give_up(&self, conn: &Connection, at: usize, reason: &Reason) -> Result<()>;

    /// Ends the work, in the same transaction as its last row.
    ///
    /// # Errors
    /// SQLite's.
    fn finish(&self, conn: &Connection) -> Result<()>;
}

/// What became of one row.
#[derive(Debug)]
pub(crate) enum Step {
    /// It stands as wanted.
    Written(TableId, Change),
    /// It was not to be written.
    Left(Outcome),
}

/// A row and what became of it.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Settled {
    /// Its position.
    pub(crate) at: usize,
    /// What became of it.
    pub(crate) outcome: Outcome,
}

/// Writes all rows in the order of `todo`; answers for each what became of it.
///
/// # Errors
/// Whatever stops the work; what was committed before stays and may be done again.
pub(crate) fn run(
    conns: &mut Connections,
    registry: &Registry,
    rows: &impl Rows,
    todo: impl IntoIterator<Item = usize>,
) -> Result<Vec<Settled>> {
    let mut plan = Plan { todo: todo.into_iter().collect(), ..Plan::default() };
    let mut settled = Vec::with_capacity(rows.len());
    let mut care = Care::Free;
    loop {
        plan.next_pass();
        let mut trace = Trace::default();
        let outcome = conns.write(Durability::Relaxed, |tx| {
            trace = Trace::default();
            Slice::new(tx, registry, plan.clone(), care).run(rows, &mut trace)
        });
        match outcome {
            Ok(_undone) if !trace.offenders.is_empty() => {
                for (at, reason) in trace.offenders {
                    plan.hold_back(at, reason);
                }
                care = Care::Free;
            }
            Ok(slice) => {
                settled.extend(slice.settled);
                if slice.finished {
                    return Ok(settled);
                }
                conns.checkpoint()?;
                plan = slice.plan;
                care = care.after(trace.taken);
            }
            Err(error) => match trace.lost {
                Some((at, reason)) => plan.hold_back(at, reason),
                None if refusal::is_foreign_key(&error) => {
                    care = care.stricter(trace.taken);
                    if care == Care::Free {
                        plan.hold_back_first(error)?;
                    }
                }
                None => return Err(error),
            },
        }
    }
}

/// How a transaction guards against a COMMIT that deferred foreign keys refuse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Care {
    /// Not at all: that it commits is the rule.
    Free,
    /// At most so many rows, and each is checked before the COMMIT.
    Checked(usize),
    /// One row at a time, for the next so many: the check did not find the culprit.
    Single(usize),
}

impl Care {
    /// After a refused COMMIT of so many rows. [`Care::Free`]: a single row is the culprit.
    fn stricter(self, taken: usize) -> Self {
        match self {
            // Checking takes about as long as writing did.
            Self::Free => Self::Checked(taken.div_ceil(2)),
            Self::Checked(_) => Self::Single(taken),
            Self::Single(_) => Self::Free,
        }
    }

    /// After a COMMIT of so many rows.
    fn after(self, taken: usize) -> Self {
        match self {
            Self::Single(left) if left > taken => Self::Single(left - taken),
            Self::Free | Self::Checked(_) | Self::Single(_) => Self::Free,
        }
    }

    const fn rows_max(self) -> usize {
        match self {
            Self::Free => usize::MAX,
            Self::Checked(rows) => rows,
            Self::Single(_) => 1,
        }
    }
}

/// What is still to be done.
#[derive(Clone, Debug, Default)]
struct Plan {
    /// Rows of this pass.
    todo: VecDeque<usize>,
    /// Rows that were refused in this pass.
    refused: VecDeque<(usize, Reason)>,
    /// Whether a row was written in this pass.
    progress: bool,
    /// Passes over refused rows.
    retries: usize,
    /// A row was held back: a transaction does not go on into the next pass, so that the row is
    /// found in the pass that refused it.
    apart: bool,
}

impl Plan {
    /// Starts the next pass when this one is over and another may help. One retry always may:
    /// rows that refer to each other are refused apart and taken together.
    fn next_pass(&mut self) -> bool {
        let helps = !self.refused.is_empty() && (self.progress || self.retries == 0);
        if !self.todo.is_empty() || !helps {
            return false;
        }
        self.todo = self.refused.drain(..).map(|(at, _reason)| at).collect();
        self.progress = false;
        self.retries += 1;
        true
    }

    /// Counts a row as refused before it is written in this pass.
    fn hold_back(&mut self, at: usize, reason: Reason) {
        self.apart = true;
        if let Some(index) = self.todo.iter().position(|waiting| *waiting == at) {
            self.todo.remove(index);
            self.refused.push_back((at, reason));
        }
    }

    fn hold_back_first(&mut self, error: CaptureError) -> Result<()> {
        match self.todo.front() {
            Some(at) => {
                let message = "the row breaks a foreign key; it is tried again when others come";
                self.hold_back(*at, refusal::reason(refusal::FOREIGN_KEY, message));
                Ok(())
            }
            None => Err(error),
        }
    }
}

/// What a transaction leaves behind even when it fails.
#[derive(Debug, Default)]
struct Trace {
    /// Rows that were taken on.
    taken: usize,
    /// The row whose refusal ended the transaction.
    lost: Option<(usize, Reason)>,
    /// Rows that would have kept it from committing; then it wrote nothing.
    offenders: Vec<(usize, Reason)>,
}

/// One transaction's part of the work.
struct Slice<'a, 'conn> {
    tx: &'a WriteTx<'conn>,
    targets: Targets<'a>,
    care: Care,
    written: Vec<(usize, TableId, Change)>,
    part: Part,
}

/// What a committed transaction did.
#[derive(Debug)]
struct Part {
    plan: Plan,
    settled: Vec<Settled>,
    finished: bool,
}

impl<'a, 'conn> Slice<'a, 'conn> {
    fn new(tx: &'a WriteTx<'conn>, registry: &'a Registry, plan: Plan, care: Care) -> Self {
        Self {
            tx,
            targets: Targets::new(registry),
            care,
            written: Vec::new(),
            part: Part { plan, settled: Vec::new(), finished: false },
        }
    }

    fn run(mut self, rows: &impl Rows, trace: &mut Trace) -> Result<Part> {
        self.tx.execute_batch("PRAGMA defer_foreign_keys = ON; SAVEPOINT _rowtide_slice")?;
        let over = self.passes(rows, trace)?;
        if matches!(self.care, Care::Checked(_)) {
            trace.offenders = self.offenders()?;
        }
        if !trace.offenders.is_empty() {
            self.tx.execute_batch("ROLLBACK TO _rowtide_slice; RELEASE _rowtide_slice")?;
            return Ok(self.part);
        }
        self.tx.execute_batch("RELEASE _rowtide_slice")?;
        if over {
            self.end(rows)?;
        }
        Ok(self.part)
    }

    /// Writes rows until the time is over (false) or no pass is left that could help (true).
    fn passes(&mut self, rows: &impl Rows, trace: &mut Trace) -> Result<bool> {
        loop {
            while let Some(at) = self.part.plan.todo.pop_front() {
                self.row(rows, at, trace)?;
                trace.taken += 1;
                if self.tx.spent() || trace.taken >= self.care.rows_max() {
                    return Ok(false);
                }
            }
            if self.part.plan.apart && !self.part.plan.refused.is_empty() && trace.taken > 0 {
                return Ok(false);
            }
            if !self.part.plan.next_pass() {
                return Ok(true);
            }
        }
    }

    fn row(&mut self, rows: &impl Rows, at: usize, trace: &mut Trace) -> Result<()> {
        match rows.write(self.tx, &mut self.targets, at) {
            Ok(Step::Written(table, change)) => {
                self.part.plan.progress = true;
                self.part.settled.push(Settled { at, outcome: Outcome::Applied });
                if matches!(self.care, Care::Checked(_)) {
                    self.written.push((at, table, change));
                }
            }
            Ok(Step::Left(outcome)) => self.part.settled.push(Settled { at, outcome }),
            Err(RowError::Refused(reason)) => self.part.plan.refused.push_back((at, reason)),
            Err(RowError::Lost(reason)) => {
                let text = format!("the application ended the transaction: {}", reason.message);
                trace.lost = Some((at, reason));
                return Err(CaptureError::Message { reason: text });
            }
            Err(RowError::Failed(error)) => return Err(error),
        }
        Ok(())
    }

    fn offenders(&self) -> Result<Vec<(usize, Reason)>> {
        let keys = ForeignKeys::load(self.tx)?;
        let mut offenders = Vec::new();
        for (at, table, change) in &self.written {
            let Some(target) = self.targets.opened(*table) else { continue };
            if keys.broken_by(self.tx, &target.shape, change)? {
                offenders.push((*at, refusal::foreign_key(target.shape.table())));
            }
        }
        Ok(offenders)
    }

    /// Gives up what was refused, and ends the work when all of it is.
    fn end(&mut self, rows: &impl Rows) -> Result<()> {
        while let Some((at, reason)) = self.part.plan.refused.pop_front() {
            rows.give_up(self.tx, at, &reason)?;
            self.part.settled.push(Settled { at, outcome: Outcome::Rejected(reason) });
            if self.tx.spent() {
                return Ok(());
            }
        }
        rows.finish(self.tx)?;
        self.part.finished = true;
        Ok(())
    }
}
