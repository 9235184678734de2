//! Wakes by directory watch: something beside a database changed.
//!
//! Only directories are watched and only names are looked at; the files themselves are never opened
//! here, because closing a plain descriptor would drop SQLite's locks. Reads are not watched, so
//! our own wake nobody. Between two looks the kernel folds equal events into one, so the busiest
//! application costs some fifty looks a second. Where no watch can be had, the store's tick serves.

use std::collections::BTreeSet;
use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::store::Store;

/// How often directories are looked for that are new, moved, or behind another link.
const PLACE_EVERY: Duration = Duration::from_secs(5);
/// Time in which events gather before they are read.
const GATHER: Duration = Duration::from_millis(20);
/// Bytes read at once: some hundred events with short names.
const BUFFER_BYTES: usize = 4 << 10;
/// Stack of the thread: the buffer and the resolving of links.
const STACK_BYTES: usize = 256 << 10;

/// A database's file, and who is woken.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) path: PathBuf,
    pub(crate) store: Store,
}

/// Starts the thread that watches for as long as the process lives.
///
/// # Errors
/// When the system starts no thread.
pub(crate) fn start(targets: Vec<Target>) -> Result<()> {
    std::thread::Builder::new()
        .name("watch".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(move || keep_watching(&targets))
        .context("the watch's thread cannot be started")?;
    Ok(())
}

fn keep_watching(targets: &[Target]) -> ! {
    let mut said = false;
    loop {
        let ended = Watch::new(targets).and_then(|mut watch| watch.run());
        targets.iter().for_each(|target| target.store.set_watched(false));
        if let (Err(error), false) = (ended, said) {
            said = true;
            tracing::warn!(
                "no directory watch ({error}); changes are looked for every second; raise \
                 fs.inotify.max_user_instances if that is what ran out"
            );
        }
        std::thread::sleep(PLACE_EVERY);
    }
}

/// A file by its directory's watch and its own name.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    watch: i32,
    name: OsString,
}

struct Watch<'a> {
    inotify: OwnedFd,
    targets: &'a [Target],
    /// For each target: where its path points, and where links lead from there.
    places: Vec<Vec<Place>>,
}

impl<'a> Watch<'a> {
    fn new(targets: &'a [Target]) -> Result<Self, Errno> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
        Ok(Self { inotify, targets, places: vec![Vec::new(); targets.len()] })
    }

    /// Ends only when the kernel's queue cannot be read.
    fn run(&mut self) -> Result<Infallible, Errno> {
        let mut place_at = Instant::now();
        loop {
            let wait = place_at.saturating_duration_since(Instant::now());
            if wait.is_zero() {
                self.place();
                place_at = Instant::now() + PLACE_EVERY;
                continue;
            }
            if self.has_events(wait)? {
                for at in self.woken()? {
                    self.targets[at].store.wake();
                }
                std::thread::sleep(GATHER);
            }
        }
    }

    fn has_events(&self, wait: Duration) -> Result<bool, Errno> {
        let wait = Timespec::try_from(wait).map_err(|_too_long| Errno::INVAL)?;
        match poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], Some(&wait)) {
            Ok(ready) => Ok(ready > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Watches the directories as they are at this time. One that is watched already stays so.
    fn place(&mut self) {
        let mut places = Vec::with_capacity(self.targets.len());
        for target in self.targets {
            let real = std::fs::canonicalize(&target.path).ok();
            let paths = [Some(target.path.clone()), real].into_iter().flatten();
            let found: Vec<Option<Place>> = paths.map(|path| self.watch(&path)).collect();
            target.store.set_watched(found.iter().all(Option::is_some));
            places.push(found.into_iter().flatten().collect::<Vec<_>>());
        }
        for ((target, now), before) in self.targets.iter().zip(&places).zip(&self.places) {
            // What happened before the watch stood was told to nobody.
            if now != before {
                target.store.wake();
            }
        }
        let before = std::mem::replace(&mut self.places, places);
        for watch in watches(&before).difference(&watches(&self.places)) {
            // It is gone already where the directory is.
            inotify::remove_watch(&self.inotify, *watch).unwrap_or_default();
        }
    }

    fn watch(&self, path: &Path) -> Option<Place> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let events = WatchFlags::MODIFY
            | WatchFlags::ATTRIB
            | WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::ONLYDIR;
        let watch = inotify::add_watch(&self.inotify, folder, events).ok()?;
        Some(Place { watch, name: path.file_name()?.to_owned() })
    }

    /// Reads what gathered; gives the targets that it concerns.
    fn woken(&self) -> Result<Vec<usize>, Errno> {
        let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
        let mut reader = inotify::Reader::new(&self.inotify, &mut buffer);
        let mut woken = vec![false; self.targets.len()];
        loop {
            let event = match reader.next() {
                Ok(event) => event,
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error),
            };
            let lost = event.events().contains(ReadFlags::QUEUE_OVERFLOW);
            let name = OsStr::from_bytes(event.file_name().map_or(b"", |name| name.to_bytes()));
            for (woken, places) in woken.iter_mut().zip(&self.places) {
                let concerns =
                    |place: &Place| place.watch == event.wd() && is_of_database(name, &place.name);
                *woken |= lost || places.iter().any(concerns);
            }
        }
        Ok(woken.iter().enumerate().filter(|(_, woken)| **woken).map(|(at, _)| at).collect())
    }
}

