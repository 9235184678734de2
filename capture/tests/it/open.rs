//! Bad files: one clear error each, the right class, and nothing created beside them.

use std::path::Path;

use capture::{Capture, CaptureError, ErrorClass, check, offline_status, uninstall};
use tempfile::TempDir;

use crate::model::{DEVICE, config, connect};

fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// Opens a path in every way there is; each has to fail alike and leave the folder as it is.
fn refuse(path: &Path) -> Vec<CaptureError> {
    let state = TempDir::new().unwrap();
    let dir = path.parent().unwrap();
    let (before, bytes) = (listing(dir), std::fs::read(path).ok());
    let config = config(path);
    let errors = vec![
        Capture::open(&config, state.path(), DEVICE).unwrap_err(),
        check(&config).unwrap_err(),
        offline_status(&config).unwrap_err(),
        uninstall(path).unwrap_err(),
    ];
    assert_eq!(listing(dir), before);
    assert_eq!(std::fs::read(path).ok(), bytes);
    for error in &errors {
        assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    }
    errors
}

#[test]
fn a_missing_file_is_waited_for_and_never_created() {
    let dir = TempDir::new().unwrap();
    for error in refuse(&dir.path().join("app.db")) {
        assert!(matches!(error, CaptureError::Missing { .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Wait);
    }
    let config = config(&dir.path().join("no folder/app.db"));
    let error = Capture::open(&config, dir.path(), DEVICE).unwrap_err();
    assert!(matches!(error, CaptureError::Missing { .. }), "{error:?}");
    assert_eq!(listing(dir.path()), [""; 0]);
}

#[test]
fn an_empty_file_is_waited_for() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("app.db");
    for bytes in [&b""[..], b"S"] {
        std::fs::write(&path, bytes).unwrap();
        for error in refuse(&path) {
            assert!(matches!(error, CaptureError::Empty { .. }), "{error:?}");
            assert_eq!(error.class(), ErrorClass::Wait);
        }
    }
}

#[test]
fn a_directory_is_no_database() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("app.db");
    std::fs::create_dir(&path).unwrap();
    for error in refuse(&path) {
        assert!(matches!(error, CaptureError::Directory { .. }), "{error:?}");
        assert_eq!(error.class(), ErrorClass::Stop);
    }
}

#[test]
fn other_files_and_encrypted_ones_are_refused() {
    let noise: Vec<u8> =
        (0..8192_u32).map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()[1]).collect();
    let contents: [&[u8]; 4] = [b"xy", b"just some text\n", &noise, &[0; 4096]];
    for bytes in contents {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("app.db");
        std::fs::write(&path, bytes).unwrap();
        for error in refuse(&path) {
            assert!(matches!(error, CaptureError::NotADatabase { .. }), "{error:?}");
            assert_eq!(error.class(), ErrorClass::Stop);
        }
    }
}

#[test]
fn a_damaged_file_says_so() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("app.db");
    connect(&path).execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY)").unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[100..140].fill(0xee);
    std::fs::write(&path, bytes).unwrap();
    for error in refuse(&path) {
        assert!(matches!(error, CaptureError::Corrupt { .. }), "{error:?}");
    }
}

#[test]
fn the_state_directory_must_be_usable() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("app.db");
    connect(&path).execute_batch("CREATE TABLE t(id INTEGER PRIMARY KEY)").unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, b"in the way").unwrap();
    let error = Capture::open(&config(&path), &file, DEVICE).unwrap_err();
    assert!(matches!(error, CaptureError::Io { .. }), "{error:?}");
    assert!(error.to_string().contains("file"), "{error}");
    let state = dir.path().join("state");
    std::fs::create_dir(&state).unwrap();
    std::fs::write(state.join("state.db"), vec![7; 5000]).unwrap();
    let error = Capture::open(&config(&path), &state, DEVICE).unwrap_err();
    assert!(matches!(error, CaptureError::State { .. }), "{error:?}");
    assert!(error.to_string().contains("remove this file"), "{error}");
    // Nothing was installed before that was found out.
    let objects: i64 = connect(&path)
        .query_row("SELECT count(*) FROM sqlite_master", [], |row| row.get(0))
        .unwrap();
    assert_eq!(objects, 1);
}

#[test]
fn check_changes_nothing_and_says_what_will_be_enrolled() {
    for (mode, left_over) in [("DELETE", false), ("WAL", false), ("WAL", true)] {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("app.db");
        let app = connect(&path);
        app.execute_batch(&format!(
            "PRAGMA journal_mode = {mode}; CREATE TABLE t(k TEXT PRIMARY KEY, v);
             CREATE TABLE free(a, b); CREATE VIEW w AS SELECT 1; INSERT INTO t VALUES('a', 1)"
        ))
        .unwrap();
        let copy = TempDir::new().unwrap();
        let kept = copy.path().join("app.db");
        if left_over {
            // As a killed application leaves it: rows only in the WAL.
            std::fs::copy(&path, &kept).unwrap();
            std::fs::copy(dir.path().join("app.db-wal"), copy.path().join("app.db-wal")).unwrap();
        } else {
            drop(app);
            std::fs::copy(&path, &kept).unwrap();
        }
        let before = (listing(copy.path()), std::fs::read(&kept).unwrap());
        let mut config = config(&kept);
        config.overrides = vec![crate::model::keyed("free", &["a"])];
        let report = check(&config).unwrap();
        let names: Vec<&str> = report.tables.iter().map(|table| table.table.as_str()).collect();
        assert_eq!(names, ["free", "t"]);
        assert_eq!(report.journal_mode, mode.to_lowercase());
        assert_eq!(report.tables[0].warnings.len(), 2, "{:?}", report.tables[0].warnings);
        assert_eq!(report.tables[1].key, ["k"]);
        assert_eq!(report.skipped[0].table, "w");
        assert_eq!(std::fs::read(&kept).unwrap(), before.1);
        let mut after = listing(copy.path());
        after.retain(|name| !left_over || name != "app.db-shm");
        assert_eq!(after, before.0, "{mode}");
    }
}
