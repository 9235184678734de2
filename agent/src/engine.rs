//! The loop of one database: an event, the session, its effects in order.
//!
//! What to do is the session's to say; this does it: steps go to the store's thread, messages to
//! the link. Law: one input, then every effect, then the next input, so that what has to be durable
//! is so before anything speaks of it. Idle, it waits for an event or the session's own deadline.

use std::collections::VecDeque;
use std::time::Duration;

use sync_proto::message::ToHub;
use sync_proto::session::{
    Effect, Input, LinkState, Outgoing, Session, SessionConfig, SessionStatus,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::event::Event;
use crate::link::https::Https;
use crate::link::retry;
use crate::store::{Request, Store};

/// Messages that wait for an answer. The session gives one up and sends it again after 30 s, the
/// link after 60 s without a byte; until then a late receipt still counts. Two windows of three
/// lanes and what goes beside them fit; more would hold frames without end.
const EXCHANGES_MAX: usize = 32;
/// A sleep where the session names no deadline.
const IDLE: Duration = Duration::from_secs(3600);

/// One database's loop.
pub(crate) struct Engine {
    database: String,
    session: Session,
    store: Store,
    link: Https,
    events: mpsc::Receiver<Event>,
    status: watch::Sender<LinkView>,
    started: Instant,
    /// Exchanges on their way; each ends in one input.
    exchanges: JoinSet<Input>,
    /// The session is driven only once there is a file.
    opened: bool,
}

/// What status shows of an engine.
#[derive(Debug, Clone)]
pub(crate) struct LinkView {
    /// The session's own word.
    pub(crate) session: SessionStatus,
    /// When the engine started: the zero of the session's clock.
    pub(crate) started: Instant,
}

impl Engine {
    pub(crate) fn new(
        database: &str,
        seed: u64,
        store: Store,
        link: Https,
        events: mpsc::Receiver<Event>,
    ) -> (Self, watch::Receiver<LinkView>) {
        let session = Session::new(SessionConfig::new(database), seed);
        let started = Instant::now();
        let view = LinkView { session: session.status(), started };
        let (status, viewer) = watch::channel(view);
        let engine = Self {
            database: database.to_owned(),
            session,
            store,
            link,
            events,
            status,
            started,
            exchanges: JoinSet::new(),
            opened: false,
        };
        (engine, viewer)
    }

    /// Runs until the store's thread is gone or the task is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            let deadline = self.session.poll_timeout().filter(|_| self.opened);
            let deadline = deadline.map_or_else(|| Instant::now() + IDLE, |due| self.started + due);
            let input = tokio::select! {
                event = self.events.recv() => match event {
                    Some(Event::Opened) => self.on_opened(),
                    Some(Event::Input(input)) => input,
                    None => return,
                },
                Some(done) = self.exchanges.join_next() => match done {
                    Ok(input) => input,
                    // Only a bug ends an exchange without an input; the session's own deadline
                    // for the message covers it.
                    Err(error) => {
                        tracing::error!(database = self.database, "an exchange ended: {error}");
                        continue;
                    }
                },
                () = tokio::time::sleep_until(deadline) => Input::Timeout,
            };
            if self.opened {
                self.drive(input);
            }
        }
    }

    fn on_opened(&mut self) -> Input {
        let again = std::mem::replace(&mut self.opened, true);
        if again { Input::Restart } else { Input::Work }
    }

    fn drive(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            self.session.handle(input, self.started.elapsed());
            while let Some(effect) = self.session.poll_effect() {
                inputs.extend(self.perform(effect));
            }
        }
        let view = LinkView { session: self.session.status(), started: self.started };
        self.status.send_replace(view);
    }

    /// Does one effect; gives an input only when it could not even be begun.
    fn perform(&mut self, effect: Effect) -> Option<Input> {
        match effect {
            Effect::Send { id, .. } if self.exchanges.len() >= EXCHANGES_MAX => {
                let error = format!("{EXCHANGES_MAX} messages wait for the hub's answers");
                Some(Input::Failed(id, retry(error)))
            }
            Effect::Send { id, message } => {
                self.log_message(&message);
                let link = self.link.clone();
                self.exchanges.spawn(async move {
                    match link.exchange(message).await {
                        Ok(answer) => Input::Answer(id, answer),
                        Err(failure) => Input::Failed(id, failure),
                    }
                });
                None
            }
            Effect::Link(state) => {
                if state == LinkState::Greeting {
                    self.link.renew_token();
                }
                self.log_link(&state);
                None
            }
            Effect::LoadFacts
            | Effect::StartEpoch { .. }
            | Effect::AdoptWelcome { .. }
            | Effect::Fill { .. }
            | Effect::Settle(_)
            | Effect::Apply(_)
            | Effect::Obey(_) => {
                let step = effect.step();
                if self.store.ask(Request::Do(Box::new(effect))) {
                    return None;
                }
                let error = "the database's thread is behind".to_owned();
                tracing::error!(database = self.database, ?step, "{error}");
                step.map(|step| Input::Undone { step, error })
            }
        }
    }

    fn log_message(&self, message: &Outgoing) {
        let name = match message {
            Outgoing::Frame(frame) => {
                tracing::debug!(database = self.database, bytes = frame.len(), "sending a batch");
                return;
            }
            Outgoing::Message(message) => match **message {
                ToHub::Hello(_) => "Hello",
                ToHub::Up(_) => "UpBatch",
                ToHub::DownRequest(_) => "DownRequest",
                ToHub::DownReceipt(_) => "DownReceipt",
                ToHub::Report(_) => "Report",
            },
        };
        tracing::debug!(database = self.database, "sending {name}");
    }

    fn log_link(&self, state: &LinkState) {
        match state {
            LinkState::Greeting => tracing::debug!(database = self.database, "greeting the hub"),
            LinkState::Live => tracing::info!(database = self.database, "the hub is reached"),
            LinkState::Waiting { error, delay } => tracing::warn!(
                database = self.database,
                retry_in_ms = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX),
                "{error}"
            ),
        }
    }
}
