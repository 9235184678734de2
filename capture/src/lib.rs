//! Change capture and apply on an ordinary SQLite file that another program owns.
//!
//! [`Capture`] is the one handle to one file: it installs triggers that log keys, builds labelled
//! batches from one snapshot, clears what receipts cover, and applies rows that come down. It knows
//! no network, no clock but a monotonic one, and no thread: the agent calls it, one step at a time.
//!
//! Every write of ours is one short IMMEDIATE transaction, no read outlives a call, and only a
//! receipt removes a key from the log.
#![warn(missing_docs)]

pub mod config;
mod connection;
mod continuity;
mod enrol;
mod error;
mod inspect;
mod log;
mod meta;
mod parked;
mod pattern;
mod pending;
mod progress;
mod registry;
mod row;
mod schema;
mod shadow;
mod state;
mod trigger;

pub use error::{CaptureError, ErrorClass, Result};
