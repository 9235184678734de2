//! The hub's own rules about a row, pure: may it be stored, and may this write happen?
//!
//! Which version is newer is `sync_proto::decide`'s; here stands what surrounds it: conditions of
//! the API, compare-and-swap of adopted rows, and what makes a row unstorable. Nothing here
//! touches a store, so every engine answers alike.

use std::collections::BTreeSet;

use sync_proto::limits::{BATCH_RAW_BYTES_MAX, COLUMNS_MAX};
use sync_proto::message::{Outcome, Reason};
use sync_proto::{NaturalKey, RowHash, Seq, Stamp, Value, Verdict, Version, decide};

use crate::catalog::{Dataspace, Layout};
use crate::plane::{WriteCondition, WriteError};

/// Bytes of one row with its column names: whatever is stored fits a DownBatch of its own.
pub const ROW_BYTES_MAX: usize = BATCH_RAW_BYTES_MAX - (1 << 20);

/// Bytes of a key's text: stores index it.
pub const KEY_BYTES_MAX: usize = 4096;

/// Why a row was set aside.
#[must_use]
pub fn reason(code: &str, message: impl Into<String>) -> Reason {
    Reason { code: code.to_owned(), message: message.into() }
}

/// Whether a row can be stored in a dataspace.
///
/// # Errors
/// The [`Reason`] that the row's producer is told.
pub fn check_row(
    dataspace: &Dataspace,
    key: &NaturalKey,
    values: &[(String, Value)],
) -> Result<(), Reason> {
    check_key(dataspace, key)?;
    let mut names = BTreeSet::new();
    let (mut bytes, mut undeclared) = (0_usize, 0_usize);
    for (name, value) in values {
        check_column_name(name).map_err(|message| reason("column_name", message))?;
        if !names.insert(name.to_ascii_lowercase()) {
            return Err(reason("column_twice", format!("column {name:?} is there twice")));
        }
        if matches!(value, Value::Real(n) if n.is_nan()) {
            return Err(reason("not_a_number", format!("column {name:?} is NaN, not a value")));
        }
        bytes += name.len() + value.len_bytes();
    }
    for field in &dataspace.fields {
        names.remove(&field.name.to_ascii_lowercase());
    }
    undeclared += names.len();
    if dataspace.layout == Layout::Typed {
        if let Some(column) = names.first() {
            return Err(reason(
                "undeclared_column",
                format!("column {column:?} is not declared in typed dataspace {}", dataspace.name),
            ));
        }
    }
    if bytes > ROW_BYTES_MAX {
        return Err(reason(
            "row_too_large",
            format!("the row has {bytes} bytes, the limit is {ROW_BYTES_MAX}"),
        ));
    }
    if undeclared + dataspace.fields.len() > COLUMNS_MAX {
        return Err(reason(
            "too_many_columns",
            format!("with this row the dataspace has more than {COLUMNS_MAX} columns"),
        ));
    }
    Ok(())
}

fn check_key(dataspace: &Dataspace, key: &NaturalKey) -> Result<(), Reason> {
    let parts = key.parts().map_err(|error| reason("key", error.to_string()))?;
    if parts.len() != dataspace.natural_key.len() {
        let (got, want) = (parts.len(), dataspace.natural_key.len());
        return Err(reason("key", format!("the key has {got} part(s), it needs {want}")));
    }
    if NaturalKey::has_null(&parts) {
        return Err(reason("null_key", "a part of the key is NULL, so the row has no identity"));
    }
    if key.as_str().len() > KEY_BYTES_MAX {
        return Err(reason(
            "key_too_long",
            format!("the key's text is longer than {KEY_BYTES_MAX} bytes"),
        ));
    }
    Ok(())
}

/// Whether a name can name a column.
///
/// # Errors
/// What is wrong with it, for its author.
pub fn check_column_name(name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > 256 || name.contains('\0') {
        return Err(format!(
            "column name {name:?} cannot be used: 1 to 256 bytes, without a NUL character"
        ));
    }
    Ok(())
}

