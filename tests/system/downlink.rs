//! Cloud writes come down, in version order, also to devices that were away; they are not sent
//! back, and local edits of them do not last.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;
use system_tests::{Device, Hub, Proxy, oracle, until, writer};

use crate::{BOUND, SETTINGS, pair};

const TABLE: &str =
    "PRAGMA journal_mode=wal; CREATE TABLE settings(k TEXT PRIMARY KEY, value TEXT);";

fn value(device: &Device, k: &str) -> Result<String> {
    let sql = format!("SELECT value FROM settings WHERE k = '{k}'");
    Ok(writer::shell(&device.app_db, &sql)?.trim_end().to_owned())
}

fn wait_for(device: &Device, k: &str, expected: &str) -> Result<()> {
    until(&format!("{k} = {expected}"), BOUND, || Ok((value(device, k)? == expected).then_some(())))
}

#[test]
fn cloud_writes_and_deletes_arrive_also_after_an_absence() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[SETTINGS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    device.wait_drained(BOUND)?;
    hub.put("settings", "mode", &json!({ "value": "auto" }))?;
    hub.put("settings", "site", &json!({ "value": "here" }))?;
    wait_for(&device, "mode", "auto")?;
    wait_for(&device, "site", "here")?;
    device.kill()?;
    for round in 0..20 {
        hub.put("settings", "mode", &json!({ "value": format!("m{round}") }))?;
    }
    let gone = hub.call("DELETE", "/dataspaces/settings/rows/site", &[], None)?;
    ensure!(gone.status == 200 || gone.status == 204, "{gone:?}");
    device.start()?;
    wait_for(&device, "mode", "m19")?;
    wait_for(&device, "site", "")?;
    hub.put("settings", "site", &json!({ "value": "back" }))?;
    wait_for(&device, "site", "back")?;
    oracle::assert_equal(&device.app_db, "settings", &hub, None)?;
    Ok(())
}

#[test]
fn rows_of_scope_all_reach_every_device() -> Result<()> {
    let (folder, hub, mut first) = pair(&[SETTINGS])?;
    let mut second = Device::new(folder.path(), "gw-08", &hub, &[SETTINGS])?;
    for device in [&mut first, &mut second] {
        writer::shell(&device.app_db, TABLE)?;
        device.start()?;
        device.wait_drained(BOUND)?;
    }
    hub.put("settings", "mode", &json!({ "value": "all" }))?;
    wait_for(&first, "mode", "all")?;
    wait_for(&second, "mode", "all")
}

#[test]
fn local_rows_are_adopted_by_an_empty_hub_and_kept_beside_a_full_one() -> Result<()> {
    let (folder, hub, mut first) = pair(&[SETTINGS])?;
    writer::shell(&first.app_db, TABLE)?;
    writer::shell(&first.app_db, "INSERT INTO settings VALUES('mode','factory'),('unit','C')")?;
    first.start()?;
    until("adopted rows", BOUND, || Ok((hub.rows("settings")?.len() == 2).then_some(())))?;
    let mut second = Device::new(folder.path(), "gw-08", &hub, &[SETTINGS])?;
    writer::shell(&second.app_db, TABLE)?;
    writer::shell(&second.app_db, "INSERT INTO settings VALUES('mode','other'),('mine','kept')")?;
    second.start()?;
    wait_for(&second, "mode", "factory")?;
    wait_for(&second, "unit", "C")?;
    ensure!(value(&second, "mine")? == "kept", "a surplus local row was removed");
    ensure!(hub.rows("settings")?.len() == 2, "a surplus local row went up");
    ensure!(second.table_status("settings")?["surplus"] == 1, "{}", second.status()?);
    Ok(())
}

