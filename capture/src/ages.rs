//! How long a key waits: when the log was seen to reach which number.
//!
//! The log carries no time, so that no wall clock takes part in any order. What was logged before
//! this process looked first counts from that first look.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sync_proto::Seq;

/// Looks that are remembered; when there are more, the one is forgotten that is missed least.
const SIGHTS_MAX: usize = 128;

/// When the log was seen to reach which number, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ages {
    sights: VecDeque<(Seq, Instant)>,
}

impl Ages {
    /// Notes the newest number.
    pub(crate) fn see(&mut self, newest: Seq, now: Instant) {
        if self.sights.back().is_some_and(|(seq, _)| *seq >= newest) {
            return;
        }
        self.sights.push_back((newest, now));
        if self.sights.len() > SIGHTS_MAX {
            self.forget_one(now);
        }
    }

    /// Forgets the look without which ages change least, in proportion to their length.
    fn forget_one(&mut self, now: Instant) {
        let error = |at: usize| {
            // Numbers seen just after the look before would count from the look after.
            let (before, after) = (self.sights[at - 1].1, self.sights[at + 1].1);
            let age = now.duration_since(before).as_secs_f64();
            after.duration_since(before).as_secs_f64() / age.max(f64::MIN_POSITIVE)
        };
        // The last one is today's, the first one is all that is known of what was there before.
        let candidates = 1..self.sights.len().saturating_sub(1);
        if let Some(at) = candidates.min_by(|a, b| error(*a).total_cmp(&error(*b))) {
            self.sights.remove(at);
        }
    }

    /// How long ago the log reached `seq`, at least.
    pub(crate) fn age(&self, seq: Seq, now: Instant) -> Duration {
        let at = self.sights.partition_point(|(seen, _)| *seen < seq);
        self.sights.get(at).map_or(Duration::ZERO, |(_, then)| now.duration_since(*then))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_age_is_that_of_the_first_look_that_saw_the_number() {
        let start = Instant::now();
        let mut ages = Ages::default();
        for second in 0..10_u32 {
            ages.see(Seq(i64::from(second) * 10), start + Duration::from_secs(second.into()));
        }
        let now = start + Duration::from_secs(20);
        assert_eq!(ages.age(Seq(10), now), Duration::from_secs(19));
        assert_eq!(ages.age(Seq(11), now), Duration::from_secs(18));
        assert_eq!(ages.age(Seq(91), now), Duration::ZERO);
    }

    #[test]
    fn memory_is_bounded_and_old_looks_survive() {
        let start = Instant::now();
        let mut ages = Ages::default();
        for n in 0..10_000_u32 {
            ages.see(Seq(n.into()), start + Duration::from_secs(n.into()));
        }
        assert!(ages.sights.len() <= SIGHTS_MAX);
        for seq in [1_u32, 100, 5_000, 9_000, 9_900, 9_990] {
            let age = ages.age(Seq(seq.into()), start + Duration::from_secs(10_000)).as_secs_f64();
            let exact = f64::from(10_000 - seq);
            assert!(age <= exact && age > exact * 0.8, "{seq}: {age} of {exact}");
        }
    }
}
