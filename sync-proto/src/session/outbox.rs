//! The effects that wait to be drained, in order.
//!
//! Every part of a session pushes here, so that the order in which they act is the order in which
//! the driver does what they ask. It decides nothing.

use std::collections::VecDeque;
use std::time::Duration;

use super::effect::{Effect, LinkState, Outgoing};
use super::input::SendId;
use super::liveness::{Liveness, Sent};
use crate::message::ToHub;

#[derive(Debug)]
pub(super) struct Outbox {
    effects: VecDeque<Effect>,
    pub(super) liveness: Liveness,
    link: LinkState,
    answer_wait: Duration,
}

impl Outbox {
    pub(super) fn new(answer_wait: Duration) -> Self {
        let link =
            LinkState::Waiting { error: "not connected yet".to_owned(), delay: Duration::ZERO };
        Self { effects: VecDeque::new(), liveness: Liveness::default(), link, answer_wait }
    }

    pub(super) fn push(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    pub(super) fn pop(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Sends a message whose answer may be held back for `hold` by the hub.
    pub(super) fn send(
        &mut self,
        what: Sent,
        message: ToHub,
        hold: Duration,
        now: Duration,
    ) -> SendId {
        self.dispatch(what, Outgoing::Message(Box::new(message)), hold, now)
    }

    /// Sends a batch's kept bytes.
    pub(super) fn send_frame(&mut self, what: Sent, frame: Vec<u8>, now: Duration) -> SendId {
        self.dispatch(what, Outgoing::Frame(frame), Duration::ZERO, now)
    }

    /// Tells the link's state, where it changed.
    pub(super) fn set_link(&mut self, link: LinkState) {
        if self.link != link {
            self.link = link.clone();
            self.push(Effect::Link(link));
        }
    }

    pub(super) const fn link(&self) -> &LinkState {
        &self.link
    }

    fn dispatch(&mut self, what: Sent, message: Outgoing, hold: Duration, now: Duration) -> SendId {
        let deadline = now.saturating_add(hold).saturating_add(self.answer_wait);
        let id = self.liveness.sent(what, deadline);
        self.push(Effect::Send { id, message });
        id
    }
}
