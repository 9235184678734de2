//! Messages on their way, and until when their answers may come.
//!
//! A link usually reports its own failures; this is for those that go silent. It leaves to the
//! session what a lost message means. Each message is answered, failed or lapsed at most once: its
//! entry is taken by whichever comes first.

use std::collections::BTreeMap;
use std::time::Duration;

use super::input::SendId;
use crate::id::Lane;

/// What a message on its way is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Hello,
    Up(Lane),
    DownRequest,
    DownReceipt,
    Report,
}

impl Sent {
    /// The message's name, for errors.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Hello => "Hello",
            Self::Up(_) => "UpBatch",
            Self::DownRequest => "DownRequest",
            Self::DownReceipt => "DownReceipt",
            Self::Report => "Report",
        }
    }
}

#[derive(Debug, Default)]
pub(super) struct Liveness {
    next: u64,
    awaited: BTreeMap<SendId, (Sent, Duration)>,
    last_answer: Option<Duration>,
}

impl Liveness {
    /// Names a message that is being sent and may be answered until `deadline`.
    pub(super) fn sent(&mut self, what: Sent, deadline: Duration) -> SendId {
        let id = self.next_id();
        self.next += 1;
        self.awaited.insert(id, (what, deadline));
        id
    }

    /// The name of the next message: all that were sent so far lie below it.
    pub(super) const fn next_id(&self) -> SendId {
        SendId(self.next)
    }

    /// Takes an answer. `None`: the message was given up before, or answered already.
    pub(super) fn answered(&mut self, id: SendId, now: Duration) -> Option<Sent> {
        self.last_answer = Some(now);
        self.failed(id)
    }

    /// Takes a failure. `None`: the message was given up before, or answered already.
    pub(super) fn failed(&mut self, id: SendId) -> Option<Sent> {
        self.awaited.remove(&id).map(|(what, _)| what)
    }

    /// Takes one message whose answer did not come in time.
    pub(super) fn lapsed(&mut self, now: Duration) -> Option<(SendId, Sent)> {
        let (id, what) = self
            .awaited
            .iter()
            .find(|(_, (_, deadline))| *deadline <= now)
            .map(|(id, (what, _))| (*id, *what))?;
        self.awaited.remove(&id);
        Some((id, what))
    }

    /// When the next message lapses.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.awaited.values().map(|(_, deadline)| *deadline).min()
    }

    /// When the hub answered anything last.
    pub(super) const fn last_answer(&self) -> Option<Duration> {
        self.last_answer
    }
}
