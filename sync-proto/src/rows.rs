//! Row batches: rows of several tables, stored by column and compressed with Zstandard.
//!
//! Column by column, each value's class is a tag, integers are deltas, reals are bits, text and
//! blobs share one heap; so equal things stand side by side and compress. A tombstone carries its
//! key columns only. Which rows go into a batch is decided elsewhere.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::bounded::at_most;
use crate::id::Digest;
use crate::key::NaturalKey;
use crate::limits::{
    BATCH_CELLS_MAX, BATCH_RAW_BYTES_MAX, BATCH_ROWS_MAX, COLUMNS_MAX, TABLES_MAX,
};
use crate::message::PackedRows;
use crate::value::{RowHash, Value};
use crate::version::Version;

/// Zstandard level: 3 is as quick as 1 on these columns and smaller.
const ZSTD_LEVEL: i32 = 3;

/// Rows of one table.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TableRows {
    /// The table's name on the device.
    pub table: String,
    /// Names of the columns, in the order of every row's values.
    pub columns: Vec<String>,
    /// Indexes into `columns` of the key columns, in key order.
    pub key: Vec<u16>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// One row of a batch.
#[derive(Clone, PartialEq, Debug)]
pub struct Row {
    /// The commit_seq in an UpBatch, the version in a DownBatch.
    pub number: i64,
    /// The version that a compare-and-swap expects (0: never written). `None`: no swap.
    pub base: Option<Version>,
    /// One value per column of the table. In a tombstone only those of the key count.
    pub values: Vec<Value>,
    /// Whether the row was deleted.
    pub deleted: bool,
}

impl TableRows {
    /// The natural key of one of this table's rows.
    ///
    /// # Panics
    /// When the row has no value for a column of the key; unpacked rows have one for each column.
    #[must_use]
    pub fn key_of(&self, row: &Row) -> NaturalKey {
        let parts: Vec<Value> =
            self.key.iter().map(|index| row.values[usize::from(*index)].clone()).collect();
        NaturalKey::of(&parts)
    }

    /// The content hash of one of this table's rows.
    #[must_use]
    pub fn hash_of(&self, row: &Row) -> RowHash {
        if row.deleted {
            return RowHash::TOMBSTONE;
        }
        RowHash::of(self.columns.iter().map(String::as_str).zip(&row.values))
    }
}

/// Why packed rows were refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum RowsError {
    /// The bytes are not those that the digest names.
    #[error("the rows' bytes do not have the digest that the message names")]
    Digest,
    /// Larger than a batch may be.
    #[error("a batch of {got} {unit} is over the limit of {max}")]
    TooLarge {
        /// What was counted.
        unit: &'static str,
        /// How many.
        got: usize,
        /// How many may be.
        max: usize,
    },
    /// Not the encoding of rows.
    #[error("the rows cannot be decoded: {0}")]
    Malformed(String),
}

#[derive(Serialize)]
struct PackedTable {
    head: PackedHead,
    data: Vec<PackedColumn>,
}

#[derive(Serialize, Deserialize)]
struct PackedHead {
    table: String,
    #[serde(deserialize_with = "at_most::<{ COLUMNS_MAX }, _, _>")]
    columns: Vec<String>,
    #[serde(deserialize_with = "at_most::<{ COLUMNS_MAX }, _, _>")]
    key: Vec<u16>,
    /// Deltas of the rows' numbers.
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    numbers: Vec<i64>,
    /// Row indexes of tombstones.
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    deleted: Vec<u32>,
    /// (row index, base) of rows that swap.
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    bases: Vec<(u32, i64)>,
}

#[derive(Default, Serialize, Deserialize)]
struct PackedColumn {
    /// One class tag a row, or a single one when all rows have the same.
    #[serde(with = "serde_bytes")]
    tags: Vec<u8>,
    /// Deltas of the integers.
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    ints: Vec<i64>,
    #[serde(with = "serde_bytes")]
    reals: Vec<u8>,
    #[serde(deserialize_with = "at_most::<{ BATCH_ROWS_MAX }, _, _>")]
    lens: Vec<u32>,
    #[serde(with = "serde_bytes")]
    heap: Vec<u8>,
}

const TAG_NULL: u8 = 0;
const TAG_INT: u8 = 1;
const TAG_REAL: u8 = 2;
const TAG_TEXT: u8 = 3;
const TAG_BLOB: u8 = 4;

