//! Replays do nothing: not at the hub, not on the device.

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use system_tests::{Device, Hub, Proxy, Rng, until, writer};

use crate::{BOUND, ORDERS, SETTINGS};

#[test]
fn old_batches_in_any_order_change_nothing_at_either_end() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let hub = Hub::start(folder.path())?;
    let proxy = Proxy::start(&hub.url())?;
    let token = hub.device_token("gw-07")?;
    let tables = [SETTINGS, ORDERS];
    let mut device = Device::with_hub(folder.path(), "gw-07", &proxy.url()?, "", &token, &tables)?;
    writer::shell(
        &device.app_db,
        "PRAGMA journal_mode=wal;
         CREATE TABLE settings(k TEXT PRIMARY KEY, value TEXT);
         CREATE TABLE orders(id INTEGER PRIMARY KEY, status TEXT);
         CREATE TABLE readings(id INTEGER PRIMARY KEY, v REAL);
         CREATE TABLE tmp_fired(n INTEGER);
         CREATE TRIGGER fired_i AFTER INSERT ON settings BEGIN INSERT INTO tmp_fired VALUES(1); END;
         CREATE TRIGGER fired_u AFTER UPDATE ON settings BEGIN INSERT INTO tmp_fired VALUES(2); END;",
    )?;
    device.start()?;
    device.wait_drained(BOUND)?;
    for round in 0..6 {
        writer::shell(
            &device.app_db,
            &format!(
                "INSERT INTO orders(status) VALUES('open'),('{round}');
                 UPDATE orders SET status = status || '+' WHERE id % 2 = 0;
                 DELETE FROM orders WHERE id = {round};
                 INSERT INTO readings(v) VALUES({round}.5);"
            ),
        )?;
        hub.put("settings", "mode", &json!({ "value": format!("m{round}") }))?;
        let expected = format!("m{round}");
        until("the setting", BOUND, || {
            let found = writer::shell(&device.app_db, "SELECT value FROM settings")?;
            Ok((found.trim_end() == expected).then_some(()))
        })?;
        device.wait_drained(BOUND)?;
    }
    replay_up(&hub, &proxy, &token)?;
    replay_down(&device, &proxy)
}

fn replay_up(hub: &Hub, proxy: &Proxy, token: &str) -> Result<()> {
    let before = everything(hub)?;
    let frames = proxy.up_frames();
    ensure!(frames.len() > 3, "only {} up batches", frames.len());
    let seed = Rng::seed()?;
    println!("replay order seed {seed}");
    let mut rng = Rng::new(seed);
    let mut order: Vec<usize> = (0..frames.len()).flat_map(|index| [index; 5]).collect();
    for index in (1..order.len()).rev() {
        let bound = u64::try_from(index + 1)?;
        order.swap(index, usize::try_from(rng.below(bound))?);
    }
    for index in order {
        proxy.replay_up(&frames[index], token)?;
    }
    ensure!(everything(hub)? == before, "a replayed up batch changed rows or events");
    Ok(())
}

fn replay_down(device: &Device, proxy: &Proxy) -> Result<()> {
    let batches = proxy.down_batches();
    ensure!(!batches.is_empty(), "no down batch passed");
    let fired = writer::shell(&device.app_db, "SELECT count(*) FROM tmp_fired")?;
    let files = || -> Result<(Vec<u8>, Vec<u8>)> {
        let wal = device.app_db.with_extension("db-wal");
        Ok((std::fs::read(&device.app_db)?, std::fs::read(wal)?))
    };
    let before = files()?;
    for batch in batches.iter().chain(batches.iter().rev()) {
        proxy.replay_down(batch, BOUND)?;
    }
    ensure!(files()? == before, "app.db or its WAL changed");
    let after = writer::shell(&device.app_db, "SELECT count(*) FROM tmp_fired")?;
    ensure!(after == fired, "a trigger fired");
    Ok(())
}

/// Rows with versions and times, and the store's own history, outbox and row tables.
fn everything(hub: &Hub) -> Result<Value> {
    let mut found = serde_json::Map::new();
    for dataspace in ["settings", "orders", "readings"] {
        found.insert(dataspace.to_owned(), json!(hub.rows(dataspace)?));
    }
    for file in ["hub.db", "mutable.db"] {
        let store = rusqlite::Connection::open_with_flags(
            hub.data().join(file),
            rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY,
        )?;
        let mut statement = store.prepare("SELECT name FROM sqlite_master WHERE type = 'table'")?;
        let names: Vec<String> =
            statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
        for name in names.iter().filter(|name| is_data(name)) {
            let count: i64 = store
                .query_row(&format!("SELECT count(*) FROM \"{name}\""), [], |row| row.get(0))
                .with_context(|| format!("{file}: {name}"))?;
            found.insert(format!("{file}:{name}"), json!(count));
        }
    }
    Ok(Value::Object(found))
}

/// Everything that a delivery could add to, except the counters that P4 asks for.
fn is_data(name: &str) -> bool {
    ["history", "outbox", "orphan", "ds_", "rows"].iter().any(|part| name.contains(part))
}
