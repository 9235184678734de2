//! What is wanted of one database file, as checked values.
//!
//! Reading a configuration file, its defaults and its error positions belong to the agent. Whether
//! the wishes fit the file is found out by the enrolment.

use std::path::PathBuf;

use sync_proto::schema::{Authority, Modality, Scope};

/// One database file and the tables that are wanted of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DatabaseConfig {
    /// The database's name, unique on the device.
    pub name: String,
    /// The application's file.
    pub path: PathBuf,
    /// Patterns (`*` any characters, `?` one) of the tables to enrol, ASCII case ignored.
    pub tables: Vec<String>,
    /// Patterns of the tables to leave out.
    pub exclude: Vec<String>,
    /// What differs from the default, by table.
    pub overrides: Vec<TableConfig>,
}

/// What differs from the default for one table. Naming a table here enrols it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TableConfig {
    /// The table's name, ASCII case ignored.
    pub name: String,
    /// State or mutable.
    pub modality: Modality,
    /// Device or cloud.
    pub authority: Authority,
    /// Which devices rows go to. `None`: all for cloud, source for device.
    pub scope: Option<Scope>,
    /// The dataspace. `None`: the table's name.
    pub dataspace: Option<String>,
    /// The key columns. `None`: the primary key; empty: a document table, at most one row.
    pub key: Option<Vec<String>>,
    /// What happens to local writes of a cloud-authoritative table.
    pub local_writes: LocalWrites,
}

/// What happens to local writes of a cloud-authoritative table.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum LocalWrites {
    /// The row as it was applied is put back.
    #[default]
    Revert,
}

impl TableConfig {
    /// A table with nothing but defaults.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            modality: Modality::default(),
            authority: Authority::default(),
            scope: None,
            dataspace: None,
            key: None,
            local_writes: LocalWrites::default(),
        }
    }
}
