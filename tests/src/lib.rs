//! The system harness: real `rowtide` and `rowtide-hub` processes on real files, over loopback.
//!
//! Everything lives in one temporary folder and ends with it. Processes are ended by the handle
//! that started them, never by name. The demo and the system tests stand on the same pieces.
#![expect(clippy::missing_errors_doc, reason = "a harness reports with context, not by type")]

pub mod binaries;
pub mod device;
pub mod hub;
pub mod oracle;
pub mod process;
pub mod proxy;
pub mod rng;
pub mod wait;
pub mod writer;

pub use device::{Device, TableOverride};
pub use hub::Hub;
pub use proxy::Proxy;
pub use rng::Rng;
pub use wait::until;
