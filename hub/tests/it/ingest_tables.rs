//! What a Hello does to tables: dataspaces made, widened, compared, refused, taken over.

use hub::catalog::{FIELDS_MAX, Layout, NewDataspace};
use hub::{Hub, HubOptions};
use sync_proto::message::TableState;
use sync_proto::rows::{Row, TableRows};
use sync_proto::schema::{Affinity, Authority, Modality, Scope};
use sync_proto::{Lane, Value};

use crate::rig::{Device, Rig, cloud_dataspace, column, live, outcomes, put, rows, table};

fn shadow(name: &str) -> Device {
    Device::new(name, vec![table("shadow", Modality::State, Authority::Device)])
}

async fn state_of(rig: &Rig, device: &mut Device) -> TableState {
    device.greet(&rig.hub).await.tables.remove(0).state
}

fn refused_because(state: &TableState) -> &str {
    let TableState::Refused { message } = state else { panic!("not refused: {state:?}") };
    message
}

#[tokio::test]
async fn an_announced_table_gets_a_dataspace_also_when_empty() {
    let rig = Rig::new();
    let mut device = shadow("gw");
    assert_eq!(state_of(&rig, &mut device).await, TableState::Flowing);
    let dataspace = rig.dataspace("shadow").await;
    assert_eq!(dataspace.natural_key, ["k"]);
    assert_eq!((dataspace.modality, dataspace.scope), (Modality::State, Scope::Source));
    let names: Vec<&str> = dataspace.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["k", "v"]);
    assert!(live(&rig, "shadow").await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_devices_announce_one_table_at_the_same_time() {
    let rig = Rig::new();
    let mut hellos = tokio::task::JoinSet::new();
    for n in 0..16 {
        let hub = rig.hub.clone();
        hellos.spawn(async move { shadow(&format!("gw-{n}")).greet(&hub).await.tables.remove(0) });
    }
    let states = hellos.join_all().await;
    assert!(states.iter().all(|table| table.state == TableState::Flowing), "{states:?}");
    assert_eq!(rig.count("hub.db", "SELECT count(*) FROM dataspaces"), 1);
}

#[tokio::test]
async fn without_auto_provision_tables_wait_for_a_dataspace() {
    let dir = tempfile::tempdir().unwrap();
    let options = HubOptions { auto_provision: false, ..HubOptions::default() };
    let rig = Rig { hub: Hub::open_embedded(&dir.path().join("data"), options).unwrap(), dir };
    let mut device = Device::new("gw", vec![table("settings", Modality::State, Authority::Cloud)]);
    let state = state_of(&rig, &mut device).await;
    assert!(refused_because(&state).contains("create it first"), "{state:?}");
    let batch = device.batch(Lane::State, 0, 1, &[rows("settings", vec![put(1, "a", 1)])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "refused")]);
    rig.create(cloud_dataspace("settings")).await;
    assert_eq!(state_of(&rig, &mut device).await, TableState::Flowing);
}

#[tokio::test]
async fn a_disagreement_about_authority_stops_the_table() {
    let rig = Rig::new();
    rig.create(cloud_dataspace("shadow")).await;
    let mut device = shadow("gw");
    let state = state_of(&rig, &mut device).await;
    assert_eq!(state, TableState::AuthorityMismatch { hub: "cloud".to_owned() });
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "authority_mismatch")]);
    assert_eq!(rig.state_counts("shadow").await, (0, 0, 0));
    let info = rig.hub.lineages().device(&device.credential.project, "gw").await.unwrap().unwrap();
    assert_eq!(info.lineages[0].status, "authority_mismatch");
    assert_eq!(info.lineages[0].orphans, 1, "nothing is lost silently");
}

