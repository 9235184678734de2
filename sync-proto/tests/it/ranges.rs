//! The progress of a lane against a model that counts every number one by one.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sync_proto::limits::PENDING_RANGES_MAX;
use sync_proto::message::LanePosition;
use sync_proto::{Lane, LaneProgress, Offer, Seq, Token};

fn lane(watermark: i64) -> LaneProgress {
    let seq = Seq(watermark);
    LaneProgress::new(LanePosition { lane: Lane::State, seq, token: token(watermark) }, Vec::new())
}

/// Every range end has a token of its own.
fn token(seq: i64) -> Token {
    Token(seq.to_le_bytes())
}

fn offer(lane: &mut LaneProgress, prev: i64, last: i64) -> Offer {
    lane.offer(Seq(prev), Seq(last), token(last))
}

fn extended(watermark: i64) -> Offer {
    Offer::Extended { watermark: Seq(watermark), token: token(watermark) }
}

fn pending(lane: &LaneProgress) -> Vec<(i64, i64)> {
    lane.pending().map(|(prev, last, _)| (prev.0, last.0)).collect()
}

#[test]
fn ranges_chain() {
    let mut lane = lane(0);
    assert_eq!(offer(&mut lane, 0, 5), extended(5));
    assert_eq!(offer(&mut lane, 0, 5), Offer::Duplicate);
    assert_eq!(offer(&mut lane, 9, 12), Offer::Pending, "6 to 9 are missing");
    assert_eq!(offer(&mut lane, 15, 20), Offer::Pending);
    assert_eq!(offer(&mut lane, 9, 12), Offer::Duplicate);
    assert_eq!(pending(&lane), [(9, 12), (15, 20)]);
    assert_eq!(offer(&mut lane, 5, 9), extended(12), "what waited follows");
    assert_eq!(offer(&mut lane, 3, 14), extended(14), "cut anew, it may start below");
    assert_eq!(offer(&mut lane, 10, 16), extended(20), "and reach into what waits");
    assert_eq!(pending(&lane), []);
    assert_eq!(lane.watermark().token, token(20));
}

#[test]
fn what_is_no_range_changes_nothing() {
    let mut lane = lane(10);
    let before = lane.clone();
    for (prev, last) in [(10, 10), (12, 11), (-1, 20), (i64::MIN, i64::MAX), (20, 20)] {
        assert_eq!(offer(&mut lane, prev, last), Offer::Invalid, "({prev}, {last}]");
    }
    assert_eq!(lane, before);
}

#[test]
fn kept_ranges_are_bounded_and_the_missing_one_is_always_taken() {
    let mut lane = lane(0);
    let max = i64::try_from(PENDING_RANGES_MAX).unwrap();
    for n in 1..=max {
        assert_eq!(offer(&mut lane, n * 10, n * 10 + 5), Offer::Pending);
    }
    let full = lane.clone();
    assert_eq!(offer(&mut lane, max * 10 + 10, max * 10 + 15), Offer::Full);
    assert_eq!(lane, full, "a refused range leaves no trace");
    assert_eq!(offer(&mut lane, 15, 20), Offer::Pending, "joining needs no room");
    assert_eq!(lane.pending().count(), PENDING_RANGES_MAX - 1);
    assert_eq!(offer(&mut lane, 0, 10), extended(25), "what is missing extends");
}

#[test]
fn stored_progress_comes_back_the_same() {
    let mut lane = lane(3);
    for (prev, last) in [(10, 12), (20, 25), (24, 30), (12, 15)] {
        offer(&mut lane, prev, last);
    }
    let stored: Vec<_> = lane.pending().collect();
    assert_eq!(LaneProgress::new(lane.watermark(), stored.clone()), lane);
    // Whatever a store holds, progress is never below what it says.
    let ahead = LanePosition { seq: Seq(22), ..lane.watermark() };
    let loaded = LaneProgress::new(ahead, stored);
    assert_eq!((loaded.watermark().seq, loaded.pending().count()), (Seq(30), 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn the_watermark_is_where_the_naive_set_ends(
        ranges in prop::collection::vec((0_i64..60, 1_i64..12), 1..40),
        reloads in any::<u64>(),
    ) {
        let mut lane = lane(0);
        let mut covered = BTreeSet::new();
        for (step, (prev, len)) in ranges.into_iter().enumerate() {
            let (before, last) = (lane.watermark().seq.0, prev + len);
            let is_new = (prev + 1..=last).any(|n| !covered.contains(&n));
            let outcome = offer(&mut lane, prev, last);
            covered.extend(prev + 1..=last);
            let watermark = (0..).find(|n| !covered.contains(&(n + 1))).unwrap_or(0);

            prop_assert_eq!(lane.watermark().seq.0, watermark);
            prop_assert_eq!(lane.watermark().token, token(watermark), "the token of its end");
            prop_assert!(watermark >= before, "monotonic");
            match outcome {
                Offer::Extended { .. } => prop_assert!(watermark > before),
                Offer::Pending => prop_assert!(is_new && watermark == before),
                Offer::Duplicate => prop_assert!(!is_new),
                Offer::Full | Offer::Invalid => prop_assert!(false, "{:?}", outcome),
            }
            let kept: BTreeSet<i64> =
                pending(&lane).into_iter().flat_map(|(prev, last)| prev + 1..=last).collect();
            let above: BTreeSet<i64> = covered.range(watermark + 1..).copied().collect();
            prop_assert_eq!(kept, above, "what waits is what lies above");
            if reloads >> (step % 64) & 1 == 1 {
                lane = LaneProgress::new(lane.watermark(), lane.pending().collect());
            }
        }
    }

    #[test]
    fn order_and_duplicates_do_not_matter(
        ranges in prop::collection::vec((0_i64..40, 1_i64..10), 1..20),
        other in any::<prop::sample::Index>(),
    ) {
        let mut one = lane(0);
        let mut two = lane(0);
        for (prev, len) in &ranges {
            offer(&mut one, *prev, prev + len);
        }
        let turn = other.index(ranges.len());
        for (prev, len) in ranges[turn..].iter().chain(&ranges).rev() {
            offer(&mut two, *prev, prev + len);
        }
        prop_assert_eq!(one, two);
    }
}
