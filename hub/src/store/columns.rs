//! How values and identifiers stand in SQLite's columns.
//!
//! A row's value goes in and comes out in its own storage class, text as bytes; so every column
//! of rows is declared without a type. What has no column of its own is JSON text in exact form.

use rusqlite::ToSql;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef};
use sync_proto::{Epoch, Incarnation, NaturalKey, RowHash, SourceId, Token, Value, Version};
use uuid::Uuid;

use super::database::DbError;
use crate::clock::UnixMillis;
use crate::json::{Columns, ExactColumns};

/// Binds a row's value as it is.
pub(super) struct Bound<'a>(pub(super) &'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self.0 {
            Value::Null => ValueRef::Null,
            Value::Int(n) => ValueRef::Integer(*n),
            Value::Real(n) => ValueRef::Real(*n),
            Value::Text(bytes) => ValueRef::Text(bytes),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

/// Reads a row's value as it is.
pub(super) fn value_of(stored: ValueRef<'_>) -> Value {
    match stored {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Real(n) => Value::Real(n),
        ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

/// A newtype of the protocol as one column.
pub(super) struct Sql<T>(pub(super) T);

macro_rules! as_blob {
    ($name:ident, $bytes:expr, $from:expr) => {
        impl ToSql for Sql<$name> {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                let bytes: fn(&$name) -> &[u8] = $bytes;
                Ok(ToSqlOutput::Borrowed(ValueRef::Blob(bytes(&self.0))))
            }
        }

        impl FromSql for Sql<$name> {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let bytes = value.as_blob()?;
                let wrong = |_| FromSqlError::InvalidBlobSize {
                    expected_size: size_of::<$name>(),
                    blob_size: bytes.len(),
                };
                bytes.try_into().map($from).map(Sql).map_err(wrong)
            }
        }
    };
}

as_blob!(Uuid, |id| id.as_bytes(), Uuid::from_bytes);
as_blob!(SourceId, |id| id.0.as_bytes(), |bytes| SourceId(Uuid::from_bytes(bytes)));
as_blob!(Epoch, |id| id.0.as_bytes(), |bytes| Epoch(Uuid::from_bytes(bytes)));
as_blob!(Incarnation, |id| id.0.as_bytes(), |bytes| Incarnation(Uuid::from_bytes(bytes)));
as_blob!(Token, |token| &token.0, Token);
as_blob!(RowHash, |hash| &hash.0, RowHash);

macro_rules! as_integer {
    ($name:ident) => {
        impl ToSql for Sql<$name> {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                self.0.0.to_sql()
            }
        }

        impl FromSql for Sql<$name> {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                value.as_i64().map($name).map(Sql)
            }
        }
    };
}

as_integer!(Version);
as_integer!(UnixMillis);

impl ToSql for Sql<&NaturalKey> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        self.0.as_str().to_sql()
    }
}

impl FromSql for Sql<NaturalKey> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let key = NaturalKey::from_canonical(value.as_str()?);
        key.map(Sql).map_err(|error| FromSqlError::Other(error.into()))
    }
}

/// A count or position that is never negative, from a column.
pub(super) fn unsigned(stored: i64) -> Result<u64, DbError> {
    u64::try_from(stored).map_err(|_negative| DbError::Content(format!("{stored} is negative")))
}

/// A count or position for a column.
pub(super) fn signed(value: u64) -> Result<i64, DbError> {
    i64::try_from(value)
        .map_err(|_large| DbError::Content(format!("{value} does not fit a column")))
}

/// (column, value) pairs as one readable JSON object, exact.
pub(super) fn object_text(values: &[(String, Value)]) -> Result<String, DbError> {
    Ok(serde_json::to_string(&ExactColumns(values))?)
}

/// Reads what [`object_text`] wrote.
pub(super) fn object_values(text: &str) -> Result<Vec<(String, Value)>, DbError> {
    let Columns(values) = serde_json::from_str(text)?;
    Ok(values)
}
