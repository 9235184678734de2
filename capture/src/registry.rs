//! The enrolled tables: who they are, where their life stands, and what the hub said of them.
//!
//! Loaded from `_rowtide_tables` and written back row by row inside the caller's transaction. What
//! gets enrolled is decided by [`crate::enrol`]; an id is never given to another table.

use rusqlite::{Connection, OptionalExtension as _, params};
use serde::{Deserialize, Serialize};
use sync_proto::message::TableState;
use sync_proto::schema::{Authority, Modality, TableSpec};
use sync_proto::{Lane, Seq, Value};

use crate::error::{CaptureError, Result};
use crate::row::Shape;

/// The number that a table has in the log, for ever.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct TableId(pub(crate) i64);

/// Where a table's life stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// Device: keys of existing rows are put into the log, from `seed_after` on.
    Seeding,
    /// Device: every row is or was in the log.
    Live,
    /// Cloud: nothing known of the hub's side yet.
    New,
    /// Cloud: local rows are taken into shadows, from `seed_after` on.
    Attaching,
    /// Cloud: every local row has a shadow or is about to be put back.
    Attached,
    /// The table is not in the file, or not wanted any more; its entries are held.
    Gone,
}

/// What the hub said of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct HubTable {
    /// Whether rows flow.
    pub(crate) state: TableState,
    /// Whether the device's rows of a cloud-authoritative table go up on first attach.
    pub(crate) adopt: bool,
}

/// One enrolled table.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Table {
    /// Its number in the log.
    pub(crate) id: TableId,
    /// The table as announced: name, columns that travel, key, modality, authority.
    pub(crate) spec: TableSpec,
    /// Where its life stands.
    pub(crate) phase: Phase,
    /// The last key that was seeded or attached, in key order.
    pub(crate) seed_after: Option<Vec<Value>>,
    /// What the hub said, if it spoke yet.
    pub(crate) hub: Option<HubTable>,
    /// Labels up to here belong to another shape of the table: never sent, logged anew.
    pub(crate) fence: Seq,
    /// The table was built anew here: a row that is absent under a label up to here is no delete.
    pub(crate) rebuilt: Seq,
    /// Held keys go back into the log.
    pub(crate) releasing: bool,
}

/// What is counted of a table, beside its life: written where it happens, read for status.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Counters {
    /// Local writes that were put back.
    pub(crate) reverted: u64,
    /// Local rows of a cloud-authoritative table that the hub does not have.
    pub(crate) surplus: u64,
    /// When the last receipt for one of its rows came (RFC 3339, UTC).
    pub(crate) last_receipt: Option<String>,
}

impl Table {
    /// A table that was never enrolled before.
    pub(crate) fn new(id: TableId, spec: TableSpec) -> Self {
        Self {
            id,
            phase: Phase::first(&spec),
            spec,
            seed_after: None,
            hub: None,
            fence: Seq::ZERO,
            rebuilt: Seq::ZERO,
            releasing: false,
        }
    }

    /// The table's name in the file.
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Whether the cloud is right about its rows.
    pub(crate) fn is_cloud(&self) -> bool {
        self.spec.authority == Authority::Cloud
    }

    /// Indexes into `spec.columns` of the key columns, in key order; empty for a document table.
    pub(crate) fn key_indexes(&self) -> Vec<usize> {
        let mut key: Vec<(u16, usize)> = self
            .spec
            .columns
            .iter()
            .enumerate()
            .filter(|(_, column)| column.key_ordinal > 0)
            .map(|(index, column)| (column.key_ordinal, index))
            .collect();
        key.sort_unstable();
        key.into_iter().map(|(_, index)| index).collect()
    }

    /// Names of the columns that travel.
    pub(crate) fn column_names(&self) -> Vec<String> {
        self.spec.columns.iter().map(|column| column.name.clone()).collect()
    }

    /// The text that reads and writes its rows.
    pub(crate) fn shape(&self) -> Shape {
        Shape::new(self.name(), &self.column_names(), &self.key_indexes())
    }

    /// Names of the key columns, in key order.
    pub(crate) fn key_names(&self) -> Vec<&str> {
        self.spec.key()
    }

    /// Number of key columns; 0 for a document table.
    pub(crate) fn key_width(&self) -> usize {
        self.spec.columns.iter().filter(|column| column.key_ordinal > 0).count()
    }

