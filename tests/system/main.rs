//! End to end, with the real binaries and real writers: one module per promise of the first loop.
//!
//! Every test has its own folder, hub and device, on loopback ports of its own.
#![expect(clippy::print_stdout, reason = "measurements and seeds belong into a run's log")]

mod api;
mod backlog;
mod bad_input;
mod downlink;
mod lineage;
mod neighbour;
mod replay;
mod tls;
mod uplink;
mod values;

use std::time::Duration;

use anyhow::Result;
use system_tests::{Device, Hub, TableOverride};
use tempfile::TempDir;

/// How long any one thing may take on a machine that does other work too.
const BOUND: Duration = Duration::from_secs(60);

/// `settings` as a cloud-authoritative state table; everything else by default.
const SETTINGS: TableOverride = TableOverride {
    name: "settings",
    lines: "modality = \"state\"\nauthority = \"cloud\"\nlocal_writes = \"revert\"",
};

/// `orders` as a device-authoritative state table.
const ORDERS: TableOverride = TableOverride { name: "orders", lines: "modality = \"state\"" };

/// A hub and a device that talk to each other; the agent is not started.
fn pair(overrides: &[TableOverride]) -> Result<(TempDir, Hub, Device)> {
    let folder = tempfile::tempdir()?;
    let hub = Hub::start(folder.path())?;
    let device = Device::new(folder.path(), "gw-07", &hub, overrides)?;
    Ok((folder, hub, device))
}
