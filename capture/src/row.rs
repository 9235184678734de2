//! One row as exact values: read by key, put, delete.
//!
//! Values are read and bound raw, so text that is not UTF-8 or holds NUL passes unchanged. A lookup
//! by key may meet rows that are only equal to the key under the column's collation or affinity
//! ('abc' and 'ABC', 1 and 1.0): a row counts as found only when its key is the same in bytes and
//! storage class. A row is never replaced: it is updated in place or inserted. What a row means,
//! and the transaction around it, belong to the callers.

use rusqlite::types::{ToSql, ToSqlOutput, ValueRef};
use rusqlite::{CachedStatement, Connection};
use sync_proto::{RowHash, Value};

use crate::schema::quote;

/// A table as far as its rows' text needs it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    table: String,
    columns: Vec<String>,
    key: Vec<usize>,
    select: String,
    delete: String,
    /// What a conflict does, as a clause of INSERT and UPDATE.
    conflict: &'static str,
}

/// What a lookup by key met.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Found {
    /// No row with exactly this key.
    None,
    /// The row's values, one for each column of the shape.
    One(Vec<Value>),
    /// Several rows with the same key: the declared key does not identify rows.
    Many,
}

/// The text that writes some of a table's columns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PutSql {
    /// Indexes into the shape's columns, in the order of the values given to [`PutSql::insert`].
    columns: Vec<usize>,
    insert: String,
    /// `None` when only key columns are written: an existing row has nothing to update.
    update: Option<String>,
}

impl Shape {
    /// The shape of `table`: `columns` are those that are read and written (no generated ones),
    /// `key` are indexes into them in key order; empty for a document table.
    #[must_use]
    pub(crate) fn new(table: &str, columns: &[String], key: &[usize]) -> Self {
        let list: Vec<String> = columns.iter().map(|name| quote(name)).collect();
        let lookup: Vec<String> = key
            .iter()
            .enumerate()
            .map(|(at, column)| format!("{} = ?{}", list[*column], at + 1))
            .collect();
        let wanted = if lookup.is_empty() {
            String::new()
        } else {
            format!(" WHERE {}", lookup.join(" AND "))
        };
        let select = format!("SELECT {} FROM main.{}{wanted}", list.join(", "), quote(table));
        let exact = exact_key(&list, key, 1);
        let delete = format!("DELETE FROM main.{}{exact}", quote(table));
        Self {
            table: table.to_owned(),
            columns: columns.to_vec(),
            key: key.to_vec(),
            select,
            delete,
            conflict: "",
        }
    }

    /// The same shape, whose writes override conflict clauses of the table's own constraints: a
    /// conflict fails the statement, and never replaces other rows or ends the transaction.
    ///
    /// For tables that have such clauses only, because SQLite passes the override on to the
    /// statements of triggers, which may rely on theirs.
    #[must_use]
    pub(crate) fn refusing_conflicts(self) -> Self {
        Self { conflict: " OR ABORT", ..self }
    }

    /// The table's name.
    #[must_use]
    pub(crate) fn table(&self) -> &str {
        &self.table
    }

    /// Names of the columns that are read and written.
    #[must_use]
    pub(crate) fn columns(&self) -> &[String] {
        &self.columns
    }

    /// Indexes of the key columns, in key order.
    #[must_use]
    pub(crate) fn key(&self) -> &[usize] {
        &self.key
    }

    /// The index of a column, by SQLite's comparison of names.
    #[must_use]
    pub(crate) fn column(&self, name: &str) -> Option<usize> {
        self.columns.iter().position(|column| column.eq_ignore_ascii_case(name))
    }

    /// The content hash of a row given as one value for each column.
    #[must_use]
    pub(crate) fn hash_of(&self, row: &[Value]) -> RowHash {
        RowHash::of(self.columns.iter().map(String::as_str).zip(row))
    }

    /// The text that writes these columns of a row; `columns` are indexes into the shape's.
    #[must_use]
    pub(crate) fn put_sql(&self, columns: &[usize]) -> PutSql {
        let list: Vec<String> = self.columns.iter().map(|name| quote(name)).collect();
        let table = quote(&self.table);
        let names: Vec<&str> = columns.iter().map(|column| list[*column].as_str()).collect();
        let places: Vec<String> = (1..=columns.len()).map(|place| format!("?{place}")).collect();
        let conflict = self.conflict;
        let insert = if columns.is_empty() {
            format!("INSERT{conflict} INTO main.{table} DEFAULT VALUES")
        } else {
            let (names, places) = (names.join(", "), places.join(", "));
            format!("INSERT{conflict} INTO main.{table}({names}) VALUES({places})")
        };
        let sets: Vec<String> = columns
            .iter()
            .zip(&places)
            .filter(|(column, _)| !self.key.contains(column))
            .map(|(column, place)| format!("{} = {place}", list[*column]))
            .collect();
        let exact = exact_key(&list, &self.key, columns.len() + 1);
        let update = (!sets.is_empty())
            .then(|| format!("UPDATE{conflict} main.{table} SET {}{exact}", sets.join(", ")));
        PutSql { columns: columns.to_vec(), insert, update }
    }

