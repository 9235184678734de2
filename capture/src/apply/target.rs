//! The application's tables as they are inside one transaction.
//!
//! The schema is read anew in each transaction, because the application may change it between two
//! of them. Only columns that the file has are written, and generated ones never: what else came
//! is dropped, and comes again with the row's next version.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension as _};
use sync_proto::message::Reason;

use crate::registry::{Phase, Registry, Table, TableId};
use crate::row::{PutSql, Shape};

use super::refusal::{RowError, reason};

/// The tables that rows of one transaction go to.
#[derive(Debug)]
pub(crate) struct Targets<'a> {
    registry: &'a Registry,
    open: HashMap<TableId, Target<'a>>,
}

/// One table as it is now.
#[derive(Debug)]
pub(crate) struct Target<'a> {
    /// The enrolled table.
    pub(crate) table: &'a Table,
    /// Its columns in the file.
    pub(crate) shape: Shape,
    mapping: Option<(Vec<String>, Mapping)>,
}

/// How a row's columns fit the table's.
#[derive(Clone, Debug)]
pub(crate) struct Mapping {
    /// The text that writes them.
    pub(crate) sql: PutSql,
    /// Which of the row's values it takes, in its order.
    pub(crate) values: Vec<usize>,
}

impl<'a> Targets<'a> {
    /// No table was looked at yet.
    pub(crate) fn new(registry: &'a Registry) -> Self {
        Self { registry, open: HashMap::new() }
    }

    /// The table of that number.
    ///
    /// # Errors
    /// [`RowError::Refused`] when the table is not in the file or does not fit its key.
    pub(crate) fn get(
        &mut self,
        conn: &Connection,
        id: TableId,
    ) -> Result<&mut Target<'a>, RowError> {
        if !self.open.contains_key(&id) {
            let target = Target::open(conn, self.registry, id)?;
            self.open.insert(id, target);
        }
        self.open.get_mut(&id).ok_or_else(|| no_table("?"))
    }

    /// A table that was looked at in this transaction.
    pub(crate) fn opened(&self, id: TableId) -> Option<&Target<'a>> {
        self.open.get(&id)
    }
}

impl<'a> Target<'a> {
    fn open(conn: &Connection, registry: &'a Registry, id: TableId) -> Result<Self, RowError> {
        let table = registry.get(id).ok_or_else(|| no_table("?"))?;
        if table.phase == Phase::Gone {
            return Err(no_table(table.name()));
        }
        let shape = shape_of(conn, table)?;
        Ok(Self { table, shape, mapping: None })
    }

    /// How rows with these columns fit.
    ///
    /// # Errors
    /// The reason to set such rows aside.
    pub(crate) fn mapping(&mut self, columns: &[String]) -> Result<(&Shape, &Mapping), Reason> {
        let known = self.mapping.as_ref().is_some_and(|(mapped, _)| mapped == columns);
        if !known {
            self.mapping = Some((columns.to_vec(), map(&self.shape, columns)?));
        }
        match &self.mapping {
            Some((_, mapping)) => Ok((&self.shape, mapping)),
            None => Err(reason("schema", "the row's columns do not fit the table")),
        }
    }
}

/// A table's columns as the file has them.
///
/// # Errors
/// [`RowError::Refused`] when the table is not in the file or does not fit its key.
pub(crate) fn shape_of(conn: &Connection, table: &Table) -> Result<Shape, RowError> {
    let columns: Vec<String> = conn
        .prepare_cached("SELECT name FROM pragma_table_xinfo(?1, 'main') WHERE hidden = 0")?
        .query_map([table.name()], |row| row.get(0))?
        .collect::<rusqlite::Result<_>>()?;
    if columns.is_empty() {
        return Err(no_table(table.name()));
    }
    let mut key = Vec::new();
    for name in table.spec.key() {
        let at = columns.iter().position(|column| column.eq_ignore_ascii_case(name));
        key.push(at.ok_or_else(|| {
            let message = format!("table {} has no key column {name} any more", table.name());
            RowError::refused("schema", message)
        })?);
    }
    let sql: Option<String> = conn
        .prepare_cached(
            "SELECT sql FROM main.sqlite_master \
             WHERE type = 'table' AND name = ?1 COLLATE NOCASE",
        )?
        .query_row([table.name()], |row| row.get(0))
        .optional()?;
    // A constraint's own conflict clause could replace other rows, or undo the transaction.
    let own_clause = sql.is_some_and(|sql| sql.to_ascii_uppercase().contains("CONFLICT"));
    let shape = Shape::new(table.name(), &columns, &key);
    Ok(if own_clause { shape.refusing_conflicts() } else { shape })
}

fn no_table(table: &str) -> RowError {
    let message = format!("the file has no table {table}; the row is applied once it appears");
    RowError::refused("no_table", message)
}

fn map(shape: &Shape, columns: &[String]) -> Result<Mapping, Reason> {
    let (mut targets, mut values) = (Vec::new(), Vec::new());
    for (at, name) in columns.iter().enumerate() {
        let Some(target) = shape.column(name) else { continue };
        if targets.contains(&target) {
            let message = format!("the row names column {name} of table {} twice", shape.table());
            return Err(reason("schema", message));
        }
        targets.push(target);
        values.push(at);
    }
    Ok(Mapping { sql: shape.put_sql(&targets), values })
}
