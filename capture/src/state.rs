//! What is known outside the application's file: `state.db` in the agent's state directory.
//!
//! One row per database (who it was at the last barrier) and the events that status shows until
//! they are dealt with. It belongs to the agent alone, so it may be WAL and synchronous=FULL.
//! Losing it costs a re-send, never data.

use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension as _, params};
use sync_proto::{Epoch, InstanceId};
use uuid::Uuid;

use crate::connection::FileId;
use crate::error::{CaptureError, Result};
use crate::meta::{Stamp, signed, unsigned};

/// The file's name in the state directory.
const FILE: &str = "state.db";

/// Several databases of one agent share the file: a thread waits this long for another's commit.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

const OBJECTS: &str = "
    CREATE TABLE IF NOT EXISTS databases(name TEXT PRIMARY KEY, path BLOB NOT NULL,
        instance BLOB NOT NULL, epoch BLOB NOT NULL, stamp BLOB NOT NULL,
        dev INTEGER NOT NULL, ino INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS events(database TEXT NOT NULL, code TEXT NOT NULL,
        message TEXT NOT NULL, at TEXT NOT NULL, PRIMARY KEY(database, code));";

/// Who a database was at its last barrier.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Outside {
    /// The installation inside the file.
    pub(crate) instance: InstanceId,
    /// Its epoch.
    pub(crate) epoch: Epoch,
    /// The stamp of the barrier.
    pub(crate) stamp: Stamp,
    /// Which file it was.
    pub(crate) file: FileId,
}

/// Something that happened to a database's history and that a person should know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    /// A stable word: `database_restored`, `state_lost`, …
    pub(crate) code: String,
    /// What happened and what follows from it.
    pub(crate) message: String,
}

/// The state file, as one database sees it.
#[derive(Debug)]
pub(crate) struct StateStore {
    path: PathBuf,
    database: String,
    conn: Connection,
}

impl StateStore {
    /// Opens the state file, creating it and its directory where they are missing.
    ///
    /// # Errors
    /// [`CaptureError::Io`], [`CaptureError::Full`] or [`CaptureError::ReadOnly`] with the path
    /// when it cannot be written, [`CaptureError::State`] when it is not what it should be.
    pub(crate) fn open(state_dir: &Path, database: &str) -> Result<Self> {
        std::fs::create_dir_all(state_dir).map_err(|error| CaptureError::io(state_dir, &error))?;
        let path = state_dir.join(FILE);
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
            | OpenFlags::SQLITE_OPEN_CREATE
            | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let open = || {
            let conn = Connection::open_with_flags(&path, flags)?;
            conn.busy_timeout(BUSY_TIMEOUT)?;
            conn.pragma_update(None, "journal_mode", "WAL")?;
            conn.pragma_update(None, "synchronous", "FULL")?;
            conn.execute_batch(OBJECTS)?;
            Ok(conn)
        };
        let conn = open().map_err(|error| failed(&path, error))?;
        Ok(Self { path, database: database.to_owned(), conn })
    }

    /// Who the database was at its last barrier, if this directory knows it.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub(crate) fn load(&self) -> Result<Option<Outside>> {
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Outside {
                instance: InstanceId(Uuid::from_bytes(row.get(0)?)),
                epoch: Epoch(Uuid::from_bytes(row.get(1)?)),
                stamp: Stamp(row.get(2)?),
                file: FileId { dev: unsigned(row.get(3)?), ino: unsigned(row.get(4)?) },
            })
        };
        self.conn
            .query_row(
                "SELECT instance, epoch, stamp, dev, ino FROM databases WHERE name = ?1",
                [&self.database],
                read,
            )
            .optional()
            .map_err(|error| failed(&self.path, error))
    }

    /// Stores who the database is, durably.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub(crate) fn save(&self, file: &Path, outside: &Outside) -> Result<()> {
        use std::os::unix::ffi::OsStrExt as _;
        self.conn
            .prepare_cached(
                "INSERT OR REPLACE INTO databases(name, path, instance, epoch, stamp, dev, ino) \
                 VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )
            .and_then(|mut statement| {
                statement.execute(params![
                    self.database,
                    file.as_os_str().as_bytes(),
                    outside.instance.0.as_bytes(),
                    outside.epoch.0.as_bytes(),
                    outside.stamp.0,
                    signed(outside.file.dev),
                    signed(outside.file.ino),
                ])
            })
            .map(|_one| ())
            .map_err(|error| failed(&self.path, error))
    }

    /// Keeps an event until [`StateStore::clear_events`].
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub(crate) fn record(&self, event: &Event) -> Result<()> {
        self.conn
            .execute(
                "INSERT OR REPLACE INTO events(database, code, message, at) \
                 VALUES(?1, ?2, ?3, strftime('%Y-%m-%dT%H:%M:%SZ', 'now'))",
                [&self.database, &event.code, &event.message],
            )
            .map(|_one| ())
            .map_err(|error| failed(&self.path, error))
    }

    /// The events that are not dealt with.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub(crate) fn events(&self) -> Result<Vec<Event>> {
        let read = || -> rusqlite::Result<Vec<Event>> {
            self.conn
                .prepare_cached("SELECT code, message FROM events WHERE database = ?1 ORDER BY at")?
                .query_map([&self.database], |row| {
                    Ok(Event { code: row.get(0)?, message: row.get(1)? })
                })?
                .collect()
        };
        read().map_err(|error| failed(&self.path, error))
    }

    /// Forgets the events: what they led to is done.
    ///
    /// # Errors
    /// As [`StateStore::open`].
    pub(crate) fn clear_events(&self) -> Result<()> {
        self.conn
            .execute("DELETE FROM events WHERE database = ?1", [&self.database])
            .map(|_some| ())
            .map_err(|error| failed(&self.path, error))
    }
}

fn failed(path: &Path, error: rusqlite::Error) -> CaptureError {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt | ErrorCode::Unknown) | None => {
            CaptureError::State { path, message: error.to_string() }
        }
        Some(_) => CaptureError::from(error).at(&path),
    }
}
