//! Reads the application's schema and says of every table whether it can be enrolled, and how.
//!
//! Only looks. What is wanted comes from the configuration; installing is [`crate::enrol`]'s work.
//! Every table ends up in exactly one of two lists, so none is left out without a reason.

use std::collections::HashSet;

use rusqlite::Connection;
use sync_proto::limits::COLUMNS_MAX;
use sync_proto::schema::{Affinity, ColumnSpec, Scope, TableSpec};

use crate::config::{DatabaseConfig, TableConfig};
use crate::error::{CaptureError, Result};
use crate::pattern::{self, FRAMEWORK_TABLES};
use crate::schema;

/// What a name in the schema stands for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Table,
    View,
    Virtual,
    Shadow,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Table => "a table",
            Self::View => "a view",
            Self::Virtual => "a virtual table",
            Self::Shadow => "a shadow table of a virtual table",
        }
    }
}

/// A table that is not enrolled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Skipped {
    /// The table.
    pub(crate) table: String,
    /// Why, and how to enrol it where that is possible.
    pub(crate) reason: String,
    /// How serious that is.
    pub(crate) weight: Weight,
}

/// How serious it is that a table is not enrolled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Weight {
    /// Nobody asked for it.
    Expected,
    /// It was asked for and cannot be enrolled; the others go on.
    Refused,
    /// The configuration asks for something that can never be.
    Fault,
}

/// What a look at the file found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Survey {
    /// Tables to enrol.
    pub(crate) wanted: Vec<TableSpec>,
    /// The others.
    pub(crate) skipped: Vec<Skipped>,
    /// The schema's number during the look.
    pub(crate) schema_version: i64,
}

impl Survey {
    /// The first thing in the configuration that can never be, as an error.
    pub(crate) fn fault(&self, config: &DatabaseConfig) -> Option<CaptureError> {
        self.skipped.iter().find(|skipped| skipped.weight == Weight::Fault).map(|skipped| {
            CaptureError::Config {
                database: config.name.clone(),
                table: Some(skipped.table.clone()),
                reason: skipped.reason.clone(),
            }
        })
    }
}

/// Looks at every table of the file.
///
/// # Errors
/// SQLite's.
pub(crate) fn survey(conn: &Connection, config: &DatabaseConfig) -> Result<Survey> {
    let mut survey = Survey { schema_version: schema_version(conn)?, ..Survey::default() };
    let mut dataspaces = HashSet::new();
    let found = list(conn)?;
    for (name, kind) in &found {
        match choose(conn, config, name, *kind)? {
            Ok(spec) if !dataspaces.insert(spec.dataspace.clone()) => {
                let reason = format!(
                    "another table maps to the dataspace {:?}; give this one a `dataspace` of \
                     its own",
                    spec.dataspace
                );
                survey.skip(name, Weight::Refused, reason);
            }
            Ok(spec) => survey.wanted.push(spec),
            Err((weight, reason)) => survey.skip(name, weight, reason),
        }
    }
    for table in named(config) {
        if !found.iter().any(|(name, _)| name.eq_ignore_ascii_case(table)) {
            let reason = "the file has no such table yet; it is enrolled once it appears";
            survey.skip(table, Weight::Refused, reason.to_owned());
        }
    }
    Ok(survey)
}

impl Survey {
    fn skip(&mut self, table: &str, weight: Weight, reason: String) {
        self.skipped.push(Skipped { table: table.to_owned(), reason, weight });
    }
}

/// The number that SQLite raises with every change of the schema.
///
/// # Errors
/// SQLite's.
pub(crate) fn schema_version(conn: &Connection) -> Result<i64> {
    Ok(conn.query_row("PRAGMA main.schema_version", [], |row| row.get(0))?)
}

