//! Capture on real files: one binary, one module for each concern.
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod apply;
mod batches;
mod capture_keys;
mod cloud;
mod continuity;
mod enrol;
mod local;
mod locks;
mod model;
mod open;
mod pace;
mod parked;
mod property;
mod references;
mod row;
mod scale;
mod status;
mod uninstalling;
