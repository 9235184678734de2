//! What the hub says about the file, made durable: Welcome, lost receipts, orders.
//!
//! Nothing is decided here about continuity; that came with the Welcome. Adopting twice changes
//! nothing more than adopting once.

use sync_proto::continuity::Continuity;
use sync_proto::message::{Control, LanePosition, TableState, TableStatus, Welcome};
use sync_proto::{Cursor, Epoch, Seq};

use crate::attach;
use crate::connection::{Durability, WriteTx};
use crate::epoch;
use crate::error::{CaptureError, Result};
use crate::handle::Capture;
use crate::meta;
use crate::progress::{self, Settled};
use crate::registry::{self, HubTable, Phase, Registry, Table};

impl Capture {
    /// Stores what the hub said and acts on what it means for the file's history.
    ///
    /// # Errors
    /// [`CaptureError::Message`] for a Welcome to another database or epoch, and SQLite's. The
    /// same Welcome may then be adopted again.
    pub fn adopt_welcome(&mut self, welcome: &Welcome, continuity: &Continuity) -> Result<()> {
        if welcome.database != self.config.name || welcome.epoch != self.life.epoch {
            return Err(CaptureError::Message {
                reason: format!(
                    "the hub welcomed database {:?} in epoch {}, this is {:?} in {}",
                    welcome.database, welcome.epoch, self.config.name, self.life.epoch
                ),
            });
        }
        match continuity {
            Continuity::Same { lost_receipts } => {
                // First what was sent under the old statuses, then the new ones.
                for &(lane, seq) in lost_receipts {
                    self.settle_lost(lane, seq)?;
                }
                self.adopt(welcome, false)
            }
            Continuity::HubLost => {
                self.state.record(&epoch::hub_lost())?;
                // What the hub did keep of what was sent need not be sent again.
                for position in &welcome.lanes {
                    self.settle_lost(position.lane, position.seq)?;
                }
                self.adopt(welcome, true)?;
                self.in_flight.clear();
                let known = self.connections.read(|tx| progress::known(tx))?;
                self.settled = Settled::new(&known);
                self.events = self.state.events()?;
                Ok(())
            }
            Continuity::DeviceForked { lane, seq } => {
                self.new_epoch(&epoch::forked(lane.name(), *seq))
            }
        }
    }

    /// Starts a new epoch because the hub closed `closed`, unless the file is in another already.
    ///
    /// # Errors
    /// SQLite's; the file is then still in its old epoch.
    pub fn start_epoch(&mut self, closed: Epoch, reason: &str) -> Result<()> {
        if self.life.epoch == closed { self.new_epoch(&epoch::closed(reason)) } else { Ok(()) }
    }

    /// Does what the hub ordered. Orders that concern the session alone need nothing here.
    ///
    /// # Errors
    /// SQLite's.
    pub fn obey(&mut self, control: &Control) -> Result<()> {
        match control {
            Control::Pause { table } => self.set_state(table, &TableState::Paused),
            Control::Resume { table } => self.set_state(table, &TableState::Flowing),
            Control::Resnapshot => {
                self.connections.write(Durability::Full, |tx| meta::set_cursor(tx, Cursor::ZERO))
            }
            Control::RefreshSchema | Control::RetryAfter { .. } => Ok(()),
        }
    }

    fn adopt(&mut self, welcome: &Welcome, hub_lost: bool) -> Result<()> {
        let registry = self.connections.write(Durability::Full, |tx| {
            meta::set_base(tx, Some(welcome.base))?;
            meta::set_incarnation(tx, welcome.incarnation)?;
            meta::set_generation(tx, welcome.generation)?;
            meta::set_batch_bytes_max(tx, welcome.limits.batch_bytes_max)?;
            let mut registry =
                if hub_lost { start_over(tx, &welcome.lanes)? } else { Registry::load(tx)? };
            for status in &welcome.tables {
                let Some(table) = registry.named(&status.table) else { continue };
                let mut table = with_status(table, status);
                if table.phase == Phase::New && table.flows() {
                    table = attach::begin(tx, &registry, &table, hub_lost)?;
                } else {
                    registry::save(tx, &table)?;
                }
                registry.put(table);
            }
            Ok(registry)
        })?;
        self.go_on_with(registry);
        Ok(())
    }

    fn go_on_with(&mut self, registry: Registry) {
        let flowed = |table: &Table| self.registry.get(table.id).is_some_and(Table::flows);
        if registry.tables().iter().any(|table| table.flows() && !flowed(table)) {
            // Rows that came down while their table did not flow can be applied.
            self.retry_from = Some(0);
        }
        self.registry = registry;
        self.unseen = true;
        self.alarms_changed = true;
    }

    fn set_state(&mut self, name: &str, state: &TableState) -> Result<()> {
        let registry = self.connections.write(Durability::Full, |tx| {
            let mut registry = Registry::load(tx)?;
            let Some(table) = registry.named(name) else { return Ok(registry) };
            let adopt = table.hub.as_ref().is_some_and(|hub| hub.adopt);
            let status = TableStatus { table: name.to_owned(), state: state.clone(), adopt };
            let table = with_status(table, &status);
            registry::save(tx, &table)?;
            registry.put(table);
            Ok(registry)
        })?;
        self.go_on_with(registry);
        Ok(())
    }
}

/// The hub has lost what it had: its positions are taken as they are, and everything goes up and
/// comes down again.
fn start_over(tx: &WriteTx<'_>, lanes: &[LanePosition]) -> Result<Registry> {
    progress::forget(tx)?;
    for position in lanes.iter().filter(|position| position.seq > Seq::ZERO) {
        progress::record(tx, position)?;
        progress::receive(tx, position.lane, position.seq)?;
    }
    meta::set_cursor(tx, Cursor::ZERO)?;
    let mut registry = epoch::seed_all(tx)?;
    let cloud: Vec<Table> = registry.live().filter(|table| table.is_cloud()).cloned().collect();
    for mut table in cloud {
        table.phase = Phase::New;
        registry::save(tx, &table)?;
        registry.put(table);
    }
    Ok(registry)
}

fn with_status(table: &Table, status: &TableStatus) -> Table {
    let flowed = table.flows();
    let mut table = table.clone();
    table.hub = Some(HubTable { state: status.state.clone(), adopt: status.adopt });
    if table.flows() && !flowed {
        table.releasing = true;
    }
    table
}
