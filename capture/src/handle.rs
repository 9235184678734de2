//! [`Capture`]: one handle to one file, and how it is opened.
//!
//! Opening decides which life the file is in (see [`crate::continuity`]) and makes it fit the
//! configuration (see [`crate::enrol`]). The steps of a session and of housekeeping are methods in
//! files of their own. A handle belongs to one thread, and only one handle is open per file.

use std::path::{Path, PathBuf};

use sync_proto::continuity::KnownLane;
use sync_proto::message::{DownBatch, Hello};
use sync_proto::session::Facts;
use sync_proto::{InstanceId, Seq, SourceId};
use uuid::Uuid;

use crate::ages::Ages;
use crate::apply::{self, ApplyOutcome};
use crate::config::DatabaseConfig;
use crate::connection::{Connections, Durability, moved};
use crate::continuity::{self, Lineage};
use crate::enrol::{self, Enrolment};
use crate::epoch;
use crate::error::Result;
use crate::in_flight::InFlight;
use crate::inspect::{self, Skipped};
use crate::local::LocalCheck;
use crate::meta::{self, Life, Stamp};
use crate::outcomes::Outcomes;
use crate::parked::{self, QuarantinedRow};
use crate::progress::{self, Settled};
use crate::registry::Registry;
use crate::schema;
use crate::snapshot::TailBounds;
use crate::state::{Event, Outside, StateStore};

/// Change capture and apply on one application's file.
#[derive(Debug)]
pub struct Capture {
    pub(crate) config: DatabaseConfig,
    pub(crate) device: SourceId,
    pub(crate) connections: Connections,
    pub(crate) state: StateStore,
    /// Who the file is; checked against the file at every barrier.
    pub(crate) life: Life,
    /// The facts outside are older than those inside.
    pub(crate) outside_behind: bool,
    pub(crate) registry: Registry,
    pub(crate) skipped: Vec<Skipped>,
    /// The schema's number that the registry holds for.
    pub(crate) schema_version: i64,
    /// The registry's revision that was loaded.
    pub(crate) revision: i64,
    pub(crate) in_flight: InFlight,
    pub(crate) settled: Settled,
    pub(crate) tail: TailBounds,
    /// The newest entry that a fill of every lane has seen to.
    pub(crate) seen: Seq,
    /// A fill left something that it may have to look at again.
    pub(crate) unseen: bool,
    /// Events that are not dealt with, as the state file has them.
    pub(crate) events: Vec<Event>,
    pub(crate) local: LocalCheck,
    /// Parked rows of the hub are tried again, from the entry after this one on.
    pub(crate) retry_from: Option<i64>,
    pub(crate) ages: Ages,
    pub(crate) outcomes: Outcomes,
    /// Something that alarms are made of changed since housekeeping last said so.
    pub(crate) alarms_changed: bool,
    /// The session has to greet again since housekeeping last said so.
    pub(crate) greet_again: bool,
}

impl Capture {
    /// Opens the file, decides which life it is in, and enrols its tables.
    ///
    /// # Errors
    /// Every [`crate::CaptureError`]. Nothing is created where no database is.
    pub fn open(config: &DatabaseConfig, state_dir: &Path, device: SourceId) -> Result<Self> {
        let mut connections = Connections::open(&config.path)?;
        let survey = connections.read(|tx| inspect::survey(tx, config))?;
        if let Some(fault) = survey.fault(config) {
            return Err(fault);
        }
        let state = StateStore::open(state_dir, &config.name)?;
        let outside = state.load()?;
        let inside = connections
            .read(|tx| if schema::is_installed(tx)? { meta::life(tx) } else { Ok(None) })?;
        let lineage = continuity::judge(inside.as_ref(), outside.as_ref());
        let mut enrolment = enrol::enrol(&mut connections, config)?;
        let life = live_on(&mut connections, &state, &mut enrolment, &lineage, inside, outside)?;
        let (revision, known) =
            connections.read(|tx| Ok((meta::revision(tx)?, progress::known(tx)?)))?;
        let mut capture = Self {
            config: config.clone(),
            device,
            state,
            life,
            outside_behind: true,
            registry: enrolment.registry,
            skipped: enrolment.skipped,
            schema_version: enrolment.schema_version,
            revision,
            in_flight: InFlight::default(),
            settled: Settled::new(&known),
            tail: TailBounds::default(),
            seen: Seq::ZERO,
            unseen: true,
            events: Vec::new(),
            local: LocalCheck::default(),
            retry_from: Some(0),
            ages: Ages::default(),
            outcomes: Outcomes::default(),
            alarms_changed: true,
            greet_again: false,
            connections,
        };
        capture.save_outside()?;
        if enrolment.authority_returned {
            capture.new_epoch(&epoch::authority_returned())?;
        }
        capture.events = capture.state.events()?;
        tracing::info!(
            database = capture.config.name,
            epoch = %capture.life.epoch,
            tables = capture.registry.live().count(),
            ?lineage,
            "database opened"
        );
        Ok(capture)
    }

