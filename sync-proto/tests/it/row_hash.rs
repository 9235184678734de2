//! Row hashes against vectors that were computed by another program.

use proptest::prelude::*;
use sync_proto::{RowHash, Value};

use crate::{arbitrary, notation};

#[test]
fn hashes_are_those_of_the_golden_file() {
    for (row, wanted) in notation::cases(include_str!("../golden/row_hash.txt")) {
        let columns: Vec<(&str, Value)> = row
            .split("; ")
            .filter(|column| !column.is_empty())
            .map(|column| column.split_once(" = ").expect("column = value"))
            .map(|(name, value)| (name, notation::value(value)))
            .collect();
        let hash = RowHash::of(columns.iter().map(|(name, value)| (*name, value)));
        assert_eq!(hex::encode(hash.0), wanted, "{row}");
    }
}

proptest! {
    #[test]
    fn neither_order_nor_null_columns_matter(
        values in prop::collection::btree_map("[a-c]{1,3}", arbitrary::value(), 0..6),
        shuffled in any::<prop::sample::Index>(),
    ) {
        let plain = RowHash::of(values.iter().map(|(name, value)| (name.as_str(), value)));
        let mut columns: Vec<(&str, &Value)> =
            values.iter().map(|(name, value)| (name.as_str(), value)).collect();
        columns.push(("new", &Value::Null));
        let turn = shuffled.index(columns.len());
        columns.rotate_left(turn);
        prop_assert_eq!(RowHash::of(columns), plain);
    }

    #[test]
    fn another_value_is_another_hash(a in arbitrary::value(), b in arbitrary::value()) {
        let same = RowHash::of([("c", &a)]) == RowHash::of([("c", &b)]);
        prop_assert_eq!(same, a == b);
        prop_assert_ne!(RowHash::of([("c", &a)]), RowHash::TOMBSTONE);
    }
}
