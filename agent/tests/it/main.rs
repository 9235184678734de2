//! The agent's own tests: the configuration's errors, and the built binary without a hub.

mod commands;
mod configuration;
