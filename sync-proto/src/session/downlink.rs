//! Rows down: one request at a time, applied only in order, and the receipts for them.
//!
//! Which rows are newer is decided where they are applied; this keeps the order of requests,
//! answers and receipts, and the pace of asking. Invariant: at most one request is on its way or
//! being applied, and a batch is handed on only if it starts at the cursor under the generation
//! that the Welcome named.

use std::collections::VecDeque;
use std::time::Duration;

use super::effect::Effect;
use super::input::SendId;
use super::liveness::Sent;
use super::outbox::Outbox;
use crate::id::{Cursor, Epoch};
use crate::limits::{DOWN_PAUSE_DOUBLINGS, DOWN_PAUSE_MIN};
use crate::message::{DownBatch, DownReceipt, DownRequest, ToHub};

#[derive(Debug)]
pub(super) struct Downlink {
    database: String,
    poll_wait: Duration,
    /// Whether a table takes rows from the hub.
    enabled: bool,
    epoch: Option<Epoch>,
    generation: u64,
    cursor: Cursor,
    step: Step,
    /// When the last request went out.
    asked_at: Option<Duration>,
    /// Answers in a row that were not in order.
    strikes: u32,
    error: Option<String>,
    /// Receipts without the hub's answer, oldest first; only the first is on its way.
    receipts: VecDeque<DownReceipt>,
    receipt_sent: Option<SendId>,
}

#[derive(Debug)]
enum Step {
    Idle { not_before: Duration },
    Asked(SendId),
    Applying { has_rows: bool },
}

/// What an answer to a request means for the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answered {
    /// In order, and nothing new.
    Empty,
    /// In order: the rows are being applied.
    Applying,
    /// Not in order, nothing was handed on: asked again after a pause.
    OutOfOrder,
    /// Of another generation of authority.
    OtherGeneration,
}

impl Downlink {
    pub(super) fn new(database: String, poll_wait: Duration) -> Self {
        Self {
            database,
            poll_wait,
            enabled: false,
            epoch: None,
            generation: 0,
            cursor: Cursor::ZERO,
            step: Step::Idle { not_before: Duration::ZERO },
            asked_at: None,
            strikes: 0,
            error: None,
            receipts: VecDeque::new(),
            receipt_sent: None,
        }
    }

    /// Goes on from an adopted Welcome.
    pub(super) fn adopt(&mut self, epoch: Epoch, generation: u64, cursor: Cursor, enabled: bool) {
        if self.epoch != Some(epoch) {
            self.receipts.clear();
            self.receipt_sent = None;
        }
        self.epoch = Some(epoch);
        self.generation = generation;
        self.cursor = cursor;
        self.enabled = enabled;
        self.step = Step::Idle { not_before: self.pause_end() };
    }

    /// Sends what is to be sent, on a live link.
    pub(super) fn pump(&mut self, outbox: &mut Outbox, now: Duration) {
        if let (None, Some(receipt)) = (self.receipt_sent, self.receipts.front()) {
            let message = ToHub::DownReceipt(receipt.clone());
            self.receipt_sent = Some(outbox.send(Sent::DownReceipt, message, Duration::ZERO, now));
        }
        let (Some(not_before), Some(epoch)) = (self.deadline(), self.epoch) else { return };
        if not_before > now {
            return;
        }
        let message = ToHub::DownRequest(DownRequest {
            database: self.database.clone(),
            epoch,
            cursor: self.cursor,
            generation: self.generation,
            wait_ms: u32::try_from(self.poll_wait.as_millis()).unwrap_or(u32::MAX),
        });
        self.asked_at = Some(now);
        self.step = Step::Asked(outbox.send(Sent::DownRequest, message, self.poll_wait, now));
    }

    /// When the next request is due. `None`: nothing is to be asked before something else comes.
    pub(super) fn deadline(&self) -> Option<Duration> {
        // Rows are not asked for faster than the hub takes note of what became of the last ones.
        match self.step {
            Step::Idle { not_before } if self.enabled && self.receipts.len() <= 1 => {
                Some(not_before)
            }
            Step::Idle { .. } | Step::Asked(_) | Step::Applying { .. } => None,
        }
    }

