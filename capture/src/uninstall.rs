//! Takes everything of ours out of a file, and orders that a person gives on the file itself.
//!
//! Both work beside a running application and from another process than the agent's, and hold the
//! write lock no longer than any other step. After `uninstall` the schema is byte for byte what it
//! was; a file that was only partly cleaned is cleaned by the next run.

use std::path::Path;

use rusqlite::Connection;

use crate::connection::{Connections, Durability, WriteTx};
use crate::error::{CaptureError, Result};
use crate::meta;
use crate::registry::{self, Phase, Registry};
use crate::schema::{self, TABLES, quote};

/// Rows removed by one statement.
const ROWS_CHUNK: usize = 500;

/// Removes our triggers, then our tables. Answers whether there was anything.
///
/// Stop the agent first: a running one takes its own removal for a replaced file and installs
/// everything again.
///
/// # Errors
/// Every [`CaptureError`]; calling again goes on where it stopped.
pub fn uninstall(path: &Path) -> Result<bool> {
    let mut connections = Connections::open(path)?;
    let mut found = false;
    // Nothing may be logged any more before the log is emptied.
    while let More::Yes = connections.write(Durability::Full, |tx| drop_all(tx, "trigger"))? {
        found = true;
    }
    for table in TABLES {
        while let More::Yes = connections.write(Durability::Relaxed, |tx| empty(tx, table))? {}
    }
    while let More::Yes = connections.write(Durability::Full, |tx| drop_all(tx, "table"))? {
        found = true;
    }
    Ok(found)
}

/// Has every row of a device-authoritative table sent again.
///
/// # Errors
/// [`CaptureError::Config`] when the table is not enrolled or its rows come from the cloud, and
/// everything that makes the file unusable.
pub fn reseed(path: &Path, table: &str) -> Result<()> {
    let refused = |reason: &str| CaptureError::Config {
        database: path.display().to_string(),
        table: Some(table.to_owned()),
        reason: reason.to_owned(),
    };
    let mut connections = Connections::open(path)?;
    connections.write(Durability::Full, |tx| {
        if !schema::is_installed(tx)? {
            return Err(refused("nothing is installed in this file; run the agent first"));
        }
        let registry = Registry::load(tx)?;
        let Some(found) = registry.named(table).filter(|found| found.phase != Phase::Gone) else {
            return Err(refused("it is not enrolled; `rowtide tables` lists those that are"));
        };
        if found.is_cloud() {
            return Err(refused("its rows come from the cloud and are not sent from here"));
        }
        let mut found = found.clone();
        found.phase = Phase::Seeding;
        found.seed_after = None;
        registry::save(tx, &found)?;
        meta::raise_revision(tx)
    })
}

enum More {
    Yes,
    No,
}

/// Drops our objects of a kind until the lock was held long enough; answers whether it did any.
fn drop_all(tx: &WriteTx<'_>, kind: &str) -> Result<More> {
    let mut dropped = More::No;
    for name in ours(tx, kind)? {
        if matches!(dropped, More::Yes) && tx.spent() {
            break;
        }
        tx.execute_batch(&format!("DROP {kind} main.{}", quote(&name)))?;
        dropped = More::Yes;
    }
    Ok(dropped)
}

fn ours(conn: &Connection, kind: &str) -> Result<Vec<String>> {
    let mut statement =
        conn.prepare("SELECT name FROM main.sqlite_master WHERE type = ?1 ORDER BY rowid")?;
    let mut names: Vec<String> =
        statement.query_map([kind], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    names.retain(|name| schema::is_ours(name));
    Ok(names)
}

/// Deletes rows of one of our tables until the lock was held long enough; answers whether any is
/// left. Dropping a large table at once would hold the lock for as long as it is large.
fn empty(tx: &WriteTx<'_>, table: &str) -> Result<More> {
    if !ours(tx, "table")?.iter().any(|name| name.eq_ignore_ascii_case(table)) {
        return Ok(More::No);
    }
    let sql = format!(
        "DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} LIMIT {ROWS_CHUNK})"
    );
    while tx.execute(&sql, [])? > 0 {
        if tx.spent() {
            return Ok(More::Yes);
        }
    }
    Ok(More::No)
}
