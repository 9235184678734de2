//! What can go wrong with a store, by what its caller has to do about it.
//!
//! The message says what happened, where and what to do next, without the source: whoever prints
//! an error prints its chain. Errors of one row or one request are types of the traits.

use std::error::Error;
use std::path::PathBuf;

/// A store could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The store is occupied or out of room for the moment: the same again later can succeed.
    #[error("{what} cannot be done now; it is tried again later")]
    Busy {
        /// What was being done.
        what: &'static str,
        /// What the engine said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The folder or file cannot be used at all.
    #[error(
        "the store {} cannot be opened: check that the path exists and may be written",
        path.display()
    )]
    Open {
        /// The folder or file.
        path: PathBuf,
        /// What the system said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// A migration that is recorded as applied is not the one that this binary carries.
    #[error(
        "{}: migration {number} ({name}) was applied with other content than this binary has; \
         start the release that wrote this store, or restore a backup",
        path.display()
    )]
    MigrationChecksum {
        /// The store.
        path: PathBuf,
        /// The migration's number.
        number: i64,
        /// Its name, as recorded.
        name: String,
    },
    /// A later release wrote the store.
    #[error(
        "{}: the store has migration {found}, this binary knows up to {known}; start a newer \
         rowtide-hub",
        path.display()
    )]
    Newer {
        /// The store.
        path: PathBuf,
        /// The highest migration recorded.
        found: i64,
        /// The highest migration known here.
        known: i64,
    },
    /// The store holds something that this code never writes, or the engine failed.
    #[error("{what} failed in the store")]
    Failed {
        /// What was being done.
        what: &'static str,
        /// What the engine said.
        source: Box<dyn Error + Send + Sync>,
    },
    /// The store's writer has ended: the process is shutting down.
    #[error("the store is closed")]
    Closed,
}

impl StoreError {
    /// Whether the same request can succeed later without anyone's help.
    #[must_use]
    pub const fn is_transient(&self) -> bool {
        match self {
            Self::Busy { .. } | Self::Closed => true,
            Self::Open { .. }
            | Self::MigrationChecksum { .. }
            | Self::Newer { .. }
            | Self::Failed { .. } => false,
        }
    }
}
