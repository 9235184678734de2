//! What has to happen beside the session: one bounded step at a time.
//!
//! Each step looks whether the file is still the one that is open and its schema the one that is
//! known, checks local writes to cloud-authoritative tables, and then does at most one of folding,
//! releasing and seeding. The caller decides when the next step comes, and is told how soon it
//! should.

use std::time::{Duration, Instant};

use sync_proto::Lane;

use crate::apply;
use crate::attach::{self, Attach};
use crate::connection::moved;
use crate::enrol;
use crate::epoch;
use crate::error::Result;
use crate::handle::Capture;
use crate::inspect;
use crate::log;
use crate::meta;
use crate::pending::{self, Place};
use crate::registry::{Phase, Registry};
use crate::schema;
use crate::seed::Seeded;

/// What a step of housekeeping came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Housekeeping {
    /// When the next step is due, if there is more to do; else at the next sign of a change.
    pub again: Option<Duration>,
    /// Something may be there to send.
    pub pending: bool,
    /// The alarms may have changed.
    pub alarms_changed: bool,
    /// Tables or the epoch changed: the session has to greet again.
    pub greet_again: bool,
}

/// What is read of the file to find out whether it is as it was.
struct Sight {
    schema_version: i64,
    installed: bool,
    life: Option<meta::Life>,
    revision: i64,
}

impl Capture {
    /// Takes one bounded step.
    ///
    /// # Errors
    /// [`crate::CaptureError::Moved`] when the file was replaced: open a new handle. Every other
    /// one leaves the step to be taken again.
    pub fn housekeep(&mut self) -> Result<Housekeeping> {
        self.refresh()?;
        let mut again = self.check_local()?;
        if self.maintain()? {
            again = Some(self.connections.pause());
        }
        self.connections.checkpoint()?;
        let newest = self.connections.read(|tx| meta::newest_seq(tx))?;
        self.ages.see(newest, Instant::now());
        self.end_events()?;
        Ok(Housekeeping {
            again,
            pending: self.unseen || newest > self.seen,
            alarms_changed: std::mem::take(&mut self.alarms_changed),
            greet_again: std::mem::take(&mut self.greet_again),
        })
    }

    /// Makes sure that the open file is the one at the path and that the registry fits it.
    ///
    /// # Errors
    /// [`crate::CaptureError::Moved`], and SQLite's.
    pub(crate) fn refresh(&mut self) -> Result<()> {
        self.connections.check_identity()?;
        let sight = self.connections.read(|tx| {
            let installed = schema::is_installed(tx)?;
            Ok(Sight {
                schema_version: inspect::schema_version(tx)?,
                installed,
                life: if installed { meta::life(tx)? } else { None },
                revision: if installed { meta::revision(tx)? } else { 0 },
            })
        })?;
        if !sight.installed {
            return Err(moved(self.path(), "our objects were removed from it"));
        }
        if sight.life != Some(self.life) {
            return Err(moved(self.path(), "its content is not the one that was open"));
        }
        if sight.schema_version != self.schema_version {
            self.enrol_again()?;
        } else if sight.revision != self.revision {
            let (registry, revision) =
                self.connections.read(|tx| Ok((Registry::load(tx)?, meta::revision(tx)?)))?;
            self.registry = registry;
            self.revision = revision;
            self.alarms_changed = true;
        }
        Ok(())
    }

    fn enrol_again(&mut self) -> Result<()> {
        let enrolment = enrol::enrol(&mut self.connections, &self.config)?;
        let specs = |registry: &Registry| {
            registry.live().map(|table| table.spec.clone()).collect::<Vec<_>>()
        };
        self.greet_again |= specs(&enrolment.registry) != specs(&self.registry);
        tracing::info!(
            database = self.config.name,
            tables = enrolment.registry.live().count(),
            "the schema changed: tables were inspected again"
        );
        self.registry = enrolment.registry;
        self.skipped = enrolment.skipped;
        self.schema_version = enrolment.schema_version;
        self.unseen = true;
        self.alarms_changed = true;
        // Rows that came down and did not fit may fit the tables as they are.
        self.retry_from = Some(0);
        // Attaching begins with a Welcome.
        self.greet_again |= self.registry.live().any(|table| table.phase == Phase::New);
        if enrolment.authority_returned {
            self.new_epoch(&epoch::authority_returned())?;
            self.greet_again = true;
        }
        Ok(())
    }

    /// Does one of the things that keep the log short and complete; answers whether it did.
    fn maintain(&mut self) -> Result<bool> {
        if self.is_fold_due()? {
            self.fold_below(self.tail.entries)?;
            return Ok(true);
        }
        let attaching = self.registry.live().find(|table| table.phase == Phase::Attaching);
        if let Some(id) = attaching.map(|table| table.id) {
            match attach::step(&mut self.connections, &mut self.registry, id)? {
                Attach::More => {
                    self.unseen = true;
                    return Ok(true);
                }
                Attach::Done => self.alarms_changed = true,
                Attach::Waits => {}
            }
        }
        if let Some(after) = self.retry_from {
            let retried = apply::retry_down(&mut self.connections, &self.registry, after)?;
            self.retry_from = retried.next;
            self.alarms_changed |= retried.applied > 0;
            if retried.next.is_some() {
                return Ok(true);
            }
        }
        // Seeds that wait for others to be sent are looked at when those are.
        match self.release_step()? {
            Seeded::Some => return Ok(true),
            Seeded::Waits => return Ok(false),
            Seeded::Nothing => {}
        }
        Ok(self.seed_step()? == Seeded::Some)
    }

    /// Puts local writes to cloud-authoritative tables back, and drops echoes.
    fn check_local(&mut self) -> Result<Option<Duration>> {
        let checked = self.local.step(&mut self.connections, &self.registry)?;
        self.alarms_changed |= checked.reverted > 0;
        Ok(checked.again)
    }

    /// Events are dealt with once every row was sent that they asked for.
    fn end_events(&mut self) -> Result<()> {
        if self.events.is_empty() || self.unseen {
            return Ok(());
        }
        let seeding = self
            .registry
            .live()
            .any(|table| table.flows() && (table.phase == Phase::Seeding || table.releasing));
        let welcomed = self.connections.read(|tx| Ok(meta::base(tx)?.is_some()))?;
        if seeding || !welcomed || self.has_waiting()? {
            return Ok(());
        }
        self.state.clear_events()?;
        self.events.clear();
        self.alarms_changed = true;
        Ok(())
    }

    /// Whether a key waits for its receipt.
    fn has_waiting(&mut self) -> Result<bool> {
        self.connections.read(|tx| {
            let entries = log::count_changes_up_to(tx, 1)?;
            let mut folded = false;
            for lane in Lane::ALL {
                folded |= pending::count_up_to(tx, Place::Lane(lane), 1)? > 0;
            }
            Ok(entries > 0 || folded)
        })
    }
}
