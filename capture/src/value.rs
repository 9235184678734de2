//! The one mapping between SQLite's values and the protocol's.
//!
//! Exact in both directions: text travels as bytes, also where it is not UTF-8, and every storage
//! class stays what it is.

use rusqlite::ToSql;
use rusqlite::types::{ToSqlOutput, Value as Owned, ValueRef};
use sync_proto::Value;

/// The protocol's value of one that SQLite gave.
pub(crate) fn read(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Real(n) => Value::Real(n),
        ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

/// A value as a statement's parameter, without a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bound<'a>(pub(crate) &'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self.0 {
            Value::Null => ToSqlOutput::Owned(Owned::Null),
            Value::Int(n) => ToSqlOutput::Owned(Owned::Integer(*n)),
            Value::Real(n) => ToSqlOutput::Owned(Owned::Real(*n)),
            Value::Text(bytes) => ToSqlOutput::Borrowed(ValueRef::Text(bytes)),
            Value::Blob(bytes) => ToSqlOutput::Borrowed(ValueRef::Blob(bytes)),
        })
    }
}
