//! The two connections to the application's file, and the only ways to use them.
//!
//! A write is one IMMEDIATE transaction, retried outside the lock when the application holds it,
//! at most [`LOCK_MAX`] long and followed by a pause of four times its length. A read is one
//! transaction that ends before its result is looked at. The file is opened by SQLite alone: our
//! own look at it is `stat`, because closing a plain descriptor would drop SQLite's locks.

use std::ops::Deref;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rusqlite::config::DbConfig;
use rusqlite::limits::Limit;
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior};

use sync_proto::limits::BATCH_RAW_BYTES_MAX;

use crate::error::{CaptureError, Result};

/// How long a write lock of ours lasts, and a read where the journal makes readers block writers.
pub(crate) const LOCK_MAX: Duration = Duration::from_millis(20);

/// Work inside a lock, at most: the rest of [`LOCK_MAX`] is for the commit.
const WORK_MAX: Duration = Duration::from_millis(12);

/// Work inside a lock, at least: less would make no progress on a slow disk.
const WORK_MIN: Duration = Duration::from_millis(1);

/// Work inside a read, where the journal lets writers go on beside readers. A WAL begins anew only
/// between reads, so a busy application's grows by what it writes in this time.
const WAL_READ_WORK: Duration = Duration::from_millis(25);

/// Pauses are this many times as long as the lock before them.
const PAUSE_FACTOR: u32 = 4;

/// How long SQLite itself waits for a lock. Short, because it waits while holding others.
const BUSY_TIMEOUT: Duration = Duration::from_millis(15);

/// How long a single look from the CLI waits for a lock; it holds none meanwhile.
const LOOK_TIMEOUT: Duration = Duration::from_secs(5);

/// Attempts at a transaction before [`CaptureError::Busy`]: about two seconds with the pauses.
const ATTEMPTS_MAX: u32 = 40;

/// Pause between attempts, outside every lock.
const RETRY_PAUSE: Duration = Duration::from_millis(30);

/// Frames of the WAL at which it is checkpointed: SQLite's own default.
const WAL_FRAMES_MAX: i64 = 1000;

/// KiB of page cache per connection.
const CACHE_KIB: i32 = 1024;

/// Prepared statements kept per connection: a few for each of some tables.
const STATEMENTS_MAX: usize = 48;

/// Bytes of one value that the reader loads.
const VALUE_BYTES_MAX: i32 = 16 << 20;

// No larger value fits a batch, and every smaller one can be weighed.
const _: () = assert!(VALUE_BYTES_MAX as usize == BATCH_RAW_BYTES_MAX);

/// Which file a path names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct FileId {
    /// The device that holds the file.
    pub(crate) dev: u64,
    /// The file's inode there.
    pub(crate) ino: u64,
}

impl FileId {
    /// Looks at `path` without opening it.
    ///
    /// # Errors
    /// Missing, a directory, or empty.
    pub(crate) fn of(path: &Path) -> Result<Self> {
        let meta = std::fs::metadata(path).map_err(|error| CaptureError::io(path, &error))?;
        if meta.is_dir() {
            return Err(CaptureError::Directory { path: path.to_owned() });
        }
        // To SQLite a file of one byte is an empty one as well.
        if meta.len() <= 1 {
            return Err(CaptureError::Empty { path: path.to_owned() });
        }
        Ok(Self { dev: meta.dev(), ino: meta.ino() })
    }
}

/// What a commit has to survive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Durability {
    /// A power cut: it and every commit before it, whatever the application's settings are.
    Full,
    /// A crash of the process; a power cut may undo it, and then it is done again.
    Relaxed,
}

/// The connections to one file.
#[derive(Debug)]
pub(crate) struct Connections {
    path: PathBuf,
    identity: FileId,
    writer: Connection,
    reader: Connection,
    quiet_until: Instant,
    work: Duration,
    /// Something was committed since the last look at the WAL's length.
    wrote: bool,
    /// Frames in the WAL when the file was last synced.
    wal_length: i64,
}

