//! Why a row cannot go up: the reasons, in one place, with the words for a person.
//!
//! Storing them is [`crate::parked`]'s work, and an entry goes once its key is sent. Nothing here
//! writes.

use rusqlite::{Connection, params_from_iter};
use sync_proto::Value;
use sync_proto::message::Reason;

use crate::error::Result;
use crate::registry::Table;
use crate::row::Bound;
use crate::schema::quote;

/// Whether a row with a NULL in its key is still there, and so has to be set aside.
///
/// # Errors
/// SQLite's, also when the table is gone.
pub(crate) fn has_null_key_row(conn: &Connection, table: &Table, key: &[Value]) -> Result<bool> {
    let columns = table.key_indexes();
    let terms: Vec<String> = (1..)
        .zip(columns)
        .map(|(place, at)| format!("{} IS ?{place}", quote(&table.spec.columns[at].name)))
        .collect();
    let sql = format!("SELECT 1 FROM main.{} WHERE {}", quote(table.name()), terms.join(" AND "));
    Ok(conn.prepare_cached(&sql)?.exists(params_from_iter(key.iter().map(Bound)))?)
}

/// A row with a NULL in its key.
pub(crate) fn null_key() -> Reason {
    reason("null_key", "a key column is NULL, so the row has no identity; give it a value")
}

/// A key that is too long to be carried beside others.
pub(crate) fn key_too_large(max_bytes: usize) -> Reason {
    reason("key_too_large", &format!("the row's key is longer than {max_bytes} bytes"))
}

/// A row that no batch can carry.
pub(crate) fn row_too_large(max_bytes: usize) -> Reason {
    reason("row_too_large", &format!("the row is larger than the {max_bytes} bytes of one batch"))
}

/// A row that was logged before its table was built anew, and is not in the new one.
pub(crate) fn row_absent() -> Reason {
    reason(
        "row_absent",
        "the table was dropped and created anew without this row; delete it through the table or \
         at the hub if it is meant to be gone",
    )
}

/// Several rows where one is expected.
pub(crate) fn many_rows(table: &Table) -> Reason {
    if table.is_document() {
        reason("document_rows", "`key = []` declares one row at most and the table has more")
    } else {
        reason("ambiguous_key", "several rows have this key; declare a `key` that tells them apart")
    }
}

fn reason(code: &str, message: &str) -> Reason {
    Reason { code: code.to_owned(), message: message.to_owned() }
}
