//! The story: each step does one thing with real processes, measures it, and stops if it fails.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};
use sync_proto::message::ToHub;
use sync_proto::rows::{Row, unpack};
use sync_proto::wire;
use system_tests::{oracle, until};

use crate::application::{self, Job};
use crate::gateway::{Gateway, TABLES};
use crate::teller::Teller;

/// How long any one thing may take, on a machine that does other work too.
const BOUND: Duration = Duration::from_secs(60);

/// What the demo measured.
#[derive(Default)]
struct Measured {
    captured: i64,
    upsynced: usize,
    tombstones: usize,
    downsync_applied: usize,
    stale_replays: usize,
    stale_replays_applied: usize,
    lost: usize,
}

/// Tells the story; fails at the first step that does not hold, and then leaves the folder for a
/// look at what the processes logged.
pub(crate) fn run(original: Option<&Path>, json: bool, stay: bool) -> Result<()> {
    system_tests::binaries::build()?;
    let folder = tempfile::Builder::new().prefix("rowtide-demo-").tempdir()?;
    let told = tell(folder.path(), original, json, stay);
    if told.is_err() {
        let kept = folder.keep();
        return told.with_context(|| format!("logs and data are in {}", kept.display()));
    }
    told
}

fn tell(folder: &Path, original: Option<&Path>, json: bool, stay: bool) -> Result<()> {
    let mut teller = Teller::new();
    let mut measured = Measured::default();

    teller.step("A hub, an agent, and an application that knows neither");
    let mut gateway = Gateway::start(folder, original)?;
    gateway.application(Job::Setup)?;
    gateway.device.start()?;
    teller.say(&format!(
        "hub       {} (data in {})\nagent     {}\ndatabase  {}",
        gateway.hub.url(),
        gateway.hub.data().display(),
        gateway.device.config().display(),
        gateway.device.app_db.display(),
    ));

    rows_go_up(&mut teller, &mut gateway)?;
    delete_becomes_tombstone(&mut teller, &mut gateway)?;
    cloud_change_comes_down(&mut teller, &mut gateway, &mut measured)?;
    local_edit_is_put_back(&mut teller, &gateway)?;
    hub_dies_and_returns(&mut teller, &mut gateway)?;
    replays_do_nothing(&mut teller, &mut gateway, &mut measured)?;
    count_everything(&mut teller, &mut gateway, &mut measured)?;

    if json {
        println!("{}", measured.json());
    }
    if stay {
        stay_up(&teller, &gateway)?;
    }
    ensure!(gateway.device.stop()?.success(), "the agent did not stop cleanly");
    ensure!(gateway.hub.stop()?.success(), "the hub did not stop cleanly");
    Ok(())
}

fn rows_go_up(teller: &mut Teller, gateway: &mut Gateway) -> Result<()> {
    teller.step("The application works; its committed rows arrive at the hub");
    gateway.application(Job::Work)?;
    gateway.device.wait_drained(BOUND)?;
    let sql = "SELECT status, count(*) AS orders, max(_version) AS newest FROM work_orders \
               GROUP BY status ORDER BY status";
    let rows = gateway.hub.query(sql)?;
    teller.say(&format!("POST /projects/default/query\n  {sql}"));
    for row in &rows {
        teller.say(&format!("  {:<8} {:>6} {:>8}", text(&row[0]), row[1], row[2]));
    }
    let total: i64 = rows.iter().filter_map(|row| row[1].as_i64()).sum();
    ensure!(
        total == application::ORDERS,
        "{total} orders at the hub, {} written",
        application::ORDERS
    );
    for table in ["work_orders", "sensors"] {
        let rows = oracle::assert_equal(
            &gateway.device.app_db,
            table,
            &gateway.hub,
            Some(gateway.device.id),
        )?;
        teller.held(&format!("{table}: {rows} rows, every value and storage class equal"));
    }
    Ok(())
}

