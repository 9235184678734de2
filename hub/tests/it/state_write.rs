//! Writes of the API: conditions under the row's lock, versions that only rise, exact content.

use hub::catalog::{Layout, NewDataspace};
use hub::plane::{Lookup, PageRequest, StoredRow, WriteCondition, WriteError};
use sync_proto::schema::{Authority, Scope};
use sync_proto::{NaturalKey, SourceId, Value, Version};
use uuid::Uuid;

use crate::rig::{Rig, cloud_dataspace, text_key, write_of};

const V: [(&str, Value); 1] = [("v", Value::Int(1))];

fn current(result: Result<hub::plane::WriteOutcome, WriteError>) -> Option<Box<StoredRow>> {
    match result {
        Err(WriteError::Conflict { current }) => current,
        other => panic!("no conflict: {other:?}"),
    }
}

#[tokio::test]
async fn versions_count_up_across_delete_and_return() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let key = text_key("a");
    let first = rig.put(&settings, &key, &V).await.unwrap();
    assert_eq!((first.row.version, first.created), (Version(1), true));
    let second = rig.put(&settings, &key, &[("v", Value::Int(2))]).await.unwrap();
    assert_eq!((second.row.version, second.created), (Version(2), false));
    let gone = rig.delete(&settings, &key).await.unwrap();
    assert_eq!((gone.row.version, gone.row.deleted), (Version(3), true));
    assert_eq!(rig.hub.state().get(&settings, &key, None).await.unwrap(), Lookup::None);
    assert!(matches!(rig.delete(&settings, &key).await, Err(WriteError::NotFound)));
    let back = rig.put(&settings, &key, &V).await.unwrap();
    assert_eq!((back.row.version, back.created), (Version(4), true));
    assert_eq!(rig.state_counts("settings").await, (1, 4, 4));
}

#[tokio::test]
async fn a_version_that_is_not_above_the_stored_one_is_a_conflict() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let key = text_key("a");
    let mut write = write_of(&settings, &key, Some(&V));
    write.version = Some(Version(10));
    assert_eq!(rig.hub.write(write.clone()).await.unwrap().row.version, Version(10));
    let counts = rig.state_counts("settings").await;
    for version in [10, 9, 1] {
        write.version = Some(Version(version));
        let row = current(rig.hub.write(write.clone()).await).unwrap();
        assert_eq!(row.version, Version(10), "with {version}");
    }
    for version in [0, -5, 11 + Version::STEP_MAX] {
        write.version = Some(Version(version));
        let refused = rig.hub.write(write.clone()).await;
        assert!(matches!(refused, Err(WriteError::VersionRange { .. })), "{version}: {refused:?}");
    }
    assert_eq!(rig.state_counts("settings").await, counts, "refused writes leave no trace");
}

#[tokio::test]
async fn conditions_are_checked_against_the_stored_row() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let key = text_key("a");
    let mut write = write_of(&settings, &key, Some(&V));
    write.condition = WriteCondition::Match(Version(1));
    assert_eq!(current(rig.hub.write(write.clone()).await), None, "there is nothing to match");
    write.condition = WriteCondition::Absent;
    assert!(rig.hub.write(write.clone()).await.unwrap().created);
    assert_eq!(current(rig.hub.write(write.clone()).await).unwrap().version, Version(1));
    write.condition = WriteCondition::Match(Version(2));
    assert_eq!(current(rig.hub.write(write.clone()).await).unwrap().version, Version(1));
    write.condition = WriteCondition::Match(Version(1));
    assert_eq!(rig.hub.write(write.clone()).await.unwrap().row.version, Version(2));
    let mut delete = write_of(&settings, &key, None);
    delete.condition = WriteCondition::Match(Version(1));
    assert_eq!(current(rig.hub.write(delete.clone()).await).unwrap().version, Version(2));
    delete.condition = WriteCondition::Match(Version(2));
    assert!(rig.hub.write(delete).await.unwrap().row.deleted);
    write.condition = WriteCondition::Absent;
    assert!(rig.hub.write(write).await.unwrap().created, "a tombstone is no row");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_concurrent_swaps_exactly_one_wins_each_round() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let key = text_key("a");
    rig.put(&settings, &key, &V).await.unwrap();
    for round in 1..=5 {
        let mut swaps = tokio::task::JoinSet::new();
        for n in 0..8 {
            let (hub, settings, key) = (rig.hub.clone(), settings.clone(), key.clone());
            swaps.spawn(async move {
                let values = [("v", Value::Int(100 * round + n))];
                let mut write = write_of(&settings, &key, Some(&values));
                write.condition = WriteCondition::Match(Version(round));
                hub.write(write).await.is_ok()
            });
        }
        let won = swaps.join_all().await.into_iter().filter(|won| *won).count();
        assert_eq!(won, 1, "round {round}");
    }
}

