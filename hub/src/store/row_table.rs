//! The physical table of one dataspace's rows, the same for both planes.
//!
//! Meta columns are fixed; each declared column stands as `c_` and its name, so no user's name
//! can meet a meta column's, and as SQLite compares names without ASCII case, so does the catalog.
//! Undeclared columns stand in `overflow`. It decides nothing: callers compare versions.

use std::collections::BTreeSet;

use rusqlite::{Connection, OptionalExtension as _, Row, ToSql, Transaction, params};
use sync_proto::schema::Modality;
use sync_proto::{NaturalKey, RowHash, SourceId, Stamp, Value};

use super::columns::{Bound, Sql, object_text, object_values, value_of};
use super::database::DbError;
use crate::catalog::{Dataspace, Field};
use crate::clock::UnixMillis;
use crate::plane::{Lookup, Page, PageRequest, StoredRow};

/// Bytes of values after which a page ends, so that one answer stays small in memory.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// Sources that an ambiguous lookup names.
const AMBIGUOUS_NAMED_MAX: usize = 100;

/// Columns before the declared ones in every SELECT of whole rows.
const META: &str = "natural_key, source_id, version, event_ts, updated_at, is_deleted, overflow";
const META_COUNT: usize = 7;

/// A row to be stored.
pub(super) struct NewRow<'a> {
    pub(super) source_type: &'static str,
    pub(super) source_id: SourceId,
    pub(super) key: &'a NaturalKey,
    pub(super) stamp: Stamp,
    pub(super) deleted: bool,
    pub(super) values: &'a [(String, Value)],
    pub(super) at: UnixMillis,
}

/// Quotes a name for SQL.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The physical name of a declared column, quoted.
pub(super) fn column(name: &str) -> String {
    quoted(&format!("c_{name}"))
}

/// The name of a dataspace's physical table.
pub(super) fn table(dataspace: &Dataspace) -> String {
    let prefix = match dataspace.modality {
        Modality::State => "s",
        Modality::Mutable => "m",
    };
    format!("{prefix}_{}", dataspace.number)
}

/// Creates the table and adds the columns that it lacks.
pub(super) fn provision(tx: &Transaction<'_>, dataspace: &Dataspace) -> Result<(), DbError> {
    let table = table(dataspace);
    tx.execute_batch(&format!(
        "CREATE TABLE IF NOT EXISTS {table} (
            source_type TEXT NOT NULL,
            source_id BLOB NOT NULL,
            natural_key TEXT NOT NULL,
            version INTEGER NOT NULL,
            row_hash BLOB NOT NULL,
            is_deleted INTEGER NOT NULL,
            event_ts INTEGER NOT NULL,
            updated_at INTEGER NOT NULL,
            overflow TEXT,
            PRIMARY KEY (natural_key, source_id)
        );
        CREATE INDEX IF NOT EXISTS {table}_source ON {table} (source_id, natural_key);"
    ))?;
    let mut names = tx.prepare("SELECT lower(name) FROM pragma_table_info(?1)")?;
    let present: BTreeSet<String> =
        names.query_map([&table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for field in &dataspace.fields {
        if !present.contains(&format!("c_{}", field.name.to_ascii_lowercase())) {
            tx.execute_batch(&format!("ALTER TABLE {table} ADD COLUMN {}", column(&field.name)))?;
        }
    }
    Ok(())
}

/// The version and content of a stored row.
pub(super) fn stamp(
    db: &Connection,
    dataspace: &Dataspace,
    source: SourceId,
    key: &NaturalKey,
) -> Result<Option<Stamp>, DbError> {
    let sql = format!(
        "SELECT version, row_hash FROM {} WHERE natural_key = ?1 AND source_id = ?2",
        table(dataspace)
    );
    let stamp = db
        .prepare_cached(&sql)?
        .query_row(params![Sql(key), Sql(source)], |row| {
            let (Sql(version), Sql(hash)) = (row.get(0)?, row.get(1)?);
            Ok(Stamp { version, hash })
        })
        .optional()?;
    Ok(stamp)
}

/// Puts a row in the place of what is stored under its identity.
pub(super) fn store(
    db: &Connection,
    dataspace: &Dataspace,
    row: &NewRow<'_>,
) -> Result<(), DbError> {
    let (declared, surplus) = arrange(&dataspace.fields, row.values);
    let overflow = if surplus.is_empty() { None } else { Some(object_text(&surplus)?) };
    let (source, key, version) = (Sql(row.source_id), Sql(row.key), Sql(row.stamp.version));
    let (hash, at) = (Sql(row.stamp.hash), Sql(row.at));
    let bound: Vec<Bound<'_>> = declared.into_iter().map(Bound).collect();
    let mut params: Vec<&dyn ToSql> =
        vec![&row.source_type, &source, &key, &version, &hash, &row.deleted, &at, &at, &overflow];
    params.extend(bound.iter().map(|value| value as &dyn ToSql));
    db.prepare_cached(&store_sql(dataspace))?.execute(params.as_slice())?;
    Ok(())
}

/// One value for each field, and the pairs that belong to none. Rows mostly name their columns in
/// the fields' order, so each search starts where the one before ended.
fn arrange<'a>(
    fields: &[Field],
    values: &'a [(String, Value)],
) -> (Vec<&'a Value>, Vec<(String, Value)>) {
    let mut placed = vec![false; values.len()];
    let mut start = 0;
    let mut declared = Vec::with_capacity(fields.len());
    for field in fields {
        let found = (start..values.len())
            .chain(0..start)
            .find(|index| values[*index].0.eq_ignore_ascii_case(&field.name));
        declared.push(found.map_or(&Value::Null, |index| {
            placed[index] = true;
            start = index + 1;
            &values[index].1
        }));
    }
    let surplus = values.iter().zip(&placed).filter(|(_, placed)| !**placed);
    (declared, surplus.map(|(pair, _)| pair.clone()).collect())
}