fn watches(places: &[Vec<Place>]) -> BTreeSet<i32> {
    places.iter().flatten().map(|place| place.watch).collect()
}

/// Whether a name is the database's own or that of a side file that changes with it.
fn is_of_database(name: &OsStr, database: &OsStr) -> bool {
    let ending = name.as_bytes().strip_prefix(database.as_bytes());
    ending.is_some_and(|ending| matches!(ending, b"" | b"-wal" | b"-journal"))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::path::Path;
    use std::time::Duration;

    use super::{Target, Watch, is_of_database};
    use crate::store::Store;

    #[test]
    fn the_shared_memory_file_and_strangers_wake_nobody() {
        let of = |name: &str| is_of_database(OsStr::new(name), OsStr::new("app.db"));
        for name in ["app.db", "app.db-wal", "app.db-journal"] {
            assert!(of(name), "{name}");
        }
        for name in ["app.db-shm", "app.db2", "app.db-wal2", "xapp.db", "app", ""] {
            assert!(!of(name), "{name}");
        }
    }

    /// What a touch of `file` wakes, after the directories were looked for.
    fn wakes(watch: &mut Watch<'_>, file: &Path) -> Vec<usize> {
        watch.place();
        std::fs::write(file, "x").unwrap();
        if watch.has_events(Duration::from_millis(50)).unwrap() {
            watch.woken().unwrap()
        } else {
            Vec::new()
        }
    }

    #[test]
    fn links_are_followed_and_folders_that_come_back_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let [real, linked] = ["real", "linked"].map(|name| folder.path().join(name));
        std::fs::create_dir(&real).unwrap();
        std::fs::create_dir(&linked).unwrap();
        std::fs::write(real.join("data.db"), "").unwrap();
        std::os::unix::fs::symlink(real.join("data.db"), linked.join("app.db")).unwrap();
        let late = folder.path().join("late");
        let targets: Vec<Target> = [linked.join("app.db"), late.join("late.db")]
            .map(|path| Target { path, store: Store::hollow() })
            .into();
        let mut watch = Watch::new(&targets).unwrap();
        // SQLite writes beside the file that the link leads to.
        assert_eq!(wakes(&mut watch, &real.join("data.db-wal")), [0]);
        assert!(wakes(&mut watch, &real.join("data.db-shm")).is_empty());
        for _life in 0..2 {
            std::fs::create_dir(&late).unwrap();
            assert_eq!(wakes(&mut watch, &late.join("late.db")), [1]);
            std::fs::remove_dir_all(&late).unwrap();
        }
    }

    #[test]
    fn a_watch_that_begins_wakes_for_what_happened_before() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("app.db");
        let targets = [Target { path, store: Store::hollow() }];
        let mut watch = Watch::new(&targets).unwrap();
        watch.place();
        assert!(targets[0].store.take_wake());
        watch.place();
        assert!(!targets[0].store.take_wake());
    }
}
