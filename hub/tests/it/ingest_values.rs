//! Every storage class comes through both planes exactly, in values and in keys.

use hub::plane::PageRequest;
use sync_proto::rows::{Row, TableRows};
use sync_proto::schema::{Affinity, Authority, Modality};
use sync_proto::{Lane, NaturalKey, Value};

use crate::rig::{Device, Rig, column, table};

/// Values at the edges of each storage class.
pub(crate) fn every_class() -> Vec<Value> {
    vec![
        Value::Null,
        Value::Int(0),
        Value::Int(i64::MIN),
        Value::Int(i64::MAX),
        Value::Int((1 << 53) + 1),
        Value::Real(0.0),
        Value::Real(-0.0),
        Value::Real(1.0),
        Value::Real(0.1),
        Value::Real(1e300),
        Value::Real(f64::MIN_POSITIVE / 4.0),
        Value::Real(f64::INFINITY),
        Value::Real(f64::NEG_INFINITY),
        Value::text(""),
        Value::text("1"),
        Value::text("nul\0inside"),
        Value::text("t:%2C,\u{1f600}\u{7f}\r\n"),
        Value::Text(vec![0xff, 0xfe, b'a', 0xc3]),
        Value::Blob(Vec::new()),
        Value::Blob(vec![0, 1, 2, 255]),
        Value::Blob(b"text".to_vec()),
    ]
}

/// One table whose key and other columns take every class.
fn typeless(name: &str, modality: Modality) -> sync_proto::schema::TableSpec {
    let mut spec = table(name, modality, Authority::Device);
    spec.columns = vec![
        column("k", Affinity::Blob, 1),
        column("k2", Affinity::Blob, 2),
        column("v", Affinity::Numeric, 0),
        column("Version", Affinity::Integer, 0),
        column("c_v", Affinity::Text, 0),
        column("we\"ird; --name", Affinity::Text, 0),
    ];
    spec
}

fn batch_rows(table: &str) -> TableRows {
    let keys = every_class().into_iter().filter(|value| !value.is_null());
    let values = every_class().into_iter().skip(1).chain([Value::Null]);
    let rows = keys.zip(values).zip(1..).map(|((key, value), number)| Row {
        number,
        base: None,
        values: vec![
            key,
            Value::Int(number),
            value.clone(),
            Value::text("mine"),
            value,
            Value::Real(0.5),
        ],
        deleted: false,
    });
    TableRows {
        table: table.to_owned(),
        columns: ["k", "k2", "v", "Version", "c_v", "we\"ird; --name"].map(str::to_owned).to_vec(),
        key: vec![0, 1],
        rows: rows.collect(),
    }
}

#[tokio::test]
async fn every_class_round_trips_through_both_planes() {
    for (name, modality, lane) in
        [("states", Modality::State, Lane::State), ("mirror", Modality::Mutable, Lane::Mutable)]
    {
        let rig = Rig::new();
        let mut device = Device::new("gw", vec![typeless(name, modality)]);
        device.greet(&rig.hub).await;
        let sent = batch_rows(name);
        let last = i64::try_from(sent.rows.len()).unwrap();
        let receipt =
            device.up(&rig.hub, &device.batch(lane, 0, last, std::slice::from_ref(&sent))).await;
        assert!(receipt.outcomes.is_empty(), "{name}: {:?}", receipt.outcomes);

        let dataspace = rig.dataspace(name).await;
        let page = PageRequest { after: None, source: None, limit: 1000 };
        let stored = match modality {
            Modality::State => rig.hub.state().list(&dataspace, page).await.unwrap(),
            Modality::Mutable => rig.hub.mutable().list(&dataspace, page).await.unwrap(),
        };
        assert_eq!(stored.rows.len(), sent.rows.len());
        for row in &sent.rows {
            let key = sent.key_of(row);
            let found = stored.rows.iter().find(|stored| stored.natural_key == key).unwrap();
            assert_eq!(found.version.0, row.number);
            let values: Vec<&Value> = found.values.iter().map(|(_, value)| value).collect();
            let wanted: Vec<&Value> = row.values.iter().collect();
            assert_eq!(values, wanted, "{name}: {key}");
            let names: Vec<&String> = found.values.iter().map(|(name, _)| name).collect();
            assert_eq!(names, sent.columns.iter().collect::<Vec<_>>());
        }
    }
}

#[tokio::test]
async fn keys_of_different_classes_are_different_rows() {
    let rig = Rig::new();
    let mut spec = table("states", Modality::State, Authority::Device);
    spec.columns[0] = column("k", Affinity::Blob, 1);
    let mut device = Device::new("gw", vec![spec]);
    device.greet(&rig.hub).await;
    let keys = [Value::Int(1), Value::Real(1.0), Value::text("1"), Value::Blob(b"1".to_vec())];
    let list = keys.iter().zip(1..).map(|(key, number)| Row {
        number,
        base: None,
        values: vec![key.clone(), Value::Int(number)],
        deleted: false,
    });
    let rows = crate::rig::rows("states", list.collect());
    device.up(&rig.hub, &device.batch(Lane::State, 0, 4, &[rows])).await;
    let dataspace = rig.dataspace("states").await;
    for (key, number) in keys.iter().zip(1_i64..) {
        let key = NaturalKey::of(std::slice::from_ref(key));
        let found = rig.hub.state().get(&dataspace, &key, None).await.unwrap();
        let hub::plane::Lookup::One(row) = found else { panic!("{key}: {found:?}") };
        assert_eq!(row.version.0, number);
    }
}

#[tokio::test]
async fn undeclared_columns_are_kept_exactly_and_seen_when_declared_later() {
    for (name, modality, lane) in
        [("states", Modality::State, Lane::State), ("mirror", Modality::Mutable, Lane::Mutable)]
    {
        let rig = Rig::new();
        let mut device = Device::new("gw", vec![table(name, modality, Authority::Device)]);
        device.greet(&rig.hub).await;
        let classes = every_class();
        let list = classes.iter().zip(1..).map(|(value, number)| Row {
            number,
            base: None,
            values: vec![Value::text(format!("{number:02}")), Value::Int(1), value.clone()],
            deleted: false,
        });
        let sent = TableRows {
            table: name.to_owned(),
            columns: ["k", "v", "extra"].map(str::to_owned).to_vec(),
            key: vec![0],
            rows: list.collect(),
        };
        let last = i64::try_from(classes.len()).unwrap();
        let receipt = device.up(&rig.hub, &device.batch(lane, 0, last, &[sent])).await;
        assert!(receipt.outcomes.is_empty());
        for declared_later in [false, true] {
            if declared_later {
                device.tables[0].columns.push(column("Extra", Affinity::Blob, 0));
                device.greet(&rig.hub).await;
            }
            let dataspace = rig.dataspace(name).await;
            let page = PageRequest { after: None, source: None, limit: 1000 };
            let stored = match modality {
                Modality::State => rig.hub.state().list(&dataspace, page).await.unwrap(),
                Modality::Mutable => rig.hub.mutable().list(&dataspace, page).await.unwrap(),
            };
            let extra: Vec<Value> =
                stored.rows.into_iter().map(|mut row| row.values.remove(2).1).collect();
            assert_eq!(extra, classes, "{name}, declared later: {declared_later}");
        }
    }
}