    /// Reads the row with exactly this key.
    ///
    /// # Errors
    /// SQLite's, also when the table or a column is gone.
    pub(crate) fn read(&self, conn: &Connection, key: &[Value]) -> rusqlite::Result<Found> {
        let mut statement = conn.prepare_cached(&self.select)?;
        bind(&mut statement, 1, key)?;
        let mut found = Found::None;
        let mut rows = statement.raw_query();
        while let Some(row) = rows.next()? {
            let same_key = self.key.iter().zip(key).try_fold(true, |same, (column, wanted)| {
                Ok::<bool, rusqlite::Error>(same && is(row.get_ref(*column)?, wanted))
            })?;
            if !same_key {
                continue;
            }
            if found != Found::None {
                return Ok(Found::Many);
            }
            found = Found::One(values_of(row, self.columns.len())?);
        }
        Ok(found)
    }

    /// Deletes the row with exactly this key; answers how many rows went.
    ///
    /// # Errors
    /// SQLite's, also when a constraint or a trigger refuses.
    pub(crate) fn delete(&self, conn: &Connection, key: &[Value]) -> rusqlite::Result<usize> {
        let mut statement = conn.prepare_cached(&self.delete)?;
        bind(&mut statement, 1, key)?;
        statement.raw_execute()
    }
}

impl PutSql {
    /// Indexes into the shape's columns, in the order in which values are given.
    #[must_use]
    pub(crate) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Inserts a row; columns that are not written take their defaults. Answers how many rows
    /// came: 0 when a trigger ignored it.
    ///
    /// # Errors
    /// SQLite's, also when a constraint or a trigger refuses.
    pub(crate) fn insert(&self, conn: &Connection, values: &[&Value]) -> rusqlite::Result<usize> {
        let mut statement = conn.prepare_cached(&self.insert)?;
        bind(&mut statement, 1, values.iter().copied())?;
        statement.raw_execute()
    }

    /// Updates the row with exactly this key; columns that are not written keep their values.
    /// Answers how many rows changed: 0 when a trigger ignored it. `None`: nothing to write.
    ///
    /// # Errors
    /// SQLite's, also when a constraint or a trigger refuses.
    pub(crate) fn update(
        &self,
        conn: &Connection,
        values: &[&Value],
        key: &[Value],
    ) -> rusqlite::Result<Option<usize>> {
        let Some(update) = &self.update else { return Ok(None) };
        let mut statement = conn.prepare_cached(update)?;
        // Places of key columns are not in the text; binding them is harmless.
        bind(&mut statement, 1, values.iter().copied())?;
        bind(&mut statement, values.len() + 1, key)?;
        statement.raw_execute().map(Some)
    }
}

/// An owned copy of a value as SQLite holds it.
#[must_use]
pub(crate) fn owned(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => Value::Int(n),
        ValueRef::Real(n) => Value::Real(n),
        ValueRef::Text(bytes) => Value::Text(bytes.to_vec()),
        ValueRef::Blob(bytes) => Value::Blob(bytes.to_vec()),
    }
}

/// The first `width` values of a result row.
///
/// # Errors
/// SQLite's, when the row is narrower.
pub(crate) fn values_of(row: &rusqlite::Row<'_>, width: usize) -> rusqlite::Result<Vec<Value>> {
    (0..width).map(|column| row.get_ref(column).map(owned)).collect()
}

/// A value that binds as it is: text as bytes, whatever they are.
#[derive(Debug)]
pub(crate) struct Bound<'a>(pub(crate) &'a Value);

impl ToSql for Bound<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(borrowed(self.0)))
    }
}

/// Binds values from place `first` on.
///
/// # Errors
/// SQLite's, when a value is too big.
pub(crate) fn bind<'a>(
    statement: &mut CachedStatement<'_>,
    first: usize,
    values: impl IntoIterator<Item = &'a Value>,
) -> rusqlite::Result<()> {
    for (place, value) in (first..).zip(values) {
        statement.raw_bind_parameter(place, Bound(value))?;
    }
    Ok(())
}

fn borrowed(value: &Value) -> ValueRef<'_> {
    match value {
        Value::Null => ValueRef::Null,
        Value::Int(n) => ValueRef::Integer(*n),
        Value::Real(n) => ValueRef::Real(*n),
        Value::Text(bytes) => ValueRef::Text(bytes),
        Value::Blob(bytes) => ValueRef::Blob(bytes),
    }
}

fn is(stored: ValueRef<'_>, wanted: &Value) -> bool {
    match (stored, wanted) {
        (ValueRef::Null, Value::Null) => true,
        (ValueRef::Integer(a), Value::Int(b)) => a == *b,
        (ValueRef::Real(a), Value::Real(b)) => a.to_bits() == b.to_bits(),
        (ValueRef::Text(a), Value::Text(b)) | (ValueRef::Blob(a), Value::Blob(b)) => a == b,
        (
            ValueRef::Null
            | ValueRef::Integer(_)
            | ValueRef::Real(_)
            | ValueRef::Text(_)
            | ValueRef::Blob(_),
            _,
        ) => false,
    }
}

/// The condition that only the exact key meets. Its first term can use the key's index, whatever
/// its collation; the others leave out rows that are merely equal.
fn exact_key(list: &[String], key: &[usize], first: usize) -> String {
    if key.is_empty() {
        return String::new();
    }
    let terms: Vec<String> = (first..)
        .zip(key)
        .map(|(place, column)| {
            let name = &list[*column];
            format!(
                "{name} = ?{place} AND {name} COLLATE BINARY = ?{place} \
                 AND typeof({name}) = typeof(?{place})"
            )
        })
        .collect();
    format!(" WHERE {}", terms.join(" AND "))
}