    /// Takes the answer to the request on its way.
    pub(super) fn answer(&mut self, batch: DownBatch, outbox: &mut Outbox) -> Answered {
        self.step = Step::Idle { not_before: self.pause_end() };
        if batch.generation != self.generation {
            return Answered::OtherGeneration;
        }
        if batch.database != self.database || batch.prev != self.cursor || batch.next < batch.prev {
            let error = format!(
                "the hub sent rows of {:?} from {} to {}, asked were those of {:?} from {}",
                batch.database, batch.prev, batch.next, self.database, self.cursor,
            );
            if batch.database == self.database && batch.next <= self.cursor {
                // A late copy of what is applied: it says nothing against the hub.
                self.error = Some(error);
            } else {
                self.strike(error);
            }
            return Answered::OutOfOrder;
        }
        if batch.next == batch.prev {
            self.in_order();
            self.step = Step::Idle { not_before: self.pause_end() };
            return Answered::Empty;
        }
        self.step = Step::Applying { has_rows: !batch.rows.is_empty() };
        outbox.push(Effect::Apply(batch));
        Answered::Applying
    }

    /// The rows are applied, or were before. `true`: in order, as expected.
    pub(super) fn applied(&mut self, receipt: DownReceipt) -> bool {
        let Step::Applying { has_rows } = self.step else { return false };
        self.cursor = receipt.cursor;
        self.in_order();
        self.step = Step::Idle { not_before: Duration::ZERO };
        if has_rows || !receipt.outcomes.is_empty() {
            self.receipts.push_back(receipt);
        }
        true
    }

    /// The store is elsewhere: ask from there.
    pub(super) fn misplaced(&mut self, cursor: Cursor) {
        if matches!(self.step, Step::Applying { .. }) {
            self.strike(format!("rows from {} came, the file is at {cursor}", self.cursor));
            self.cursor = cursor;
        }
    }

    /// The rows could not be applied.
    pub(super) fn apply_undone(&mut self) {
        if matches!(self.step, Step::Applying { .. }) {
            self.step = Step::Idle { not_before: self.pause_end() };
        }
    }

    /// Whether an answer under this id is one to what is on its way.
    pub(super) fn awaits(&self, sent: SendId) -> bool {
        matches!(self.step, Step::Asked(id) if id == sent) || self.receipt_sent == Some(sent)
    }

    /// The message under this id got no answer, or another one: it goes again.
    pub(super) fn unsend(&mut self, id: SendId) {
        if matches!(self.step, Step::Asked(asked) if asked == id) {
            self.step = Step::Idle { not_before: self.pause_end() };
        }
        if self.receipt_sent == Some(id) {
            self.receipt_sent = None;
        }
    }

    /// The hub took note of the receipt under this id, or will never take it.
    pub(super) fn noted(&mut self, id: SendId) {
        if self.receipt_sent == Some(id) {
            self.receipt_sent = None;
            self.receipts.pop_front();
        }
    }

    pub(super) const fn cursor(&self) -> Cursor {
        self.cursor
    }

    pub(super) const fn error(&self) -> Option<&String> {
        self.error.as_ref()
    }

    fn in_order(&mut self) {
        self.strikes = 0;
        self.error = None;
    }

    fn strike(&mut self, error: String) {
        self.strikes = (self.strikes + 1).min(DOWN_PAUSE_DOUBLINGS);
        self.error = Some(error);
        self.step = Step::Idle { not_before: self.pause_end() };
    }

    /// A hub that does not hold answers back, or answers out of order, is not asked in a loop.
    fn pause_end(&self) -> Duration {
        let pause = DOWN_PAUSE_MIN.saturating_mul(1 << self.strikes.min(DOWN_PAUSE_DOUBLINGS));
        self.asked_at.map_or(Duration::ZERO, |asked| asked.saturating_add(pause))
    }
}
