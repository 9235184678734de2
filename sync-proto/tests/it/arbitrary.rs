//! Strategies for values and rows of every kind that a SQLite file can hold.

use proptest::prelude::*;
use sync_proto::rows::{Row, TableRows};
use sync_proto::{Value, Version};

/// Any value of any storage class; corners are as likely as the rest.
pub(crate) fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<i64>().prop_map(Value::Int),
        prop_oneof![Just(i64::MIN), Just(i64::MAX), Just(0), Just(-1)].prop_map(Value::Int),
        real().prop_map(Value::Real),
        prop::collection::vec(any::<u8>(), 0..24).prop_map(Value::Text),
        ".{0,12}".prop_map(Value::text),
        prop::collection::vec(any::<u8>(), 0..24).prop_map(Value::Blob),
    ]
}

/// Any double but NaN, which SQLite stores as NULL.
fn real() -> impl Strategy<Value = f64> {
    prop_oneof![
        any::<u64>().prop_map(f64::from_bits).prop_filter("SQLite holds no NaN", |n| !n.is_nan()),
        Just(0.0),
        Just(-0.0),
        Just(f64::INFINITY),
        Just(f64::NEG_INFINITY),
        Just(f64::MIN_POSITIVE),
        Just(5e-324),
        Just(f64::MAX),
    ]
}

/// A table with rows that fit it. Of tombstones only the key has values.
pub(crate) fn table() -> impl Strategy<Value = TableRows> {
    (0_usize..6, ".{0,8}")
        .prop_flat_map(|(width, table)| {
            let key = prop::sample::subsequence((0..width).collect::<Vec<_>>(), 0..=width);
            let row = (any::<i64>(), any::<Option<i64>>(), any::<bool>());
            let row = (row, prop::collection::vec(value(), width));
            (Just(width), Just(table), key.prop_shuffle(), prop::collection::vec(row, 0..20))
        })
        .prop_map(|(width, table, key, rows)| {
            let rows = rows.into_iter().map(|((number, base, deleted), mut values)| {
                for (index, value) in values.iter_mut().enumerate() {
                    if deleted && !key.contains(&index) {
                        *value = Value::Null;
                    }
                }
                Row { number, base: base.map(Version), values, deleted }
            });
            let rows = rows.collect();
            let columns = (0..width).map(|index| format!("column {index}")).collect();
            let key = key.iter().map(|index| u16::try_from(*index).unwrap()).collect();
            TableRows { table, columns, key, rows }
        })
}
