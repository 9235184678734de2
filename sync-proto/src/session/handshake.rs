//! From a wait to a live link: facts, Hello, Welcome, continuity, adoption.
//!
//! It knows in which of these steps the session is, and what was greeted with. What a failure
//! means and how long to wait is the session's to say. Invariant: the link is live only after a
//! Welcome that names the greeted database and epoch was adopted by the store.

use std::time::Duration;

use super::effect::{Effect, LinkState};
use super::input::{Facts, SendId};
use super::liveness::Sent;
use super::outbox::Outbox;
use crate::continuity::{Continuity, compare};
use crate::id::{Cursor, Epoch};
use crate::message::{ToHub, Welcome};
use crate::schema::Authority;

/// What a wait ends in.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Then {
    /// Go on as before: the hub only asked for a pause.
    Resume,
    /// Read the facts and greet.
    Greet,
    /// Have the store start a new epoch, then greet.
    StartEpoch { closed: Epoch, reason: String },
}

impl Then {
    /// Which end wins when two are due after the same wait.
    const fn strength(&self) -> u8 {
        match self {
            Self::Resume => 0,
            Self::Greet => 1,
            Self::StartEpoch { .. } => 2,
        }
    }
}

#[derive(Debug)]
enum Phase {
    /// Before the first input.
    New,
    Waiting {
        until: Duration,
        then: Then,
    },
    StartingEpoch,
    Loading,
    Greeting {
        id: SendId,
        facts: Box<Facts>,
    },
    Adopting(Box<Adopted>),
    Live,
}

/// A Welcome with what it means, and what was said in the Hello that it answers.
#[derive(Debug)]
pub(super) struct Adopted {
    pub(super) welcome: Welcome,
    pub(super) continuity: Continuity,
    /// Up to where the device has applied the hub's rows.
    pub(super) cursor: Cursor,
    /// Whether a table takes rows from the hub.
    pub(super) has_cloud_tables: bool,
}

#[derive(Debug)]
pub(super) struct Handshake {
    phase: Phase,
    /// Answers to LoadFacts still to come; only the last one is not outdated.
    facts_owed: u32,
    /// Messages below this were sent before the last wait; their failures belong to it.
    episode: SendId,
}

impl Handshake {
    pub(super) const fn new() -> Self {
        Self { phase: Phase::New, facts_owed: 0, episode: SendId(0) }
    }

    pub(super) const fn is_new(&self) -> bool {
        matches!(self.phase, Phase::New)
    }

