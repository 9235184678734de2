//! The device's side of the protocol as a pure machine: [`Input`]s in, [`Effect`]s out.
//!
//! The drive contract is one law: hand in one input, then drain every effect, in order, before the
//! next input. Effects that persist come before effects that speak, so that nothing leaves the
//! device that a power cut could still undo. Time is a duration since any fixed start; randomness
//! for jitter comes in as a seed. Doing the effects is the agent's job.

mod config;
mod downlink;
pub mod effect;
mod handshake;
pub mod input;
mod liveness;
mod outbox;
mod report;
mod status;
mod uplink;

use std::time::Duration;

use downlink::{Answered, Downlink};
use handshake::{Adopted, Handshake, Then};
use liveness::Sent;
use outbox::Outbox;
use report::Reports;
use uplink::{Progress, Uplink};

pub use config::SessionConfig;
pub use effect::{Effect, LinkState, Outgoing, Step};
pub use input::{Facts, Failure, Input, OutBatch, SendId};
pub use status::{LaneStatus, SessionStatus};

use crate::backoff::Backoff;
use crate::continuity::Continuity;
use crate::id::Cursor;
use crate::limits::{ANSWER_WAIT_MIN, ERROR_CHARS_MAX};
use crate::message::{Control, DownBatch, Receipt, Refusal, Refused, ToDevice};
use crate::wire::FORMAT;

/// One database's conversation with the hub.
#[derive(Debug)]
pub struct Session {
    database: String,
    backoff: Backoff,
    outbox: Outbox,
    handshake: Handshake,
    uplink: Uplink,
    downlink: Downlink,
    reports: Reports,
    /// Whether a step was tried again at once since the last progress; the next one waits.
    stumbled: bool,
    last_error: Option<(Duration, String)>,
}

impl Session {
    /// A session that has not spoken yet. It is due at once: its first input draws the jittered
    /// time of the first Hello.
    #[must_use]
    pub fn new(config: SessionConfig, seed: u64) -> Self {
        Self {
            backoff: Backoff::new(config.backoff, seed),
            outbox: Outbox::new(config.answer_wait.max(ANSWER_WAIT_MIN)),
            handshake: Handshake::new(),
            // Another seed, so that the two series do not run in step.
            uplink: Uplink::new(&config, !seed),
            downlink: Downlink::new(config.database.clone(), config.poll_wait),
            reports: Reports::default(),
            stumbled: false,
            last_error: None,
            database: config.database,
        }
    }

    /// Takes one input. `now` never goes back.
    pub fn handle(&mut self, input: Input, now: Duration) {
        if self.handshake.is_new() {
            let first = self.backoff.first(now);
            self.handshake.wait(first, Then::Greet);
        }
        while let Some((id, sent)) = self.outbox.liveness.lapsed(now) {
            let error = format!("no answer to {} in time", sent.name());
            self.unanswered(id, sent, Failure::Retry { error, after: None }, now);
        }
        match input {
            Input::Facts(facts) => self.handshake.facts(facts, &mut self.outbox, now),
            Input::EpochStarted => self.handshake.epoch_started(&mut self.outbox),
            Input::Welcomed => self.welcomed(now),
            Input::Work => self.uplink.work(),
            Input::Filled(batches) => self.uplink.filled(batches, now),
            Input::Settled | Input::Timeout => {}
            Input::Applied(receipt) => {
                if self.downlink.applied(receipt) {
                    self.progress();
                }
            }
            Input::Misplaced(cursor) => self.downlink.misplaced(cursor),
            Input::Undone { step, error } => self.undone(step, error, now),
            Input::Restart => self.restart(),
            Input::Changed(report) => self.reports.changed(report),
            Input::Answer(id, message) => self.answer(id, message, now),
            Input::Failed(id, failure) => {
                if let Some(sent) = self.outbox.liveness.failed(id) {
                    self.unanswered(id, sent, failure, now);
                }
            }
        }
        self.pump(now);
    }

