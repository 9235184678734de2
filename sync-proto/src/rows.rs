//! Row batches: rows of several tables, stored by column and compressed with Zstandard.
//!
//! Column by column, each value's class is a tag, integers are deltas, reals are bits, text and
//! blobs share one heap; so equal things stand side by side and compress. A tombstone carries its
//! key columns only. Which rows go into a batch is decided elsewhere.

use serde::{Deserialize, Serialize};

use crate::id::Digest;
use crate::key::NaturalKey;
use crate::limits::{BATCH_CELLS_MAX, BATCH_RAW_BYTES_MAX, BATCH_ROWS_MAX, COLUMNS_MAX};
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

#[derive(Serialize, Deserialize)]
struct PackedTable {
    table: String,
    columns: Vec<String>,
    key: Vec<u16>,
    /// Deltas of the rows' numbers.
    numbers: Vec<i64>,
    /// Row indexes of tombstones.
    deleted: Vec<u32>,
    /// (row index, base) of rows that swap.
    bases: Vec<(u32, i64)>,
    data: Vec<PackedColumn>,
}

#[derive(Default, Serialize, Deserialize)]
struct PackedColumn {
    /// One class tag a row, or a single one when all rows have the same.
    #[serde(with = "serde_bytes")]
    tags: Vec<u8>,
    ints: Vec<i64>,
    #[serde(with = "serde_bytes")]
    reals: Vec<u8>,
    lens: Vec<u32>,
    #[serde(with = "serde_bytes")]
    heap: Vec<u8>,
}

const TAG_NULL: u8 = 0;
const TAG_INT: u8 = 1;
const TAG_REAL: u8 = 2;
const TAG_TEXT: u8 = 3;
const TAG_BLOB: u8 = 4;

/// Packs rows.
///
/// # Errors
/// [`RowsError::TooLarge`] when the rows are more than one batch holds, and
/// [`RowsError::Malformed`] when a row has another number of values than its table has columns.
pub fn pack(tables: &[TableRows]) -> Result<PackedRows, RowsError> {
    check_size(tables.iter().map(|table| (table.rows.len(), table.columns.len())))?;
    let packed: Result<Vec<PackedTable>, RowsError> = tables.iter().map(pack_table).collect();
    let raw = postcard::to_stdvec(&packed?).map_err(|error| malformed(&error))?;
    if raw.len() > BATCH_RAW_BYTES_MAX {
        return Err(RowsError::TooLarge {
            unit: "bytes",
            got: raw.len(),
            max: BATCH_RAW_BYTES_MAX,
        });
    }
    let bytes = zstd::bulk::compress(&raw, ZSTD_LEVEL).map_err(|error| malformed(&error))?;
    let raw_len = u32::try_from(raw.len()).map_err(|error| malformed(&error))?;
    Ok(PackedRows { digest: Digest::of(&bytes), raw_len, bytes })
}

/// Unpacks rows, allocating no more than the limits allow.
///
/// # Errors
/// [`RowsError`] for any bytes that are not exactly one batch of rows.
pub fn unpack(packed: &PackedRows) -> Result<Vec<TableRows>, RowsError> {
    if Digest::of(&packed.bytes) != packed.digest {
        return Err(RowsError::Digest);
    }
    let raw_len = packed.raw_len as usize;
    if raw_len > BATCH_RAW_BYTES_MAX {
        return Err(RowsError::TooLarge { unit: "bytes", got: raw_len, max: BATCH_RAW_BYTES_MAX });
    }
    let raw = zstd::bulk::decompress(&packed.bytes, raw_len).map_err(|error| malformed(&error))?;
    let (tables, rest): (Vec<PackedTable>, _) =
        postcard::take_from_bytes(&raw).map_err(|error| malformed(&error))?;
    if !rest.is_empty() || raw.len() != raw_len {
        return Err(RowsError::Malformed("its length is not the declared one".to_owned()));
    }
    check_size(tables.iter().map(|table| (table.numbers.len(), table.columns.len())))?;
    tables.into_iter().map(unpack_table).collect()
}

fn malformed(error: &dyn std::fmt::Display) -> RowsError {
    RowsError::Malformed(error.to_string())
}