fn delete_becomes_tombstone(teller: &mut Teller, gateway: &mut Gateway) -> Result<()> {
    teller.step("A delete becomes a tombstone");
    let before = oracle::device_rows(&gateway.device.app_db, "work_orders")?;
    gateway.application(Job::Purge)?;
    let after = oracle::device_rows(&gateway.device.app_db, "work_orders")?;
    let gone: Vec<&Value> =
        before.iter().filter(|(key, _)| !after.contains_key(*key)).map(|(_, row)| row).collect();
    ensure!(!gone.is_empty(), "the application deleted nothing");
    let source = gateway.device.id;
    for row in gone {
        let key = row["order_id"].as_str().context("an order has no id")?;
        let path = format!("/dataspaces/work_orders/rows/{key}?source_id={source}");
        until("the tombstone at the hub", BOUND, || {
            Ok((gateway.hub.call("GET", &path, &[], None)?.status == 404).then_some(()))
        })?;
        teller.held(&format!("GET …/dataspaces/work_orders/rows/{key} → 404"));
    }
    Ok(())
}

fn cloud_change_comes_down(
    teller: &mut Teller,
    gateway: &mut Gateway,
    measured: &mut Measured,
) -> Result<()> {
    teller.step("The cloud changes `settings`; the change arrives in the application's table");
    let adopted = until("the device's settings at the hub", BOUND, || {
        let rows = gateway.hub.rows("settings")?;
        Ok((rows.len() == 4).then_some(rows.len()))
    })?;
    teller.say(&format!("the device's {adopted} rows were adopted: the hub had none"));
    let before = down_rows(gateway);
    for (k, value) in [("mode", "night"), ("limit_c", "80"), ("greeting", "hello, gw-07")] {
        let values = json!({ "value": value, "changed_by": "cloud" });
        let row = gateway.hub.put("settings", k, &values)?;
        teller.say(&format!("PUT …/dataspaces/settings/rows/{k} → version {}", row["version"]));
        until("the setting in the application's table", BOUND, || {
            let local: Option<String> = setting(gateway, k)?;
            Ok((local.as_deref() == Some(value)).then_some(()))
        })?;
        measured.downsync_applied += 1;
        teller.held(&format!("SELECT value FROM settings WHERE k = '{k}' → {value}"));
    }
    let came = down_rows(gateway) - before;
    ensure!(came >= 3, "only {came} rows passed the wire for 3 cloud writes");
    Ok(())
}

fn local_edit_is_put_back(teller: &mut Teller, gateway: &Gateway) -> Result<()> {
    teller.step("A local edit of a cloud-authoritative table is put back");
    gateway.application(Job::Meddle)?;
    until("the cloud's value", BOUND, || {
        Ok((setting(gateway, "mode")?.as_deref() == Some("night")).then_some(()))
    })?;
    teller.held("UPDATE settings SET value = 'off' WHERE k = 'mode' → 'night' again");
    let status = until("the revert in status", BOUND, || {
        let status = gateway.device.table_status("settings")?;
        Ok((status["reverted"].as_u64() > Some(0)).then_some(status))
    })?;
    teller.held(&format!("rowtide status: settings, {} local write put back", status["reverted"]));
    Ok(())
}

fn hub_dies_and_returns(teller: &mut Teller, gateway: &mut Gateway) -> Result<()> {
    teller.step("The hub is killed with -9 while the application goes on");
    gateway.hub.kill()?;
    gateway.application(Job::Offline)?;
    let pending = until("pending rows in status", BOUND, || {
        let pending = gateway.device.table_status("work_orders")?["pending"].as_u64();
        Ok(pending.filter(|pending| *pending > 0))
    })?;
    teller.say(&format!("rowtide status: work_orders, {pending} keys wait in the log"));
    gateway.hub.restart()?;
    teller.say("the hub is back");
    gateway.device.wait_drained(BOUND * 2)?;
    for table in ["work_orders", "sensors"] {
        let rows = oracle::assert_equal(
            &gateway.device.app_db,
            table,
            &gateway.hub,
            Some(gateway.device.id),
        )?;
        teller.held(&format!("{table}: {rows} rows, all equal, nothing lost"));
    }
    Ok(())
}

