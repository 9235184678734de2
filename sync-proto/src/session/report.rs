//! The device's report of its tables to the hub: the newest one, until the hub took note.
//!
//! What is worth a report is the agent's to say. An older report that was not sent is dropped:
//! each one says everything.

use std::time::Duration;

use super::input::SendId;
use super::liveness::Sent;
use super::outbox::Outbox;
use crate::message::{Report, ToHub};

#[derive(Debug, Default)]
pub(super) struct Reports {
    newest: Option<Report>,
    sent: Option<SendId>,
    /// Whether a newer one came while that was on its way.
    outdated: bool,
}

impl Reports {
    pub(super) fn changed(&mut self, report: Report) {
        self.newest = Some(report);
        self.outdated = self.sent.is_some();
    }

    pub(super) fn pump(&mut self, outbox: &mut Outbox, now: Duration) {
        if let (None, Some(report)) = (self.sent, &self.newest) {
            let message = ToHub::Report(report.clone());
            self.sent = Some(outbox.send(Sent::Report, message, Duration::ZERO, now));
            self.outdated = false;
        }
    }

    pub(super) fn awaits(&self, id: SendId) -> bool {
        self.sent == Some(id)
    }

    pub(super) fn unsend(&mut self, id: SendId) {
        if self.awaits(id) {
            self.sent = None;
        }
    }

    /// The hub took note of the report under this id, or will never take it.
    pub(super) fn noted(&mut self, id: SendId) {
        if self.awaits(id) {
            self.sent = None;
            if !self.outdated {
                self.newest = None;
            }
        }
    }
}
