//! Row batches: exact for every storage class, and safe against any bytes.

use proptest::prelude::*;
use sync_proto::limits::{BATCH_RAW_BYTES_MAX, BATCH_ROWS_MAX, COLUMNS_MAX, TABLES_MAX};
use sync_proto::message::PackedRows;
use sync_proto::rows::{Row, RowsError, TableRows, pack, unpack};
use sync_proto::{Digest, NaturalKey, RowHash, Value, Version};

use crate::arbitrary;

fn row(number: i64, values: Vec<Value>) -> Row {
    Row { number, base: None, values, deleted: false }
}

fn table(columns: &[&str], key: &[u16], rows: Vec<Row>) -> TableRows {
    let columns = columns.iter().map(|name| (*name).to_owned()).collect();
    TableRows { table: "t".to_owned(), columns, key: key.to_vec(), rows }
}

fn round_trips(tables: &[TableRows]) {
    let packed = pack(tables).expect("rows that fit");
    assert_eq!(unpack(&packed).expect("what was packed"), tables);
}

/// A payload of these raw bytes, declared and named as they are.
fn payload(raw: &[u8]) -> PackedRows {
    let bytes = zstd::bulk::compress(raw, 1).expect("compressed");
    let raw_len = u32::try_from(raw.len()).expect("short");
    PackedRows { digest: Digest::of(&bytes), raw_len, bytes }
}

#[test]
fn every_storage_class_comes_back_exactly() {
    let extremes = [i64::MIN, i64::MAX, -1, 0, 1 << 62, i64::MIN];
    let reals = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, 5e-324, f64::MAX, 0.1 + 0.2];
    let bytes = [vec![], vec![0], vec![0xff, 0xfe], b"a\0b".to_vec(), vec![0x80; 300]];
    let mut values: Vec<Value> = extremes.into_iter().map(Value::Int).collect();
    values.extend(reals.into_iter().map(Value::Real));
    values.extend(bytes.iter().cloned().map(Value::Text));
    values.extend(bytes.into_iter().map(Value::Blob));
    values.push(Value::Null);
    // Mixed classes in one column, and every value beside itself in a column of one class.
    let mixed = values.iter().zip(1..).map(|(value, n)| row(n, vec![value.clone()])).collect();
    round_trips(&[table(&["c"], &[0], mixed)]);
    for value in values {
        let rows = (1..4).map(|n| row(n, vec![Value::Int(n), value.clone()])).collect();
        round_trips(&[table(&["k", "c"], &[0], rows)]);
    }
}

#[test]
fn no_tables_empty_tables_and_several_tables() {
    round_trips(&[]);
    assert!(pack(&[]).unwrap().is_empty());
    let empty = table(&["a", "b"], &[1], vec![]);
    let full = table(&["a"], &[0], vec![row(i64::MIN, vec![Value::Int(1)])]);
    let document = table(&["a"], &[], vec![row(i64::MAX, vec![Value::Null])]);
    let bare = table(&[], &[], vec![row(1, vec![]), row(2, vec![])]);
    assert!(!pack(std::slice::from_ref(&full)).unwrap().is_empty());
    round_trips(&[empty.clone(), full.clone(), empty, document, bare, full]);
}

#[test]
fn a_tombstone_carries_its_key_alone() {
    let mut dead = row(7, vec![Value::text("gone"), Value::Int(3), Value::text("k")]);
    dead.deleted = true;
    dead.base = Some(Version::NONE);
    let alive = row(8, vec![Value::text("here"), Value::Int(4), Value::Int(5)]);
    let before = table(&["v", "k1", "k2"], &[2, 1], vec![dead, alive.clone()]);
    let tables = unpack(&pack(std::slice::from_ref(&before)).unwrap()).unwrap();
    let after = &tables[0];
    assert_eq!(after.rows[0].values, [Value::Null, Value::Int(3), Value::text("k")]);
    assert_eq!(after.rows[0].base, Some(Version::NONE));
    assert_eq!(after.rows[1], alive);
    assert_eq!(after.key_of(&after.rows[0]), NaturalKey::of(&[Value::text("k"), Value::Int(3)]));
    assert_eq!(after.hash_of(&after.rows[0]), RowHash::TOMBSTONE);
    assert_eq!(after.hash_of(&after.rows[1]), before.hash_of(&alive));
}

#[test]
fn rows_that_do_not_fit_their_table_are_not_packed() {
    let refused = |table: TableRows| matches!(pack(&[table]), Err(RowsError::Malformed(_)));
    assert!(refused(table(&["a", "b"], &[0], vec![row(1, vec![Value::Null])])));
    assert!(refused(table(&["a"], &[1], vec![])), "a key part without a column");
    assert!(refused(table(&["a"], &[0, 0], vec![])), "a key part twice");
    assert!(refused(table(&["a", "a"], &[0], vec![])), "a column twice");
    assert!(refused(table(&["a"], &[0], vec![row(1, vec![Value::Real(f64::NAN)])])), "NaN");
}

