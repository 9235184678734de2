//! The agent's own tests: the configuration's errors, and the built binary without a hub.
#![expect(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod answers;
mod commands;
mod configuration;
mod place;
mod running;