    pub(super) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live)
    }

    /// Whether this is the Hello that an answer is awaited for.
    pub(super) fn is_hello(&self, hello: SendId) -> bool {
        matches!(&self.phase, Phase::Greeting { id, .. } if *id == hello)
    }

    /// Whether a message was sent since the last wait ended.
    pub(super) fn is_recent(&self, id: SendId) -> bool {
        id >= self.episode
    }

    /// The epoch of the Hello on its way.
    pub(super) fn greeted_epoch(&self) -> Option<Epoch> {
        match &self.phase {
            Phase::Greeting { facts, .. } => Some(facts.hello.epoch),
            Phase::New
            | Phase::Waiting { .. }
            | Phase::StartingEpoch
            | Phase::Loading
            | Phase::Adopting(_)
            | Phase::Live => None,
        }
    }

    /// Until when the session waits, where it does. A new one is due at once.
    pub(super) const fn waits_until(&self) -> Option<Duration> {
        match &self.phase {
            Phase::New => Some(Duration::ZERO),
            Phase::Waiting { until, .. } => Some(*until),
            Phase::StartingEpoch
            | Phase::Loading
            | Phase::Greeting { .. }
            | Phase::Adopting(_)
            | Phase::Live => None,
        }
    }

    /// Begins a wait, or makes a running one at least that long and its end at least that strong.
    pub(super) fn wait(&mut self, until: Duration, then: Then) {
        match &mut self.phase {
            Phase::Waiting { until: running, then: planned } => {
                *running = until.max(*running);
                if then.strength() > planned.strength() {
                    *planned = then;
                }
            }
            Phase::Live => self.phase = Phase::Waiting { until, then },
            Phase::New
            | Phase::StartingEpoch
            | Phase::Loading
            | Phase::Greeting { .. }
            | Phase::Adopting(_) => {
                // A greeting that was broken off starts anew.
                let then = if then == Then::Resume { Then::Greet } else { then };
                self.phase = Phase::Waiting { until, then };
            }
        }
    }

    /// Greets instead of whatever the running wait was to end in.
    pub(super) fn greet_after_wait(&mut self) {
        if let Phase::Waiting { then, .. } = &mut self.phase {
            *then = Then::Greet;
        }
    }

    /// Ends a wait whose time has come.
    pub(super) fn end_wait(&mut self, now: Duration, outbox: &mut Outbox) {
        let Phase::Waiting { until, then } = &self.phase else { return };
        if *until <= now {
            let then = then.clone();
            self.begin(then, outbox);
        }
    }

    /// Goes on at once.
    pub(super) fn begin(&mut self, then: Then, outbox: &mut Outbox) {
        self.episode = outbox.liveness.next_id();
        match then {
            Then::Resume => {
                self.phase = Phase::Live;
                outbox.set_link(LinkState::Live);
            }
            Then::Greet => self.load(outbox),
            Then::StartEpoch { closed, reason } => {
                self.phase = Phase::StartingEpoch;
                outbox.set_link(LinkState::Greeting);
                outbox.push(Effect::StartEpoch { closed, reason });
            }
        }
    }

    /// The store started a new epoch, or was in one.
    pub(super) fn epoch_started(&mut self, outbox: &mut Outbox) {
        if matches!(self.phase, Phase::StartingEpoch) {
            self.load(outbox);
        }
    }

    /// Says Hello, unless the facts are outdated.
    pub(super) fn facts(&mut self, facts: Box<Facts>, outbox: &mut Outbox, now: Duration) {
        self.facts_owed = self.facts_owed.saturating_sub(1);
        if self.facts_owed > 0 || !matches!(self.phase, Phase::Loading) {
            return;
        }
        let hello = ToHub::Hello(facts.hello.clone());
        let id = outbox.send(Sent::Hello, hello, Duration::ZERO, now);
        self.phase = Phase::Greeting { id, facts };
    }

    /// Facts could not be read.
    pub(super) fn facts_undone(&mut self) {
        self.facts_owed = self.facts_owed.saturating_sub(1);
    }

    /// Has the Welcome that answers the Hello adopted. `hub_forgot`: the session itself holds a
    /// receipt for what the Welcome shows to be missing.
    ///
    /// # Errors
    /// What is wrong with the Welcome, when it does not answer the Hello.
    pub(super) fn welcome(
        &mut self,
        welcome: Welcome,
        hub_forgot: bool,
        outbox: &mut Outbox,
    ) -> Result<(), String> {
        let Phase::Greeting { facts, .. } = &self.phase else { return Ok(()) };
        let hello = &facts.hello;
        if welcome.database != hello.database || welcome.epoch != hello.epoch {
            return Err(format!(
                "the hub welcomed database {:?} in epoch {}, greeted were {:?} and {}",
                welcome.database, welcome.epoch, hello.database, hello.epoch,
            ));
        }
        let continuity =
            match compare(hello.incarnation, &facts.known, welcome.incarnation, &welcome.lanes) {
                Continuity::Same { .. } if hub_forgot => Continuity::HubLost,
                found @ (Continuity::Same { .. }
                | Continuity::DeviceForked { .. }
                | Continuity::HubLost) => found,
            };
        outbox.push(Effect::AdoptWelcome {
            welcome: Box::new(welcome.clone()),
            continuity: continuity.clone(),
        });
        let has_cloud_tables = hello.tables.iter().any(|table| table.authority == Authority::Cloud);
        let cursor = hello.cursor;
        self.phase =
            Phase::Adopting(Box::new(Adopted { welcome, continuity, cursor, has_cloud_tables }));
        Ok(())
    }

    /// The store adopted the Welcome: live, or, after a fork, to be greeted again.
    pub(super) fn welcomed(&mut self, outbox: &mut Outbox) -> Option<Box<Adopted>> {
        match std::mem::replace(&mut self.phase, Phase::Live) {
            Phase::Adopting(adopted) => {
                if !matches!(adopted.continuity, Continuity::DeviceForked { .. }) {
                    outbox.set_link(LinkState::Live);
                }
                Some(adopted)
            }
            before @ (Phase::New
            | Phase::Waiting { .. }
            | Phase::StartingEpoch
            | Phase::Loading
            | Phase::Greeting { .. }
            | Phase::Live) => {
                self.phase = before;
                None
            }
        }
    }

    fn load(&mut self, outbox: &mut Outbox) {
        self.phase = Phase::Loading;
        self.facts_owed = self.facts_owed.saturating_add(1);
        outbox.set_link(LinkState::Greeting);
        outbox.push(Effect::LoadFacts);
    }
}