#[tokio::test]
async fn a_put_replaces_every_declared_column() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let key = text_key("a");
    let extra = Value::Blob(vec![1, 2]);
    rig.put(&settings, &key, &[("V", Value::Int(1)), ("extra", extra.clone())]).await.unwrap();
    let Lookup::One(row) = rig.hub.state().get(&settings, &key, None).await.unwrap() else {
        panic!("the row is there");
    };
    let wanted = [
        ("k".to_owned(), Value::text("a")),
        ("v".to_owned(), Value::Int(1)),
        ("extra".to_owned(), extra),
    ];
    assert_eq!(row.values, wanted);
    let row = rig.put(&settings, &key, &[]).await.unwrap().row;
    assert_eq!(row.values, [wanted[0].clone(), ("v".to_owned(), Value::Null)]);
}

#[tokio::test]
async fn a_key_field_must_be_the_row_keys() {
    let rig = Rig::new();
    let settings = rig.create(cloud_dataspace("settings")).await;
    let same = [("k", Value::text("a")), ("v", Value::Int(1))];
    rig.put(&settings, &text_key("a"), &same).await.unwrap();
    for wrong in [Value::text("b"), Value::Int(1), Value::Null] {
        let refused = rig.put(&settings, &text_key("a"), &[("k", wrong)]).await;
        assert!(matches!(refused, Err(WriteError::KeyMismatch { .. })), "{refused:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_stored_is_refused() {
    let rig = Rig::new();
    let typed =
        rig.create(NewDataspace { layout: Layout::Typed, ..cloud_dataspace("typed") }).await;
    let refused = rig.put(&typed, &text_key("a"), &[("extra", Value::Int(1))]).await;
    assert!(
        matches!(&refused, Err(WriteError::UndeclaredColumn { column }) if column == "extra"),
        "{refused:?}"
    );
    let hybrid = rig.create(cloud_dataspace("settings")).await;
    let long_key = text_key(&"x".repeat(5_000));
    let null_key = NaturalKey::of(&[Value::Null]);
    let two_parts = NaturalKey::of(&[Value::Int(1), Value::Int(2)]);
    for key in [long_key, null_key, two_parts] {
        let refused = rig.put(&hybrid, &key, &V).await;
        assert!(matches!(refused, Err(WriteError::Invalid(_))), "{refused:?}");
    }
    let twice = [("v", Value::Int(1)), ("V", Value::Int(2))];
    let nan = [("v", Value::Real(f64::NAN))];
    let large = [("v", Value::Blob(vec![0; 16 << 20]))];
    for values in [&twice[..], &nan[..], &large[..]] {
        let refused = rig.put(&hybrid, &text_key("a"), values).await;
        assert!(matches!(refused, Err(WriteError::Invalid(_))), "{refused:?}");
    }
    assert_eq!(rig.state_counts("settings").await, (0, 0, 0));
}

#[tokio::test]
async fn a_device_authoritative_dataspace_takes_no_writes() {
    let rig = Rig::new();
    let shadow = rig
        .create(NewDataspace {
            authority: Authority::Device,
            scope: Scope::Source,
            ..cloud_dataspace("shadow")
        })
        .await;
    let refused = rig.put(&shadow, &text_key("a"), &V).await;
    assert!(matches!(refused, Err(WriteError::DeviceAuthoritative { .. })), "{refused:?}");
    let refused = rig.delete(&shadow, &text_key("a")).await;
    assert!(matches!(refused, Err(WriteError::DeviceAuthoritative { .. })), "{refused:?}");
}

#[tokio::test]
async fn pages_follow_key_and_source_without_gap_or_repeat() {
    let rig = Rig::new();
    let new = NewDataspace { scope: Scope::Source, ..cloud_dataspace("settings") };
    let settings = rig.create(new).await;
    let sources: Vec<SourceId> = (0..3).map(|_| SourceId(Uuid::new_v4())).collect();
    let mut wanted = Vec::new();
    for n in 0..10 {
        for source in &sources {
            let key = text_key(&format!("k{n}"));
            let mut write = write_of(&settings, &key, Some(&V));
            write.source_id = *source;
            rig.hub.write(write.clone()).await.unwrap();
            if n == 4 {
                write.values = None;
                rig.hub.write(write).await.unwrap();
            } else {
                wanted.push((key, *source));
            }
        }
    }
    wanted.sort();
    for limit in [1, 4, 100] {
        for only in [None, Some(sources[1])] {
            let mut request = PageRequest { after: None, source: only, limit };
            let mut seen = Vec::new();
            loop {
                let page = rig.hub.state().list(&settings, request.clone()).await.unwrap();
                assert!(page.rows.len() <= limit);
                seen.extend(page.rows.into_iter().map(|row| (row.natural_key, row.source_id)));
                match page.next {
                    Some(next) => request.after = Some(next),
                    None => break,
                }
            }
            let mut wanted = wanted.clone();
            wanted.retain(|(_, source)| only.is_none_or(|only| only == *source));
            assert_eq!(seen, wanted, "limit {limit}");
        }
    }
    let found = rig.hub.state().get(&settings, &text_key("k1"), None).await.unwrap();
    let Lookup::Ambiguous(mut named) = found else { panic!("{found:?}") };
    named.sort();
    let mut sources = sources;
    sources.sort();
    assert_eq!(named, sources);
    let found = rig.hub.state().get(&settings, &text_key("k4"), Some(sources[0])).await.unwrap();
    assert_eq!(found, Lookup::None);
}
