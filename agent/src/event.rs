//! Everything that can wake an engine.

use sync_proto::session::Input;

/// Something that an engine is told.
#[derive(Debug)]
pub(crate) enum Event {
    /// The database was opened, for the first time or again.
    Opened,
    /// Something for the session.
    Input(Input),
}
