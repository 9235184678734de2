//! Every storage class round-trips exactly, up and down, through the file, the wire and the API.

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use system_tests::{oracle, until, writer};

use crate::{BOUND, SETTINGS, pair};

#[test]
fn every_storage_class_goes_up_exactly() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[])?;
    writer::shell(&device.app_db, "CREATE TABLE v(id INTEGER PRIMARY KEY, x)")?;
    device.start()?;
    writer::shell(
        &device.app_db,
        "INSERT INTO v(x) VALUES(NULL),(0),(1),(1.0),('1'),(x'31'),(''),(x''),
         (9007199254740993),(9223372036854775807),(-9223372036854775808),
         (0.1),(5e-324),(1.7976931348623157e308),(1e999),(-1e999),(-2.5),
         (CAST(x'610062' AS TEXT)),(CAST(x'ff41c3' AS TEXT)),(x'00ff00'),('{ \"b\":1,\"a\":1.0 }'),
         ('1719500000'),('0012345678905'),(char(128512) || char(8238) || char(65279)),(zeroblob(70000));",
    )?;
    writer::python(
        &device.app_db,
        "import sqlite3, sys\n\
         db = sqlite3.connect(sys.argv[1], timeout=5)\n\
         db.execute('INSERT INTO v(x) VALUES(?)', ('\\U0001F600' * 50000,))\n\
         db.execute('INSERT INTO v(x) VALUES(?)', (2**63 - 1,))\n\
         db.execute('INSERT INTO v(x) VALUES(?)', (0.1 + 0.2,))\n\
         db.commit()",
    )?;
    device.wait_drained(BOUND)?;
    let rows = oracle::assert_equal(&device.app_db, "v", &hub, Some(device.id))?;
    ensure!(rows == 28, "{rows} rows");
    Ok(())
}

#[test]
fn every_storage_class_comes_down_exactly() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[SETTINGS])?;
    writer::shell(&device.app_db, "CREATE TABLE settings(k TEXT PRIMARY KEY, value)")?;
    device.start()?;
    device.wait_drained(BOUND)?;
    let cases: [(&str, Value, &str); 14] = [
        ("int", json!(9_007_199_254_740_993_i64), "integer|9007199254740993"),
        ("max", json!(i64::MAX), "integer|9223372036854775807"),
        ("min", json!(i64::MIN), "integer|-9223372036854775808"),
        ("one", json!(1), "integer|1"),
        ("one_real", json!(1.0), "real|1.0"),
        ("tenth", json!(0.1), "real|0.1"),
        ("inf", json!({ "$real": "inf" }), "real|Inf"),
        ("text", json!("é\u{1F600}"), "text|'é\u{1F600}'"),
        ("digits", json!("007"), "text|'007'"),
        ("nul", json!({ "$text": "YQBi" }), "text|610062"),
        ("not_utf8", json!({ "$text": "/0HD" }), "text|FF41C3"),
        ("blob", json!({ "$blob": "AP8A" }), "blob|00FF00"),
        ("empty_text", json!(""), "text|''"),
        ("empty_blob", json!({ "$blob": "" }), "blob|"),
    ];
    for (k, value, _) in &cases {
        let row = hub.put("settings", k, &json!({ "value": value }))?;
        ensure!(row["values"]["value"] == *value, "{k}: PUT {value} answered {row}");
        let read = hub.get(&format!("/dataspaces/settings/rows/{k}"))?;
        ensure!(read["values"]["value"] == *value, "{k}: GET gives {read}");
    }
    until("all rows on the device", BOUND, || {
        let count = writer::shell(&device.app_db, "SELECT count(*) FROM settings")?;
        Ok((count.trim() == "14").then_some(()))
    })?;
    for (k, _, expected) in &cases {
        let form = match *k {
            "nul" | "not_utf8" | "blob" | "empty_blob" => "hex(value)",
            "text" | "digits" | "empty_text" => "quote(value)",
            _ => "value",
        };
        let sql = format!("SELECT typeof(value), {form} FROM settings WHERE k = '{k}'");
        let found = writer::shell(&device.app_db, &sql)?;
        ensure!(found.trim_end() == *expected, "{k}: {found:?}, expected {expected:?}");
    }
    let bits: f64 =
        device
            .open()?
            .query_row("SELECT value FROM settings WHERE k = 'tenth'", [], |row| row.get(0))?;
    ensure!(bits.to_bits() == 0.1_f64.to_bits(), "0.1 came as {bits:?}");
    Ok(())
}