/// Packs rows. Of a tombstone only the key travels: its other values come out as NULL.
///
/// # Errors
/// [`RowsError::TooLarge`] when the rows are more than one batch holds, and
/// [`RowsError::Malformed`] when a row has another number of values than its table has columns,
/// a real is NaN, or columns or key do not make a table.
pub fn pack(tables: &[TableRows]) -> Result<PackedRows, RowsError> {
    let mut size = Size::default();
    for table in tables {
        size.add(table.rows.len(), table.columns.len())?;
    }
    let packed: Result<Vec<PackedTable>, RowsError> = tables.iter().map(pack_table).collect();
    let raw = postcard::to_stdvec(&packed?).map_err(|error| malformed(&error))?;
    within("bytes", raw.len(), BATCH_RAW_BYTES_MAX)?;
    let bytes = zstd::bulk::compress(&raw, ZSTD_LEVEL).map_err(|error| malformed(&error))?;
    let raw_len = u32::try_from(raw.len()).map_err(|error| malformed(&error))?;
    Ok(PackedRows { digest: Digest::of(&bytes), raw_len, bytes })
}

/// Unpacks rows. Tables and columns are read one by one, each checked before the next, so that
/// no bytes make this hold more than the limits allow.
///
/// # Errors
/// [`RowsError`] for any bytes that are not exactly one batch of rows.
pub fn unpack(packed: &PackedRows) -> Result<Vec<TableRows>, RowsError> {
    if Digest::of(&packed.bytes) != packed.digest {
        return Err(RowsError::Digest);
    }
    let raw_len = packed.raw_len as usize;
    within("bytes", raw_len, BATCH_RAW_BYTES_MAX)?;
    let raw = zstd::bulk::decompress(&packed.bytes, raw_len).map_err(|error| malformed(&error))?;
    if raw.len() != raw_len {
        return Err(RowsError::Malformed("its length is not the declared one".to_owned()));
    }
    let mut rest = raw.as_slice();
    let count: u32 = take(&mut rest)?;
    let (mut tables, mut size) = (Vec::new(), Size::default());
    for _ in 0..count {
        let head: PackedHead = take(&mut rest)?;
        size.add(head.numbers.len(), head.columns.len())?;
        tables.push(unpack_table(head, &mut rest)?);
    }
    if !rest.is_empty() {
        return Err(RowsError::Malformed("bytes follow the last table".to_owned()));
    }
    Ok(tables)
}

fn take<'a, T: Deserialize<'a>>(rest: &mut &'a [u8]) -> Result<T, RowsError> {
    let (value, after) = postcard::take_from_bytes(rest).map_err(|error| malformed(&error))?;
    *rest = after;
    Ok(value)
}

fn malformed(error: &dyn std::fmt::Display) -> RowsError {
    RowsError::Malformed(error.to_string())
}

fn within(unit: &'static str, got: usize, max: usize) -> Result<(), RowsError> {
    if got > max { Err(RowsError::TooLarge { unit, got, max }) } else { Ok(()) }
}

/// How much a batch holds so far.
#[derive(Default)]
struct Size {
    tables: usize,
    rows: usize,
    cells: usize,
}

impl Size {
    fn add(&mut self, rows: usize, columns: usize) -> Result<(), RowsError> {
        self.tables += 1;
        self.rows = self.rows.saturating_add(rows);
        self.cells = self.cells.saturating_add(rows.saturating_mul(columns));
        within("tables", self.tables, TABLES_MAX)?;
        within("columns", columns, COLUMNS_MAX)?;
        within("rows", self.rows, BATCH_ROWS_MAX)?;
        within("cells", self.cells, BATCH_CELLS_MAX)
    }
}

/// Whether names and key make a table: no name twice, and each key part another column.
fn is_table(columns: &[String], key: &[u16]) -> bool {
    let names: BTreeSet<&str> = columns.iter().map(String::as_str).collect();
    let parts: BTreeSet<u16> = key.iter().copied().collect();
    names.len() == columns.len()
        && parts.len() == key.len()
        && parts.iter().all(|index| usize::from(*index) < columns.len())
}

fn pack_table(table: &TableRows) -> Result<PackedTable, RowsError> {
    let width = table.columns.len();
    let wrong = |what: String| RowsError::Malformed(format!("table {}: {what}", table.table));
    if !is_table(&table.columns, &table.key) {
        return Err(wrong("a column or a key part occurs twice, or a key part is none".to_owned()));
    }
    let mut head = PackedHead {
        table: table.table.clone(),
        columns: table.columns.clone(),
        key: table.key.clone(),
        numbers: Vec::with_capacity(table.rows.len()),
        deleted: Vec::new(),
        bases: Vec::new(),
    };
    let mut before = 0_i64;
    for (index, row) in (0_u32..).zip(&table.rows) {
        if row.values.len() != width {
            let got = row.values.len();
            return Err(wrong(format!("row {index} has {got} values for {width} columns")));
        }
        head.numbers.push(row.number.wrapping_sub(before));
        before = row.number;
        if row.deleted {
            head.deleted.push(index);
        }
        if let Some(base) = row.base {
            head.bases.push((index, base.0));
        }
    }
    let mut data = Vec::with_capacity(width);
    for column in 0..width {
        let is_key = table.key.iter().any(|key| usize::from(*key) == column);
        let values = table.rows.iter().map(|row| {
            // Only the key of a tombstone travels.
            if row.deleted && !is_key { &Value::Null } else { &row.values[column] }
        });
        data.push(pack_column(values)?);
    }
    Ok(PackedTable { head, data })
}

