//! Bad input end to end: one clear line each, nothing lost, nothing created.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};
use sync_proto::message::{Refusal, Refused, ToDevice};
use sync_proto::wire;
use system_tests::{Device, Hub, binaries, oracle, until, writer};

use crate::{BOUND, ORDERS, pair};

const TABLE: &str =
    "CREATE TABLE orders(id INTEGER PRIMARY KEY, v TEXT); INSERT INTO orders VALUES(1, 'a');";

#[test]
fn a_missing_file_fails_check_and_run_waits_for_it() -> Result<()> {
    let (_folder, hub, mut device) = pair(&[ORDERS])?;
    let output = device.rowtide(&["check"])?;
    ensure!(!output.status.success(), "check passed without the file");
    ensure!(
        String::from_utf8_lossy(&output.stdout).contains("app.db")
            || String::from_utf8_lossy(&output.stderr).contains("app.db"),
        "{output:?}"
    );
    device.start()?;
    until("waiting_for_file", BOUND, || {
        Ok(device.status()?.to_string().contains("waiting_for_file").then_some(()))
    })?;
    ensure!(!device.app_db.exists(), "the agent created the database");
    writer::shell(&device.app_db, TABLE)?;
    until("the row at the hub", BOUND, || {
        oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id)).map(Some)
    })?;
    Ok(())
}

#[test]
fn a_wrong_token_keeps_everything_and_recovers() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let hub = Hub::start(folder.path())?;
    let mut device = Device::with_hub(folder.path(), "gw-07", &hub.url(), "", "wrong", &[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    until("the refusal in status", BOUND, || {
        let status = device.status()?;
        let table = device.table_status("orders")?;
        ensure!(table["pending"] == 1, "{status}");
        Ok((status.to_string().contains("token") && status["status"] != "healthy").then_some(()))
    })?;
    device.stop()?;
    std::fs::write(folder.path().join("gw-07/token"), hub.device_token("gw-07")?)?;
    device.start()?;
    until("the row at the hub", BOUND, || {
        oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id)).map(Some)
    })?;
    Ok(())
}

#[test]
fn a_hub_of_another_version_is_named_and_nothing_is_lost() -> Result<()> {
    let server =
        tiny_http::Server::http("127.0.0.1:0").map_err(|error| anyhow::anyhow!("{error}"))?;
    let url = format!("http://{}", server.server_addr());
    let answers = std::thread::spawn(move || {
        let refused = Refused {
            code: Refusal::Format { min: 7, max: 9 },
            message: "this hub speaks formats 7 to 9".to_owned(),
        };
        let frame = wire::encode_to_device(&ToDevice::Refused(refused));
        // Bounded: the test is over long before that many.
        for request in server.incoming_requests().take(200) {
            let header = tiny_http::Header::from_bytes("content-type", wire::MEDIA_TYPE);
            if let Ok(header) = header {
                let response = tiny_http::Response::from_data(frame.clone()).with_header(header);
                request.respond(response).unwrap_or_default();
            }
        }
    });
    let folder = tempfile::tempdir()?;
    let mut device = Device::with_hub(folder.path(), "gw-07", &url, "", "token", &[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    device.start()?;
    until("the formats in status", BOUND, || {
        Ok(device.status()?.to_string().contains("7 to 9").then_some(()))
    })?;
    ensure!(device.table_status("orders")?["pending"] == 1, "{}", device.status()?);
    drop(answers);
    Ok(())
}

#[test]
fn a_port_in_use_is_one_clear_line() -> Result<()> {
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let address = taken.local_addr()?.to_string();
    let folder = tempfile::tempdir()?;
    let output = Command::new(binaries::rowtide_hub()?)
        .args(["serve", "--listen", &address, "--data"])
        .arg(folder.path().join("data"))
        .output()?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(text.contains(&address), "{text}");
    Ok(())
}

#[test]
fn other_databases_go_on_beside_a_file_that_is_none() -> Result<()> {
    let (folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    let other = folder.path().join("lines.db");
    std::fs::write(&other, "{\"id\":1,\"type\":\"Coordinator\"}\n".repeat(100))?;
    let mut config = std::fs::read_to_string(device.config())?;
    config.push_str(&format!("\n[[database]]\npath = \"{}\"\n", other.display()));
    std::fs::write(device.config(), config)?;
    device.start()?;
    until("the row at the hub", BOUND, || {
        oracle::assert_equal(&device.app_db, "orders", &hub, Some(device.id)).map(Some)
    })?;
    let status = device.status()?.to_string();
    ensure!(status.contains("not a SQLite database"), "{status}");
    ensure!(names_beside(&other)? == ["lines.db"], "files appeared: {:?}", names_beside(&other)?);
    Ok(())
}

#[test]
fn a_full_state_folder_is_named_and_nothing_is_lost() -> Result<()> {
    let (folder, hub, mut device) = pair(&[ORDERS])?;
    writer::shell(&device.app_db, TABLE)?;
    std::fs::create_dir_all(device.state_dir())?;
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=256k", "tmpfs"])
        .arg(device.state_dir())
        .status()?;
    if !mounted.success() {
        println!("SKIPPED: a small file system cannot be mounted here (needs root)");
        return Ok(());
    }
    let outcome = with_full_folder(&hub, &mut device);
    drop(device);
    Command::new("umount").arg("-l").arg(folder.path().join("gw-07/state")).status()?;
    outcome
}

fn with_full_folder(hub: &Hub, device: &mut Device) -> Result<()> {
    let filler = device.state_dir().join("filler");
    let full = std::fs::write(&filler, vec![1; 1 << 20]);
    ensure!(full.is_err(), "the folder did not fill up");
    device.start()?;
    until("the full folder to be named", BOUND, || {
        let output = device.output()?;
        let named = output.contains("full") || output.contains("No space");
        Ok((named && output.contains("state")).then_some(()))
    })?;
    // An agent that ended is started again, as systemd would.
    std::fs::remove_file(&filler)?;
    if device.process()?.ended()?.is_some() {
        device.start()?;
    }
    until("the row at the hub", BOUND, || {
        oracle::assert_equal(&device.app_db, "orders", hub, Some(device.id)).map(Some)
    })?;
    Ok(())
}

fn names_beside(path: &Path) -> Result<Vec<String>> {
    let stem = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    let mut names: Vec<String> = std::fs::read_dir(folder)?
        .filter_map(Result::ok)
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with(&stem))
        .collect();
    names.sort();
    Ok(names)
}
