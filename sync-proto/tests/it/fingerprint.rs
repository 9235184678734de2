//! Schema fingerprints against vectors that were computed by another program, and affinities
//! against SQLite's own rules.

use sync_proto::schema::{Affinity, ColumnSpec, fingerprint};

use crate::notation;

#[test]
fn fingerprints_are_those_of_the_golden_file() {
    for (table, wanted) in notation::cases(include_str!("../golden/fingerprint.txt")) {
        let (name, columns) = table.split_once(" | ").expect("table | columns");
        let columns: Vec<ColumnSpec> =
            columns.split("; ").filter(|column| !column.is_empty()).map(column).collect();
        assert_eq!(fingerprint(&string(name), &columns), wanted, "{table}");
    }
}

#[test]
fn affinities_follow_the_declared_type() {
    let cases = [
        ("INTEGER", Affinity::Integer),
        ("unsigned big int", Affinity::Integer),
        ("CHARINT", Affinity::Integer),
        ("FLOATING POINT", Affinity::Integer), // "POINT" holds "INT".
        ("VARCHAR(20)", Affinity::Text),
        ("clob", Affinity::Text),
        ("", Affinity::Blob),
        (" ", Affinity::Blob),
        ("BLOB", Affinity::Blob),
        ("DOUBLE PRECISION", Affinity::Real),
        ("float", Affinity::Real),
        ("DECIMAL(10,5)", Affinity::Numeric),
        ("BOOLEAN", Affinity::Numeric),
        ("DATETIME", Affinity::Numeric),
        ("größe", Affinity::Numeric),
    ];
    for (declared, wanted) in cases {
        assert_eq!(Affinity::of_declared(declared), wanted, "{declared:?}");
    }
}

fn column(text: &str) -> ColumnSpec {
    let mut words = text.rsplitn(4, ' ');
    let mut word = || words.next().expect("name affinity ordinal not_null");
    let not_null = word() == "true";
    let key_ordinal = word().parse().expect("an ordinal");
    let affinity = serde_json::from_value(word().into()).expect("an affinity");
    ColumnSpec { name: string(word()), affinity, key_ordinal, not_null }
}

fn string(json: &str) -> String {
    serde_json::from_str(json).expect("a JSON string")
}
