//! Numbered migrations with checksums, for both embedded files.
//!
//! Each runs once, in one transaction together with its record, so a kill leaves it done or not
//! begun. A recorded checksum that differs from this binary's, and a store that is newer, are
//! refused before anything is written. Migrations are only ever added.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior, params};
use sha2::{Digest as _, Sha256};

use crate::clock::UnixMillis;
use crate::error::StoreError;

/// One step of a file's schema.
#[derive(Clone, Copy, Debug)]
pub(super) struct Migration {
    /// Its number: the position in its list, from 1.
    number: i64,
    name: &'static str,
    sql: &'static str,
}

/// The state store's migrations.
pub(super) const HUB: &[Migration] =
    &[Migration { number: 1, name: "init", sql: include_str!("../migrations/hub_0001_init.sql") }];

/// The mutable store's migrations.
pub(super) const MUTABLE: &[Migration] = &[Migration {
    number: 1,
    name: "init",
    sql: include_str!("../migrations/mutable_0001_init.sql"),
}];

/// Checks what is recorded and runs what is missing.
pub(super) fn run(
    db: &mut Connection,
    path: &Path,
    migrations: &[Migration],
) -> Result<(), StoreError> {
    for migration in migrations {
        // The lock comes first: two processes that start together run each migration once.
        let tx = db
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|source| failed(path, source))?;
        tx.execute_batch(RECORD).map_err(|source| failed(path, source))?;
        check(&tx, path, migrations)?;
        let is_new = apply(&tx, migration).map_err(|source| failed(path, source))?;
        tx.commit().map_err(|source| failed(path, source))?;
        if is_new {
            tracing::info!(path = %path.display(), number = migration.number, "migration applied");
        }
    }
    Ok(())
}

/// The record of what was applied.
const RECORD: &str = "CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    applied_at INTEGER NOT NULL
)";

/// Runs a migration unless it is recorded; true when it ran.
fn apply(tx: &Connection, migration: &Migration) -> rusqlite::Result<bool> {
    let Migration { number, name, sql } = migration;
    let recorded = "SELECT EXISTS (SELECT 1 FROM migrations WHERE number = ?1)";
    if tx.query_row(recorded, [number], |row| row.get(0))? {
        return Ok(false);
    }
    tx.execute_batch(sql)?;
    tx.execute(
        "INSERT INTO migrations (number, name, sha256, applied_at) VALUES (?1, ?2, ?3, ?4)",
        params![number, name, checksum(migration), UnixMillis::now().0],
    )?;
    Ok(true)
}

fn failed(path: &Path, source: rusqlite::Error) -> StoreError {
    StoreError::Open { path: path.to_owned(), source: source.into() }
}

fn check(db: &Connection, path: &Path, migrations: &[Migration]) -> Result<(), StoreError> {
    let known = migrations.last().map_or(0, |migration| migration.number);
    let found: i64 = db
        .query_row("SELECT coalesce(max(number), 0) FROM migrations", [], |row| row.get(0))
        .map_err(|source| failed(path, source))?;
    if found > known {
        return Err(StoreError::Newer { path: path.to_owned(), found, known });
    }
    for migration in migrations {
        let recorded: Option<(String, Vec<u8>)> = db
            .query_row(
                "SELECT name, sha256 FROM migrations WHERE number = ?1",
                [migration.number],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .optional()
            .map_err(|source| failed(path, source))?;
        if let Some((name, sha256)) = recorded {
            if sha256 != checksum(migration) {
                return Err(StoreError::MigrationChecksum {
                    path: path.to_owned(),
                    number: migration.number,
                    name,
                });
            }
        }
    }
    Ok(())
}

fn checksum(migration: &Migration) -> Vec<u8> {
    Sha256::digest(migration.sql.as_bytes()).to_vec()
}