fn pack_column<'a>(values: impl Iterator<Item = &'a Value>) -> Result<PackedColumn, RowsError> {
    let mut column = PackedColumn::default();
    let mut before = 0_i64;
    for value in values {
        column.tags.push(match value {
            Value::Null => TAG_NULL,
            Value::Int(n) => {
                column.ints.push(n.wrapping_sub(before));
                before = *n;
                TAG_INT
            }
            Value::Real(n) if n.is_nan() => {
                return Err(RowsError::Malformed("a real is NaN".to_owned()));
            }
            Value::Real(n) => {
                column.reals.extend_from_slice(&n.to_bits().to_le_bytes());
                TAG_REAL
            }
            Value::Text(bytes) | Value::Blob(bytes) => {
                column.lens.push(u32::try_from(bytes.len()).map_err(|error| malformed(&error))?);
                column.heap.extend_from_slice(bytes);
                if matches!(value, Value::Text(_)) { TAG_TEXT } else { TAG_BLOB }
            }
        });
    }
    if let Some((&first, rest)) = column.tags.split_first() {
        if rest.iter().all(|tag| *tag == first) {
            column.tags.truncate(1);
        }
    }
    Ok(column)
}

fn unpack_table(head: PackedHead, rest: &mut &[u8]) -> Result<TableRows, RowsError> {
    let PackedHead { table, columns, key, numbers, deleted, bases } = head;
    let wrong =
        |what: &str| RowsError::Malformed(format!("{what} of table {table} does not fit its rows"));
    if !is_table(&columns, &key) {
        return Err(wrong("the key or a column"));
    }
    let mut rows: Vec<Row> = Vec::with_capacity(numbers.len());
    let mut number = 0_i64;
    for delta in numbers {
        number = number.wrapping_add(delta);
        let values = Vec::with_capacity(columns.len());
        rows.push(Row { number, base: None, values, deleted: false });
    }
    for index in deleted {
        rows.get_mut(index as usize).ok_or_else(|| wrong("a tombstone"))?.deleted = true;
    }
    for (index, base) in bases {
        rows.get_mut(index as usize).ok_or_else(|| wrong("a base"))?.base = Some(Version(base));
    }
    let count: u32 = take(rest)?;
    if count as usize != columns.len() {
        return Err(wrong("the number of columns"));
    }
    for index in 0..columns.len() {
        let is_key = key.iter().any(|key| usize::from(*key) == index);
        let column: PackedColumn = take(rest)?;
        unpack_column(&column, is_key, &mut rows).ok_or_else(|| wrong("a column"))?;
    }
    Ok(TableRows { table, columns, key, rows })
}

fn unpack_column(column: &PackedColumn, is_key: bool, rows: &mut [Row]) -> Option<()> {
    let uniform = match column.tags.as_slice() {
        [tag] => Some(*tag),
        tags if tags.len() == rows.len() => None,
        _ => return None,
    };
    let mut ints = column.ints.iter();
    let mut reals = column.reals.chunks_exact(8);
    let mut lens = column.lens.iter();
    let mut heap = column.heap.as_slice();
    let mut before = 0_i64;
    for (index, row) in rows.iter_mut().enumerate() {
        let tag = match uniform {
            Some(tag) => tag,
            None => *column.tags.get(index)?,
        };
        if row.deleted && !is_key && tag != TAG_NULL {
            return None;
        }
        row.values.push(match tag {
            TAG_NULL => Value::Null,
            TAG_INT => {
                before = before.wrapping_add(*ints.next()?);
                Value::Int(before)
            }
            TAG_REAL => {
                let real = f64::from_bits(u64::from_le_bytes(reals.next()?.try_into().ok()?));
                Some(real).filter(|real| !real.is_nan()).map(Value::Real)?
            }
            TAG_TEXT | TAG_BLOB => {
                let (bytes, after) = heap.split_at_checked(*lens.next()? as usize)?;
                heap = after;
                if tag == TAG_TEXT {
                    Value::Text(bytes.to_vec())
                } else {
                    Value::Blob(bytes.to_vec())
                }
            }
            _ => return None,
        });
    }
    // Values that no row takes are the mark of a broken encoder.
    let spent = ints.next().is_none()
        && reals.next().is_none()
        && reals.remainder().is_empty()
        && lens.next().is_none()
        && heap.is_empty();
    spent.then_some(())
}
