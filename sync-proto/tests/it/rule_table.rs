//! The version rule as a table that anyone can read.

use sync_proto::{RowHash, Stamp, Verdict, Version, decide};

/// stored version and content | incoming version and content | what the rule says.
/// `-` is a row that was never written, `dead` the content of a deleted row.
const TABLE: &str = "
    -             | 1 a                   | Apply          # the first write
    -             | 1 dead                | Apply          # a delete of what was never seen
    -             | 1099511627776 a       | Apply          # as far as a first version may be
    -             | 1099511627777 a       | OutOfRange     # one further
    -             | 0 a                   | OutOfRange     # 0 means never written
    -             | -1 a                  | OutOfRange
    -             | 9223372036854775807 a | OutOfRange     # no numbers would be left
    5 a           | 6 b                   | Apply          # newer wins
    5 a           | 6 a                   | Apply          # newer, though the same content
    5 a           | 6 dead                | Apply          # a delete
    5 dead        | 6 a                   | Apply          # a newer write brings the row back
    5 a           | 5 a                   | Duplicate      # a replay
    5 dead        | 5 dead                | Duplicate      # a replayed delete
    5 a           | 5 b                   | Diverged       # one version, two contents
    5 a           | 5 dead                | Diverged
    5 dead        | 5 a                   | Diverged
    5 a           | 4 b                   | Stale          # late
    5 a           | 4 a                   | Stale
    5 dead        | 4 a                   | Stale          # a late write does not undo a delete
    5 a           | 0 a                   | OutOfRange
    5 a           | -3 a                  | OutOfRange
    5 a           | 1099511627781 b       | Apply          # the widest step
    5 a           | 1099511627782 b       | OutOfRange     # one wider
    0 a           | 1 a                   | Apply          # a row from before versions
    9223372036854775806 a | 9223372036854775807 b | Apply  # up to the last number
    9223372036854775807 a | 9223372036854775807 a | Duplicate
    -9223372036854775808 a | 9223372036854775807 b | OutOfRange # the difference overflows
";

#[test]
fn the_rule_says_what_the_table_says() {
    let lines = TABLE.lines().map(|line| line.split('#').next().unwrap_or_default().trim());
    let mut checked = 0;
    for line in lines.filter(|line| !line.is_empty()) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [stored, incoming, wanted] = cells[..] else { panic!("three cells in {line:?}") };
        let incoming = stamp(incoming).expect("an incoming row has a version");
        let verdict = decide(stamp(stored), incoming);
        assert_eq!(format!("{verdict:?}"), wanted, "{line}");
        checked += 1;
    }
    assert_eq!(checked, 27, "every line of the table");
}

#[test]
fn only_a_newer_row_is_ever_applied() {
    let versions = [i64::MIN, -1, 0, 1, 2, 1 << 40, (1 << 40) + 1, i64::MAX - 1, i64::MAX];
    let contents = [RowHash([1; 16]), RowHash([2; 16]), RowHash::TOMBSTONE];
    for stored in versions {
        for incoming in versions {
            for (old, new) in contents.iter().flat_map(|a| contents.iter().map(move |b| (a, b))) {
                let stored = Stamp { version: Version(stored), hash: *old };
                let incoming = Stamp { version: Version(incoming), hash: *new };
                if decide(Some(stored), incoming) == Verdict::Apply {
                    assert!(incoming.version > stored.version, "{incoming:?} over {stored:?}");
                }
            }
        }
    }
}

#[test]
fn the_version_of_a_change_does_not_wrap() {
    use sync_proto::Seq;
    assert_eq!(Version::of(Version(0), Seq(7)), Some(Version(7)));
    assert_eq!(Version::of(Version(1 << 40), Seq(7)), Some(Version((1 << 40) + 7)));
    assert_eq!(Version::of(Version(i64::MAX), Seq(1)), None);
}

fn stamp(text: &str) -> Option<Stamp> {
    let (version, content) = text.split_once(' ')?;
    let hash = match content {
        "dead" => RowHash::TOMBSTONE,
        content => RowHash([content.as_bytes()[0]; 16]),
    };
    Some(Stamp { version: Version(version.parse().expect("a version")), hash })
}
