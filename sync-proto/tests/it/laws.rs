//! The laws of the version rule: order and repetition of the same writes change nothing.

use std::collections::BTreeMap;

use proptest::prelude::*;
use sync_proto::{RowHash, Stamp, Verdict, Version, decide};

/// A store of rows as small as it can be: the rule's only user here.
#[derive(Clone, PartialEq, Debug, Default)]
struct Store {
    rows: BTreeMap<u8, Stamp>,
    applied: u32,
}

impl Store {
    fn write(&mut self, (key, stamp): (u8, Stamp)) -> Verdict {
        let verdict = decide(self.rows.get(&key).copied(), stamp);
        if verdict == Verdict::Apply {
            self.rows.insert(key, stamp);
            self.applied += 1;
        }
        verdict
    }

    fn of(writes: &[(u8, Stamp)]) -> Self {
        let mut store = Self::default();
        for write in writes {
            store.write(*write);
        }
        store
    }
}

/// Writes of which each (key, version) has one content, as capture labels them; some are deletes.
fn writes() -> impl Strategy<Value = Vec<(u8, Stamp)>> {
    prop::collection::btree_map((0..5_u8, 1..30_i64), 0..4_u8, 1..40).prop_map(|writes| {
        let write = |((key, version), content): ((u8, i64), u8)| {
            (key, Stamp { version: Version(version), hash: RowHash([content; 16]) })
        };
        writes.into_iter().map(write).collect()
    })
}

/// Writes of keys, in order.
type Writes = Vec<(u8, Stamp)>;

/// The same writes, shuffled, with some of them several times.
fn replayed() -> impl Strategy<Value = (Writes, Writes)> {
    writes().prop_flat_map(|writes| {
        let again = prop::collection::vec(prop::sample::select(writes.clone()), 0..40);
        again.prop_flat_map(move |again| {
            let all = [writes.clone(), again].concat();
            (Just(writes.clone()), Just(all).prop_shuffle())
        })
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_order_and_duplication_ends_in_the_same_state((writes, replayed) in replayed()) {
        let mut newest: BTreeMap<u8, Stamp> = BTreeMap::new();
        for (key, stamp) in &writes {
            let held = newest.entry(*key).or_insert(*stamp);
            if stamp.version > held.version {
                *held = *stamp;
            }
        }
        prop_assert_eq!(&Store::of(&writes).rows, &newest);
        prop_assert_eq!(&Store::of(&replayed).rows, &newest);
    }

    #[test]
    fn nothing_is_applied_twice((_, replayed) in replayed()) {
        let mut store = Store::default();
        let mut seen = std::collections::BTreeSet::new();
        for write in replayed {
            let before = store.rows.get(&write.0).copied();
            let verdict = store.write(write);
            if !seen.insert((write.0, write.1.version)) {
                prop_assert_ne!(verdict, Verdict::Apply, "a replay of {:?}", write);
            }
            if verdict != Verdict::Apply {
                prop_assert_eq!(store.rows.get(&write.0).copied(), before);
            }
        }
    }

    #[test]
    fn a_whole_replay_writes_nothing((writes, replayed) in replayed()) {
        let store = Store::of(&writes);
        let mut again = store.clone();
        for write in replayed {
            again.write(write);
        }
        prop_assert_eq!(again, store);
    }

    #[test]
    fn batches_may_be_cut_anywhere((writes, _) in replayed(), cut in any::<prop::sample::Index>()) {
        let cut = cut.index(writes.len() + 1);
        let mut store = Store::of(&writes[cut..]);
        for write in &writes[..cut] {
            store.write(*write);
        }
        prop_assert_eq!(store.rows, Store::of(&writes).rows);
    }

    #[test]
    fn another_content_under_a_stored_version_never_gets_in(
        (_, replayed) in replayed(),
        content in 4..9_u8,
    ) {
        let mut store = Store::of(&replayed);
        for (key, held) in store.rows.clone() {
            let other = Stamp { hash: RowHash([content; 16]), ..held };
            prop_assert_eq!(store.write((key, other)), Verdict::Diverged);
            prop_assert_eq!(store.rows[&key], held);
        }
    }
}