/// Names of a table's indexes that make `key` unique: at least one, or rows can share a key.
///
/// # Errors
/// SQLite's.
pub(crate) fn is_unique_key(conn: &Connection, table: &str, key: &[&str]) -> Result<bool> {
    let mut lists = conn.prepare_cached(
        "SELECT name FROM pragma_index_list(?1) WHERE \"unique\" = 1 AND partial = 0",
    )?;
    let indexes: Vec<String> =
        lists.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for index in indexes {
        let columns = index_columns(conn, &index)?;
        let covered = columns.iter().all(|column| {
            column.as_deref().is_some_and(|name| key.iter().any(|k| k.eq_ignore_ascii_case(name)))
        });
        if covered && !columns.is_empty() {
            return Ok(true);
        }
    }
    // The rowid's own uniqueness has no index.
    let rowid_alias: Option<String> = conn
        .prepare_cached(
            "SELECT max(name) FROM pragma_table_info(?1) WHERE pk > 0 HAVING count(*) = 1 \
             AND upper(max(type)) = 'INTEGER'",
        )?
        .query_map([table], |row| row.get(0))?
        .next()
        .transpose()?
        .flatten();
    Ok(rowid_alias.is_some_and(|alias| key.iter().any(|k| k.eq_ignore_ascii_case(&alias))))
}

