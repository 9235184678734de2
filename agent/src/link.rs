//! The way to the hub: one message out, one message back. HTTPS today.
//!
//! Errors are classified here, once, into what the session does about them; whoever sends gives up
//! nothing by itself.

pub(crate) mod https;

use std::time::Duration;

use sync_proto::session::Failure;

/// A failure to be tried again later.
pub(crate) fn retry(error: impl Into<String>) -> Failure {
    Failure::Retry { error: error.into(), after: None }
}

/// A failure to be tried again not before a time that the hub named.
pub(crate) fn retry_after(error: impl Into<String>, after: Option<Duration>) -> Failure {
    Failure::Retry { error: error.into(), after }
}
