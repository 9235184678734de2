//! One agent at a time on one state folder.
//!
//! The lock is the kernel's, on an open file, so it ends with the process however that ends.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Holds the state folder for as long as it lives.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Creates the folder if it is missing, and takes its lock.
    ///
    /// # Errors
    /// When the folder cannot be used, or another agent runs on it.
    pub(crate) fn take(state_dir: &Path) -> Result<Self> {
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(state_dir).with_context(
            || format!("{}: the state folder cannot be created", state_dir.display()),
        )?;
        let path = state_dir.join("lock");
        let mut file = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .with_context(|| format!("{}: the lock cannot be opened", path.display()))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => bail!(
                "{}: another rowtide runs on this state folder; stop it first, or give this one \
                 its own [agent] state_dir",
                path.display()
            ),
            Err(error) => {
                return Err(error)
                    .with_context(|| format!("{}: the lock cannot be taken", path.display()));
            }
        }
        // For a person who looks; a full disk is no reason not to run.
        drop(file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id())));
        Ok(Self { _file: file })
    }
}
