//! Writes one row so that it stands afterwards exactly under its key, or not at all.
//!
//! A row that exists is updated in place and otherwise inserted, never replaced: children that
//! cascade, columns that did not come, and the rowid stay. The row is read again afterwards,
//! because the table's affinities and the application's triggers have the last word; what is read
//! is what counts. Runs inside the caller's savepoint.

use rusqlite::Connection;
use sync_proto::Value;

use crate::row::{Found, PutSql, Shape};

use super::refusal::RowError;

/// A row before and after a write; `None`: no row.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Change {
    /// Before it.
    pub(crate) before: Option<Vec<Value>>,
    /// After it and after the triggers that it fired.
    pub(crate) after: Option<Vec<Value>>,
}

/// Puts a row: `values` belong to the columns of `sql`.
///
/// # Errors
/// [`RowError::Refused`] when the row does not stand afterwards.
pub(crate) fn put(
    conn: &Connection,
    shape: &Shape,
    sql: &PutSql,
    key: &[Value],
    values: &[&Value],
) -> Result<Change, RowError> {
    let before = read(conn, shape, key)?;
    let written = match &before {
        Some(row) if same(row, sql, values) => None,
        Some(_) => sql.update(conn, values, key)?,
        None => Some(sql.insert(conn, values)?),
    };
    check_count(shape, written)?;
    let after = read(conn, shape, key)?;
    if after.is_none() {
        let message = format!(
            "table {} does not hold the row after it was written: its key is stored in another \
             form or as equal to another row's, or a trigger removed it",
            shape.table()
        );
        return Err(RowError::refused("not_stored", message));
    }
    Ok(Change { before, after })
}

/// Deletes a row; one that is not there is deleted already.
///
/// # Errors
/// [`RowError::Refused`] when the row stands afterwards.
pub(crate) fn delete(conn: &Connection, shape: &Shape, key: &[Value]) -> Result<Change, RowError> {
    let before = read(conn, shape, key)?;
    if before.is_some() {
        check_count(shape, Some(shape.delete(conn, key)?))?;
        if read(conn, shape, key)?.is_some() {
            let message = format!(
                "table {} holds the row after it was deleted: a trigger put it back",
                shape.table()
            );
            return Err(RowError::refused("not_deleted", message));
        }
    }
    Ok(Change { before, after: None })
}

/// Reads the row of a key.
///
/// # Errors
/// [`RowError::Refused`] when several rows have the key.
pub(crate) fn read(
    conn: &Connection,
    shape: &Shape,
    key: &[Value],
) -> Result<Option<Vec<Value>>, RowError> {
    match shape.read(conn, key)? {
        Found::None => Ok(None),
        Found::One(row) => Ok(Some(row)),
        Found::Many => Err(ambiguous(shape)),
    }
}

/// Whether the row holds these values already: then no trigger needs to fire.
fn same(row: &[Value], sql: &PutSql, values: &[&Value]) -> bool {
    sql.columns().iter().zip(values).all(|(column, value)| row[*column] == **value)
}

fn check_count(shape: &Shape, written: Option<usize>) -> Result<(), RowError> {
    match written {
        None | Some(1) => Ok(()),
        Some(0) => {
            let message = format!("a trigger of table {} ignored the row", shape.table());
            Err(RowError::refused("ignored", message))
        }
        Some(_) => Err(ambiguous(shape)),
    }
}

fn ambiguous(shape: &Shape) -> RowError {
    let message = if shape.key().is_empty() {
        format!("table {} is a document table and has more than one row; leave one", shape.table())
    } else {
        format!("table {} has several rows with this key; leave one", shape.table())
    };
    RowError::refused("ambiguous_key", message)
}
