//! The device daemon: processes, sockets and time around [`capture`] and the session machine.
//!
//! It decides nothing about rows. A store thread per database does what blocks, an engine per
//! database drives its session, one link carries the messages, and a control socket tells how
//! everything is. Start reading at [`engine`](../src/engine.rs).

pub mod cli;
pub mod config;
pub mod control;
mod daemon;
mod engine;
mod event;
mod link;
mod lock;
mod logging;
mod service;
pub mod status;
mod store;
mod watch;
