//! Rows go up: every key type, from writers with libraries of their own, through restarts.

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::{oracle, until, writer};

use crate::{BOUND, ORDERS, pair};

const SCHEMA: &str = r#"
PRAGMA journal_mode=wal;
CREATE TABLE orders(id TEXT PRIMARY KEY, status TEXT, hours REAL);
CREATE TABLE readings(id INTEGER PRIMARY KEY, sensor TEXT, value REAL, raw BLOB);
CREATE TABLE composite(a, b TEXT, v, PRIMARY KEY(a, b));
CREATE TABLE blobkey(eui BLOB PRIMARY KEY, name TEXT) WITHOUT ROWID;
CREATE TABLE realkey(at REAL PRIMARY KEY, v);
CREATE TABLE "odd ""name"(" select " INTEGER PRIMARY KEY, "from" TEXT, [b r] BLOB);
CREATE TABLE nokey(v);
CREATE TABLE tmp_scratch(id INTEGER PRIMARY KEY, v);
CREATE VIEW live AS SELECT * FROM orders;
"#;

#[test]
fn every_key_type_goes_up_from_shell_and_python() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, SCHEMA)?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES('before', 'seeded', 1.5)")?;
    device.start()?;
    writer::shell(
        &device.app_db,
        r#"BEGIN; INSERT INTO orders VALUES('a','open',0.1),('b','open',2),('c','open',3); COMMIT;
        UPDATE orders SET status='done' WHERE id='b'; DELETE FROM orders WHERE id='c';
        UPDATE orders SET id='renamed' WHERE id='a';
        INSERT INTO composite VALUES(1,'x',1),('1','x',2),(x'31','x',3),(1.5,'y',4);
        UPDATE composite SET b='z' WHERE v=2;
        INSERT INTO blobkey VALUES(x'00c5ff','one'),(x'','empty');
        INSERT INTO realkey VALUES(0.1,'a'),(1e300,'b'),(-2.5,NULL);
        INSERT INTO "odd ""name" VALUES(1,'f',x'00'),(2,'g',NULL);
        INSERT INTO nokey VALUES('never'); INSERT INTO tmp_scratch VALUES(1,'never');"#,
    )?;
    writer::python(
        &device.app_db,
        "import sqlite3, sys\n\
         db = sqlite3.connect(sys.argv[1], timeout=5)\n\
         for n in range(500):\n    \
             db.execute('INSERT INTO readings(sensor, value, raw) VALUES(?, ?, ?)', (f's{n % 7}', n / 3, bytes([n % 256]) * 3))\n\
         db.execute('DELETE FROM readings WHERE id % 5 = 0')\n\
         db.execute('UPDATE readings SET value = value * 2 WHERE id % 3 = 0')\n\
         db.commit()",
    )?;
    device.wait_drained(BOUND)?;
    for table in ["orders", "readings", "composite", "blobkey", "realkey", "odd \"name"] {
        let encoded = system_tests::hub::percent(table);
        let device_rows = oracle::device_rows(&device.app_db, table)?;
        let hub_rows = oracle::hub_rows(&hub, &encoded, Some(device.id))?;
        ensure!(device_rows == hub_rows, "{table}: {device_rows:#?} {hub_rows:#?}");
        ensure!(!device_rows.is_empty(), "{table} is empty");
    }
    let names = hub.get("/dataspaces")?.to_string();
    ensure!(!names.contains("nokey") && !names.contains("tmp_scratch"), "{names}");
    let tables = String::from_utf8(device.rowtide(&["tables"])?.stdout)?;
    ensure!(tables.contains("nokey") && tables.contains("key ="), "{tables}");
    Ok(())
}

#[test]
fn agent_and_hub_restart_without_loss() -> Result<()> {
    let (_folder, mut hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, SCHEMA)?;
    device.start()?;
    for round in 0..4 {
        let sql = format!(
            "INSERT INTO orders SELECT 'r{round}-' || value, 'open', 1 FROM
             (WITH RECURSIVE n(value) AS (SELECT 1 UNION ALL SELECT value + 1 FROM n WHERE value < 300)
              SELECT value FROM n);
             UPDATE orders SET hours = hours + 1 WHERE id LIKE '%7';"
        );
        writer::shell(&device.app_db, &sql)?;
        match round {
            0 => ensure!(device.stop()?.success(), "{}", device.output()?),
            1 => hub.kill()?,
            2 => ensure!(hub.stop()?.success(), "{}", hub.output()?),
            _ => device.kill()?,
        }
        writer::shell(
            &device.app_db,
            "UPDATE orders SET status = status || '.' WHERE id LIKE '%3'",
        )?;
        if hub.runs() { device.start()? } else { hub.restart()? }
    }
    device.wait_drained(BOUND)?;
    oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id))?;
    let entry = hub.get("/devices/gw-07")?;
    ensure!(entry.to_string().contains("watermark"), "{entry}");
    Ok(())
}

#[test]
fn device_tables_cannot_be_written_by_the_api() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, SCHEMA)?;
    writer::shell(
        &device.app_db,
        "INSERT INTO orders VALUES('a','open',1); INSERT INTO readings VALUES(1,'s',1,NULL)",
    )?;
    device.start()?;
    device.wait_drained(BOUND)?;
    let body = json!({ "values": { "status": "hacked" } });
    let answer = hub.call("PUT", "/dataspaces/orders/rows/a", &[], Some(&body))?;
    ensure!(answer.status == 403, "{answer:?}");
    ensure!(answer.body["error"]["code"] == "device_authoritative", "{answer:?}");
    let answer = hub.call("DELETE", "/dataspaces/orders/rows/a", &[], None)?;
    ensure!(answer.status == 403, "{answer:?}");
    let answer = hub.call("PUT", "/dataspaces/readings/rows/1", &[], Some(&body))?;
    ensure!(answer.status == 405, "{answer:?}");
    Ok(())
}

#[test]
fn status_tells_pending_and_recovers() -> Result<()> {
    let (_folder, mut hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, "CREATE TABLE orders(id TEXT PRIMARY KEY, status TEXT, n INT)")?;
    device.start()?;
    device.wait_drained(BOUND)?;
    hub.kill()?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES('while away','open',1)")?;
    until("pending in status", BOUND, || {
        let orders = device.table_status("orders")?;
        Ok((orders["pending"] == 1).then_some(()))
    })?;
    until("a status that is not healthy", BOUND, || {
        Ok((device.status()?["status"] != "healthy").then_some(()))
    })?;
    hub.restart()?;
    until("a healthy status", BOUND, || {
        let status = device.status()?;
        ensure!(status["status"] == "healthy", "{status}");
        Ok(Some(()))
    })?;
    ensure!(device.table_status("orders")?["last_receipt"].is_string(), "no last receipt");
    Ok(())
}

#[test]
fn uninstall_leaves_the_schema_as_it_was() -> Result<()> {
    let (_folder, _hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, SCHEMA)?;
    let dump = "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY type, name";
    let before = writer::shell(&device.app_db, dump)?;
    device.start()?;
    writer::shell(&device.app_db, "INSERT INTO orders VALUES('a','open',1)")?;
    device.wait_drained(BOUND)?;
    ensure!(writer::shell(&device.app_db, dump)? != before, "nothing was installed");
    ensure!(!device.rowtide(&["uninstall"])?.status.success(), "uninstalled under a running agent");
    device.stop()?;
    let output = device.rowtide(&["uninstall"])?;
    ensure!(output.status.success(), "{output:?}");
    ensure!(writer::shell(&device.app_db, dump)? == before, "the schema differs");
    Ok(())
}
