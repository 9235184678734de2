//! The core's tests, one binary: rules as tables, laws as properties, frames as golden files,
//! session traces, and two ends over a bad link.
//!
//! Nothing here touches a database or a network. A test that draws at random prints its seed.
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod arbitrary;
mod backoff;
mod continuity;
mod fingerprint;
mod keys;
mod laws;
mod notation;
mod ranges;
mod row_hash;
mod rows;
mod rule_table;
mod session_pair;
mod wire_golden;
