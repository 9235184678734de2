//! Which failures set one row aside, and under which word.
//!
//! The file's own rules (constraints, triggers, types, a schema that the row does not fit) refuse
//! one row. Everything else (locks, a full disk, damage) is not the row's fault and stops the
//! batch, which is tried again. Decided once, here, from SQLite's codes.

use rusqlite::{Connection, ErrorCode, ffi};
use sync_proto::message::Reason;

use crate::error::CaptureError;

/// Why a row was not written.
#[derive(Debug)]
pub(crate) enum RowError {
    /// The file refuses this row; nothing of it is written, the transaction goes on.
    Refused(Reason),
    /// The file refuses this row, and its refusal ended the transaction: everything in it has to
    /// be done again without the row.
    Lost(Reason),
    /// Not the row's fault.
    Failed(CaptureError),
}

impl RowError {
    /// A refusal of our own.
    pub(crate) fn refused(code: &str, message: impl Into<String>) -> Self {
        Self::Refused(reason(code, message))
    }
}

impl From<CaptureError> for RowError {
    fn from(error: CaptureError) -> Self {
        Self::Failed(error)
    }
}

impl From<rusqlite::Error> for RowError {
    fn from(error: rusqlite::Error) -> Self {
        match refusal(&error) {
            Some(reason) => Self::Refused(reason),
            None => Self::Failed(CaptureError::from(error)),
        }
    }
}

/// A reason to set a row aside.
pub(crate) fn reason(code: &str, message: impl Into<String>) -> Reason {
    Reason { code: code.to_owned(), message: message.into() }
}

/// Why rows wait that refer to others: the code that [`crate::apply`] knows them by.
pub(crate) const FOREIGN_KEY: &str = "foreign_key";

/// The code of rows that wait for a value to become free.
pub(crate) const UNIQUE: &str = "unique";

/// The reason for a row whose reference has no target, or that others still refer to.
pub(crate) fn foreign_key(table: &str) -> Reason {
    reason(
        FOREIGN_KEY,
        format!(
            "the row of table {table} breaks a foreign key: it refers to a row that is not there, \
             or a row that stays refers to it; it is tried again when other rows come",
        ),
    )
}

/// Whether a failed COMMIT was refused by a deferred foreign key.
pub(crate) fn is_foreign_key(error: &CaptureError) -> bool {
    matches!(
        error,
        CaptureError::Sqlite { source: rusqlite::Error::SqliteFailure(failure, _), .. }
            if failure.extended_code == ffi::SQLITE_CONSTRAINT_FOREIGNKEY
    )
}

/// Runs the work of one row inside a savepoint: all of it or nothing.
///
/// # Errors
/// Those of `work`, with [`RowError::Lost`] where the refusal ended the transaction.
pub(crate) fn in_savepoint<T>(
    conn: &Connection,
    work: impl FnOnce() -> Result<T, RowError>,
) -> Result<T, RowError> {
    conn.prepare_cached("SAVEPOINT _rowtide_row")?.execute([])?;
    match work() {
        Ok(value) => {
            conn.prepare_cached("RELEASE _rowtide_row")?.execute([])?;
            Ok(value)
        }
        // RAISE(ROLLBACK), or a failure that makes SQLite roll back by itself.
        Err(RowError::Refused(reason)) if conn.is_autocommit() => Err(RowError::Lost(reason)),
        Err(error) if conn.is_autocommit() => Err(error),
        Err(error) => {
            conn.prepare_cached("ROLLBACK TO _rowtide_row")?.execute([])?;
            conn.prepare_cached("RELEASE _rowtide_row")?.execute([])?;
            Err(error)
        }
    }
}

fn refusal(error: &rusqlite::Error) -> Option<Reason> {
    let (failure, text) = if let rusqlite::Error::SqliteFailure(failure, text) = error {
        (failure, text.as_deref())
    } else if let rusqlite::Error::SqlInputError { error, msg, .. } = error {
        (error, Some(msg.as_str()))
    } else {
        return None;
    };
    let (code, advice) = if failure.code == ErrorCode::ConstraintViolation {
        constraint(failure.extended_code)
    } else if failure.code == ErrorCode::TypeMismatch {
        ("datatype", "send a value of the column's type")
    } else if failure.code == ErrorCode::TooBig {
        ("too_big", "the value is longer than SQLite holds; shorten it")
    } else if failure.extended_code == ffi::SQLITE_ERROR {
        // An SQL error at this point is the file's schema: a column that is gone, a trigger or
        // CHECK that calls what only the application's library knows.
        ("schema", "it is tried again after the table's schema changes")
    } else {
        return None;
    };
    let text = text.map_or_else(|| error.to_string(), str::to_owned);
    Some(reason(code, format!("{text}; {advice}")))
}

fn constraint(extended: i32) -> (&'static str, &'static str) {
    match extended {
        ffi::SQLITE_CONSTRAINT_UNIQUE
        | ffi::SQLITE_CONSTRAINT_PRIMARYKEY
        | ffi::SQLITE_CONSTRAINT_ROWID => {
            (UNIQUE, "another row holds the value; it is tried again when other rows come")
        }
        ffi::SQLITE_CONSTRAINT_CHECK => ("check", "send a value that the table allows"),
        ffi::SQLITE_CONSTRAINT_NOTNULL => ("not_null", "send a value for the column"),
        ffi::SQLITE_CONSTRAINT_FOREIGNKEY => {
            (FOREIGN_KEY, "it is tried again when other rows come")
        }
        ffi::SQLITE_CONSTRAINT_TRIGGER => {
            ("trigger", "a trigger of the application refuses the row; send one that it allows")
        }
        ffi::SQLITE_CONSTRAINT_DATATYPE => {
            ("datatype", "the table is STRICT; send a value of the column's type")
        }
        _ => ("constraint", "send a row that the table's constraints allow"),
    }
}
