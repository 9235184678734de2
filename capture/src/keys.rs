//! Walks a table's keys in key order, some at a time, from any key on.
//!
//! The order is total even where the column's collation calls two keys equal, or where a declared
//! key has no unique index: each column is ordered by its own collation, then by bytes, then by
//! storage class. The first of these can use the key's index. No rowid takes part, because a VACUUM
//! may renumber it.

use rusqlite::{Connection, params_from_iter};
use sync_proto::Value;

use crate::connection::ReadTx;
use crate::error::Result;
use crate::registry::Table;
use crate::row::{self, Bound};
use crate::schema::quote;

/// Some keys of a table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Keys {
    /// The keys' parts, in order.
    pub(crate) keys: Vec<Vec<Value>>,
    /// Whether the table has no more after these.
    pub(crate) end: bool,
}

/// The keys after `after`, at most `max`, and no more than the snapshot has time for.
///
/// # Errors
/// SQLite's, also when the table or a column is gone.
pub(crate) fn after(
    tx: &ReadTx<'_>,
    table: &Table,
    after: Option<&[Value]>,
    max: usize,
) -> Result<Keys> {
    if table.is_document() {
        return document(tx, table, after);
    }
    let columns: Vec<String> =
        table.key_indexes().iter().map(|at| quote(&table.spec.columns[*at].name)).collect();
    let mut found = Keys { keys: Vec::new(), end: true };
    for range in ranges(&columns, after) {
        found.end =
            collect(tx, table, &columns, &range, after.unwrap_or_default(), max, &mut found.keys)?;
        if !found.end {
            break;
        }
    }
    Ok(found)
}

/// A document table's only key has no parts.
fn document(conn: &Connection, table: &Table, after: Option<&[Value]>) -> Result<Keys> {
    let sql = format!("SELECT 1 FROM main.{}", quote(table.name()));
    let there = after.is_none() && conn.prepare_cached(&sql)?.exists([])?;
    Ok(Keys { keys: if there { vec![Vec::new()] } else { Vec::new() }, end: true })
}

/// The conditions of the ranges that make up "greater than `after`", nearest first: the same in all
/// terms but the last, greater in that one; then one term less.
fn ranges(columns: &[String], after: Option<&[Value]>) -> Vec<String> {
    let Some(after) = after else { return vec!["1".to_owned()] };
    let mut ranges = Vec::new();
    for (at, column) in columns.iter().enumerate().rev() {
        let same: String = columns[..at]
            .iter()
            .enumerate()
            .map(|(before, column)| {
                let place = before + 1;
                format!(
                    "{column} IS ?{place} AND {column} COLLATE BINARY IS ?{place} \
                     AND typeof({column}) = typeof(?{place}) AND "
                )
            })
            .collect();
        let place = at + 1;
        if after.get(at).is_none_or(Value::is_null) {
            // NULL is the least; among NULLs there is no order.
            ranges.push(format!("{same}{column} IS NOT NULL"));
            continue;
        }
        let equal = format!("{column} IS ?{place} AND {column} COLLATE BINARY");
        ranges.push(format!("{same}{equal} IS ?{place} AND typeof({column}) > typeof(?{place})"));
        ranges.push(format!("{same}{equal} > ?{place}"));
        ranges.push(format!("{same}{column} > ?{place}"));
    }
    ranges
}

/// Collects a range's keys; answers whether its end was reached.
fn collect(
    tx: &ReadTx<'_>,
    table: &Table,
    columns: &[String],
    range: &str,
    after: &[Value],
    max: usize,
    keys: &mut Vec<Vec<Value>>,
) -> Result<bool> {
    let order: Vec<String> = columns
        .iter()
        .map(|column| format!("{column}, {column} COLLATE BINARY, typeof({column})"))
        .collect();
    let sql = format!(
        "SELECT {} FROM main.{} WHERE {range} ORDER BY {} LIMIT {}",
        columns.join(", "),
        quote(table.name()),
        order.join(", "),
        max + 1,
    );
    let mut statement = tx.prepare_cached(&sql)?;
    // A range names the places of a prefix of the key.
    let places = statement.parameter_count();
    let mut rows = statement.query(params_from_iter(after.iter().take(places).map(Bound)))?;
    while let Some(row) = rows.next()? {
        if keys.len() >= max || (!keys.is_empty() && tx.spent()) {
            return Ok(false);
        }
        keys.push(row::values_of(row, columns.len())?);
    }
    Ok(true)
}
