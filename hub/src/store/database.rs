//! One SQLite file: one writer connection, a few readers, and a bounded line of callers.
//!
//! Work runs as closures on blocking threads, each inside one transaction that this module begins
//! and ends. Whoever waits for the writer waits in a queue of known length; beyond it, callers get
//! `Busy`. It knows no table.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, Transaction, TransactionBehavior};
use tokio::sync::Semaphore;

use super::migrate::{self, Migration};
use crate::error::StoreError;

/// Readers of one file: reads are short, and more of them than cores gain nothing.
const READERS: usize = 4;

/// Calls that wait for one file: one change can wake every device that waits, so more than one hub
/// has devices.
const WAITING_MAX: usize = 8192;

/// How long a write waits for another process's transaction.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Prepared statements kept a connection: a few for each dataspace in use.
const STATEMENTS: usize = 256;

/// Page cache of one connection in KiB; five of them a file stay in the tens of megabytes.
const CACHE_KIB: i64 = 8 * 1024;

/// Bytes of the write-ahead log that are kept for reuse.
const WAL_BYTES_KEPT: i64 = 64 << 20;

/// What went wrong inside a transaction; the transaction is rolled back.
#[derive(Debug)]
pub(super) enum DbError {
    /// The engine said no.
    Sqlite(rusqlite::Error),
    /// The store holds what this code never writes.
    Content(String),
}

impl From<rusqlite::Error> for DbError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl From<serde_json::Error> for DbError {
    fn from(error: serde_json::Error) -> Self {
        Self::Content(error.to_string())
    }
}

impl DbError {
    fn in_store(self, what: &'static str) -> StoreError {
        match self {
            Self::Content(message) => StoreError::Failed { what, source: message.into() },
            Self::Sqlite(error) => {
                let transient = matches!(
                    error.sqlite_error_code(),
                    Some(
                        ErrorCode::DatabaseBusy
                            | ErrorCode::DatabaseLocked
                            | ErrorCode::DiskFull
                            | ErrorCode::SystemIoFailure
                            | ErrorCode::OutOfMemory
                            | ErrorCode::SchemaChanged
                    )
                );
                let source = error.into();
                if transient {
                    StoreError::Busy { what, source }
                } else {
                    StoreError::Failed { what, source }
                }
            }
        }
    }
}

/// Whether this process serves from the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum OpenMode {
    /// It does.
    Serve,
    /// It runs one command, perhaps beside a process that serves.
    Beside,
}

/// An open file.
pub(super) struct Database {
    path: PathBuf,
    writer: Arc<tokio::sync::Mutex<Connection>>,
    /// Connections that no read uses; `reading` has a permit for each.
    readers: Arc<Mutex<Vec<Connection>>>,
    reading: Arc<Semaphore>,
    waiting: Semaphore,
}

impl Database {
    /// Opens or creates the file and brings it to the newest migration.
    pub(super) fn open(
        path: &Path,
        migrations: &[Migration],
        mode: OpenMode,
    ) -> Result<Self, StoreError> {
        let mut writer = connect(path)?;
        migrate::run(&mut writer, path, migrations)?;
        let readers = if mode == OpenMode::Serve { READERS } else { 1 };
        let connections: Result<Vec<Connection>, StoreError> =
            (0..readers).map(|_| connect_reader(path)).collect();
        Ok(Self {
            path: path.to_owned(),
            writer: Arc::new(tokio::sync::Mutex::new(writer)),
            readers: Arc::new(Mutex::new(connections?)),
            reading: Arc::new(Semaphore::new(readers)),
            waiting: Semaphore::new(WAITING_MAX),
        })
    }

    /// Runs a write before the file is shared.
    pub(super) fn setup<T>(
        &mut self,
        what: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, DbError>,
    ) -> Result<T, StoreError> {
        let writer = Arc::get_mut(&mut self.writer).ok_or(StoreError::Closed)?;
        in_transaction(writer.get_mut(), TransactionBehavior::Immediate, work)
            .map_err(|error| error.in_store(what))
    }

