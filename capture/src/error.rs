//! What can go wrong on an application's file, each with what happened, where and what to do.
//!
//! Errors of SQLite are classified here, once, at the border; what to do about a class is the
//! caller's choice. An error that comes from below has no path yet: [`CaptureError::at`] adds it
//! at the handle.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

/// Why capture could not do its work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureError {
    /// There is no file at the path.
    #[error(
        "{path}: there is no such file; start the application that creates it, or correct \
         the path",
        path = path.display()
    )]
    Missing {
        /// The database file.
        path: PathBuf,
    },
    /// The file is there but has no content yet.
    #[error(
        "{path}: the file is empty; it becomes usable once the application has created \
         its tables",
        path = path.display()
    )]
    Empty {
        /// The database file.
        path: PathBuf,
    },
    /// The path names a directory.
    #[error("{path}: this is a directory; name the database file inside it", path = path.display())]
    Directory {
        /// The path as configured.
        path: PathBuf,
    },
    /// The file is not a SQLite database, or it is encrypted.
    #[error(
        "{path}: this is not a SQLite database, or it is encrypted; name a plain SQLite 3 \
         file",
        path = path.display()
    )]
    NotADatabase {
        /// The file as configured.
        path: PathBuf,
    },
    /// The file or its directory cannot be written.
    #[error(
        "{path}: the file or its directory is read-only; let this user write both",
        path = path.display()
    )]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// Another connection kept its lock for longer than is waited for.
    #[error(
        "{path}: another process holds the database's lock; tried again later",
        path = path.display()
    )]
    Busy {
        /// The file.
        path: PathBuf,
    },
    /// The disk or the quota is full.
    #[error("{path}: the disk is full; free space, nothing was lost", path = path.display())]
    Full {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// The file's content is damaged.
    #[error(
        "{path}: the database is damaged ({message}); run the sqlite3 shell's \
         \".recover\" or restore a backup",
        path = path.display()
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What was found.
        message: String,
    },
    /// The file at the path is not the one that is open any more, or its content was replaced.
    /// The handle is of no further use: open a new one.
    #[error("{path}: the file was replaced ({reason}); it is opened anew", path = path.display())]
    Moved {
        /// The file.
        path: PathBuf,
        /// What gave it away.
        reason: String,
    },
    /// The agent's own state cannot be used.
    #[error(
        "{path}: the agent's state cannot be used ({message}); stop the agent and remove \
         this file, every table is then sent again",
        path = path.display()
    )]
    State {
        /// The state file.
        path: PathBuf,
        /// What is wrong with it.
        message: String,
    },
    /// The configuration does not fit the file.
    #[error("database {database}{table}: {reason}", table = table_part(table.as_deref()))]
    Config {
        /// The database's name.
        database: String,
        /// The table that the configuration names, if one is at fault.
        table: Option<String>,
        /// What is wrong and what to write.
        reason: String,
    },
    /// The operating system refused an operation on a file.
    #[error("{path}: {message}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was refused.
        message: String,
    },
    /// A message that does not belong to this database, epoch or generation.
    #[error("the message does not fit: {reason}")]
    Message {
        /// What does not fit.
        reason: String,
    },
    /// Any other failure of SQLite.
    #[error("{path}: SQLite failed", path = path.display())]
    Sqlite {
        /// The file.
        path: PathBuf,
        /// SQLite's own word.
        source: rusqlite::Error,
    },
}

/// What a caller does about an error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorClass {
    /// Nothing is wrong with us: wait until the file changes, then open again.
    Wait,
    /// The same again after a pause; after [`CaptureError::Moved`] with a new handle.
    Retry,
    /// Nothing helps but a person.
    Stop,
}

/// The crate's result.
pub type Result<T, E = CaptureError> = std::result::Result<T, E>;

impl CaptureError {
    /// What a caller does about the error.
    #[must_use]
    pub const fn class(&self) -> ErrorClass {
        match self {
            Self::Missing { .. } | Self::Empty { .. } => ErrorClass::Wait,
            Self::Busy { .. }
            | Self::Full { .. }
            | Self::Moved { .. }
            | Self::Io { .. }
            | Self::Message { .. }
            | Self::Sqlite { .. } => ErrorClass::Retry,
            Self::Directory { .. }
            | Self::NotADatabase { .. }
            | Self::ReadOnly { .. }
            | Self::Corrupt { .. }
            | Self::State { .. }
            | Self::Config { .. } => ErrorClass::Stop,
        }
    }

    /// Names the file of an error that came from below without one.
    #[must_use]
    pub(crate) fn at(mut self, file: &Path) -> Self {
        if let Some(path) = self.path_mut() {
            if path.as_os_str().is_empty() {
                file.clone_into(path);
            }
        }
        self
    }

    /// Damage that was found in what this crate stored itself.
    pub(crate) fn corrupt(message: impl Into<String>) -> Self {
        Self::Corrupt { path: PathBuf::new(), message: message.into() }
    }

    /// An operation on `path` that the operating system refused.
    pub(crate) fn io(path: &Path, error: &std::io::Error) -> Self {
        let path = path.to_owned();
        let kind = error.kind();
        if kind == ErrorKind::NotFound {
            Self::Missing { path }
        } else if matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
            Self::Full { path }
        } else {
            Self::Io { path, message: error.to_string() }
        }
    }

    fn path_mut(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Missing { path }
            | Self::Empty { path }
            | Self::Directory { path }
            | Self::NotADatabase { path }
            | Self::ReadOnly { path }
            | Self::Busy { path }
            | Self::Full { path }
            | Self::Corrupt { path, .. }
            | Self::Moved { path, .. }
            | Self::State { path, .. }
            | Self::Io { path, .. }
            | Self::Sqlite { path, .. } => Some(path),
            Self::Config { .. } | Self::Message { .. } => None,
        }
    }
}

impl From<rusqlite::Error> for CaptureError {
    fn from(source: rusqlite::Error) -> Self {
        let path = PathBuf::new();
        let Some(code) = source.sqlite_error_code() else {
            return Self::Sqlite { path, source };
        };
        let is = |codes: &[ErrorCode]| codes.contains(&code);
        if code == ErrorCode::NotADatabase {
            Self::NotADatabase { path }
        } else if code == ErrorCode::ReadOnly {
            Self::ReadOnly { path }
        } else if code == ErrorCode::DiskFull {
            Self::Full { path }
        } else if code == ErrorCode::DatabaseCorrupt {
            Self::Corrupt { path, message: source.to_string() }
        } else if is(&BUSY) {
            Self::Busy { path }
        } else if is(&IO) {
            Self::Io { path, message: source.to_string() }
        } else {
            Self::Sqlite { path, source }
        }
    }
}

/// Codes that mean "another connection is in the way".
const BUSY: [ErrorCode; 3] =
    [ErrorCode::DatabaseBusy, ErrorCode::DatabaseLocked, ErrorCode::FileLockingProtocolFailed];

/// Codes that mean "the operating system refused".
const IO: [ErrorCode; 3] =
    [ErrorCode::SystemIoFailure, ErrorCode::CannotOpen, ErrorCode::PermissionDenied];

fn table_part(table: Option<&str>) -> String {
    table.map_or_else(String::new, |table| format!(", table {table}"))
}