fn replays_do_nothing(
    teller: &mut Teller,
    gateway: &mut Gateway,
    measured: &mut Measured,
) -> Result<()> {
    teller.step("Every old batch is delivered again, newest first");
    let before = everything(gateway)?;
    let mut frames = gateway.proxy.up_frames();
    frames.reverse();
    for frame in &frames {
        let receipt = gateway.proxy.replay_up(frame, &gateway.device_token)?;
        measured.stale_replays += up_rows(frame)?.len();
        ensure!(receipt.last.0 > 0, "a replay got a receipt for nothing");
    }
    let after = everything(gateway)?;
    measured.stale_replays_applied += differences(&before, &after);
    teller.held(&format!(
        "{} up batches ({} rows): {} rows changed at the hub",
        frames.len(),
        measured.stale_replays,
        measured.stale_replays_applied
    ));

    let file = file_bytes(&gateway.device.app_db)?;
    let mut batches = gateway.proxy.down_batches();
    batches.reverse();
    let mut rows = 0;
    for batch in &batches {
        gateway.proxy.replay_down(batch, BOUND)?;
        rows += unpack(&batch.rows)?.iter().map(|table| table.rows.len()).sum::<usize>();
    }
    measured.stale_replays += rows;
    let written = usize::from(file_bytes(&gateway.device.app_db)? != file);
    measured.stale_replays_applied += written;
    ensure!(written == 0, "app.db or its WAL changed when old down batches came again");
    teller.held(&format!(
        "{} down batches ({rows} rows): app.db and its WAL byte-identical",
        batches.len()
    ));
    ensure!(measured.stale_replays_applied == 0, "a replay changed something");
    Ok(())
}

fn count_everything(
    teller: &mut Teller,
    gateway: &mut Gateway,
    measured: &mut Measured,
) -> Result<()> {
    teller.step("The balance");
    gateway.device.wait_drained(BOUND)?;
    measured.captured =
        gateway
            .device
            .open()?
            .query_row("SELECT max(seq) FROM _rowtide_log", [], |row| row.get(0))?;
    for frame in gateway.proxy.up_frames() {
        let rows = up_rows(&frame)?;
        measured.upsynced += rows.len();
        measured.tombstones += rows.iter().filter(|row| row.deleted).count();
    }
    let status = gateway.device.status()?;
    let tables = status["databases"][0]["tables"].as_array().context("status has no tables")?;
    for table in tables {
        let name = table["name"].as_str().context("a table has no name")?;
        let source = (table["authority"] == "device").then_some(gateway.device.id);
        let device = oracle::device_rows(&gateway.device.app_db, name)?;
        let hub = oracle::hub_rows(&gateway.hub, name, source)?;
        let lost = device.keys().filter(|key| !hub.contains_key(*key)).count()
            + hub.keys().filter(|key| !device.contains_key(*key)).count();
        measured.lost += lost;
        let own = if TABLES.contains(&name) { "" } else { " (the file's own)" };
        teller.say(&format!(
            "{name}{own}: {} rows on the device, {} at the hub",
            device.len(),
            hub.len()
        ));
    }
    teller.say(&format!(
        "captured {}, upsynced {}, tombstones {}, downsync applied {}, stale replays {} (applied {}), lost {}",
        measured.captured,
        measured.upsynced,
        measured.tombstones,
        measured.downsync_applied,
        measured.stale_replays,
        measured.stale_replays_applied,
        measured.lost
    ));
    ensure!(measured.lost == 0, "{} rows differ between device and hub", measured.lost);
    ensure!(measured.tombstones > 0, "no tombstone passed the wire");
    Ok(())
}

