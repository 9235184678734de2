//! How long a key waits: when the log was seen to reach which number.
//!
//! The log carries no time, so that no wall clock takes part in any order. What was logged before
//! this process looked first counts from that first look.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use sync_proto::Seq;

/// Looks that are remembered; when there are more, every other one is forgotten, so an age is
/// exact to about a sixty-fourth.
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
            let mut keep = false;
            self.sights.retain(|_| {
                keep = !keep;
                keep
            });
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
        let age = ages.age(Seq(100), start + Duration::from_secs(10_000));
        assert!(age > Duration::from_secs(9_000), "{age:?}");
    }
}