    /// Whether at most one row is allowed, with no key columns.
    pub(crate) fn is_document(&self) -> bool {
        self.key_width() == 0
    }

    /// Whether its rows may be sent and applied.
    pub(crate) fn flows(&self) -> bool {
        self.phase != Phase::Gone
            && self.hub.as_ref().is_none_or(|hub| hub.state == TableState::Flowing)
    }

    /// The lane of its live changes.
    pub(crate) const fn live_lane(&self) -> Lane {
        match self.spec.modality {
            Modality::State => Lane::State,
            Modality::Mutable => Lane::Mutable,
        }
    }
}

impl Phase {
    /// Where a table's life begins.
    pub(crate) const fn first(spec: &TableSpec) -> Self {
        match spec.authority {
            Authority::Device => Self::Seeding,
            Authority::Cloud => Self::New,
        }
    }

    /// The phase's name in the registry and in status.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Seeding => "seeding",
            Self::Live => "live",
            Self::New => "new",
            Self::Attaching => "attaching",
            Self::Attached => "attached",
            Self::Gone => "gone",
        }
    }

    fn from_name(name: &str) -> Option<Self> {
        [Self::Seeding, Self::Live, Self::New, Self::Attaching, Self::Attached, Self::Gone]
            .into_iter()
            .find(|phase| phase.name() == name)
    }
}

/// Every table that was ever enrolled, in the order of enrolment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registry {
    tables: Vec<Table>,
}

impl Registry {
    /// Reads the registry of a file that has one.
    ///
    /// # Errors
    /// SQLite's, and [`CaptureError::Corrupt`] for a row that cannot be read.
    pub(crate) fn load(conn: &Connection) -> Result<Self> {
        let mut statement = conn.prepare_cached(
            "SELECT id, spec, state, seed_after, hub_state, fence, rebuilt, releasing \
             FROM _rowtide_tables ORDER BY id",
        )?;
        let mut rows = statement.query([])?;
        let mut tables = Vec::new();
        while let Some(row) = rows.next()? {
            let phase: String = row.get(2)?;
            let seed_after: Option<Vec<u8>> = row.get(3)?;
            let hub: Option<Vec<u8>> = row.get(4)?;
            tables.push(Table {
                id: TableId(row.get(0)?),
                spec: decode(&row.get::<_, Vec<u8>>(1)?, "a table's columns")?,
                phase: Phase::from_name(&phase)
                    .ok_or_else(|| CaptureError::corrupt(format!("table state {phase:?}")))?,
                seed_after: seed_after.map(|bytes| decode(&bytes, "a seed cursor")).transpose()?,
                hub: hub.map(|bytes| decode(&bytes, "a hub's table state")).transpose()?,
                fence: Seq(row.get(5)?),
                rebuilt: Seq(row.get(6)?),
                releasing: row.get(7)?,
            });
        }
        Ok(Self { tables })
    }

    /// The tables.
    pub(crate) fn tables(&self) -> &[Table] {
        &self.tables
    }

    /// The tables that are in the file and wanted.
    pub(crate) fn live(&self) -> impl Iterator<Item = &Table> {
        self.tables.iter().filter(|table| table.phase != Phase::Gone)
    }

    /// The table of that number.
    pub(crate) fn get(&self, id: TableId) -> Option<&Table> {
        // Numbers rise and rows stay, so the position is found without a search structure.
        self.tables.binary_search_by_key(&id, |table| table.id).ok().map(|at| &self.tables[at])
    }

    /// The table of that name, ASCII case ignored; a gone one only if there is no other, and then
    /// the last one.
    pub(crate) fn named(&self, name: &str) -> Option<&Table> {
        self.tables
            .iter()
            .filter(|table| table.name().eq_ignore_ascii_case(name))
            .max_by_key(|table| (table.phase != Phase::Gone, table.id))
    }

    /// Key columns that the log needs: the widest key of any table that ever was enrolled.
    pub(crate) fn key_width(&self) -> usize {
        self.tables.iter().map(Table::key_width).max().unwrap_or(0).max(1)
    }

    /// Takes over a table as it was saved.
    pub(crate) fn put(&mut self, table: Table) {
        match self.tables.binary_search_by_key(&table.id, |known| known.id) {
            Ok(at) => self.tables[at] = table,
            Err(at) => self.tables.insert(at, table),
        }
    }
}

