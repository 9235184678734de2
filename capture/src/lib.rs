//! Change capture and apply on an ordinary SQLite file that another program owns.
//!
//! [`Capture`] is the one handle to one file: it installs triggers that log keys, builds labelled
//! batches from one snapshot, clears what receipts cover, and applies rows that come down. It knows
//! no network, no clock but a monotonic one, and no thread: the agent calls it, one step at a time.
//!
//! Every write of ours is one short IMMEDIATE transaction, no read outlives a call, and only a
//! receipt removes a key from the log.
#![warn(missing_docs)]

mod ages;
mod apply;
mod attach;
mod batch;
mod check;
pub mod config;
mod connection;
mod continuity;
mod enrol;
mod epoch;
mod error;
mod fill;
mod fold;
mod handle;
mod housekeep;
mod in_flight;
mod inspect;
mod keys;
mod local;
mod log;
mod meta;
mod outcomes;
mod parked;
mod pattern;
mod pending;
mod progress;
mod quarantine;
mod registry;
mod row;
mod schema;
mod seed;
mod settle;
mod shadow;
mod snapshot;
mod state;
mod status;
mod trigger;
mod uninstall;
mod welcome;

pub use apply::ApplyOutcome;
pub use check::{CheckReport, CheckedTable, check};
pub use error::{CaptureError, ErrorClass, Result};
pub use handle::Capture;
pub use housekeep::Housekeeping;
pub use local::LastRevert;
pub use parked::QuarantinedRow;
#[doc(hidden)]
pub use snapshot::TailBounds;
pub use status::{
    Alarm, DatabaseStatus, SkippedTable, TableStatus, offline_quarantine, offline_status,
};
pub use uninstall::{reseed, uninstall};