/// What becomes of an incoming row that carries a version of its own.
#[must_use]
pub fn judge(stored: Option<Stamp>, incoming: Stamp) -> Outcome {
    match decide(stored, incoming) {
        Verdict::Apply => Outcome::Applied,
        Verdict::Duplicate => Outcome::Duplicate,
        Verdict::Stale => Outcome::Stale,
        Verdict::Diverged => Outcome::Diverged,
        Verdict::OutOfRange => Outcome::Rejected(reason(
            "version_range",
            format!(
                "version {} is not above 0, or more than 2^40 above the stored one",
                incoming.version
            ),
        )),
    }
}

/// What becomes of a compare-and-swap that expects version `base`, and the version that it gets.
/// Content that is there already is a duplicate whoever wrote it: a repeated swap is no conflict.
///
/// # Errors
/// The outcome, when it is not written.
pub fn swap(stored: Option<Stamp>, base: Version, hash: RowHash) -> Result<Version, Outcome> {
    let current = stored.map_or(Version::NONE, |stamp| stamp.version);
    if stored.is_some_and(|stamp| stamp.hash == hash) {
        return Err(Outcome::Duplicate);
    }
    if current != base {
        return Err(Outcome::Conflict);
    }
    Version::of(current, Seq(1)).ok_or_else(|| judge(stored, Stamp { version: current, hash }))
}

/// Whether an API write may happen, and its version.
///
/// # Errors
/// [`Refused`], when it may not.
pub fn admit(
    stored: Option<Stamp>,
    condition: WriteCondition,
    version: Option<Version>,
    hash: RowHash,
) -> Result<Version, Refused> {
    let current = stored.map_or(Version::NONE, |stamp| stamp.version);
    let is_live = stored.is_some_and(|stamp| stamp.hash != RowHash::TOMBSTONE);
    let holds = match condition {
        WriteCondition::None => true,
        WriteCondition::Match(expected) => stored.is_some() && expected == current,
        WriteCondition::Absent => !is_live,
    };
    if !holds {
        return Err(Refused::Conflict);
    }
    let Some(version) = version.or_else(|| Version::of(current, Seq(1))) else {
        return Err(Refused::Range(current));
    };
    match decide(stored, Stamp { version, hash }) {
        Verdict::Apply => Ok(version),
        Verdict::Duplicate | Verdict::Stale | Verdict::Diverged => Err(Refused::Conflict),
        Verdict::OutOfRange => Err(Refused::Range(version)),
    }
}

/// Why an API write may not happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refused {
    /// The condition does not hold, or the version is not above the stored one.
    Conflict,
    /// The version is out of range.
    Range(Version),
}

/// The whole content of an API write: key fields from the key, every other declared column as
/// sent or NULL, then the undeclared ones.
///
/// # Errors
/// [`WriteError`] when a key field differs from the key or the row cannot be stored.
pub fn complete(
    dataspace: &Dataspace,
    key: &NaturalKey,
    sent: &[(String, Value)],
) -> Result<Vec<(String, Value)>, WriteError> {
    check_row(dataspace, key, sent).map_err(|reason| match reason.code.as_str() {
        "undeclared_column" => WriteError::UndeclaredColumn { column: undeclared(dataspace, sent) },
        _ => WriteError::Invalid(reason.message),
    })?;
    let parts = key.parts().map_err(|error| WriteError::Invalid(error.to_string()))?;
    let part_of = |name: &str| {
        let names = dataspace.natural_key.iter();
        names.zip(&parts).find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, part)| part)
    };
    let sent_as = |name: &str| {
        sent.iter().find(|(sent, _)| sent.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    };
    let mut values = Vec::with_capacity(dataspace.fields.len());
    for field in &dataspace.fields {
        let value = match (part_of(&field.name), sent_as(&field.name)) {
            (Some(part), Some(value)) if part != value => {
                return Err(WriteError::KeyMismatch { field: field.name.clone() });
            }
            (Some(part), _) => part.clone(),
            (None, Some(value)) => value.clone(),
            (None, None) => Value::Null,
        };
        values.push((field.name.clone(), value));
    }
    values.extend(sent.iter().filter(|(name, _)| dataspace.field(name).is_none()).cloned());
    Ok(values)
}

fn undeclared(dataspace: &Dataspace, sent: &[(String, Value)]) -> String {
    let surplus = sent.iter().find(|(name, _)| dataspace.field(name).is_none());
    surplus.map(|(name, _)| name.clone()).unwrap_or_default()
}
