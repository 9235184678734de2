//! Finds the rows that keep a transaction from committing, when deferred foreign keys do.
//!
//! SQLite says only that some reference is broken. Here the rows that were written are checked one
//! by one: a row whose parent is not there, and a row that went away or changed while others refer
//! to it. Looks, and changes nothing.

use rusqlite::{Connection, params_from_iter};
use sync_proto::Value;

use crate::row::{Bound, Shape};
use crate::schema::quote;

use super::write::Change;

/// Every foreign key of the file.
#[derive(Debug)]
pub(super) struct ForeignKeys(Vec<ForeignKey>);

#[derive(Debug)]
struct ForeignKey {
    child: String,
    parent: String,
    /// (column of the child, column of the parent).
    columns: Vec<(String, String)>,
}

impl ForeignKeys {
    /// Reads every foreign key of the file.
    ///
    /// # Errors
    /// SQLite's.
    pub(super) fn load(conn: &Connection) -> rusqlite::Result<Self> {
        let mut statement = conn.prepare_cached(
            "SELECT m.name, f.id, f.seq, f.\"table\", f.\"from\", f.\"to\" \
             FROM main.sqlite_master m, pragma_foreign_key_list(m.name, 'main') f \
             WHERE m.type = 'table' ORDER BY m.name, f.id, f.seq",
        )?;
        let mut rows = statement.query([])?;
        let mut keys: Vec<ForeignKey> = Vec::new();
        while let Some(row) = rows.next()? {
            let (child, seq): (String, i64) = (row.get(0)?, row.get(2)?);
            let parent: String = row.get(3)?;
            let from: String = row.get(4)?;
            // Without a named column, the parent's primary key is meant.
            let to = match row.get::<_, Option<String>>(5)? {
                Some(to) => to,
                None => primary_key(conn, &parent, seq)?,
            };
            match keys.last_mut() {
                Some(last) if seq > 0 => last.columns.push((from, to)),
                _ => keys.push(ForeignKey { child, parent, columns: vec![(from, to)] }),
            }
        }
        Ok(Self(keys))
    }

    /// Whether a written row of the shape's table breaks a foreign key as things stand.
    ///
    /// # Errors
    /// SQLite's.
    pub(super) fn broken_by(
        &self,
        conn: &Connection,
        shape: &Shape,
        change: &Change,
    ) -> rusqlite::Result<bool> {
        for key in &self.0 {
            if key.lacks_parent(conn, shape, change)? || key.left_children(conn, shape, change)? {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

impl ForeignKey {
    /// Whether the row that was written refers to a parent that is not there.
    fn lacks_parent(
        &self,
        conn: &Connection,
        shape: &Shape,
        change: &Change,
    ) -> rusqlite::Result<bool> {
        if !self.child.eq_ignore_ascii_case(shape.table()) {
            return Ok(false);
        }
        let from: Vec<&str> = self.columns.iter().map(|(from, _)| from.as_str()).collect();
        match values(shape, change.after.as_deref(), &from) {
            Some(values) => Ok(!self.parent_exists(conn, &values)?),
            None => Ok(false),
        }
    }

    /// Whether the row that was there is gone, or changed, under children that refer to it.
    fn left_children(
        &self,
        conn: &Connection,
        shape: &Shape,
        change: &Change,
    ) -> rusqlite::Result<bool> {
        if !self.parent.eq_ignore_ascii_case(shape.table()) {
            return Ok(false);
        }
        let to: Vec<&str> = self.columns.iter().map(|(_, to)| to.as_str()).collect();
        let Some(values) = values(shape, change.before.as_deref(), &to) else {
            return Ok(false);
        };
        let from: Vec<&str> = self.columns.iter().map(|(from, _)| from.as_str()).collect();
        Ok(exists(conn, &self.child, &from, &values)? && !self.parent_exists(conn, &values)?)
    }

    fn parent_exists(&self, conn: &Connection, values: &[Value]) -> rusqlite::Result<bool> {
        let to: Vec<&str> = self.columns.iter().map(|(_, to)| to.as_str()).collect();
        exists(conn, &self.parent, &to, values)
    }
}

/// The row's values in these columns; `None` when there is no row, a value is NULL (then nothing
/// is referred to), or a column is not among the shape's.
fn values(shape: &Shape, row: Option<&[Value]>, columns: &[&str]) -> Option<Vec<Value>> {
    let row = row?;
    columns
        .iter()
        .map(|name| shape.column(name).map(|at| row[at].clone()).filter(|value| !value.is_null()))
        .collect()
}

fn exists(
    conn: &Connection,
    table: &str,
    columns: &[&str],
    values: &[Value],
) -> rusqlite::Result<bool> {
    let terms: Vec<String> =
        (1..).zip(columns).map(|(place, name)| format!("{} = ?{place}", quote(name))).collect();
    let sql = format!("SELECT 1 FROM main.{} WHERE {}", quote(table), terms.join(" AND "));
    conn.prepare_cached(&sql)?.exists(params_from_iter(values.iter().map(Bound)))
}

fn primary_key(conn: &Connection, table: &str, seq: i64) -> rusqlite::Result<String> {
    conn.prepare_cached(
        "SELECT coalesce((SELECT name FROM pragma_table_info(?1, 'main') WHERE pk = ?2), 'rowid')",
    )?
    .query_row((table, seq + 1), |row| row.get(0))
}
