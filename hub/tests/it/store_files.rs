//! The files themselves: migrations that a kill cannot halve, stores that are not ours, the CLI's
//! view beside a running hub.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use hub::catalog::{CreateError, Credential, CredentialKind, NewToken, ProjectId};
use hub::{Hub, HubOptions, StoreError};
use rusqlite::Connection;

use crate::rig::{Rig, cloud_dataspace};

fn open(data: &Path) -> Result<Hub, StoreError> {
    Hub::open_embedded(data, HubOptions::default())
}

fn sql(data: &Path, file: &str, sql: &str) {
    Connection::open(data.join(file)).unwrap().execute_batch(sql).unwrap();
}

#[tokio::test]
async fn a_changed_checksum_is_refused_and_nothing_is_written() {
    for file in ["hub.db", "mutable.db"] {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        sql(dir.path(), file, "UPDATE migrations SET sha256 = x'00' WHERE number = 1");
        let before = std::fs::read(dir.path().join(file)).unwrap();
        match open(dir.path()) {
            Err(error @ StoreError::MigrationChecksum { number: 1, .. }) => {
                assert!(error.to_string().contains(file), "{error}");
            }
            Err(other) => panic!("{file}: {other}"),
            Ok(_) => panic!("{file} was opened"),
        }
        assert_eq!(std::fs::read(dir.path().join(file)).unwrap(), before);
    }
}

#[tokio::test]
async fn a_newer_store_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(dir.path()).unwrap());
    sql(dir.path(), "hub.db", "INSERT INTO migrations VALUES (99, 'later', x'00', 0)");
    match open(dir.path()) {
        Err(StoreError::Newer { found: 99, known: 1, .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a newer store was opened"),
    }
}

/// A kill inside a migration leaves what SQLite rolls back. What a kill between the files leaves
/// is one finished file and none.
#[tokio::test]
async fn an_unfinished_set_up_is_finished() {
    let dir = tempfile::tempdir().unwrap();
    {
        let mut db = Connection::open(dir.path().join("hub.db")).unwrap();
        db.pragma_update(None, "journal_mode", "WAL").unwrap();
        let tx = db.transaction().unwrap();
        tx.execute_batch("CREATE TABLE migrations (number); CREATE TABLE projects (id)").unwrap();
        // Dropped without a commit, as a killed process leaves it.
    }
    drop(open(dir.path()).unwrap());
    std::fs::remove_file(dir.path().join("mutable.db")).unwrap();
    let hub = open(dir.path()).unwrap();
    assert!(hub.catalog().has_project(&ProjectId::default_project()).await.unwrap());
}

/// Kills real processes at moments spread over their set-up; whatever each leaves behind opens.
#[tokio::test]
async fn a_kill_at_any_moment_of_the_set_up_leaves_a_usable_store() {
    let mut killed = 0;
    for step in 0..30_u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_rowtide-hub"))
            .args(["token", "new", "--api", "--data"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        tokio::time::sleep(Duration::from_micros(step * 500)).await;
        process.kill().unwrap();
        killed += u32::from(process.wait().unwrap().code().is_none());
        let hub = open(dir.path()).unwrap();
        assert!(hub.catalog().has_project(&ProjectId::default_project()).await.unwrap());
        let db = Connection::open(dir.path().join("hub.db")).unwrap();
        let applied: i64 =
            db.query_row("SELECT count(*) FROM migrations", [], |row| row.get(0)).unwrap();
        assert_eq!(applied, 1, "after {} µs", step * 500);
    }
    assert!(killed > 0, "no process was killed before its end");
}

#[tokio::test]
async fn what_is_no_store_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("hub.db"), vec![b'x'; 8192]).unwrap();
    let error = open(dir.path()).err().unwrap();
    assert!(error.to_string().contains("hub.db"), "{error}");
    let file = dir.path().join("a-file");
    std::fs::write(&file, b"x").unwrap();
    let error = open(&file).err().unwrap();
    assert!(error.to_string().contains("a-file"), "{error}");
}

#[tokio::test]
async fn terms_rise_with_every_start_only() {
    let rig = Rig::new();
    let first = rig.hub.lineages().life().await.unwrap();
    drop(Hub::open_catalog(&rig.data()).unwrap());
    assert_eq!(rig.hub.lineages().life().await.unwrap(), first, "a command starts no term");
    let rig = rig.reopen_after(|_| {});
    let second = rig.hub.lineages().life().await.unwrap();
    assert!(second.term >> 32 == (first.term >> 32) + 1);
    assert_eq!(second.incarnation, first.incarnation);
}

fn token(kind: CredentialKind) -> NewToken {
    NewToken { project: ProjectId::default_project(), kind, roles: vec!["*".to_owned()] }
}

#[tokio::test]
async fn tokens_made_beside_a_running_hub_are_valid_at_once() {
    let rig = Rig::new();
    let beside = Hub::open_catalog(&rig.data()).unwrap();
    let kind = CredentialKind::Device { name: "gw-07".to_owned() };
    let plain = beside.create_token(token(kind.clone())).await.unwrap();
    let Credential { kind: found, roles, .. } =
        rig.hub.catalog().credential(&plain).await.unwrap().unwrap();
    assert_eq!((found, roles), (kind, vec!["*".to_owned()]));
    assert!(rig.hub.catalog().credential(&format!("{plain}0")).await.unwrap().is_none());
    let devices = rig.hub.lineages().devices(&ProjectId::default_project()).await.unwrap();
    assert_eq!((devices[0].name.as_str(), devices[0].source_id), ("gw-07", None));

    let bytes: Vec<u8> = ["hub.db", "hub.db-wal"]
        .iter()
        .filter_map(|file| std::fs::read(rig.data().join(file)).ok())
        .flatten()
        .collect();
    let secret = plain.as_bytes();
    assert!(!bytes.windows(secret.len()).any(|window| window == secret), "only its hash is kept");
}

#[tokio::test]
async fn names_that_cannot_be_used_are_refused() {
    let rig = Rig::new();
    for name in ["", "a b", "ü", &"x".repeat(65)] {
        let kind = CredentialKind::Device { name: name.to_owned() };
        let refused = rig.hub.catalog().create_token(token(kind)).await;
        assert!(matches!(refused, Err(CreateError::Invalid(_))), "{name:?}");
    }
    rig.create(cloud_dataspace("settings")).await;
    let taken = rig.hub.catalog().create_dataspace(cloud_dataspace("SETTINGS")).await;
    assert!(matches!(taken, Err(CreateError::NameTaken { .. })), "{taken:?}");
    let id = uuid::Uuid::new_v4().to_string();
    for name in ["", "sqlite_x", "a\nb", &id] {
        let refused = rig.hub.catalog().create_dataspace(cloud_dataspace(name)).await;
        assert!(matches!(refused, Err(CreateError::Invalid(_))), "{name:?}: {refused:?}");
    }
}
