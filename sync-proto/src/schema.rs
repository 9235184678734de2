//! What a table is on the wire, and its fingerprint.
//!
//! The fingerprint is the published one of the field (SHA-256 over canonical JSON), so that it can
//! be compared with other tools'. Reading a schema out of a file belongs to capture.

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

use crate::bounded::at_most;
use crate::key::KeyType;
use crate::limits::COLUMNS_MAX;

/// Kind of dataspace that a table maps to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Modality {
    /// Current documents: read-your-write, compare-and-swap, outbox.
    State,
    /// A table mirror, in bulk.
    #[default]
    Mutable,
}

/// Which end is right about a table's rows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Authority {
    /// The cloud is a replica.
    #[default]
    Device,
    /// The device is a replica.
    Cloud,
}

/// Which devices a cloud-authoritative row goes to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scope {
    /// Only the device that the row belongs to.
    Source,
    /// Every device that is attached.
    All,
}

impl Scope {
    /// What holds when nothing is said: cloud-written rows go to all devices.
    #[must_use]
    pub const fn default_for(authority: Authority) -> Self {
        match authority {
            Authority::Device => Self::Source,
            Authority::Cloud => Self::All,
        }
    }
}

/// SQLite's column affinities.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Affinity {
    /// INTEGER affinity.
    Integer,
    /// TEXT affinity.
    Text,
    /// REAL affinity.
    Real,
    /// BLOB affinity, also that of a column without a type.
    Blob,
    /// NUMERIC affinity.
    Numeric,
}

impl Affinity {
    /// The affinity of a declared type, by SQLite's rules; any string has an answer.
    #[must_use]
    pub fn of_declared(declared: &str) -> Self {
        let upper = declared.to_ascii_uppercase();
        let has = |part: &str| upper.contains(part);
        if has("INT") {
            Self::Integer
        } else if has("CHAR") || has("CLOB") || has("TEXT") {
            Self::Text
        } else if has("BLOB") || upper.trim().is_empty() {
            Self::Blob
        } else if has("REAL") || has("FLOA") || has("DOUB") {
            Self::Real
        } else {
            Self::Numeric
        }
    }

    /// The affinity's name, as in the fingerprint.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Integer => "INTEGER",
            Self::Text => "TEXT",
            Self::Real => "REAL",
            Self::Blob => "BLOB",
            Self::Numeric => "NUMERIC",
        }
    }

    /// How a bare key part of such a column is read.
    #[must_use]
    pub const fn key_type(self) -> KeyType {
        match self {
            Self::Integer => KeyType::Integer,
            Self::Text => KeyType::Text,
            Self::Real => KeyType::Real,
            Self::Blob | Self::Numeric => KeyType::Any,
        }
    }
}

/// One column of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ColumnSpec {
    /// The column's name, as declared.
    pub name: String,
    /// The column's affinity.
    pub affinity: Affinity,
    /// 0 outside the key, 1..N inside it.
    pub key_ordinal: u16,
    /// Whether NULL is refused.
    pub not_null: bool,
}

/// One enrolled table, as a device announces it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct TableSpec {
    /// The table's name in the file.
    pub name: String,
    /// The dataspace that it maps to.
    pub dataspace: String,
    /// State or mutable.
    pub modality: Modality,
    /// Device or cloud.
    pub authority: Authority,
    /// Source or all.
    pub scope: Scope,
    /// Every column that travels, in the table's order.
    #[serde(deserialize_with = "at_most::<{ COLUMNS_MAX }, _, _>")]
    pub columns: Vec<ColumnSpec>,
}

impl TableSpec {
    /// Names of the key columns, in key order. Empty for a document table.
    #[must_use]
    pub fn key(&self) -> Vec<&str> {
        let mut key: Vec<&ColumnSpec> =
            self.columns.iter().filter(|column| column.key_ordinal > 0).collect();
        key.sort_by_key(|column| column.key_ordinal);
        key.into_iter().map(|column| column.name.as_str()).collect()
    }

    /// The fingerprint of the table's columns.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        fingerprint(&self.name, &self.columns)
    }
}

/// The schema fingerprint: SHA-256 in lower-case hex over canonical JSON of the table's name and
/// its columns sorted by name. Column order, indexes, defaults, triggers and foreign keys do not
/// enter it.
#[must_use]
pub fn fingerprint(table: &str, columns: &[ColumnSpec]) -> String {
    let mut sorted: Vec<&ColumnSpec> = columns.iter().collect();
    sorted.sort_by(|a, b| a.name.cmp(&b.name));
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let columns: Vec<String> = sorted
        .iter()
        .map(|column| {
            format!(
                r#"{{"decl_type_affinity":"{}","name":{},"not_null":{},"pk_ordinal":{}}}"#,
                column.affinity.name(),
                quoted(&column.name),
                column.not_null,
                column.key_ordinal,
            )
        })
        .collect();
    let json = format!(r#"{{"columns":[{}],"table_name":{}}}"#, columns.join(","), quoted(table));
    let hash: [u8; 32] = sha2::Sha256::digest(json.as_bytes()).into();
    let mut hex = String::with_capacity(64);
    match crate::value::write_hex(&mut hex, &hash) {
        Ok(()) | Err(_) => hex, // A String takes every write.
    }
}
