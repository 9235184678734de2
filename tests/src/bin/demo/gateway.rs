//! The demo's stage: hub, proxy, device, and a copy of the file that the story runs on.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use rusqlite::OpenFlags;
use system_tests::{Device, Hub, Proxy, TableOverride};

use crate::application::Job;

/// The tables that the story writes.
pub(crate) const TABLES: [&str; 3] = ["work_orders", "sensors", "settings"];

/// Everything that runs.
pub(crate) struct Gateway {
    pub(crate) hub: Hub,
    pub(crate) proxy: Proxy,
    pub(crate) device: Device,
    pub(crate) device_token: String,
}

impl Gateway {
    /// Starts a hub, a recording proxy and a device whose database is a copy of `original`.
    pub(crate) fn start(folder: &Path, original: Option<&Path>) -> Result<Self> {
        let hub = Hub::start(folder)?;
        let proxy = Proxy::start(&hub.url())?;
        let device_token = hub.device_token("gw-07")?;
        let settings = TableOverride {
            name: "settings",
            lines: "modality = \"state\"\nauthority = \"cloud\"\nlocal_writes = \"revert\"",
        };
        let orders = TableOverride { name: "work_orders", lines: "modality = \"state\"" };
        let device = Device::with_hub(
            folder,
            "gw-07",
            &proxy.url()?,
            "",
            &device_token,
            &[settings, orders],
        )?;
        if let Some(original) = original {
            copy(original, &device.app_db)?;
        }
        Ok(Self { hub, proxy, device, device_token })
    }

    /// Runs one job of the application in a process of its own.
    pub(crate) fn application(&self, job: Job) -> Result<()> {
        let status = Command::new(std::env::current_exe()?)
            .arg("application")
            .arg(&self.device.app_db)
            .arg(job.name())
            .status()?;
        ensure!(status.success(), "the application failed at {}", job.name());
        Ok(())
    }
}

/// Copies a database through SQLite, so that commits still in its WAL come along.
fn copy(original: &Path, to: &Path) -> Result<()> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let source = rusqlite::Connection::open_with_flags(original, flags)
        .and_then(|source| source.busy_timeout(Duration::from_secs(2)).map(|()| source))
        .with_context(|| format!("{} cannot be opened", original.display()))?;
    let target = to.to_str().context("the temporary folder's name is not UTF-8")?;
    source
        .execute("VACUUM INTO ?1", [target])
        .with_context(|| format!("{} cannot be copied", original.display()))?;
    let mut statement = source.prepare("SELECT name FROM sqlite_master WHERE type = 'table'")?;
    let names: Vec<String> =
        statement.query_map([], |row| row.get(0))?.collect::<Result<_, _>>()?;
    for table in TABLES {
        ensure!(
            !names.iter().any(|name| name.eq_ignore_ascii_case(table)),
            "{} has a table {table} of its own, which the story needs; drop it in a copy first",
            original.display()
        );
    }
    Ok(())
}
