//! Everything that a session asks for, in the order in which it must be done.
//!
//! Some effects are steps of the store (see [`Effect::step`]). The driver does them one after the
//! other, in order, and answers each exactly once: with the input that the effect names, or with
//! [`super::Input::Undone`]. That holds across a restart of the session too.

use std::time::Duration;

use super::input::SendId;
use crate::continuity::Continuity;
use crate::id::{Epoch, Lane, Seq};
use crate::message::{Control, DownBatch, Receipt, ToHub, Welcome};

/// Something to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Read the continuity facts and answer with [`super::Input::Facts`].
    LoadFacts,
    /// The hub takes nothing of this epoch any more: start a new one and seed everything, unless
    /// the file is in a newer epoch than `closed` already. Answer with
    /// [`super::Input::EpochStarted`]; the session then greets by itself.
    StartEpoch {
        /// The epoch that the hub closed.
        closed: Epoch,
        /// What the hub said, for status and log.
        reason: String,
    },
    /// Store what the hub said, act on `continuity`, and answer with [`super::Input::Welcomed`].
    ///
    /// * `Same`: settle the lost receipts, and record the incarnation.
    /// * `HubLost`: seed everything again, take the feed from its start, record the incarnation.
    /// * `DeviceForked`: start a new epoch and record nothing else of the Welcome, also not its
    ///   incarnation: it speaks of another file's life. The session greets again by itself.
    AdoptWelcome {
        /// The hub's answer.
        welcome: Box<Welcome>,
        /// What it means for the device's history.
        continuity: Continuity,
    },
    /// Build up to so many batches per lane, each starting where the one before ends; make their
    /// range ends durable (the P6 barrier); answer with [`super::Input::Filled`]. A lane's start
    /// below the end of an earlier batch means that the session forgot that batch and its receipt
    /// will not be handed on: forget it too.
    Fill {
        /// (lane, start of the next range, batches wanted), in the order of service.
        lanes: Vec<(Lane, Seq, usize)>,
        /// Raw bytes of one batch; halved after the hub called one too large.
        batch_bytes: usize,
    },
    /// Clear what the receipt covers, record its outcomes, and answer with
    /// [`super::Input::Settled`]. A receipt of another epoch than the file's, or of a batch that
    /// is not known, settles nothing.
    Settle(Receipt),
    /// Apply rows and cursor in one transaction and answer with [`super::Input::Applied`] or
    /// [`super::Input::Misplaced`].
    Apply(DownBatch),
    /// Do what the hub ordered, in order with the steps of the store. It has no answer.
    Obey(Control),
    /// Send a message; report its answer or failure under this id. `frame` is there for batches:
    /// exactly those bytes.
    Send {
        /// Names the message.
        id: SendId,
        /// What to send.
        message: Outgoing,
    },
    /// The link's state changed, for status.
    Link(LinkState),
}

/// A step of the store that the driver must answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// [`Effect::LoadFacts`].
    LoadFacts,
    /// [`Effect::StartEpoch`].
    StartEpoch,
    /// [`Effect::AdoptWelcome`].
    AdoptWelcome,
    /// [`Effect::Fill`].
    Fill,
    /// [`Effect::Settle`].
    Settle,
    /// [`Effect::Apply`].
    Apply,
}

impl Effect {
    /// The step of the store that this is, if it is one that wants an answer.
    #[must_use]
    pub const fn step(&self) -> Option<Step> {
        match self {
            Self::LoadFacts => Some(Step::LoadFacts),
            Self::StartEpoch { .. } => Some(Step::StartEpoch),
            Self::AdoptWelcome { .. } => Some(Step::AdoptWelcome),
            Self::Fill { .. } => Some(Step::Fill),
            Self::Settle(_) => Some(Step::Settle),
            Self::Apply(_) => Some(Step::Apply),
            Self::Obey(_) | Self::Send { .. } | Self::Link(_) => None,
        }
    }
}

/// A message to send: built now, or a batch's kept bytes.
#[derive(Clone, PartialEq, Debug)]
pub enum Outgoing {
    /// A message.
    Message(Box<ToHub>),
    /// An encoded UpBatch.
    Frame(Vec<u8>),
}

/// What status says of the link.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LinkState {
    /// A Hello is on its way.
    Greeting,
    /// The hub's Welcome is adopted.
    Live,
    /// Waiting to try again.
    Waiting {
        /// What went wrong last.
        error: String,
        /// How long the wait is.
        delay: Duration,
    },
}