#[tokio::test]
async fn another_modality_key_or_scope_is_refused_with_the_way_out() {
    let rig = Rig::new();
    shadow("gw-1").greet(&rig.hub).await;
    let mut modality = shadow("gw-2");
    modality.tables[0].modality = Modality::Mutable;
    assert!(refused_because(&state_of(&rig, &mut modality).await).contains("modality"));
    let mut key = shadow("gw-3");
    key.tables[0].columns[1].key_ordinal = 2;
    assert!(refused_because(&state_of(&rig, &mut key).await).contains("key"));
    rig.create(cloud_dataspace("settings")).await;
    let mut scope = Device::new("gw-4", vec![table("settings", Modality::State, Authority::Cloud)]);
    scope.tables[0].scope = Scope::Source;
    assert!(refused_because(&state_of(&rig, &mut scope).await).contains("scope"));
    let mut no_key = Device::new("gw-5", vec![table("log", Modality::Mutable, Authority::Device)]);
    no_key.tables[0].columns[0].key_ordinal = 0;
    assert!(refused_because(&state_of(&rig, &mut no_key).await).contains("natural_key"));
}

#[tokio::test]
async fn a_document_table_is_one_row_a_device() {
    let rig = Rig::new();
    for (name, value) in [("gw-1", 1), ("gw-2", 2)] {
        let mut device = shadow(name);
        device.tables[0].columns[0].key_ordinal = 0;
        assert_eq!(state_of(&rig, &mut device).await, TableState::Flowing);
        let document = TableRows { key: Vec::new(), ..rows("shadow", vec![put(1, "x", value)]) };
        let receipt = device.up(&rig.hub, &device.batch(Lane::State, 0, 1, &[document])).await;
        assert!(receipt.outcomes.is_empty());
    }
    let dataspace = rig.dataspace("shadow").await;
    assert!(dataspace.natural_key.is_empty());
    let found =
        rig.hub.state().get(&dataspace, &sync_proto::NaturalKey::DOCUMENT, None).await.unwrap();
    let hub::plane::Lookup::Ambiguous(sources) = found else { panic!("{found:?}") };
    assert_eq!(sources.len(), 2);
}

#[tokio::test]
async fn new_columns_are_declared_by_the_next_hello() {
    let rig = Rig::new();
    let mut device = shadow("gw");
    device.greet(&rig.hub).await;
    device.tables[0].columns.push(column("added", Affinity::Real, 0));
    device.tables[0].columns.push(column("V2", Affinity::Real, 0));
    device.greet(&rig.hub).await;
    let names: Vec<String> =
        rig.dataspace("shadow").await.fields.into_iter().map(|field| field.name).collect();
    assert_eq!(names, ["k", "v", "added", "V2"]);
}

#[tokio::test]
async fn a_typed_dataspace_takes_declared_columns_only() {
    let rig = Rig::new();
    rig.create(NewDataspace {
        authority: Authority::Device,
        scope: Scope::Source,
        layout: Layout::Typed,
        ..cloud_dataspace("shadow")
    })
    .await;
    let mut device = shadow("gw");
    device.tables[0].columns.push(column("extra", Affinity::Text, 0));
    assert_eq!(state_of(&rig, &mut device).await, TableState::Flowing);
    assert_eq!(rig.dataspace("shadow").await.fields.len(), 2, "Hello declares nothing here");
    let wide = TableRows {
        columns: ["k", "v", "extra"].map(str::to_owned).to_vec(),
        rows: vec![Row {
            number: 1,
            base: None,
            values: vec![Value::text("a"), Value::Int(1), Value::text("x")],
            deleted: false,
        }],
        ..rows("shadow", Vec::new())
    };
    let batch = device.batch(Lane::State, 0, 2, &[wide, rows("shadow", vec![put(2, "b", 1)])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "undeclared_column")]);
    assert_eq!(live(&rig, "shadow").await.len(), 1, "the others flow");
    let kept = "SELECT count(*) FROM orphans WHERE table_name = 'shadow' AND natural_key = 't:a'
        AND code = 'undeclared_column' AND value = '{\"k\":\"a\",\"v\":1,\"extra\":\"x\"}'";
    assert_eq!(rig.count("hub.db", kept), 1);
}