impl Connections {
    /// Opens an existing, writable SQLite file.
    ///
    /// # Errors
    /// Everything that makes the file unusable. Nothing is created in any case.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let identity = FileId::of(path)?;
        let writer = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        if writer.is_readonly("main")? {
            return Err(CaptureError::ReadOnly { path: path.to_owned() });
        }
        let reader = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        reader.pragma_update(None, "query_only", true)?;
        // What no batch can carry is not even read.
        reader.set_limit(Limit::SQLITE_LIMIT_LENGTH, VALUE_BYTES_MAX)?;
        // The path may have been given to another file while the two were opened.
        if FileId::of(path)? != identity {
            return Err(moved(path, "while it was opened"));
        }
        Ok(Self {
            path: path.to_owned(),
            identity,
            writer,
            reader,
            quiet_until: Instant::now(),
            work: WORK_MAX,
            wrote: false,
            wal_length: 0,
        })
    }

    /// The application's file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Which file is open.
    pub(crate) const fn identity(&self) -> FileId {
        self.identity
    }

    /// Checks that the path still names the open file.
    ///
    /// # Errors
    /// [`CaptureError::Moved`] or what `stat` found.
    pub(crate) fn check_identity(&self) -> Result<()> {
        if FileId::of(&self.path)? == self.identity {
            Ok(())
        } else {
            Err(moved(&self.path, "its path names another file"))
        }
    }

    /// What is left of the pause after the last lock.
    pub(crate) fn pause(&self) -> Duration {
        self.quiet_until.saturating_duration_since(Instant::now())
    }

    /// Runs `work` in one IMMEDIATE transaction, after the pause that the one before asked for.
    /// `work` runs again when the lock was lost, so it must not keep results of its own.
    ///
    /// # Errors
    /// [`CaptureError::Busy`] after bounded attempts, and whatever `work` returns.
    pub(crate) fn write<T>(
        &mut self,
        durability: Durability,
        mut work: impl FnMut(&WriteTx<'_>) -> Result<T>,
    ) -> Result<T> {
        for attempt in 1.. {
            std::thread::sleep(self.pause());
            match self.write_once(durability, &mut work) {
                Err(CaptureError::Busy { .. }) if attempt < ATTEMPTS_MAX => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                outcome => return outcome.map_err(|error| error.at(&self.path)),
            }
        }
        Err(CaptureError::Busy { path: self.path.clone() })
    }

    /// Runs `work` in one read transaction, which is over when this returns. Like
    /// [`Connections::write`], `work` may run again.
    ///
    /// # Errors
    /// [`CaptureError::Busy`] after bounded attempts, and whatever `work` returns.
    pub(crate) fn read<T>(&mut self, mut work: impl FnMut(&ReadTx<'_>) -> Result<T>) -> Result<T> {
        for attempt in 1.. {
            std::thread::sleep(self.pause());
            match self.read_once(&mut work) {
                Err(CaptureError::Busy { .. }) if attempt < ATTEMPTS_MAX => {
                    std::thread::sleep(RETRY_PAUSE);
                }
                outcome => return outcome.map_err(|error| error.at(&self.path)),
            }
        }
        Err(CaptureError::Busy { path: self.path.clone() })
    }

    /// Moves what we wrote from the WAL into the file once the WAL is as long as SQLite lets it get
    /// by default. Nobody else would, when only we write. It takes no lock that a writer or a
    /// reader waits for, and leaves a checkpoint that is running to the one who runs it.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn checkpoint(&mut self) -> Result<()> {
        if !self.wrote {
            return Ok(());
        }
        self.wrote = false;
        // Without a WAL both are -1.
        let (length, done) = self.wal("NOOP")?;
        if length >= WAL_FRAMES_MAX && done < length {
            self.wal("PASSIVE")?;
        }
        Ok(())
    }

    /// Puts on disk what a checkpoint of the application's moved into the file: with
    /// synchronous=OFF it does not sync it, and a commit of ours syncs the WAL alone.
    ///
    /// # Errors
    /// SQLite's.
    pub(crate) fn sync_file(&mut self) -> Result<()> {
        let (length, done) = self.wal("NOOP")?;
        // A shorter WAL was begun anew, which only a checkpoint allows.
        if done > 0 || length < self.wal_length {
            self.wal("PASSIVE")?;
        }
        self.wal_length = length;
        Ok(())
    }

    /// Frames in the WAL, and how many of them are in the file, after a checkpoint of this mode.
    fn wal(&self, mode: &str) -> Result<(i64, i64)> {
        let sql = format!("PRAGMA main.wal_checkpoint({mode})");
        let frames = self.writer.query_row(&sql, [], |row| Ok((row.get(1)?, row.get(2)?)));
        match frames.map_err(|error| CaptureError::from(error).at(&self.path)) {
            // Somebody else's checkpoint serves as well.
            Err(CaptureError::Busy { .. }) => Ok((0, 0)),
            frames => frames,
        }
    }

    fn write_once<T>(
        &mut self,
        durability: Durability,
        work: &mut impl FnMut(&WriteTx<'_>) -> Result<T>,
    ) -> Result<T> {
        let level = match durability {
            Durability::Full => "FULL",
            Durability::Relaxed if is_wal(&self.writer)? => "NORMAL",
            // A rollback journal that is not synced can leave a broken file behind.
            Durability::Relaxed => "FULL",
        };
        self.writer.pragma_update(None, "synchronous", level)?;
        let tx = self.writer.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let started = Instant::now();
        let tx = WriteTx { tx, started, work: self.work };
        let outcome = work(&tx);
        let outcome = match outcome {
            Ok(value) => tx.tx.commit().map(|()| value).map_err(CaptureError::from),
            Err(error) => {
                drop(tx);
                Err(error)
            }
        };
        let held = started.elapsed();
        self.wrote |= outcome.is_ok();
        self.quiet_until = Instant::now() + held * PAUSE_FACTOR;
        self.work = next_work(self.work, held);
        outcome
    }

    fn read_once<T>(&mut self, work: &mut impl FnMut(&ReadTx<'_>) -> Result<T>) -> Result<T> {
        let tx = self.reader.transaction_with_behavior(TransactionBehavior::Deferred)?;
        let started = Instant::now();
        // The first read takes the snapshot; the journal's mode is known from then on.
        tx.query_row("SELECT count(*) FROM sqlite_master WHERE 0", [], |_row| Ok(()))?;
        let wal = is_wal(&tx)?;
        let tx = ReadTx { tx, started, work: if wal { WAL_READ_WORK } else { self.work } };
        let outcome = work(&tx);
        drop(tx);
        if !wal {
            self.quiet_until = Instant::now() + started.elapsed() * PAUSE_FACTOR;
        }
        outcome
    }
}

/// A write transaction: a connection with a clock.
#[derive(Debug)]
pub(crate) struct WriteTx<'conn> {
    tx: Transaction<'conn>,
    started: Instant,
    work: Duration,
}

impl WriteTx<'_> {
    /// Whether the lock was held long enough: stop here, commit, and go on in the next one.
    pub(crate) fn spent(&self) -> bool {
        self.started.elapsed() >= self.work
    }
}

