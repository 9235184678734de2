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

/// What becomes of a device's compare-and-swap that expects version `base`, and the version that
/// it gets. Devices may only bring rows that were never written. Content that is there already is
/// a duplicate whoever wrote it: a repeated swap is no conflict.
///
/// # Errors
/// The outcome, when it is not written.
pub fn swap(stored: Option<Stamp>, base: Version, hash: RowHash) -> Result<Version, Outcome> {
    match stored {
        None if base == Version::NONE => Ok(Version(1)),
        Some(stored) if stored.hash == hash => Err(Outcome::Duplicate),
        None | Some(_) => Err(Outcome::Conflict),
    }
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

#[cfg(test)]
mod tests {
    use sync_proto::message::Outcome;
    use sync_proto::{RowHash, Stamp, Version};

    use super::{Refused, admit, swap};
    use crate::plane::WriteCondition::{self, Absent, Match, None as Free};

    const A: RowHash = RowHash([1; 16]);
    const B: RowHash = RowHash([2; 16]);
    const GONE: RowHash = RowHash::TOMBSTONE;

    fn stamp(stored: Option<(i64, RowHash)>) -> Option<Stamp> {
        stored.map(|(version, hash)| Stamp { version: Version(version), hash })
    }

    type WriteCase =
        (Option<(i64, RowHash)>, WriteCondition, Option<i64>, Result<Version, Refused>);

    #[test]
    fn api_writes_by_stored_row_condition_and_version() {
        let far = Version::STEP_MAX;
        let conflict = Err(Refused::Conflict);
        let range = |version| Err(Refused::Range(Version(version)));
        let at = |version| Ok(Version(version));
        #[rustfmt::skip]
        let cases: &[WriteCase] = &[
            // stored            condition            version         verdict
            (None,               Free,                None,           at(1)),
            (None,               Free,                Some(7),        at(7)),
            (None,               Free,                Some(0),        range(0)),
            (None,               Free,                Some(-1),       range(-1)),
            (None,               Free,                Some(far),      at(far)),
            (None,               Free,                Some(far + 1),  range(far + 1)),
            (None,               Absent,              None,           at(1)),
            (None,               Match(Version(0)),   None,           conflict),
            (Some((5, A)),       Free,                None,           at(6)),
            (Some((5, A)),       Free,                Some(6),        at(6)),
            (Some((5, A)),       Free,                Some(5),        conflict),
            (Some((5, B)),       Free,                Some(5),        conflict),
            (Some((5, A)),       Free,                Some(4),        conflict),
            (Some((5, A)),       Free,                Some(far + 5),  at(far + 5)),
            (Some((5, A)),       Free,                Some(far + 6),  range(far + 6)),
            (Some((5, A)),       Match(Version(5)),   None,           at(6)),
            (Some((5, A)),       Match(Version(5)),   Some(9),        at(9)),
            (Some((5, A)),       Match(Version(5)),   Some(5),        conflict),
            (Some((5, A)),       Match(Version(4)),   Some(9),        conflict),
            (Some((5, A)),       Absent,              None,           conflict),
            (Some((5, GONE)),    Absent,              None,           at(6)),
            (Some((5, GONE)),    Match(Version(5)),   None,           at(6)),
            (Some((i64::MAX, A)), Free,               None,           range(i64::MAX)),
        ];
        for (stored, condition, version, verdict) in cases {
            let got = admit(stamp(*stored), *condition, version.map(Version), A);
            assert_eq!(got, *verdict, "{stored:?} {condition:?} {version:?}");
        }
    }

    type SwapCase = (Option<(i64, RowHash)>, i64, Result<Version, Outcome>);

    #[test]
    fn swaps_by_stored_row_and_base() {
        #[rustfmt::skip]
        let cases: &[SwapCase] = &[
            // stored          base  verdict on content A
            (None,             0,    Ok(Version(1))),
            (None,             3,    Err(Outcome::Conflict)),
            (Some((1, A)),     0,    Err(Outcome::Duplicate)),
            (Some((9, A)),     9,    Err(Outcome::Duplicate)),
            (Some((1, B)),     0,    Err(Outcome::Conflict)),
            (Some((9, B)),     9,    Err(Outcome::Conflict)),
            (Some((9, B)),     8,    Err(Outcome::Conflict)),
            (Some((9, GONE)),  0,    Err(Outcome::Conflict)),
            (Some((9, GONE)),  9,    Err(Outcome::Conflict)),
        ];
        for (stored, base, verdict) in cases {
            assert_eq!(swap(stamp(*stored), Version(*base), A), *verdict, "{stored:?} {base}");
        }
    }
}