#[tokio::test]
async fn a_table_wider_than_a_dataspace_flows_through_overflow() {
    let rig = Rig::new();
    let mut spec = table("wide", Modality::Mutable, Authority::Device);
    spec.columns = (0..1_500).map(|n| column(&format!("c{n}"), Affinity::Integer, 0)).collect();
    spec.columns[1_499].key_ordinal = 1;
    let mut device = Device::new("gw", vec![spec.clone()]);
    assert_eq!(state_of(&rig, &mut device).await, TableState::Flowing);
    let dataspace = rig.dataspace("wide").await;
    assert_eq!(dataspace.fields.len(), FIELDS_MAX);
    assert_eq!(dataspace.fields[0].name, "c1499", "the key's columns are declared first");
    let sent = TableRows {
        table: "wide".to_owned(),
        columns: spec.columns.iter().map(|column| column.name.clone()).collect(),
        key: vec![1_499],
        rows: vec![Row {
            number: 1,
            base: None,
            values: (0..1_500).map(Value::Int).collect(),
            deleted: false,
        }],
    };
    let receipt = device.up(&rig.hub, &device.batch(Lane::Mutable, 0, 1, &[sent])).await;
    assert!(receipt.outcomes.is_empty(), "{:?}", receipt.outcomes);
    let page = hub::plane::PageRequest { after: None, source: None, limit: 1 };
    let row = rig.hub.mutable().list(&dataspace, page).await.unwrap().rows.remove(0);
    assert_eq!(row.values.len(), 1_500);
    for (name, value) in row.values {
        assert_eq!(format!("c{value:?}"), name);
    }
}

#[tokio::test]
async fn two_tables_of_a_device_cannot_feed_one_dataspace() {
    let rig = Rig::new();
    let mut device = shadow("gw");
    let mut second = table("copy", Modality::State, Authority::Device);
    second.dataspace = "shadow".to_owned();
    device.tables.push(second);
    for _ in 0..2 {
        let tables = device.greet(&rig.hub).await.tables;
        assert_eq!(tables[0].state, TableState::Flowing);
        assert!(refused_because(&tables[1].state).contains("\"shadow\""));
    }
    let mut other_file = Device {
        database: "other".to_owned(),
        instance: sync_proto::InstanceId(uuid::Uuid::new_v4()),
        tables: device.tables[..1].to_vec(),
        ..device.next_epoch()
    };
    assert!(refused_because(&state_of(&rig, &mut other_file).await).contains("\"app\""));
}

#[tokio::test]
async fn a_renamed_database_takes_its_tables_along() {
    let rig = Rig::new();
    let mut device = shadow("gw");
    device.greet(&rig.hub).await;
    let mut renamed = Device { database: "renamed".to_owned(), ..device.next_epoch() };
    assert_eq!(state_of(&rig, &mut renamed).await, TableState::Flowing);
    let info = rig.hub.lineages().device(&device.credential.project, "gw").await.unwrap().unwrap();
    let statuses: Vec<(&str, &str)> = info
        .lineages
        .iter()
        .map(|lineage| (lineage.database.as_str(), lineage.status.as_str()))
        .collect();
    assert_eq!(statuses, [("app", "detached"), ("renamed", "flowing")]);
}

#[tokio::test]
async fn a_table_that_is_not_announced_any_more_is_detached() {
    let rig = Rig::new();
    let mut device = shadow("gw");
    device.tables.push(table("orders", Modality::Mutable, Authority::Device));
    device.greet(&rig.hub).await;
    device.tables.pop();
    device.greet(&rig.hub).await;
    let batch = device.batch(Lane::Mutable, 0, 1, &[rows("orders", vec![put(1, "a", 1)])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "unknown_table")]);
    let info = rig.hub.lineages().device(&device.credential.project, "gw").await.unwrap().unwrap();
    assert_eq!(info.lineages[0].status, "detached");
    assert_eq!(info.lineages[0].orphans, 1);
}

#[tokio::test]
async fn a_paused_table_is_told_so_and_takes_nothing() {
    let rig = Rig::new();
    let mut device = shadow("gw");
    device.greet(&rig.hub).await;
    rig.hub.lineages().set_paused(device.id, "app", "shadow", true).await.unwrap();
    let batch = device.batch(Lane::State, 0, 1, &[rows("shadow", vec![put(1, "a", 1)])]);
    assert_eq!(outcomes(&device.up(&rig.hub, &batch).await), [(1, "paused")]);
    assert_eq!(state_of(&rig, &mut device).await, TableState::Paused);
    rig.hub.lineages().set_paused(device.id, "app", "shadow", false).await.unwrap();
    assert_eq!(state_of(&rig, &mut device).await, TableState::Flowing);
}