    /// The next thing to do. Drain these before the next input.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.outbox.pop()
    }

    /// When to hand in [`Input::Timeout`], on the clock of `now`; `None`: nothing is due. After a
    /// timeout at or after that time it names a later one.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Duration> {
        let waits = [self.handshake.waits_until(), self.outbox.liveness.deadline()];
        let live = [self.uplink.deadline(), self.downlink.deadline()];
        let live = live.into_iter().filter(|_| self.handshake.is_live());
        waits.into_iter().chain(live).flatten().min()
    }

    /// What status says.
    #[must_use]
    pub fn status(&self) -> SessionStatus {
        SessionStatus {
            link: self.outbox.link().clone(),
            lanes: self.uplink.status(),
            last_error: self.last_error.clone(),
            last_receipt: self.uplink.last_receipt(),
            last_answer: self.outbox.liveness.last_answer(),
            cursor: self.downlink.cursor(),
            down_error: self.downlink.error().cloned(),
            batch_bytes: self.uplink.batch_bytes(),
        }
    }

    fn pump(&mut self, now: Duration) {
        self.handshake.end_wait(now, &mut self.outbox);
        if self.handshake.is_live() {
            self.uplink.pump(&mut self.outbox, now);
            self.downlink.pump(&mut self.outbox, now);
            self.reports.pump(&mut self.outbox, now);
        }
    }

    fn welcomed(&mut self, now: Duration) {
        let Some(adopted) = self.handshake.welcomed(&mut self.outbox) else { return };
        let Adopted { welcome, continuity, cursor, has_cloud_tables } = *adopted;
        let (hub_lost, cursor) = match continuity {
            Continuity::DeviceForked { lane, seq } => {
                let error = format!(
                    "the hub holds {} {seq} of epoch {}, which this file never sent",
                    lane.name(),
                    welcome.epoch,
                );
                return self.stumble(Then::Greet, error, now);
            }
            Continuity::HubLost => (true, Cursor::ZERO),
            Continuity::Same { .. } => (false, cursor),
        };
        self.uplink.adopt(&welcome, hub_lost);
        self.downlink.adopt(welcome.epoch, welcome.generation, cursor, has_cloud_tables);
    }

    fn restart(&mut self) {
        if self.handshake.waits_until().is_some() {
            self.handshake.greet_after_wait();
        } else {
            self.handshake.begin(Then::Greet, &mut self.outbox);
        }
    }

    fn undone(&mut self, step: Step, error: String, now: Duration) {
        match step {
            Step::LoadFacts => self.handshake.facts_undone(),
            Step::Fill => self.uplink.fill_undone(),
            Step::Apply => self.downlink.apply_undone(),
            // A receipt that was not settled is found lost in the next Welcome.
            Step::StartEpoch | Step::AdoptWelcome | Step::Settle => {}
        }
        self.fail(Then::Greet, error, now);
    }

    fn answer(&mut self, id: SendId, message: ToDevice, now: Duration) {
        let sent = self.outbox.liveness.answered(id, now);
        let sent = sent.filter(|sent| self.awaits(id, *sent));
        match (message, sent) {
            // A receipt speaks for itself, also when its message was given up before.
            (ToDevice::Receipt(receipt), sent) => {
                self.receipt(receipt, now);
                if let Some(sent) = sent.filter(|sent| self.awaits(id, *sent)) {
                    self.misfit(id, sent, "a Receipt of something else", now);
                }
            }
            (_, None) => {}
            (ToDevice::Welcome(welcome), Some(Sent::Hello)) => {
                let hub_forgot = self.uplink.is_forgotten_in(&welcome, id);
                let adopted = self.handshake.welcome(welcome, hub_forgot, &mut self.outbox);
                if let Err(error) = adopted {
                    self.fail(Then::Greet, error, now);
                }
            }
            (ToDevice::Down(batch), Some(Sent::DownRequest)) => self.down(id, batch, now),
            (ToDevice::Noted, Some(Sent::DownReceipt)) => self.downlink.noted(id),
            (ToDevice::Noted, Some(Sent::Report)) => self.reports.noted(id),
            (ToDevice::Control(control), Some(sent)) => self.control(id, sent, &control, now),
            (ToDevice::Refused(refused), Some(sent)) => self.refused(id, sent, refused, now),
            (ToDevice::Welcome(_), Some(sent)) => self.misfit(id, sent, "a Welcome", now),
            (ToDevice::Down(_), Some(sent)) => self.misfit(id, sent, "a DownBatch", now),
            (ToDevice::Noted, Some(sent)) => self.misfit(id, sent, "Noted", now),
        }
    }

    fn receipt(&mut self, receipt: Receipt, now: Duration) {
        if receipt.database != self.database {
            return;
        }
        match self.uplink.receipt(receipt, &mut self.outbox, now) {
            Progress::None => {}
            Progress::Received => self.progress(),
            Progress::HubForgot => {
                let error = "the hub lost ranges that it had given receipts for".to_owned();
                self.stumble(Then::Greet, error, now);
            }
        }
    }

    fn down(&mut self, id: SendId, batch: DownBatch, now: Duration) {
        if !self.handshake.is_live() {
            // What holds is about to be settled anew; the rows come again.
            return self.downlink.unsend(id);
        }
        match self.downlink.answer(batch, &mut self.outbox) {
            Answered::Empty => self.progress(),
            Answered::Applying | Answered::OutOfOrder => {}
            Answered::OtherGeneration => {
                let error = "the hub sent rows of another generation of authority".to_owned();
                self.stumble(Then::Greet, error, now);
            }
        }
    }

    fn control(&mut self, id: SendId, sent: Sent, control: &Control, now: Duration) {
        self.unsend(id, sent);
        if let Control::RetryAfter { ms } = control {
            let wait = Duration::from_millis(u64::from(*ms));
            let until = self.backoff.deadline_after(now, wait);
            return self.wait(until, Then::Resume, "the hub asked for a pause".to_owned(), now);
        }
        self.outbox.push(Effect::Obey(control.clone()));
        let then = match control {
            Control::Pause { .. } => {
                // Batches in flight may hold rows of that table; built anew, they do not.
                self.uplink.forget();
                Then::Resume
            }
            Control::Resume { .. } => {
                self.uplink.work();
                Then::Resume
            }
            Control::Resnapshot | Control::RefreshSchema | Control::RetryAfter { .. } => {
                Then::Greet
            }
        };
        match (sent, then) {
            (Sent::Hello, _) | (_, Then::Greet | Then::StartEpoch { .. }) => {
                self.stumble(Then::Greet, format!("the hub ordered {control:?}"), now);
            }
            // Requests for rows keep a pace of their own.
            (Sent::DownRequest, Then::Resume) => {}
            (Sent::Up(_) | Sent::DownReceipt | Sent::Report, Then::Resume) => {
                self.stumble(Then::Resume, format!("the hub ordered {control:?}"), now);
            }
        }
    }

    fn refused(&mut self, id: SendId, sent: Sent, refused: Refused, now: Duration) {
        let recent = self.handshake.is_recent(id);
        let error = format!("the hub refused {}: {}", sent.name(), refused.message);
        match refused.code {
            Refusal::TooLarge => self.untakable(id, sent, error, true, now),
            Refusal::Malformed => self.untakable(id, sent, error, false, now),
            Refusal::Busy => {
                self.unsend(id, sent);
                self.fail(Then::Resume, error, now);
            }
            Refusal::Format { min, max } => {
                self.unsend(id, sent);
                let error = format!("{error} (it speaks formats {min} to {max}, we {FORMAT})");
                self.fail_far(error, now);
            }
            Refusal::Identity => {
                self.unsend(id, sent);
                self.fail_far(error, now);
            }
            Refusal::Generation | Refusal::UnknownEpoch => {
                self.unsend(id, sent);
                if recent {
                    self.stumble(Then::Greet, error, now);
                }
            }
            Refusal::EpochClosed => {
                let closed = self.handshake.greeted_epoch().or_else(|| self.uplink.epoch());
                self.unsend(id, sent);
                if let Some(closed) = closed.filter(|_| recent) {
                    let reason = refused.message;
                    self.fail(Then::StartEpoch { closed, reason }, error, now);
                }
            }
        }
    }

    /// A message that will never be taken as it is.
    fn untakable(&mut self, id: SendId, sent: Sent, error: String, too_large: bool, now: Duration) {
        match sent {
            Sent::Up(lane) if too_large => {
                self.note(error.clone(), now);
                self.uplink.too_large(lane, id, error, now);
            }
            Sent::Up(lane) => {
                self.note(error.clone(), now);
                self.uplink.hold(lane, error, now);
            }
            // The hub's view of the device lacks this one; rows do not depend on it.
            Sent::DownReceipt => {
                self.note(error, now);
                self.downlink.noted(id);
            }
            Sent::Report => {
                self.note(error, now);
                self.reports.noted(id);
            }
            Sent::Hello | Sent::DownRequest => {
                self.unsend(id, sent);
                self.fail_far(error, now);
            }
        }
    }

    fn misfit(&mut self, id: SendId, sent: Sent, got: &str, now: Duration) {
        let error = format!("the hub answered {} with {got}", sent.name());
        self.unanswered(id, sent, Failure::Retry { error, after: None }, now);
    }

    fn unanswered(&mut self, id: SendId, sent: Sent, failure: Failure, now: Duration) {
        if !self.awaits(id, sent) {
            return;
        }
        match failure {
            Failure::TooLarge { error } => self.untakable(id, sent, error, true, now),
            Failure::Retry { error, after } => {
                self.unsend(id, sent);
                // One broken link fails many messages; the wait is one.
                if !self.handshake.is_recent(id) {
                    return;
                }
                if let Some(after) = after {
                    let until = self.backoff.deadline_after(now, after);
                    self.wait(until, Then::Greet, error, now);
                } else {
                    self.fail(Then::Greet, error, now);
                }
            }
        }
    }

    /// Whether what was sent under this id still waits for its answer.
    fn awaits(&self, id: SendId, sent: Sent) -> bool {
        match sent {
            Sent::Hello => self.handshake.is_hello(id),
            Sent::Up(_) => self.uplink.awaits(id),
            Sent::DownRequest | Sent::DownReceipt => self.downlink.awaits(id),
            Sent::Report => self.reports.awaits(id),
        }
    }

    /// What was sent under this id is to be sent again.
    fn unsend(&mut self, id: SendId, sent: Sent) {
        match sent {
            // A Hello goes again by a new greeting.
            Sent::Hello => {}
            Sent::Up(lane) => self.uplink.unsend(lane, id),
            Sent::DownRequest | Sent::DownReceipt => self.downlink.unsend(id),
            Sent::Report => self.reports.unsend(id),
        }
    }

    fn progress(&mut self) {
        self.backoff.reset();
        self.stumbled = false;
        self.last_error = None;
    }

    /// A step without progress: the first goes on at once, further ones wait.
    fn stumble(&mut self, then: Then, error: String, now: Duration) {
        if self.stumbled || self.handshake.waits_until().is_some() {
            return self.fail(then, error, now);
        }
        self.stumbled = true;
        self.note(error, now);
        if then != Then::Resume {
            self.handshake.begin(then, &mut self.outbox);
        }
    }

    /// Waits before the next attempt. A wait that runs is not made longer.
    fn fail(&mut self, then: Then, error: String, now: Duration) {
        let until =
            if self.handshake.waits_until().is_some() { now } else { self.backoff.deadline(now) };
        self.wait(until, then, error, now);
    }

    /// Waits long: only a person can mend this.
    fn fail_far(&mut self, error: String, now: Duration) {
        let until = self.backoff.deadline_far(now);
        self.wait(until, Then::Greet, error, now);
    }

    fn wait(&mut self, until: Duration, then: Then, error: String, now: Duration) {
        self.handshake.wait(until, then);
        self.note(error, now);
        let until = self.handshake.waits_until().unwrap_or(until);
        let error = self.last_error.as_ref().map_or_else(String::new, |(_, error)| error.clone());
        self.outbox.set_link(LinkState::Waiting { error, delay: until.saturating_sub(now) });
    }

    fn note(&mut self, mut error: String, now: Duration) {
        if let Some((end, _)) = error.char_indices().nth(ERROR_CHARS_MAX) {
            error.truncate(end);
        }
        self.last_error = Some((now, error));
    }
}
