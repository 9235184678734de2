//! The embedded stores: `hub.db` (catalog, lineages, state plane) and `mutable.db` in one folder.
//!
//! SQLite in WAL mode with synchronous=FULL: what a call wrote before it returned survives a power
//! cut. One writer a file puts all writes into one order, also those of other processes, because
//! SQLite lets only one transaction write at a time. No SQLite type leaves this module.

mod catalog;
mod columns;
mod commit;
mod database;
mod devices;
mod epoch;
mod lineage;
mod migrate;
mod mutable;
mod outbox;
mod query;
mod row_table;
mod state;
mod term;
mod write;

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;

use self::database::{Database, OpenMode};
pub(crate) use self::mutable::MutableStore;
pub(crate) use self::query::QueryStore;
pub(crate) use self::state::StateStore;
use crate::error::StoreError;

/// The file of catalog, lineages and state rows.
const STATE_FILE: &str = "hub.db";

/// The file of mutable rows.
const MUTABLE_FILE: &str = "mutable.db";

/// Both stores of a folder, opened to serve.
pub(crate) struct Stores {
    pub(crate) state: Arc<StateStore>,
    pub(crate) mutable: Arc<MutableStore>,
    pub(crate) query: Arc<QueryStore>,
}

impl Stores {
    /// Opens or creates the stores, starts a term, and notices a mutable store that is not the one
    /// that the state store last saw.
    pub(crate) fn open(dir: &Path) -> Result<Self, StoreError> {
        make_folder(dir)?;
        let (state_path, mutable_path) = (dir.join(STATE_FILE), dir.join(MUTABLE_FILE));
        let mut state = Database::open(&state_path, migrate::HUB, OpenMode::Serve)?;
        let mut mutable = Database::open(&mutable_path, migrate::MUTABLE, OpenMode::Serve)?;
        let mark = mutable.setup("marking the mutable store", mutable::mark)?;
        let told = state.setup("starting a term", move |tx| term::start(tx, &mark))?;
        if let term::Start::MutableReplaced { incarnation } = told {
            tracing::warn!(
                %incarnation,
                path = %mutable_path.display(),
                "the mutable store is not the one that was used last (replaced or restored): \
                 every device compares and sends its rows again"
            );
        }
        let (state, mutable) = (Arc::new(state), Arc::new(mutable));
        Ok(Self {
            query: Arc::new(QueryStore::new(Arc::clone(&state), state_path, mutable_path)),
            state: Arc::new(StateStore::new(state)),
            mutable: Arc::new(MutableStore::new(mutable)),
        })
    }

    /// Opens the state store beside a process that serves from it: no term is started.
    pub(crate) fn open_beside(dir: &Path) -> Result<Arc<StateStore>, StoreError> {
        make_folder(dir)?;
        let state = Database::open(&dir.join(STATE_FILE), migrate::HUB, OpenMode::Beside)?;
        Ok(Arc::new(StateStore::new(Arc::new(state))))
    }
}

/// Creates the folder for its owner only: it holds every device's rows.
fn make_folder(dir: &Path) -> Result<(), StoreError> {
    DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(dir)
        .map_err(|source| StoreError::Open { path: dir.to_owned(), source: source.into() })
}
