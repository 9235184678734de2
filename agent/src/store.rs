//! The thread that owns one database's [`Capture`]: steps of the session and housekeeping.
//!
//! One thread a database, because SQLite blocks; everybody else sends requests over a bounded
//! channel. Steps are done one after the other and each is answered exactly once. A file that is
//! not there yet, or not a database, is waited for here while other databases go on. Wakes take no
//! place among the requests, so a busy application cannot crowd out a step.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use capture::config::DatabaseConfig;
use capture::{ApplyOutcome, Capture, CaptureError, DatabaseStatus, ErrorClass, QuarantinedRow};
use sync_proto::message::{Report, TableReport};
use sync_proto::session::{Effect, Input, Step};
use sync_proto::{Epoch, SourceId};
use tokio::sync::{mpsc, oneshot};

use crate::event::Event;

/// Requests that wait: a window of receipts in each lane, one of every other step, and questions.
const REQUESTS_MAX: usize = 64;
/// The slow look for what no wake told of.
const TICK: Duration = Duration::from_secs(5);
/// The same while no directory watch stands: local writes are put back within two seconds.
const TICK_UNWATCHED: Duration = Duration::from_secs(1);
/// Time between attempts on a file that cannot be opened, and after a failed step.
const RETRY: Duration = Duration::from_secs(2);
/// The same where only a person helps. A change of the file is seen at once all the same; but each
/// attempt on a WAL database makes and removes its side files, and flash wears.
const RETRY_HOPELESS: Duration = Duration::from_secs(30);
/// Time between two looks at what is reported to the hub.
const REPORT_EVERY: Duration = Duration::from_secs(5);
/// Stack of the thread: SQLite's deepest calls need far less.
const STACK_BYTES: usize = 1 << 20;

/// What the thread is asked.
#[derive(Debug)]
pub(crate) enum Request {
    /// Look at the bell.
    Rung,
    /// An effect that the store does: a step, or an order.
    Do(Box<Effect>),
    /// How the database is.
    Status(oneshot::Sender<StoreStatus>),
    /// The rows that are set aside.
    Quarantine(oneshot::Sender<Result<Vec<QuarantinedRow>, String>>),
}

/// What the thread is told without a place in its queue, however often.
#[derive(Debug, Default)]
struct Bell {
    /// The file or its folder changed.
    woken: AtomicBool,
    /// The daemon goes down.
    stopped: AtomicBool,
    /// A directory watch stands.
    watched: AtomicBool,
}

/// How a database is, as its thread sees it.
#[derive(Debug, Clone)]
pub(crate) enum StoreStatus {
    /// Open.
    Open(Box<DatabaseStatus>),
    /// Not open: a stable word, and what happened and what to do.
    Closed {
        /// `waiting_for_file`, `not_a_database`, …
        status: &'static str,
        /// The error's text.
        error: String,
    },
}

/// The way to a database's thread.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    requests: SyncSender<Request>,
    bell: Arc<Bell>,
}

impl Store {
    /// Starts the thread. `tried` is dropped once the file was opened or is waited for.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub(crate) fn start(
        config: DatabaseConfig,
        state_dir: PathBuf,
        device: SourceId,
        events: mpsc::Sender<Event>,
        tried: oneshot::Sender<()>,
    ) -> Result<(Self, std::thread::JoinHandle<()>)> {
        let (requests, queue) = sync_channel(REQUESTS_MAX);
        let bell = Arc::new(Bell::default());
        let name = format!("db-{}", config.name);
        let keeper = Keeper {
            bell: Arc::clone(&bell),
            tried: Some(tried),
            seen: None,
            config,
            state_dir,
            device,
            events,
            capture: None,
            error: None,
            due: Instant::now(),
            reported: None,
            report_due: Instant::now(),
        };
        let thread = std::thread::Builder::new()
            .name(name)
            .stack_size(STACK_BYTES)
            .spawn(move || keeper.run(&queue))
            .context("a database's thread cannot be started")?;
        Ok((Self { requests, bell }, thread))
    }

    /// A store without a thread.
    #[cfg(test)]
    pub(crate) fn hollow() -> Self {
        Self { requests: sync_channel(1).0, bell: Arc::default() }
    }

    /// Answers a wake, as the thread does.
    #[cfg(test)]
    pub(crate) fn take_wake(&self) -> bool {
        self.bell.woken.swap(false, Ordering::AcqRel)
    }

    /// Asks the thread; `false`: its queue is full, or it has ended.
    pub(crate) fn ask(&self, request: Request) -> bool {
        self.requests.try_send(request).is_ok()
    }

    /// Tells the thread that the file or its folder changed.
    pub(crate) fn wake(&self) {
        if !self.bell.woken.swap(true, Ordering::AcqRel) {
            self.ring();
        }
    }

    /// Tells the thread whether it is woken when the file changes.
    pub(crate) fn set_watched(&self, watched: bool) {
        self.bell.watched.store(watched, Ordering::Release);
    }

    /// Tells the thread to stop after the step that it is in.
    pub(crate) fn stop(&self) {
        self.bell.stopped.store(true, Ordering::Release);
        self.ring();
    }

    fn ring(&self) {
        // The bell is looked at after every request, so a full queue has as good as rung it.
        drop(self.requests.try_send(Request::Rung));
    }
}