#[test]
fn an_applied_row_is_not_sent_back() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let hub = Hub::start(folder.path())?;
    let proxy = Proxy::start(&hub.url())?;
    let token = hub.device_token("gw-07")?;
    let mut device =
        Device::with_hub(folder.path(), "gw-07", &proxy.url()?, "", &token, &[SETTINGS])?;
    writer::shell(&device.app_db, TABLE)?;
    writer::shell(
        &device.app_db,
        "CREATE TABLE derived(id INTEGER PRIMARY KEY, k TEXT);
         CREATE TRIGGER app_trigger AFTER INSERT ON settings BEGIN
           INSERT INTO derived(k) VALUES(NEW.k); END;",
    )?;
    device.start()?;
    device.wait_drained(BOUND)?;
    for n in 0..50 {
        hub.put("settings", &format!("k{n}"), &json!({ "value": "v" }))?;
    }
    wait_for(&device, "k49", "v")?;
    device.wait_drained(BOUND)?;
    // What the application's own trigger derives elsewhere is a change like any other.
    until("derived rows at the hub", BOUND, || {
        oracle::assert_equal(&device.app_db, "derived", &hub, Some(device.id)).map(Some)
    })?;
    for frame in proxy.up_frames() {
        let sync_proto::message::ToHub::Up(batch) = sync_proto::wire::decode_to_hub(&frame)? else {
            continue;
        };
        for table in sync_proto::rows::unpack(&batch.rows)? {
            ensure!(table.table == "derived", "rows of {} were sent back", table.table);
        }
    }
    for row in hub.rows("settings")? {
        ensure!(row["version"] == 1, "a row was written again: {row}");
    }
    Ok(())
}

#[test]
fn a_local_edit_is_put_back_within_two_seconds_without_the_hub() -> Result<()> {
    let (_folder, mut hub, mut device) = pair(&[SETTINGS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    device.wait_drained(BOUND)?;
    hub.put("settings", "mode", &json!({ "value": "cloud" }))?;
    wait_for(&device, "mode", "cloud")?;
    hub.kill()?;
    let edits = [
        "UPDATE settings SET value = 'local' WHERE k = 'mode'",
        "DELETE FROM settings WHERE k = 'mode'",
        "INSERT INTO settings VALUES('mine', 'local')",
        "UPDATE settings SET k = 'moved' WHERE k = 'mode'",
    ];
    // The promise is two seconds on an idle machine. Tests share theirs, so the bound here only
    // tells "promptly, by itself" from "at the next contact with the hub".
    let mut slowest = Duration::ZERO;
    for edit in edits {
        writer::shell(&device.app_db, edit)?;
        let start = Instant::now();
        until(&format!("the shadow after {edit}"), BOUND, || {
            let rows = writer::shell(&device.app_db, "SELECT k, value FROM settings ORDER BY k")?;
            Ok((rows.trim_end() == "mode|cloud").then_some(()))
        })?;
        slowest = slowest.max(start.elapsed());
    }
    println!("slowest revert: {slowest:?}");
    let reverted = device.table_status("settings")?["reverted"].as_u64();
    ensure!(reverted >= Some(4), "{reverted:?} reverts in status");
    Ok(())
}

#[test]
fn stale_and_equal_versions_are_refused_with_the_current_row() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[SETTINGS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    device.wait_drained(BOUND)?;
    let path = "/dataspaces/settings/rows/mode";
    let put = |version: i64, value: &str| {
        let body = json!({ "values": { "value": value }, "version": version });
        hub.call("PUT", path, &[], Some(&body))
    };
    ensure!(put(5, "five")?.status == 201, "the first write creates");
    for version in [5, 4, 1] {
        let answer = put(version, "old")?;
        ensure!(answer.status == 409, "version {version}: {answer:?}");
        ensure!(answer.body["current"]["version"] == 5, "{answer:?}");
        ensure!(answer.body["current"]["values"]["value"] == "five", "{answer:?}");
    }
    ensure!(put(9, "nine")?.status == 200, "a newer version writes");
    let answer = hub.call("PUT", path, &[("if-match", "\"5\"")], Some(&json!({ "values": {} })))?;
    ensure!(answer.status == 409, "a stale If-Match: {answer:?}");
    wait_for(&device, "mode", "nine")
}