impl Deref for WriteTx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.tx
    }
}

/// A read transaction: one snapshot, with a clock.
#[derive(Debug)]
pub(crate) struct ReadTx<'conn> {
    tx: Transaction<'conn>,
    started: Instant,
    work: Duration,
}

impl ReadTx<'_> {
    /// Whether the snapshot was held long enough.
    pub(crate) fn spent(&self) -> bool {
        self.started.elapsed() >= self.work
    }
}

impl Deref for ReadTx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        &self.tx
    }
}

/// One connection under the rules of this file; proves that it is a database.
pub(crate) fn connect(path: &Path, flags: OpenFlags) -> Result<Connection> {
    let at = |error: rusqlite::Error| CaptureError::from(error).at(path);
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = Connection::open_with_flags(path, flags).map_err(at)?;
    conn.busy_timeout(BUSY_TIMEOUT).map_err(at)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    conn.pragma_update(None, "cache_size", -CACHE_KIB).map_err(at)?;
    conn.pragma_update(None, "mmap_size", 0).map_err(at)?;
    // What comes down obeys the schema, whatever SQLite was built with.
    conn.pragma_update(None, "foreign_keys", true).map_err(at)?;
    conn.pragma_update(None, "wal_autocheckpoint", 0).map_err(at)?;
    Ok(conn)
}

/// Opens a file for one look, changing nothing: for the CLI, beside a running agent or without one.
///
/// # Errors
/// Everything that makes the file unusable.
pub(crate) fn look(path: &Path) -> Result<Connection> {
    FileId::of(path)?;
    // A read-only connection would leave an empty WAL behind where there was none.
    let conn = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    let at = |error: rusqlite::Error| CaptureError::from(error).at(path);
    conn.busy_timeout(LOOK_TIMEOUT).map_err(at)?;
    conn.pragma_update(None, "query_only", true).map_err(at)?;
    let mut wal = path.as_os_str().to_owned();
    wal.push("-wal");
    if std::fs::metadata(wal).is_ok_and(|meta| meta.len() > 0) {
        // What the application left in its WAL stays there.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true).map_err(at)?;
    }
    Ok(conn)
}

/// The error for a file that is not the one that was opened.
pub(crate) fn moved(path: &Path, reason: &str) -> CaptureError {
    CaptureError::Moved { path: path.to_owned(), reason: reason.to_owned() }
}

fn is_wal(conn: &Connection) -> Result<bool> {
    let mode: String = conn.query_row("PRAGMA main.journal_mode", [], |row| row.get(0))?;
    Ok(mode.eq_ignore_ascii_case("wal"))
}

/// Shortens the work when a lock was too long, and lengthens it again slowly.
fn next_work(work: Duration, held: Duration) -> Duration {
    if held > LOCK_MAX {
        (work / 2).max(WORK_MIN)
    } else if held < LOCK_MAX * 3 / 4 {
        (work * 5 / 4).min(WORK_MAX)
    } else {
        work
    }
}