/// Writes a table inside the caller's transaction. What is counted of it stays as it is.
///
/// # Errors
/// SQLite's.
pub(crate) fn save(conn: &Connection, table: &Table) -> Result<()> {
    conn.prepare_cached(
        "INSERT INTO _rowtide_tables(id, name, spec, key_width, state, seed_after, hub_state, \
         fence, rebuilt, releasing, reverted, surplus) \
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, 0, 0) ON CONFLICT(id) DO UPDATE SET \
         name = excluded.name, spec = excluded.spec, key_width = excluded.key_width, \
         state = excluded.state, seed_after = excluded.seed_after, \
         hub_state = excluded.hub_state, fence = excluded.fence, rebuilt = excluded.rebuilt, \
         releasing = excluded.releasing",
    )?
    .execute(params![
        table.id.0,
        table.name(),
        encode(&table.spec)?,
        i64::try_from(table.key_width()).unwrap_or(i64::MAX),
        table.phase.name(),
        table.seed_after.as_ref().map(encode).transpose()?,
        table.hub.as_ref().map(encode).transpose()?,
        table.fence.0,
        table.rebuilt.0,
        table.releasing,
    ])?;
    Ok(())
}

/// What is counted of a table.
///
/// # Errors
/// SQLite's.
pub(crate) fn counters(conn: &Connection, table: TableId) -> Result<Counters> {
    let counters = conn
        .prepare_cached(
            "SELECT reverted, surplus, last_receipt FROM _rowtide_tables WHERE id = ?1",
        )?
        .query_row([table.0], |row| {
            Ok(Counters {
                reverted: row.get::<_, i64>(0)?.unsigned_abs(),
                surplus: row.get::<_, i64>(1)?.unsigned_abs(),
                last_receipt: row.get(2)?,
            })
        })
        .optional()?;
    Ok(counters.unwrap_or_default())
}

/// Counts local writes that were put back.
///
/// # Errors
/// SQLite's.
pub(crate) fn add_reverted(conn: &Connection, table: TableId, count: u64) -> Result<()> {
    conn.prepare_cached("UPDATE _rowtide_tables SET reverted = reverted + ?2 WHERE id = ?1")?
        .execute([table.0, i64::try_from(count).unwrap_or(i64::MAX)])?;
    Ok(())
}

/// Writes how many local rows of a cloud-authoritative table the hub does not have.
///
/// # Errors
/// SQLite's.
pub(crate) fn set_surplus(conn: &Connection, table: TableId, count: u64) -> Result<()> {
    conn.prepare_cached("UPDATE _rowtide_tables SET surplus = ?2 WHERE id = ?1")?
        .execute([table.0, i64::try_from(count).unwrap_or(i64::MAX)])?;
    Ok(())
}

/// Notes that a receipt for rows of a table came.
///
/// # Errors
/// SQLite's.
pub(crate) fn note_receipt(conn: &Connection, table: TableId) -> Result<()> {
    conn.prepare_cached(
        "UPDATE _rowtide_tables SET last_receipt = strftime('%Y-%m-%dT%H:%M:%SZ', 'now') \
         WHERE id = ?1",
    )?
    .execute([table.0])?;
    Ok(())
}

/// The number for the next table: above every one that was ever given.
///
/// # Errors
/// SQLite's.
pub(crate) fn next_id(conn: &Connection) -> Result<TableId> {
    let last: Option<i64> = conn
        .query_row("SELECT max(id) FROM _rowtide_tables", [], |row| row.get(0))
        .optional()?
        .flatten();
    Ok(TableId(last.unwrap_or(0) + 1))
}

/// Bytes of a value that this crate stores for itself.
///
/// # Errors
/// [`CaptureError::Corrupt`] when the value has no encoding; every value has one.
pub(crate) fn encode<T: Serialize>(value: &T) -> Result<Vec<u8>> {
    postcard::to_stdvec(value).map_err(|error| CaptureError::corrupt(error.to_string()))
}

/// A value that this crate stored for itself.
///
/// # Errors
/// [`CaptureError::Corrupt`] when the bytes are not `what`.
pub(crate) fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8], what: &str) -> Result<T> {
    postcard::from_bytes(bytes)
        .map_err(|error| CaptureError::corrupt(format!("{what} cannot be read: {error}")))
}
