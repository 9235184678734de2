//! One write of the API to a state row: conditions, row, history and outbox in one transaction.
//!
//! The transaction holds the file's only write lock, so what was read for the decision is still
//! true when the row is written. What is allowed is decided by [`crate::rules`]. A refused write
//! has touched nothing.

use rusqlite::{Transaction, params};
use sync_proto::schema::Authority;
use sync_proto::{Stamp, Version};

use super::columns::{Sql, object_text};
use super::database::DbError;
use super::outbox::{self, Change};
use super::row_table::{self, NewRow};
use crate::catalog::Dataspace;
use crate::clock::UnixMillis;
use crate::plane::{Author, RowWrite, WriteError, WriteOutcome};
use crate::rules;

/// `source_type` of rows that the API writes.
const SOURCE_API: &str = "api";

/// Decides and writes.
pub(super) fn write(
    tx: &Transaction<'_>,
    write: &RowWrite,
) -> Result<Result<WriteOutcome, WriteError>, DbError> {
    let dataspace = &*write.dataspace;
    if dataspace.authority == Authority::Device {
        let dataspace = dataspace.name.clone();
        return Ok(Err(WriteError::DeviceAuthoritative { dataspace }));
    }
    let sent = write.values.as_deref().unwrap_or_default();
    let completed = match rules::complete(dataspace, &write.key, sent) {
        Ok(completed) => completed,
        Err(error) => return Ok(Err(error)),
    };
    let values = write.values.as_ref().map(|_| completed.as_slice());
    let hash = row_table::hash(values);
    let stored = row_table::stamp(tx, dataspace, write.source_id, &write.key)?;
    let live =
        row_table::read(tx, dataspace, write.source_id, &write.key)?.filter(|row| !row.deleted);
    if values.is_none() && live.is_none() {
        return Ok(Err(WriteError::NotFound));
    }
    let version = match rules::admit(stored, write.condition, write.version, hash) {
        Ok(version) => version,
        Err(rules::Refused::Conflict) => {
            return Ok(Err(WriteError::Conflict { current: live.map(Box::new) }));
        }
        Err(rules::Refused::Range(version)) => {
            return Ok(Err(WriteError::VersionRange { version }));
        }
    };
    let stamp = Stamp { version, hash };
    let row = NewRow {
        source_type: SOURCE_API,
        source_id: write.source_id,
        key: &write.key,
        stamp,
        deleted: values.is_none(),
        values: values.unwrap_or_default(),
        at: UnixMillis::now(),
    };
    let expected = stored.map_or(Version::NONE, |stamp| stamp.version);
    record(tx, dataspace, &row, &write.author, Some(expected))?;
    let row = row_table::read(tx, dataspace, write.source_id, &write.key)?
        .ok_or_else(|| DbError::Content("a row is gone right after its write".to_owned()))?;
    Ok(Ok(WriteOutcome { row, created: live.is_none() }))
}

/// Stores a row with its line of history, and announces it where devices may follow (then true).
pub(super) fn record(
    tx: &Transaction<'_>,
    dataspace: &Dataspace,
    row: &NewRow<'_>,
    author: &Author,
    expected: Option<Version>,
) -> Result<bool, DbError> {
    row_table::store(tx, dataspace, row)?;
    let value = if row.deleted { None } else { Some(object_text(row.values)?) };
    let sql = "INSERT INTO history (dataspace, source_id, natural_key, version, row_hash, op, \
        outcome, author, identity_strength, expected_version, value, at) \
        VALUES (?1, ?2, ?3, ?4, ?5, ?6, 'applied', ?7, ?8, ?9, ?10, ?11)";
    tx.prepare_cached(sql)?.execute(params![
        dataspace.number,
        Sql(row.source_id),
        Sql(row.key),
        Sql(row.stamp.version),
        Sql(row.stamp.hash),
        if row.deleted { "delete" } else { "put" },
        author.name,
        author.strength.name(),
        expected.map(|version| version.0),
        value,
        Sql(row.at),
    ])?;
    if dataspace.authority == Authority::Device {
        return Ok(false);
    }
    let (dataspace, source_id) = (dataspace.number, row.source_id);
    let change =
        Change { dataspace, source_id, key: row.key, version: row.stamp.version, at: row.at };
    outbox::append(tx, &change)?;
    Ok(true)
}
