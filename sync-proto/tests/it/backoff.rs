//! Waits: bounded, spread, growing, and reset only when told.

use std::time::Duration;

use proptest::prelude::*;
use sync_proto::backoff::{Backoff, Bounds, InvalidBounds};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn bounds_are_checked() {
    let refused = |base, cap| Bounds::new(base, cap).unwrap_err();
    assert_eq!(refused(Duration::ZERO, SECOND), InvalidBounds::ZeroBase);
    assert_eq!(
        refused(SECOND * 2, SECOND),
        InvalidBounds::CapBelowBase { base: SECOND * 2, cap: SECOND }
    );
    let long = Bounds::CAP_MAX + SECOND;
    assert_eq!(refused(SECOND, long), InvalidBounds::CapTooLong { cap: long });
    let bounds = Bounds::new(SECOND, SECOND).unwrap();
    assert_eq!((bounds.base(), bounds.cap()), (SECOND, SECOND));
    assert!(Bounds::new(Bounds::DEFAULT.base(), Bounds::DEFAULT.cap()).is_ok());
}

#[test]
fn devices_that_failed_together_do_not_come_back_together() {
    let waits = |seed| {
        let mut backoff = Backoff::new(Bounds::DEFAULT, seed);
        (0..4).map(|_| backoff.deadline(Duration::ZERO)).collect::<Vec<_>>()
    };
    let first: std::collections::BTreeSet<Duration> = (0..200).map(|s| waits(s)[0]).collect();
    assert!(first.len() > 190, "200 devices share {} first waits", first.len());
    assert_eq!(waits(7), waits(7), "one seed, one series");
}

#[test]
fn a_long_outage_ends_in_waits_near_the_cap() {
    let bounds = Bounds::new(SECOND, SECOND * 60).unwrap();
    let mut backoff = Backoff::new(bounds, 1);
    let waits: Vec<Duration> = (0..200).map(|_| backoff.deadline(Duration::ZERO)).collect();
    let mean = waits[100..].iter().sum::<Duration>() / 100;
    assert!(mean > SECOND * 15, "the mean of later waits is {mean:?}");
    backoff.reset();
    assert!(backoff.deadline(Duration::ZERO) <= SECOND * 3, "after a reset the series is short");
}

proptest! {
    #[test]
    fn every_wait_lies_in_its_bounds(
        seed: u64,
        base_ms in 1_u64..10_000,
        factor in 1_u32..1_000,
        now_ms in 0_u64..1 << 50,
        asked_ms: u32,
        steps in prop::collection::vec(0..5_u8, 1..60),
    ) {
        let base = Duration::from_millis(base_ms);
        let cap = base * factor;
        let bounds = Bounds::new(base, cap.min(Bounds::CAP_MAX)).unwrap();
        let (cap, now) = (bounds.cap(), Duration::from_millis(now_ms));
        let asked = Duration::from_millis(asked_ms.into());
        let mut backoff = Backoff::new(bounds, seed);
        let mut before = base;
        for step in steps {
            match step {
                0 => {
                    let first = backoff.first(now) - now;
                    prop_assert!(first <= base);
                }
                1 => {
                    let wait = backoff.deadline_after(now, asked) - now;
                    let asked = asked.min(Bounds::CAP_MAX);
                    prop_assert!(wait >= asked && wait <= asked + base);
                }
                2 => {
                    before = backoff.deadline_far(now) - now;
                    prop_assert!(before >= cap * 3 / 4 && before <= cap);
                }
                3 => {
                    backoff.reset();
                    before = base;
                }
                _ => {
                    let wait = backoff.deadline(now) - now;
                    prop_assert!(wait >= base && wait <= cap && wait <= before * 3);
                    before = wait;
                }
            }
        }
    }
}
