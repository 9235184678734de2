//! The hub's integration tests: real stores in temporary folders, the protocol called as a device
//! calls it.
#![expect(clippy::unwrap_used, reason = "a test ends where its set-up fails")]

mod ingest_adopt;
mod ingest_epoch;
mod ingest_feed;
mod ingest_identity;
mod ingest_ranges;
mod ingest_replay;
mod ingest_rollback;
mod ingest_tables;
mod ingest_values;
mod mutable_rows;
mod retention;
mod rig;
mod state_write;
mod store_files;