/// Whether an index starts with the key's first column, so that a lookup need not scan.
///
/// # Errors
/// SQLite's.
pub(crate) fn has_key_index(conn: &Connection, table: &str, key: &[&str]) -> Result<bool> {
    let Some(first) = key.first() else { return Ok(true) };
    if is_unique_key(conn, table, key)? {
        return Ok(true);
    }
    let mut lists =
        conn.prepare_cached("SELECT name FROM pragma_index_list(?1) WHERE partial = 0")?;
    let indexes: Vec<String> =
        lists.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for index in indexes {
        let columns = index_columns(conn, &index)?;
        if columns.first().and_then(Option::as_deref).is_some_and(|c| c.eq_ignore_ascii_case(first))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn index_columns(conn: &Connection, index: &str) -> Result<Vec<Option<String>>> {
    let mut statement =
        conn.prepare_cached("SELECT name FROM pragma_index_info(?1) ORDER BY seqno")?;
    let columns =
        statement.query_map([index], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    Ok(columns)
}

/// Tables that the configuration names without a wildcard.
fn named(config: &DatabaseConfig) -> impl Iterator<Item = &str> {
    let literal = config.tables.iter().filter(|pattern| pattern::is_literal(pattern));
    let overrides = config.overrides.iter().map(|table| table.name.as_str());
    let mut seen = HashSet::new();
    literal
        .map(String::as_str)
        .chain(overrides)
        .filter(move |name| seen.insert(name.to_ascii_lowercase()))
}

fn list(conn: &Connection) -> Result<Vec<(String, Kind)>> {
    let mut statement = conn.prepare_cached(
        "SELECT name, type FROM pragma_table_list \
         WHERE schema = 'main' AND name <> 'sqlite_schema' ORDER BY name",
    )?;
    let mut rows = statement.query([])?;
    let mut found = Vec::new();
    while let Some(row) = rows.next()? {
        let kind: String = row.get(1)?;
        let kind = match kind.as_str() {
            "view" => Kind::View,
            "virtual" => Kind::Virtual,
            "shadow" => Kind::Shadow,
            _ => Kind::Table,
        };
        found.push((row.get(0)?, kind));
    }
    Ok(found)
}

type Choice = std::result::Result<TableSpec, (Weight, String)>;

fn choose(conn: &Connection, config: &DatabaseConfig, name: &str, kind: Kind) -> Result<Choice> {
    if schema::is_ours(name) {
        return Ok(Err((Weight::Expected, "one of Rowtide's own tables".to_owned())));
    }
    if starts_with(name, "sqlite_") {
        return Ok(Err((Weight::Expected, "one of SQLite's own tables".to_owned())));
    }
    let table = config.overrides.iter().find(|table| table.name.eq_ignore_ascii_case(name));
    let is_named = named(config).any(|named| named.eq_ignore_ascii_case(name));
    if kind != Kind::Table {
        let weight = if is_named { Weight::Fault } else { Weight::Expected };
        let reason = format!("it is {}; only ordinary tables can be enrolled", kind.name());
        return Ok(Err((weight, reason)));
    }
    let fits = |patterns: &[String]| patterns.iter().any(|p| pattern::matches(p, name));
    if table.is_none() {
        if fits(&config.exclude) {
            return Ok(Err((Weight::Expected, "left out by `exclude`".to_owned())));
        }
        if !fits(&config.tables) {
            return Ok(Err((Weight::Expected, "no pattern of `tables` fits it".to_owned())));
        }
        if !is_named && FRAMEWORK_TABLES.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            let reason = "a framework's own table; name it in `tables` to enrol it";
            return Ok(Err((Weight::Expected, reason.to_owned())));
        }
    }
    let default = TableConfig::new(name);
    specify(conn, name, table.unwrap_or(&default))
}

fn specify(conn: &Connection, name: &str, table: &TableConfig) -> Result<Choice> {
    let columns = columns(conn, name)?;
    if columns.len() > COLUMNS_MAX {
        let reason = format!("it has {} columns; at most {COLUMNS_MAX} travel", columns.len());
        return Ok(Err((Weight::Refused, reason)));
    }
    let key: Vec<String> = match &table.key {
        Some(key) => match declared_key(key, &columns) {
            Ok(key) => key,
            Err(reason) => return Ok(Err((Weight::Fault, reason))),
        },
        None => {
            let mut key: Vec<&Column> = columns.iter().filter(|column| column.pk > 0).collect();
            key.sort_by_key(|column| column.pk);
            key.into_iter().map(|column| column.name.clone()).collect()
        }
    };
    if key.is_empty() && table.key.is_none() {
        let reason = "it has no primary key; say which columns identify a row with \
                      `key = [\"col\", ...]`, or `key = []` if it holds one row at most";
        return Ok(Err((Weight::Refused, reason.to_owned())));
    }
    let ordinal = |column: &Column| {
        let at = key.iter().position(|name| *name == column.name);
        at.map_or(0, |at| u16::try_from(at + 1).unwrap_or(u16::MAX))
    };
    let columns = columns
        .iter()
        .filter(|column| !column.generated)
        .map(|column| ColumnSpec {
            name: column.name.clone(),
            affinity: Affinity::of_declared(&column.declared),
            key_ordinal: ordinal(column),
            not_null: column.not_null,
        })
        .collect();
    Ok(Ok(TableSpec {
        name: name.to_owned(),
        dataspace: table.dataspace.clone().unwrap_or_else(|| name.to_owned()),
        modality: table.modality,
        authority: table.authority,
        scope: table.scope.unwrap_or_else(|| Scope::default_for(table.authority)),
        columns,
    }))
}

struct Column {
    name: String,
    declared: String,
    not_null: bool,
    pk: i64,
    generated: bool,
}

fn columns(conn: &Connection, table: &str) -> Result<Vec<Column>> {
    let mut statement = conn.prepare_cached(
        "SELECT name, type, \"notnull\", pk, hidden FROM pragma_table_xinfo(?1) ORDER BY cid",
    )?;
    let columns = statement
        .query_map([table], |row| {
            Ok(Column {
                name: row.get(0)?,
                declared: row.get::<_, Option<String>>(1)?.unwrap_or_default(),
                not_null: row.get(2)?,
                pk: row.get(3)?,
                generated: row.get::<_, i64>(4)? != 0,
            })
        })?
        .collect::<rusqlite::Result<_>>()?;
    Ok(columns)
}

fn declared_key(key: &[String], columns: &[Column]) -> std::result::Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for wanted in key {
        let column = columns.iter().find(|column| column.name.eq_ignore_ascii_case(wanted));
        match column {
            None => return Err(format!("`key` names {wanted:?}, and there is no such column")),
            Some(column) if column.generated => {
                return Err(format!(
                    "`key` names {wanted:?}, a generated column; name stored ones"
                ));
            }
            Some(column) if names.contains(&column.name) => {
                return Err(format!("`key` names {wanted:?} twice"));
            }
            Some(column) => names.push(column.name.clone()),
        }
    }
    Ok(names)
}

fn starts_with(name: &str, prefix: &str) -> bool {
    name.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
}
