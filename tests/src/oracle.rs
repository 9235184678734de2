//! Are device and hub equal? Row by row, value by value, storage class by storage class.
//!
//! The expected side is read straight from the file and put into the API's JSON form by code of
//! its own, so that a fault in the product's encoders cannot hide here.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use base64::Engine as _;
use rusqlite::Connection;
use rusqlite::types::ValueRef;
use serde_json::{Value, json};

use crate::hub::Hub;

/// Rows by their values' text: a key both sides can be compared by.
pub type Rows = BTreeMap<String, Value>;

/// The rows of a table in the file, in the API's form.
pub fn device_rows(database: &Path, table: &str) -> Result<Rows> {
    let connection = Connection::open(database)?;
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    let quoted = format!("\"{}\"", table.replace('"', "\"\""));
    let mut statement = connection.prepare(&format!("SELECT * FROM {quoted}"))?;
    let names: Vec<String> = statement.column_names().iter().map(|&name| name.into()).collect();
    let mut rows = statement.query([])?;
    let mut found = Rows::new();
    while let Some(row) = rows.next()? {
        let mut values = serde_json::Map::new();
        for (index, name) in names.iter().enumerate() {
            values.insert(name.clone(), json_form(row.get_ref(index)?));
        }
        insert(&mut found, &values)?;
    }
    Ok(found)
}

/// The rows of a dataspace at the hub that one source wrote.
pub fn hub_rows(hub: &Hub, dataspace: &str, source: Option<uuid::Uuid>) -> Result<Rows> {
    let mut found = Rows::new();
    for row in hub.rows(dataspace)? {
        if source.is_some_and(|source| row["source_id"] != source.to_string()) {
            continue;
        }
        insert(&mut found, row["values"].as_object().context("a row has no values")?)?;
    }
    Ok(found)
}

/// Fails with the differences when a table of the file and its dataspace are not equal.
pub fn assert_equal(
    database: &Path,
    table: &str,
    hub: &Hub,
    source: Option<uuid::Uuid>,
) -> Result<usize> {
    let device = device_rows(database, table)?;
    let hub = hub_rows(hub, table, source)?;
    if device == hub {
        return Ok(device.len());
    }
    let missing: Vec<&String> =
        device.keys().filter(|key| !hub.contains_key(*key)).take(5).collect();
    let surplus: Vec<&String> =
        hub.keys().filter(|key| !device.contains_key(*key)).take(5).collect();
    bail!(
        "{table}: {} rows on the device, {} at the hub\n only device: {missing:#?}\n only hub: {surplus:#?}",
        device.len(),
        hub.len(),
    )
}

fn insert(rows: &mut Rows, values: &serde_json::Map<String, Value>) -> Result<()> {
    let sorted: BTreeMap<&String, &Value> =
        values.iter().filter(|(_, value)| !value.is_null()).collect();
    let text = serde_json::to_string(&sorted)?;
    if rows.insert(text.clone(), Value::Object(values.clone())).is_some() {
        bail!("two rows have the same content: {text}");
    }
    Ok(())
}

fn json_form(value: ValueRef<'_>) -> Value {
    let base64 = |bytes: &[u8]| base64::engine::general_purpose::STANDARD.encode(bytes);
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(n) => json!(n),
        ValueRef::Real(n) if n.is_infinite() => {
            json!({ "$real": if n > 0.0 { "inf" } else { "-inf" } })
        }
        ValueRef::Real(n) => json!(n),
        ValueRef::Blob(bytes) => json!({ "$blob": base64(bytes) }),
        ValueRef::Text(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => json!(text),
            Ok(_) | Err(_) => json!({ "$text": base64(bytes) }),
        },
    }
}
