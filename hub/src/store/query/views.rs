//! The read views of a project's dataspaces, made as TEMP views of one connection.
//!
//! Each dataspace gets two: a private one that reads the physical table and shows each value as
//! the API does, under a name that nobody can guess, and the one with the dataspace's name, which
//! reads the private one. It decides nothing about access; that is [`super::guard`]'s.

use std::collections::BTreeSet;

use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, ToSql};
use sync_proto::schema::Modality;
use sync_proto::{SourceId, Value};
use uuid::Uuid;

use super::super::columns::object_values;
use super::super::row_table::{column, quoted, table};
use crate::catalog::Dataspace;
use crate::clock::UnixMillis;

/// The schema under which the mutable store is attached.
pub(super) const MUTABLE_SCHEMA: &str = "mutable";

/// Meta columns: the name without its `_`, and the expression over the physical table.
const META: &[(&str, &str)] = &[
    ("natural_key", "natural_key"),
    ("source_id", "_rowtide_uuid(source_id)"),
    ("version", "version"),
    ("event_ts", "_rowtide_time(event_ts)"),
    ("updated_at", "_rowtide_time(updated_at)"),
];

/// Names of the views of one connection.
#[derive(Clone, Debug)]
pub(super) struct Views {
    /// How every private view's name begins.
    private: String,
    /// Names of the public ones, in lower case.
    public: BTreeSet<String>,
}

impl Views {
    /// Makes the views of those dataspaces that `sql` can mean. `private` is a random word.
    pub(super) fn create(
        db: &Connection,
        private: &str,
        dataspaces: &[Dataspace],
        sql: &str,
    ) -> rusqlite::Result<Self> {
        add_functions(db)?;
        let sql = sql.to_ascii_lowercase();
        let mut views = Self { private: format!("{private}_"), public: BTreeSet::new() };
        for dataspace in dataspaces.iter().filter(|dataspace| may_mean(&sql, &dataspace.name)) {
            views.add(db, dataspace)?;
        }
        Ok(views)
    }

    /// Whether a view of that name reads a physical table.
    pub(super) fn is_private(&self, name: &str) -> bool {
        name.starts_with(&self.private)
    }

    /// Whether it is the name of a view.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.is_private(name) || self.public.contains(&name.to_ascii_lowercase())
    }

    fn add(&mut self, db: &Connection, dataspace: &Dataspace) -> rusqlite::Result<()> {
        let private = quoted(&format!("{}{}", self.private, dataspace.number));
        let select = select_of(db, dataspace)?;
        db.execute_batch(&format!(
            "CREATE TEMP VIEW {private} AS {select};
             CREATE TEMP VIEW {} AS SELECT * FROM temp.{private};",
            quoted(&dataspace.name)
        ))?;
        self.public.insert(dataspace.name.to_ascii_lowercase());
        Ok(())
    }
}

/// Whether lower-case SQL can mean a dataspace. SQL names it as it is, unless quoting doubles a
/// character of the name.
fn may_mean(sql: &str, name: &str) -> bool {
    name.contains(['"', '\'', '`', ']']) || sql.contains(&name.to_ascii_lowercase())
}

/// The SELECT that shows a dataspace's live rows. The table of a dataspace that was never written
/// does not exist, and columns that were declared after the last write are not in it yet.
fn select_of(db: &Connection, dataspace: &Dataspace) -> rusqlite::Result<String> {
    let schema = match dataspace.modality {
        Modality::State => "main",
        Modality::Mutable => MUTABLE_SCHEMA,
    };
    let table = table(dataspace);
    let present: BTreeSet<String> = db
        .prepare("SELECT lower(name) FROM pragma_table_info(?1, ?2)")?
        .query_map([table.as_str(), schema], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    let written = !present.is_empty();
    let expression = |sql: String| if written { sql } else { "NULL".to_owned() };
    let mut columns: Vec<String> = Vec::new();
    for field in &dataspace.fields {
        let name = field.name.as_str();
        let stored = present.contains(&format!("c_{}", name.to_ascii_lowercase()));
        columns.push(format!("{} AS {}", expression(shown(name, stored)), quoted(name)));
    }
    let free = |name: &str| dataspace.field(name).is_none();
    for (name, sql) in META {
        let prefixed = format!("_{name}");
        for name in [prefixed.as_str(), name].into_iter().filter(|name| free(name)) {
            columns.push(format!("{} AS {}", expression((*sql).to_owned()), quoted(name)));
        }
    }
    if free("_overflow") {
        columns.push(format!("{} AS _overflow", expression("overflow".to_owned())));
    }
    let columns = columns.join(", ");
    Ok(if written {
        format!("SELECT {columns} FROM {schema}.{table} WHERE is_deleted = 0")
    } else {
        format!("SELECT {columns} WHERE 0")
    })
}

/// The expression of a declared column. A value that was written before its column was declared
/// is still in the row's overflow.
fn shown(name: &str, stored: bool) -> String {
    let literal = format!("'{}'", name.replace('\'', "''"));
    let overflow = format!("_rowtide_overflow(overflow, {literal})");
    if stored {
        let column = column(name);
        format!(
            "CASE WHEN {column} IS NULL AND overflow IS NOT NULL THEN {overflow} ELSE {column} END"
        )
    } else {
        overflow
    }
}

/// The functions that the private views are made of.
fn add_functions(db: &Connection) -> rusqlite::Result<()> {
    let flags = FunctionFlags::SQLITE_UTF8
        | FunctionFlags::SQLITE_DETERMINISTIC
        | FunctionFlags::SQLITE_INNOCUOUS;
    db.create_scalar_function("_rowtide_uuid", 1, flags, |call| {
        Uuid::from_slice(call.get_raw(0).as_blob()?)
            .map(|id| SourceId(id).to_string())
            .map_err(|error| rusqlite::Error::UserFunctionError(error.into()))
    })?;
    db.create_scalar_function("_rowtide_time", 1, flags, |call| {
        Ok(UnixMillis(call.get(0)?).to_string())
    })?;
    db.create_scalar_function("_rowtide_overflow", 2, flags, from_overflow)
}

/// The value of a column in a row's overflow; NULL where it has none.
fn from_overflow(call: &Context<'_>) -> rusqlite::Result<Held> {
    let Some(overflow) = call.get_raw(0).as_str_or_null()? else {
        return Ok(Held(Value::Null));
    };
    let name = call.get_raw(1).as_str()?;
    let values = object_values(overflow).map_err(|error| {
        rusqlite::Error::UserFunctionError(format!("overflow of a row: {error:?}").into())
    })?;
    let found = values.into_iter().find(|(column, _)| column.eq_ignore_ascii_case(name));
    Ok(Held(found.map_or(Value::Null, |(_, value)| value)))
}

/// A value that a function gives back as it is.
struct Held(Value);

impl ToSql for Held {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match &self.0 {
            Value::Null => ValueRef::Null,
            Value::Int(n) => ValueRef::Integer(*n),
            Value::Real(n) => ValueRef::Real(*n),
            Value::Text(bytes) => ValueRef::Text(bytes),
            Value::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
