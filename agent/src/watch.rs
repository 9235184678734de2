//! Wakes by directory watch: something beside a database changed.
//!
//! Only the directory is watched and only names are looked at; the files themselves are never
//! opened here, because closing a plain descriptor would drop SQLite's locks. A directory that is
//! not there yet is tried again by the slow tick of whoever asks.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use notify::{EventKind, RecommendedWatcher, RecursiveMode, Watcher};

use crate::store::{Request, Store};

/// The watch of all databases' directories.
pub(crate) struct Watch {
    watcher: RecommendedWatcher,
    /// Directories that are wanted, and whether they are watched.
    directories: BTreeMap<PathBuf, bool>,
}

impl Watch {
    /// Watches the directories of the databases; each wake goes to its database's thread.
    ///
    /// # Errors
    /// When the system gives no watch at all.
    pub(crate) fn start(databases: &[(PathBuf, Store)]) -> Result<Self> {
        let watched: Vec<(PathBuf, [OsString; 3], Store)> = databases
            .iter()
            .map(|(path, store)| (directory(path), names(path), store.clone()))
            .collect();
        let directories = watched.iter().map(|(folder, ..)| (folder.clone(), false)).collect();
        let watcher = notify::recommended_watcher(move |event: notify::Result<notify::Event>| {
            // Reads of the file by ourselves would wake us for ever.
            let Ok(event) = event else { return };
            if matches!(event.kind, EventKind::Access(_)) {
                return;
            }
            for (folder, names, store) in &watched {
                let concerns = |path: &PathBuf| {
                    path.parent() == Some(folder)
                        && path.file_name().is_some_and(|name| names.iter().any(|own| own == name))
                };
                if event.paths.iter().any(concerns) {
                    // A full queue is being worked off; the wake is in it already.
                    store.ask(Request::Wake);
                }
            }
        })
        .context("the system gives no directory watch")?;
        let mut watch = Self { watcher, directories };
        watch.retry();
        Ok(watch)
    }

    /// Watches the directories that were not there before.
    pub(crate) fn retry(&mut self) {
        for (folder, watched) in &mut self.directories {
            if !*watched {
                *watched = self.watcher.watch(folder, RecursiveMode::NonRecursive).is_ok();
            }
        }
    }

    /// Whether a directory is still not there.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.directories.values().any(|watched| !watched)
    }
}

fn directory(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// The database's own name and those of its side files.
fn names(path: &Path) -> [OsString; 3] {
    let name = path.file_name().unwrap_or_default();
    ["", "-wal", "-journal"].map(|ending| {
        let mut name = name.to_owned();
        name.push(ending);
        name
    })
}
