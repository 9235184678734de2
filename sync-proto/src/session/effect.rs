//! Everything that a session asks for, in the order in which it must be done.

use std::time::Duration;

use super::input::SendId;
use crate::continuity::Continuity;
use crate::id::{Lane, Seq};
use crate::message::{Control, DownBatch, Receipt, ToHub, Welcome};

/// Something to do.
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Read the continuity facts and answer with [`super::Input::Facts`].
    LoadFacts,
    /// Store what the hub said, act on `continuity` (settle a lost receipt, start a new epoch,
    /// seed everything again), and answer with [`super::Input::Welcomed`]; after a new epoch the
    /// session greets again by itself.
    AdoptWelcome {
        /// The hub's answer.
        welcome: Box<Welcome>,
        /// What it means for the device's history.
        continuity: Continuity,
    },
    /// Build up to so many batches per lane, each starting where the one before ends; make their
    /// range ends durable (the P6 barrier); answer with [`super::Input::Filled`].
    Fill {
        /// (lane, start of the next range, batches wanted), in the order of service.
        lanes: Vec<(Lane, Seq, usize)>,
        /// Raw bytes of one batch; halved after the hub called one too large.
        batch_bytes: usize,
    },
    /// Clear what the receipt covers, record its outcomes, and answer with
    /// [`super::Input::Settled`].
    Settle(Receipt),
    /// Apply rows and cursor in one transaction and answer with [`super::Input::Applied`] or
    /// [`super::Input::Misplaced`].
    Apply(DownBatch),
    /// Do what the hub ordered.
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