fn stay_up(teller: &Teller, gateway: &Gateway) -> Result<()> {
    let database = gateway.device.app_db.display();
    let config = gateway.device.config();
    let target = std::env::current_exe().ok().and_then(|exe| exe.parent().map(Path::to_path_buf));
    let target = target.unwrap_or_default();
    println!("\n{}", teller.bold("Everything stays up. Try, in another terminal:"));
    teller.say(&format!(
        "sqlite3 {database} \"INSERT INTO work_orders(order_id, machine, status) VALUES('MINE', 'press-1', 'open')\"\n\
         curl -s -H 'Authorization: Bearer {token}' {url}/projects/default/dataspaces/work_orders/rows/MINE\n\
         curl -s -X PUT -H 'Authorization: Bearer {token}' -H 'Content-Type: application/json' \\\n  \
         -d '{{\"values\": {{\"value\": \"from my terminal\"}}}}' {url}/projects/default/dataspaces/settings/rows/note\n\
         sqlite3 {database} \"SELECT * FROM settings\"\n\
         {rowtide} status --config {config}\n\
         End it with Ctrl-C; the folder goes with it.",
        token = gateway.hub.api_token(),
        url = gateway.hub.url(),
        rowtide = target.join("rowtide").display(),
        config = config.display(),
    ));
    wait_for_interrupt()
}

/// Returns on Ctrl-C; the terminal's SIGINT reaches the hub and the agent as well.
fn wait_for_interrupt() -> Result<()> {
    let (interrupt, wait) = std::sync::mpsc::sync_channel(1);
    ctrlc::set_handler(move || interrupt.try_send(()).unwrap_or_default())?;
    Ok(wait.recv()?)
}

impl Measured {
    fn json(&self) -> Value {
        json!({
            "captured": self.captured,
            "upsynced": self.upsynced,
            "tombstones": self.tombstones,
            "downsync_applied": self.downsync_applied,
            "stale_replays": self.stale_replays,
            "stale_replays_applied": self.stale_replays_applied,
            "lost": self.lost,
        })
    }
}

fn setting(gateway: &Gateway, k: &str) -> Result<Option<String>> {
    use rusqlite::OptionalExtension as _;
    let sql = "SELECT value FROM settings WHERE k = ?1";
    Ok(gateway.device.open()?.query_row(sql, [k], |row| row.get(0)).optional()?)
}

fn down_rows(gateway: &Gateway) -> usize {
    let batches = gateway.proxy.down_batches();
    let tables = batches.iter().filter_map(|batch| unpack(&batch.rows).ok());
    tables.flatten().map(|table| table.rows.len()).sum()
}

fn up_rows(frame: &[u8]) -> Result<Vec<Row>> {
    let ToHub::Up(batch) = wire::decode_to_hub(frame)? else { bail!("the frame is no UpBatch") };
    Ok(unpack(&batch.rows)?.into_iter().flat_map(|table| table.rows).collect())
}

/// Every row of every dataspace with its version and times, as the hub tells it.
fn everything(gateway: &Gateway) -> Result<Vec<Vec<Value>>> {
    let dataspaces = gateway.hub.get("/dataspaces")?;
    let list = dataspaces["dataspaces"].as_array().context("no list of dataspaces")?.clone();
    list.iter()
        .map(|dataspace| gateway.hub.rows(dataspace["name"].as_str().unwrap_or_default()))
        .collect()
}

fn differences(before: &[Vec<Value>], after: &[Vec<Value>]) -> usize {
    let changed = |(before, after): (&Vec<Value>, &Vec<Value>)| {
        before.len().abs_diff(after.len())
            + before.iter().zip(after).filter(|(before, after)| before != after).count()
    };
    before.len().abs_diff(after.len()) + before.iter().zip(after).map(changed).sum::<usize>()
}

fn file_bytes(database: &Path) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut wal = database.as_os_str().to_owned();
    wal.push("-wal");
    Ok((std::fs::read(database)?, std::fs::read(wal).unwrap_or_default()))
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