fn store_sql(dataspace: &Dataspace) -> String {
    let mut columns = String::from(
        "source_type, source_id, natural_key, version, row_hash, is_deleted, event_ts, \
         updated_at, overflow",
    );
    let mut places = String::from("?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9");
    for (index, field) in dataspace.fields.iter().enumerate() {
        columns.push_str(&format!(", {}", column(&field.name)));
        places.push_str(&format!(", ?{}", index + 10));
    }
    // The whole row is replaced, so that a column declared since `dataspace` was read becomes NULL
    // and what was sent for it stands in overflow.
    format!("INSERT OR REPLACE INTO {} ({columns}) VALUES ({places})", table(dataspace))
}

/// Reads one row by identity, a tombstone too.
pub(super) fn read(
    db: &Connection,
    dataspace: &Dataspace,
    source: SourceId,
    key: &NaturalKey,
) -> Result<Option<StoredRow>, DbError> {
    let sql = format!("{} WHERE natural_key = ?1 AND source_id = ?2", select(dataspace));
    let mut statement = db.prepare_cached(&sql)?;
    let mut rows = statement.query(params![Sql(key), Sql(source)])?;
    rows.next()?.map(|row| row_of(dataspace, row)).transpose()
}

/// Reads one live row by key.
pub(super) fn lookup(
    db: &Connection,
    dataspace: &Dataspace,
    key: &NaturalKey,
    source: Option<SourceId>,
) -> Result<Lookup, DbError> {
    if let Some(source) = source {
        let live = read(db, dataspace, source, key)?.filter(|row| !row.deleted);
        return Ok(live.map_or(Lookup::None, |row| Lookup::One(Box::new(row))));
    }
    let sql = format!(
        "SELECT source_id FROM {} WHERE natural_key = ?1 AND is_deleted = 0 \
         ORDER BY source_id LIMIT {AMBIGUOUS_NAMED_MAX}",
        table(dataspace)
    );
    let mut statement = db.prepare_cached(&sql)?;
    let sources: Vec<SourceId> = statement
        .query_map([Sql(key)], |row| row.get(0).map(|Sql(id)| id))?
        .collect::<rusqlite::Result<_>>()?;
    match sources.as_slice() {
        [] => Ok(Lookup::None),
        [source] => lookup(db, dataspace, key, Some(*source)),
        _ => Ok(Lookup::Ambiguous(sources)),
    }
}