    /// The application's file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.connections.path()
    }

    /// What the session greets with: who the file is, its tables, and how far it is.
    ///
    /// # Errors
    /// [`crate::CaptureError::Moved`] when the file was replaced, and SQLite's.
    pub fn facts(&mut self) -> Result<Facts> {
        self.refresh()?;
        // The tables are told in this Hello.
        self.greet_again = false;
        let tables: Vec<_> = self.registry.live().map(|table| table.spec.clone()).collect();
        let (device, database, life) = (self.device, self.config.name.clone(), self.life);
        self.connections.read(|tx| {
            let known: Vec<KnownLane> = progress::known(tx)?;
            let hello = Hello {
                device,
                database: database.clone(),
                instance: life.instance,
                epoch: life.epoch,
                tables: tables.clone(),
                lanes: progress::received(&known),
                floor: epoch::floor(tx)?,
                cursor: meta::cursor(tx)?,
                generation: meta::generation(tx)?,
                incarnation: meta::incarnation(tx)?,
            };
            Ok(Facts { hello, known })
        })
    }

    /// Applies a batch of the hub to the application's tables, or finds that it was applied
    /// before, or that it starts elsewhere than the file stands.
    ///
    /// # Errors
    /// [`crate::CaptureError::Message`] for a batch of another generation, and SQLite's. Nothing
    /// of the cursor moved then.
    pub fn apply(&mut self, batch: &DownBatch) -> Result<ApplyOutcome> {
        let outcome = apply::apply(&mut self.connections, &self.registry, batch)?;
        self.alarms_changed = true;
        Ok(outcome)
    }

    /// Every row that is set aside, in both directions.
    ///
    /// # Errors
    /// SQLite's.
    pub fn quarantine(&mut self) -> Result<Vec<QuarantinedRow>> {
        let registry = &self.registry;
        self.connections.read(|tx| parked::list(tx, registry))
    }

    /// Bounds how much of the log stays unfolded. For tests that want short ones.
    #[doc(hidden)]
    pub fn set_tail_bounds(&mut self, bounds: TailBounds) {
        self.tail = bounds;
    }

    /// Writes down outside the file who it is.
    pub(crate) fn save_outside(&mut self) -> Result<()> {
        let outside = Outside {
            instance: self.life.instance,
            epoch: self.life.epoch,
            stamp: self.life.stamp,
            file: self.connections.identity(),
        };
        self.state.save(self.connections.path(), &outside)?;
        self.outside_behind = false;
        Ok(())
    }

    /// Starts an epoch: every table's rows are sent again, under numbers of a new base.
    pub(crate) fn new_epoch(&mut self, event: &Event) -> Result<()> {
        tracing::warn!(
            database = self.config.name,
            code = event.code,
            "a new epoch begins: {}",
            event.message
        );
        self.state.record(event)?;
        let before = self.life;
        let path: PathBuf = self.path().to_owned();
        let after = Life {
            epoch: epoch::random(),
            stamp: Stamp::random(),
            stamp_prev: Some(before.stamp),
            ..before
        };
        self.registry = self.connections.write(Durability::Full, |tx| {
            if meta::life(tx)? != Some(before) {
                return Err(moved(&path, "its content is not the one that was open"));
            }
            epoch::begin(tx, &after)
        })?;
        self.life = after;
        self.outside_behind = true;
        self.save_outside()?;
        self.in_flight.clear();
        self.settled = Settled::new(&[]);
        self.events = self.state.events()?;
        self.unseen = true;
        self.alarms_changed = true;
        Ok(())
    }
}

/// Goes on with the file's life, or begins another one inside it.
fn live_on(
    connections: &mut Connections,
    state: &StateStore,
    enrolment: &mut Enrolment,
    lineage: &Lineage,
    inside: Option<Life>,
    outside: Option<Outside>,
) -> Result<Life> {
    if let (Lineage::Same | Lineage::OutsideBehind, Some(life)) = (lineage, inside) {
        return Ok(life);
    }
    if let Some(event) = lineage.event() {
        tracing::warn!(code = event.code, "{}", event.message);
        state.record(&event)?;
    }
    let kept = match lineage {
        // The installation is the same, whatever became of its history.
        Lineage::Restored | Lineage::StateLost => inside.map(|life| life.instance),
        Lineage::Fresh
        | Lineage::Replaced
        | Lineage::Foreign
        | Lineage::Same
        | Lineage::OutsideBehind => None,
    };
    let life = Life {
        instance: kept.unwrap_or_else(|| InstanceId(Uuid::new_v4())),
        epoch: epoch::random(),
        stamp: Stamp::random(),
        // A crash before the facts outside are written is then seen as just that.
        stamp_prev: outside.map(|outside| outside.stamp),
    };
    enrolment.registry = connections.write(Durability::Full, |tx| epoch::begin(tx, &life))?;
    Ok(life)
}
