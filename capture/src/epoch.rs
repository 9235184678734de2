//! What begins with an epoch: a new base to come, ranges from zero, every table seeded again.
//!
//! The log goes on, numbers and all: they are only ever compared within an epoch, and the next
//! base lies above everything that was given out. When an epoch must begin is not decided here.

use rusqlite::Connection;
use sync_proto::{Epoch, Seq, Version};
use uuid::Uuid;

use crate::error::Result;
use crate::meta::{self, Life};
use crate::progress;
use crate::registry::{self, Phase, Registry};
use crate::state::Event;

/// An epoch that never was: its id carries the time for a person's eye, no order rests on it.
pub(crate) fn random() -> Epoch {
    Epoch(Uuid::now_v7())
}

/// Begins the epoch that `life` names, and answers the registry as it is then.
///
/// # Errors
/// SQLite's.
pub(crate) fn begin(conn: &Connection, life: &Life) -> Result<Registry> {
    meta::raise_floor(conn, floor(conn)?)?;
    meta::set_life(conn, life)?;
    meta::set_base(conn, None)?;
    progress::forget(conn)?;
    seed_all(conn)
}

/// Has every device table's rows logged again, and answers the registry as it is then.
///
/// # Errors
/// SQLite's.
pub(crate) fn seed_all(conn: &Connection) -> Result<Registry> {
    let mut registry = Registry::load(conn)?;
    let seeded: Vec<_> = registry.live().filter(|table| !table.is_cloud()).cloned().collect();
    for mut table in seeded {
        table.phase = Phase::Seeding;
        table.seed_after = None;
        registry::save(conn, &table)?;
        registry.put(table);
    }
    Ok(registry)
}

/// The highest version that may be known of this file's rows: a later base must lie above it.
///
/// # Errors
/// SQLite's.
pub(crate) fn floor(conn: &Connection) -> Result<Version> {
    let stored = meta::floor(conn)?;
    let newest = meta::newest_seq(conn)?;
    let given = meta::base(conn)?.and_then(|base| Version::of(base, newest));
    Ok(stored.max(given.unwrap_or(stored)))
}

/// The event of a table that went from cloud to device authority.
pub(crate) fn authority_returned() -> Event {
    event(
        "authority_returned",
        "a table went from cloud to device authority: a new epoch began and every row is sent \
         again",
    )
}

/// The event of a hub that holds what this file never sent.
pub(crate) fn forked(lane: &str, seq: Seq) -> Event {
    event(
        "database_forked",
        &format!(
            "the hub holds {lane} {seq}, which this file never sent (it was restored or cloned): \
             a new epoch began and every row is sent again"
        ),
    )
}

/// The event of an epoch that the hub takes nothing of any more.
pub(crate) fn closed(reason: &str) -> Event {
    event(
        "epoch_closed",
        &format!(
            "the hub closed this file's epoch ({reason}): a new one began and every row is sent \
             again"
        ),
    )
}

/// The event of a hub that lost what it had confirmed.
pub(crate) fn hub_lost() -> Event {
    event(
        "hub_lost",
        "the hub lost rows that it had confirmed, or is another hub: every row is sent again",
    )
}

fn event(code: &str, message: &str) -> Event {
    Event { code: code.to_owned(), message: message.to_owned() }
}