/// Reads a page of live rows.
pub(super) fn page(
    db: &Connection,
    dataspace: &Dataspace,
    request: &PageRequest,
) -> Result<Page, DbError> {
    let after = request.after.as_ref().map(|(key, source)| (Sql(key), Sql(*source)));
    let source = request.source.map(Sql);
    let mut sql = format!("{} WHERE is_deleted = 0", select(dataspace));
    let mut params: Vec<&dyn ToSql> = Vec::new();
    if let Some(source) = &source {
        sql.push_str(" AND source_id = ?");
        params.push(source);
    }
    if let Some((key, source)) = &after {
        sql.push_str(" AND (natural_key, source_id) > (?, ?)");
        params.push(key);
        params.push(source);
    }
    sql.push_str(" ORDER BY natural_key, source_id");
    let mut statement = db.prepare_cached(&sql)?;
    let mut found = statement.query(params.as_slice())?;
    let (mut rows, mut bytes) = (Vec::new(), 0_usize);
    while let Some(row) = found.next()? {
        if rows.len() >= request.limit.max(1) || bytes >= PAGE_BYTES_MAX {
            let next = rows.last().map(|row: &StoredRow| (row.natural_key.clone(), row.source_id));
            return Ok(Page { rows, next });
        }
        let row = row_of(dataspace, row)?;
        bytes += row.len_bytes();
        rows.push(row);
    }
    Ok(Page { rows, next: None })
}

/// Reads rows by identity, tombstones too, until they hold `bytes_max` bytes.
pub(super) fn read_many(
    db: &Connection,
    dataspace: &Dataspace,
    identities: &[(SourceId, NaturalKey)],
    bytes_max: usize,
) -> Result<Vec<Option<StoredRow>>, DbError> {
    let (mut rows, mut bytes) = (Vec::with_capacity(identities.len()), 0);
    for (source, key) in identities {
        if bytes >= bytes_max {
            break;
        }
        let row = read(db, dataspace, *source, key)?;
        bytes += row.as_ref().map_or(0, StoredRow::len_bytes);
        rows.push(row);
    }
    Ok(rows)
}

fn select(dataspace: &Dataspace) -> String {
    let mut sql = format!("SELECT {META}");
    for field in &dataspace.fields {
        sql.push_str(", ");
        sql.push_str(&column(&field.name));
    }
    sql.push_str(&format!(" FROM {}", table(dataspace)));
    sql
}

fn row_of(dataspace: &Dataspace, row: &Row<'_>) -> Result<StoredRow, DbError> {
    let (Sql(natural_key), Sql(source_id), Sql(version)) = (row.get(0)?, row.get(1)?, row.get(2)?);
    let (Sql(event_ts), Sql(updated_at)) = (row.get(3)?, row.get(4)?);
    let deleted: bool = row.get(5)?;
    let overflow: Option<String> = row.get(6)?;
    let mut values = Vec::new();
    if !deleted {
        for (index, field) in dataspace.fields.iter().enumerate() {
            values.push((field.name.clone(), value_of(row.get_ref(META_COUNT + index)?)));
        }
        if let Some(text) = overflow {
            merge_overflow(&mut values, object_values(&text)?);
        }
    }
    Ok(StoredRow { natural_key, source_id, version, event_ts, updated_at, values, deleted })
}

/// A column that was declared after a row was written is still in that row's overflow.
fn merge_overflow(values: &mut Vec<(String, Value)>, overflow: Vec<(String, Value)>) {
    for (name, value) in overflow {
        match values.iter_mut().find(|(declared, _)| declared.eq_ignore_ascii_case(&name)) {
            Some((_, declared)) => *declared = value,
            None => values.push((name, value)),
        }
    }
}

/// The content hash of a stored row's tombstone or values.
pub(super) fn hash(values: Option<&[(String, Value)]>) -> RowHash {
    values.map_or(RowHash::TOMBSTONE, |values| {
        RowHash::of(values.iter().map(|(name, value)| (name.as_str(), value)))
    })
}
