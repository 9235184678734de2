//! Looks at a file before anything is installed: which tables fit, which do not, and why.
//!
//! Opens, looks, closes; nothing is created or changed, not even a WAL.

use serde::Serialize;
use sync_proto::schema::{Authority, Modality, TableSpec};

use rusqlite::Connection;

use crate::config::DatabaseConfig;
use crate::connection;
use crate::error::{CaptureError, Result};
use crate::inspect::{self, Weight};
use crate::status::SkippedTable;

/// What a look at a file found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckReport {
    /// The database's name.
    pub name: String,
    /// The application's file.
    pub path: String,
    /// Its journal mode, which stays what it is.
    pub journal_mode: String,
    /// Tables that are going to be enrolled.
    pub tables: Vec<CheckedTable>,
    /// Tables that are not.
    pub skipped: Vec<SkippedTable>,
}

/// A table that is going to be enrolled.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct CheckedTable {
    /// Its name.
    pub table: String,
    /// The dataspace that it maps to.
    pub dataspace: String,
    /// State or mutable.
    pub modality: Modality,
    /// Device or cloud.
    pub authority: Authority,
    /// Its key columns; none for a document table.
    pub key: Vec<String>,
    /// What works, but costs or may surprise.
    pub warnings: Vec<String>,
}

/// Looks at every table of the file.
///
/// # Errors
/// [`CaptureError::Config`] for a configuration that can never fit, and everything that makes the
/// file unusable.
pub fn check(config: &DatabaseConfig) -> Result<CheckReport> {
    look(config).map_err(|error| error.at(&config.path))
}

fn look(config: &DatabaseConfig) -> Result<CheckReport> {
    let conn = connection::look(&config.path)?;
    let tx = conn.unchecked_transaction()?;
    let survey = inspect::survey(&tx, config)?;
    if conn.is_readonly("main")? {
        return Err(CaptureError::ReadOnly { path: config.path.clone() });
    }
    if let Some(fault) = survey.fault(config) {
        return Err(fault);
    }
    let mut tables = Vec::new();
    for spec in &survey.wanted {
        tables.push(CheckedTable {
            table: spec.name.clone(),
            dataspace: spec.dataspace.clone(),
            modality: spec.modality,
            authority: spec.authority,
            key: spec.key().into_iter().map(str::to_owned).collect(),
            warnings: warnings(&tx, spec)?,
        });
    }
    Ok(CheckReport {
        name: config.name.clone(),
        path: config.path.display().to_string(),
        journal_mode: tx.query_row("PRAGMA main.journal_mode", [], |row| row.get(0))?,
        tables,
        skipped: survey
            .skipped
            .into_iter()
            .map(|skipped| SkippedTable {
                table: skipped.table,
                reason: skipped.reason,
                refused: skipped.weight != Weight::Expected,
            })
            .collect(),
    })
}

fn warnings(conn: &Connection, spec: &TableSpec) -> Result<Vec<String>> {
    let key = spec.key();
    if key.is_empty() {
        return Ok(Vec::new());
    }
    let mut warnings = Vec::new();
    if !inspect::is_unique_key(conn, &spec.name, &key)? {
        warnings.push(format!(
            "nothing makes ({}) unique: rows that share a key are set aside, and ALTER TABLE DROP \
             COLUMN of a key column is refused while the table is enrolled",
            key.join(", ")
        ));
    }
    if !inspect::has_key_index(conn, &spec.name, &key)? {
        warnings.push(format!(
            "no index starts with {}: every changed row costs a scan of the table",
            key.first().copied().unwrap_or_default()
        ));
    }
    Ok(warnings)
}
