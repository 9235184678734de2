//! A SQLite value, exact, and the hash of a row of them.
//!
//! The five storage classes are kept apart everywhere: 1, 1.0, '1' and x'31' are four values.
//! Text is bytes, because SQLite stores text that is not UTF-8. JSON forms belong to the hub.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::Digest as _;

/// One value in one of SQLite's storage classes. Equality is by class and by bit.
#[derive(Clone, Serialize, Deserialize)]
pub enum Value {
    /// NULL.
    Null,
    /// A 64-bit integer.
    Int(i64),
    /// A double; infinities are legal, NaN never reaches a SQLite file.
    Real(f64),
    /// Text as bytes: usually UTF-8, but not always.
    Text(#[serde(with = "serde_bytes")] Vec<u8>),
    /// A blob.
    Blob(#[serde(with = "serde_bytes")] Vec<u8>),
}

impl Value {
    /// Text from a string.
    #[must_use]
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into().into_bytes())
    }

    /// Whether this is NULL.
    #[must_use]
    pub const fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Heap bytes that the value holds: what a batch's byte budget counts.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        match self {
            Self::Null => 1,
            Self::Int(_) | Self::Real(_) => 8,
            Self::Text(bytes) | Self::Blob(bytes) => bytes.len() + 4,
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Null, Self::Null) => true,
            (Self::Int(a), Self::Int(b)) => a == b,
            (Self::Real(a), Self::Real(b)) => a.to_bits() == b.to_bits(),
            (Self::Text(a), Self::Text(b)) | (Self::Blob(a), Self::Blob(b)) => a == b,
            (Self::Null | Self::Int(_) | Self::Real(_) | Self::Text(_) | Self::Blob(_), _) => false,
        }
    }
}

impl Eq for Value {}

impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Null => f.write_str("NULL"),
            Self::Int(n) => write!(f, "{n}"),
            Self::Real(n) => write!(f, "{n:?}"),
            Self::Text(bytes) => write!(f, "{:?}", String::from_utf8_lossy(bytes)),
            Self::Blob(bytes) => {
                f.write_str("x'")?;
                write_hex(f, bytes)?;
                f.write_str("'")
            }
        }
    }
}

/// Writes bytes as lower-case hex.
pub(crate) fn write_hex(f: &mut impl fmt::Write, bytes: &[u8]) -> fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

/// The hash of a row's content: the first 16 bytes of a SHA-256.
///
/// Computed over typed values by column name, in name order, with NULLs left out, so it does not
/// depend on a library's text forms, on column order, or on a new NULL column.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RowHash(pub [u8; 16]);

impl RowHash {
    /// The hash that stands for a deleted row.
    pub const TOMBSTONE: Self = Self([0; 16]);

    /// The hash of a row given as (column, value) pairs in any order.
    #[must_use]
    pub fn of<'a>(columns: impl IntoIterator<Item = (&'a str, &'a Value)>) -> Self {
        let mut pairs: Vec<(&str, &Value)> =
            columns.into_iter().filter(|(_, value)| !value.is_null()).collect();
        pairs.sort_unstable_by_key(|(name, _)| *name);
        let mut hash = sha2::Sha256::new();
        for (name, value) in pairs {
            hash.update((name.len() as u64).to_le_bytes());
            hash.update(name.as_bytes());
            match value {
                Value::Null => hash.update([0]),
                Value::Int(n) => {
                    hash.update([1]);
                    hash.update(n.to_le_bytes());
                }
                Value::Real(n) => {
                    hash.update([2]);
                    hash.update(n.to_bits().to_le_bytes());
                }
                Value::Text(bytes) => {
                    hash.update([3]);
                    hash.update((bytes.len() as u64).to_le_bytes());
                    hash.update(bytes);
                }
                Value::Blob(bytes) => {
                    hash.update([4]);
                    hash.update((bytes.len() as u64).to_le_bytes());
                    hash.update(bytes);
                }
            }
        }
        let full: [u8; 32] = hash.finalize().into();
        let mut short = [0; 16];
        short.copy_from_slice(&full[..16]);
        Self(short)
    }
}

impl fmt::Debug for RowHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_hex(f, &self.0)
    }
}