#[test]
fn a_batch_is_bounded() {
    let over = |tables: &[TableRows], what| {
        assert!(
            matches!(pack(tables), Err(RowsError::TooLarge { unit, .. }) if unit == what),
            "{what}"
        );
    };
    let many = |n: usize| (0..n).map(|_| row(1, vec![Value::Null])).collect();
    round_trips(&[table(&["a"], &[0], many(BATCH_ROWS_MAX))]);
    over(&[table(&["a"], &[0], many(BATCH_ROWS_MAX + 1))], "rows");
    over(&vec![table(&[], &[], vec![]); TABLES_MAX + 1], "tables");
    let names: Vec<String> = (0..=COLUMNS_MAX).map(|n| n.to_string()).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    over(&[table(&names, &[0], vec![])], "columns");
    let wide = vec![Value::Null; 1_000];
    over(
        &[table(&names[..1_000], &[0], (0..1_100).map(|n| row(n, wide.clone())).collect())],
        "cells",
    );
    let large = Value::Blob(vec![7; BATCH_RAW_BYTES_MAX]);
    over(&[table(&["a"], &[0], vec![row(1, vec![large])])], "bytes");
}

#[test]
fn bytes_that_are_not_those_of_the_digest_are_refused() {
    let mut packed = pack(&[table(&["a"], &[0], vec![row(1, vec![Value::Int(1)])])]).unwrap();
    let last = packed.bytes.len() - 1;
    packed.bytes[last] ^= 1;
    assert_eq!(unpack(&packed), Err(RowsError::Digest));
}

#[test]
fn bombs_are_refused_before_they_unfold() {
    // 16 MiB of zeros: as raw rows they are no tables followed by leftovers.
    let zeros = vec![0; BATCH_RAW_BYTES_MAX];
    assert!(matches!(unpack(&payload(&zeros)), Err(RowsError::Malformed(_))));
    // The same declared as less, as more, and as more than any batch.
    for declared in [0, 1, 1_000, u32::MAX] {
        let mut bomb = payload(&zeros);
        bomb.raw_len = declared;
        assert!(unpack(&bomb).is_err(), "declared as {declared}");
    }
    let varint = |n: usize| postcard::to_stdvec(&n).expect("a number");
    let ones = |n: usize| vec![1_u8; n];
    // Tables without end, columns without end, rows without end, a key without end.
    let tables = [varint(TABLES_MAX + 1), vec![0; 7 * (TABLES_MAX + 1)]].concat();
    let columns = [ones(1), vec![0], varint(1 << 23), vec![0; 1 << 23]].concat();
    let rows = [ones(1), vec![0, 0, 0], varint(1 << 23), vec![0; 1 << 23]].concat();
    let key = [ones(1), vec![0, 0], varint(1 << 23), vec![0; 1 << 23]].concat();
    let lies = [ones(1), vec![0], varint(usize::MAX)].concat();
    for (what, raw) in [tables, columns, rows, key, lies].into_iter().enumerate() {
        assert!(unpack(&payload(&raw)).is_err(), "bomb {what}");
    }
}

#[test]
fn a_tombstone_with_other_values_and_values_of_no_row_are_refused() {
    // Written by hand: table "", columns a and b, key a, one row, deleted, no bases.
    let head = [1, 0, 2, 1, b'a', 1, b'b', 1, 0, 1, 2, 1, 0, 0, 2];
    let null = [1, 0, 0, 0, 0, 0];
    let int = [1, 1, 1, 2, 0, 0, 0];
    let int_over = [1, 1, 2, 2, 2, 0, 0, 0];
    let read = |a: &[u8], b: &[u8]| unpack(&payload(&[&head[..], a, b].concat()));
    assert!(read(&int, &null).is_ok());
    assert!(read(&null, &null).is_ok());
    assert!(read(&int, &int).is_err(), "a value outside the key");
    assert!(read(&int_over, &null).is_err(), "an integer too many");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn rows_round_trip(tables in prop::collection::vec(arbitrary::table(), 0..4)) {
        let packed = pack(&tables).unwrap();
        prop_assert_eq!(unpack(&packed).unwrap(), tables);
        prop_assert_eq!(Digest::of(&packed.bytes), packed.digest);
    }

    #[test]
    fn random_bytes_never_panic(raw in prop::collection::vec(any::<u8>(), 0..300)) {
        let digest = Digest::of(&raw);
        let _result = unpack(&PackedRows { digest, raw_len: 4_096, bytes: raw.clone() });
        let _result = unpack(&payload(&raw));
    }

    #[test]
    fn mutated_rows_never_panic(
        tables in prop::collection::vec(arbitrary::table(), 1..3),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let packed = pack(&tables).unwrap();
        let mut raw = zstd::bulk::decompress(&packed.bytes, packed.raw_len as usize).unwrap();
        for (at, byte) in changes {
            let at = at.index(raw.len());
            raw[at] = byte;
        }
        if let Ok(tables) = unpack(&payload(&raw)) {
            // What is taken is sound: it has keys and hashes, and packs again.
            for table in &tables {
                for row in &table.rows {
                    let _key = table.key_of(row);
                    let _hash = table.hash_of(row);
                }
            }
            prop_assert_eq!(unpack(&pack(&tables).unwrap()).unwrap(), tables);
        }
        let cut = cut.index(raw.len());
        let _result = unpack(&payload(&raw[..cut]));
    }
}