    /// Runs `work` in a write transaction and commits it unless it fails. It is durable when this
    /// returns. A caller that goes away does not stop it.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _place = self.waiting.try_acquire().map_err(|full| self.crowded(what, full))?;
        let mut writer = Arc::clone(&self.writer).lock_owned().await;
        let ran = tokio::task::spawn_blocking(move || {
            in_transaction(&mut writer, TransactionBehavior::Immediate, work)
        });
        finish(what, ran.await)
    }

    /// Runs `work` in a read transaction: all its statements see the same commits.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        what: &'static str,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, DbError> + Send + 'static,
    ) -> Result<T, StoreError> {
        let _place = self.waiting.try_acquire().map_err(|full| self.crowded(what, full))?;
        let permit = Arc::clone(&self.reading)
            .acquire_owned()
            .await
            .map_err(|_closed| StoreError::Closed)?;
        let readers = Arc::clone(&self.readers);
        let path = self.path.clone();
        let ran = tokio::task::spawn_blocking(move || {
            let idle = readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            // Empty only after a read that panicked took its connection along.
            let mut reader = match idle {
                Some(reader) => reader,
                None => connect_reader(&path).map_err(|error| {
                    DbError::Content(format!("a reader cannot be opened again: {error}"))
                })?,
            };
            let answer = in_transaction(&mut reader, TransactionBehavior::Deferred, work);
            readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            drop(permit);
            answer
        });
        finish(what, ran.await)
    }

    fn crowded(&self, what: &'static str, full: tokio::sync::TryAcquireError) -> StoreError {
        tracing::debug!(path = %self.path.display(), "the line of waiting calls is full");
        StoreError::Busy { what, source: full.into() }
    }
}

fn finish<T>(
    what: &'static str,
    ran: Result<Result<T, DbError>, tokio::task::JoinError>,
) -> Result<T, StoreError> {
    match ran {
        Ok(answer) => answer.map_err(|error| error.in_store(what)),
        Err(error) if error.is_cancelled() => Err(StoreError::Closed),
        Err(panic) => Err(StoreError::Failed { what, source: panic.into() }),
    }
}

fn in_transaction<T>(
    connection: &mut Connection,
    behavior: TransactionBehavior,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, DbError>,
) -> Result<T, DbError> {
    let tx = connection.transaction_with_behavior(behavior)?;
    let answer = work(&tx)?;
    tx.commit()?;
    Ok(answer)
}

/// Opens a connection that may write, creating the file where there is none.
pub(super) fn connect(path: &Path) -> Result<Connection, StoreError> {
    open_with(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE, |db| {
        let mode: String = db.pragma_update_and_check(None, "journal_mode", "WAL", |r| r.get(0))?;
        if mode != "wal" {
            return Err(rusqlite::Error::InvalidQuery);
        }
        db.pragma_update(None, "synchronous", "FULL")?;
        // What a large transaction grew is given back at the next checkpoint.
        db.pragma_update_and_check(None, "journal_size_limit", WAL_BYTES_KEPT, |_| Ok(()))
    })
}

/// Opens a connection that the engine itself keeps from writing.
pub(super) fn connect_reader(path: &Path) -> Result<Connection, StoreError> {
    open_with(path, OpenFlags::SQLITE_OPEN_READ_WRITE, |db| {
        db.pragma_update(None, "query_only", true)
    })
}

fn open_with(
    path: &Path,
    flags: OpenFlags,
    set_up: impl FnOnce(&Connection) -> rusqlite::Result<()>,
) -> Result<Connection, StoreError> {
    let opened = Connection::open_with_flags(path, flags | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .and_then(|db| {
            db.busy_timeout(BUSY_TIMEOUT)?;
            db.set_prepared_statement_cache_capacity(STATEMENTS);
            db.pragma_update(None, "foreign_keys", true)?;
            db.pragma_update(None, "cache_size", -CACHE_KIB)?;
            set_up(&db)?;
            Ok(db)
        });
    opened.map_err(|source| StoreError::Open { path: path.to_owned(), source: source.into() })
}