/// What tells one state of a file from another without opening it.
#[derive(Debug, PartialEq, Eq)]
struct Sight {
    dev: u64,
    ino: u64,
    len: u64,
    changed: (i64, i64),
}

impl Sight {
    fn of(path: &Path) -> Option<Self> {
        let meta = std::fs::metadata(path).ok()?;
        let changed = (meta.ctime(), meta.ctime_nsec());
        Some(Self { dev: meta.dev(), ino: meta.ino(), len: meta.len(), changed })
    }
}

struct Keeper {
    config: DatabaseConfig,
    state_dir: PathBuf,
    device: SourceId,
    events: mpsc::Sender<Event>,
    bell: Arc<Bell>,
    /// Until the first attempt to open the file.
    tried: Option<oneshot::Sender<()>>,
    capture: Option<Capture>,
    /// Why the database is not open.
    error: Option<CaptureError>,
    /// What the file looked like after the last attempt to open it.
    seen: Option<Sight>,
    /// When housekeeping is due.
    due: Instant,
    reported: Option<Vec<TableReport>>,
    report_due: Instant,
}

impl Keeper {
    fn run(mut self, queue: &Receiver<Request>) {
        while !self.bell.stopped.load(Ordering::Acquire) {
            let wait = self.due.saturating_duration_since(Instant::now());
            match queue.recv_timeout(wait) {
                Ok(Request::Do(effect)) => self.perform(*effect),
                Ok(Request::Status(reply)) => drop(reply.send(self.status())),
                Ok(Request::Quarantine(reply)) => drop(reply.send(self.quarantine())),
                Ok(Request::Rung) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if self.bell.woken.swap(false, Ordering::AcqRel) && self.is_worth_a_look() {
                self.due = Instant::now();
            }
            if self.due <= Instant::now() && !self.bell.stopped.load(Ordering::Acquire) {
                self.due = Instant::now() + self.housekeep();
            }
        }
    }

    /// Whether a wake means something. Opening and closing a WAL database makes and removes side
    /// files: without this, an attempt that fails would wake itself to the next one, for ever.
    fn is_worth_a_look(&self) -> bool {
        self.capture.is_some() || Sight::of(&self.config.path) != self.seen
    }

    /// The time until the slow look.
    fn tick(&self) -> Duration {
        if self.bell.watched.load(Ordering::Acquire) { TICK } else { TICK_UNWATCHED }
    }

    fn tell(&self, event: Event) {
        // The engine ends first only when everything ends.
        drop(self.events.blocking_send(event));
    }

    /// One step of housekeeping; gives the time until the next.
    fn housekeep(&mut self) -> Duration {
        let Some(capture) = &mut self.capture else {
            let pause = self.open();
            drop(self.tried.take());
            return pause;
        };
        match capture.housekeep() {
            Ok(done) => {
                if done.greet_again {
                    self.tell(Event::Input(Input::Restart));
                }
                if done.pending {
                    self.tell(Event::Input(Input::Work));
                }
                self.report();
                done.again.unwrap_or_else(|| self.tick())
            }
            Err(error) => self.failed("housekeeping", error),
        }
    }

    fn open(&mut self) -> Duration {
        let opened = Capture::open(&self.config, &self.state_dir, self.device);
        self.seen = Sight::of(&self.config.path);
        match opened {
            Ok(capture) => {
                self.capture = Some(capture);
                self.error = None;
                self.tell(Event::Opened);
                Duration::ZERO
            }
            Err(error) => {
                if self.error.as_ref().map(ToString::to_string) != Some(error.to_string()) {
                    tracing::warn!(database = self.config.name, "{}", chain(&error));
                }
                let pause = match error.class() {
                    ErrorClass::Wait | ErrorClass::Retry => RETRY,
                    ErrorClass::Stop => RETRY_HOPELESS,
                };
                self.error = Some(error);
                pause
            }
        }
    }

    /// Looks at a failure: a handle of no further use is dropped, so that the file is opened anew.
    fn failed(&mut self, what: &str, error: CaptureError) -> Duration {
        tracing::warn!(database = self.config.name, "{what}: {}", chain(&error));
        // These pass while the handle stays good; after any other, the file is opened anew.
        if !matches!(error, CaptureError::Busy { .. } | CaptureError::Message { .. }) {
            self.capture = None;
            self.error = Some(error);
        }
        RETRY
    }

    fn perform(&mut self, effect: Effect) {
        let step = effect.step();
        let Some(capture) = &mut self.capture else {
            let error = self.error.as_ref().map_or_else(|| "not open yet".to_owned(), chain);
            if let Some(step) = step {
                self.tell(Event::Input(Input::Undone { step, error }));
            }
            return;
        };
        match answer(capture, effect) {
            Ok(Some(input)) => {
                let settled = matches!(input, Input::Settled | Input::Welcomed);
                self.tell(Event::Input(input));
                if settled {
                    // What the step changed may be housekeeping's next work.
                    self.due = Instant::now();
                }
            }
            Ok(None) => {}
            Err(error) => {
                let text = chain(&error);
                let name = step.map_or("an order", step_name);
                self.due = Instant::now() + self.failed(name, error);
                if let Some(step) = step {
                    self.tell(Event::Input(Input::Undone { step, error: text }));
                }
            }
        }
    }

    fn status(&mut self) -> StoreStatus {
        let error = match self.capture.as_mut().map(Capture::status) {
            Some(Ok(status)) => return StoreStatus::Open(Box::new(status)),
            Some(Err(error)) => Some(error),
            None => None,
        };
        match error.as_ref().or(self.error.as_ref()) {
            Some(error) => StoreStatus::Closed { status: word(error), error: chain(error) },
            None => StoreStatus::Closed { status: "opening", error: "not open yet".to_owned() },
        }
    }

    fn quarantine(&mut self) -> Result<Vec<QuarantinedRow>, String> {
        match &mut self.capture {
            Some(capture) => capture.quarantine().map_err(|error| chain(&error)),
            None => Err(self.error.as_ref().map_or_else(|| "not open yet".to_owned(), chain)),
        }
    }

    /// Tells the hub how the tables are, when that changed.
    fn report(&mut self) {
        if Instant::now() < self.report_due {
            return;
        }
        let Some(capture) = &mut self.capture else { return };
        // Counting costs; it is paid no more often than this, whatever it finds.
        self.report_due = Instant::now() + REPORT_EVERY;
        // A status that cannot be read now is read next time.
        let Ok(status) = capture.status() else { return };
        let tables: Vec<TableReport> = status
            .tables
            .iter()
            .map(|table| TableReport {
                table: table.name.clone(),
                pending: table.pending,
                quarantine: table.quarantine,
                status: table.status.to_owned(),
            })
            .collect();
        if self.reported.as_ref() == Some(&tables) {
            return;
        }
        let Some(epoch) = status.epoch.as_deref().and_then(|epoch| epoch.parse().ok()).map(Epoch)
        else {
            return;
        };
        let report = Report { database: self.config.name.clone(), epoch, tables: tables.clone() };
        self.reported = Some(tables);
        self.tell(Event::Input(Input::Changed(report)));
    }
}

/// Does one effect on the open file.
fn answer(capture: &mut Capture, effect: Effect) -> Result<Option<Input>, CaptureError> {
    Ok(Some(match effect {
        Effect::LoadFacts => Input::Facts(Box::new(capture.facts()?)),
        Effect::StartEpoch { closed, reason } => {
            capture.start_epoch(closed, &reason)?;
            Input::EpochStarted
        }
        Effect::AdoptWelcome { welcome, continuity } => {
            capture.adopt_welcome(&welcome, &continuity)?;
            Input::Welcomed
        }
        Effect::Fill { lanes, batch_bytes } => Input::Filled(capture.fill(&lanes, batch_bytes)?),
        Effect::Settle(receipt) => {
            capture.settle(&receipt)?;
            Input::Settled
        }
        Effect::Apply(batch) => match capture.apply(&batch)? {
            ApplyOutcome::Applied(receipt) => Input::Applied(receipt),
            ApplyOutcome::Misplaced(cursor) => Input::Misplaced(cursor),
        },
        Effect::Obey(control) => {
            capture.obey(&control)?;
            return Ok(None);
        }
        // The engine does these itself.
        Effect::Send { .. } | Effect::Link(_) => return Ok(None),
    }))
}

const fn step_name(step: Step) -> &'static str {
    match step {
        Step::LoadFacts => "reading the facts",
        Step::StartEpoch => "starting an epoch",
        Step::AdoptWelcome => "adopting the hub's welcome",
        Step::Fill => "building batches",
        Step::Settle => "settling a receipt",
        Step::Apply => "applying rows",
    }
}

/// A stable word for status.
#[expect(clippy::wildcard_enum_match_arm, reason = "the enum may grow; its text says the rest")]
pub(crate) const fn word(error: &CaptureError) -> &'static str {
    match error {
        CaptureError::Missing { .. } | CaptureError::Empty { .. } => "waiting_for_file",
        CaptureError::NotADatabase { .. } | CaptureError::Directory { .. } => "not_a_database",
        CaptureError::ReadOnly { .. } => "read_only",
        CaptureError::Full { .. } => "disk_full",
        CaptureError::Corrupt { .. } => "corrupt",
        CaptureError::Config { .. } => "misconfigured",
        CaptureError::State { .. } => "state_damaged",
        CaptureError::Busy { .. } => "locked",
        _ => "failed",
    }
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &CaptureError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