fn check_size(tables: impl Iterator<Item = (usize, usize)>) -> Result<(), RowsError> {
    let (mut rows, mut cells) = (0_usize, 0_usize);
    for (table_rows, columns) in tables {
        if columns > COLUMNS_MAX {
            return Err(RowsError::TooLarge { unit: "columns", got: columns, max: COLUMNS_MAX });
        }
        rows = rows.saturating_add(table_rows);
        cells = cells.saturating_add(table_rows.saturating_mul(columns));
    }
    if rows > BATCH_ROWS_MAX {
        return Err(RowsError::TooLarge { unit: "rows", got: rows, max: BATCH_ROWS_MAX });
    }
    if cells > BATCH_CELLS_MAX {
        return Err(RowsError::TooLarge { unit: "cells", got: cells, max: BATCH_CELLS_MAX });
    }
    Ok(())
}

fn pack_table(table: &TableRows) -> Result<PackedTable, RowsError> {
    let width = table.columns.len();
    let mut packed = PackedTable {
        table: table.table.clone(),
        columns: table.columns.clone(),
        key: table.key.clone(),
        numbers: Vec::with_capacity(table.rows.len()),
        deleted: Vec::new(),
        bases: Vec::new(),
        data: Vec::with_capacity(width),
    };
    let mut before = 0_i64;
    for (index, row) in (0_u32..).zip(&table.rows) {
        if row.values.len() != width {
            return Err(RowsError::Malformed(format!(
                "row {index} of {} has {} values for {width} columns",
                table.table,
                row.values.len(),
            )));
        }
        packed.numbers.push(row.number.wrapping_sub(before));
        before = row.number;
        if row.deleted {
            packed.deleted.push(index);
        }
        if let Some(base) = row.base {
            packed.bases.push((index, base.0));
        }
    }
    for column in 0..width {
        let is_key = table.key.iter().any(|key| usize::from(*key) == column);
        let values = table.rows.iter().map(|row| {
            // Only the key of a tombstone travels.
            if row.deleted && !is_key { &Value::Null } else { &row.values[column] }
        });
        packed.data.push(pack_column(values)?);
    }
    Ok(packed)
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

fn unpack_table(packed: PackedTable) -> Result<TableRows, RowsError> {
    let width = packed.columns.len();
    let count = packed.numbers.len();
    let wrong = |what: &str| {
        RowsError::Malformed(format!("{what} of table {} does not fit its rows", packed.table))
    };
    if packed.data.len() != width {
        return Err(wrong("the number of columns"));
    }
    if packed.key.iter().any(|index| usize::from(*index) >= width) {
        return Err(wrong("the key"));
    }
    let mut rows: Vec<Row> = Vec::with_capacity(count);
    let mut number = 0_i64;
    for delta in &packed.numbers {
        number = number.wrapping_add(*delta);
        rows.push(Row { number, base: None, values: Vec::with_capacity(width), deleted: false });
    }
    for index in &packed.deleted {
        rows.get_mut(*index as usize).ok_or_else(|| wrong("a tombstone"))?.deleted = true;
    }
    for (index, base) in &packed.bases {
        rows.get_mut(*index as usize).ok_or_else(|| wrong("a base"))?.base = Some(Version(*base));
    }
    for column in &packed.data {
        unpack_column(column, &mut rows).ok_or_else(|| wrong("a column"))?;
    }
    Ok(TableRows { table: packed.table, columns: packed.columns, key: packed.key, rows })
}

fn unpack_column(column: &PackedColumn, rows: &mut [Row]) -> Option<()> {
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
        row.values.push(match tag {
            TAG_NULL => Value::Null,
            TAG_INT => {
                before = before.wrapping_add(*ints.next()?);
                Value::Int(before)
            }
            TAG_REAL => {
                let bits = u64::from_le_bytes(reals.next()?.try_into().ok()?);
                Value::Real(f64::from_bits(bits))
            }
            TAG_TEXT | TAG_BLOB => {
                let (bytes, rest) = heap.split_at_checked(*lens.next()? as usize)?;
                heap = rest;
                if tag == TAG_TEXT {
                    Value::Text(bytes.to_vec())
                } else {
                    Value::Blob(bytes.to_vec())
                }
            }
            _ => return None,
        });
    }
    // What is left over would let two byte strings mean the same rows.
    let spent = ints.next().is_none()
        && reals.next().is_none()
        && reals.remainder().is_empty()
        && lens.next().is_none()
        && heap.is_empty();
    spent.then_some(())
}
