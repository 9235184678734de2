//! How far a lane is durable: a watermark, and ranges that came before their predecessors.
//!
//! The rule of the receiving end, pure: it sees a chained range (prev, last] and says whether the
//! watermark moves. It leaves storing, receipts and rows to its callers. A watermark only rises,
//! and it stands at the end of a range of which everything before is covered too.

use std::collections::BTreeMap;

use crate::id::{Seq, Token};
use crate::limits::PENDING_RANGES_MAX;
use crate::message::LanePosition;

/// The progress of one lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneProgress {
    watermark: LanePosition,
    /// By start: ranges above the watermark, disjoint and not touching each other.
    pending: BTreeMap<Seq, (Seq, Token)>,
}

/// What an offered range means for its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Offer {
    /// The watermark moved up to here: to the range's own end, or further where ranges waited.
    Extended {
        /// The new watermark.
        watermark: Seq,
        /// Its token.
        token: Token,
    },
    /// A range before it is missing: it is kept, and counts as soon as that one comes.
    Pending,
    /// Everything in it is covered; nothing changed.
    Duplicate,
    /// A range before it is missing, and no more ranges can be kept. Nothing changed: not before
    /// the missing one came can it be taken.
    Full,
    /// Not a range: it ends where it starts, before that, or starts below zero. Nothing changed.
    Invalid,
}

impl LaneProgress {
    /// The progress as it was stored: the watermark and the (prev, last, token) of kept ranges, in
    /// any order.
    #[must_use]
    pub fn new(watermark: LanePosition, pending: Vec<(Seq, Seq, Token)>) -> Self {
        let mut progress = Self { watermark, pending: BTreeMap::new() };
        for (prev, last, token) in pending {
            // They fitted when they were stored, and joining them never makes them more.
            progress.offer(prev, last, token);
        }
        progress
    }

    /// Takes a range that is durable, or is going to be in the same transaction.
    pub fn offer(&mut self, prev: Seq, last: Seq, token: Token) -> Offer {
        if prev < Seq::ZERO || last <= prev {
            return Offer::Invalid;
        }
        if last <= self.watermark.seq || self.is_kept(prev, last) {
            return Offer::Duplicate;
        }
        if prev <= self.watermark.seq {
            self.watermark.seq = last;
            self.watermark.token = token;
            self.chain();
            let LanePosition { seq: watermark, token, .. } = self.watermark;
            return Offer::Extended { watermark, token };
        }
        if !self.keep(prev, last, token) {
            return Offer::Full;
        }
        Offer::Pending
    }

    /// Up to where the lane is durable without a gap.
    #[must_use]
    pub const fn watermark(&self) -> LanePosition {
        self.watermark
    }

    /// The ranges kept above the watermark, as (prev, last, token) by rising `prev`. Ranges that
    /// touch are joined, so these are not always the ranges that were offered.
    pub fn pending(&self) -> impl Iterator<Item = (Seq, Seq, Token)> + '_ {
        self.pending.iter().map(|(prev, (last, token))| (*prev, *last, *token))
    }

    fn is_kept(&self, prev: Seq, last: Seq) -> bool {
        self.pending.range(..=prev).next_back().is_some_and(|(_, (end, _))| *end >= last)
    }

    /// Keeps a range above the watermark, joined with those that it overlaps or touches. `false`,
    /// and nothing changed, when that would be one range too many.
    fn keep(&mut self, prev: Seq, last: Seq, token: Token) -> bool {
        let joined: Vec<Seq> = self
            .pending
            .range(..=last)
            .rev()
            .take_while(|(_, (end, _))| *end >= prev)
            .map(|(start, _)| *start)
            .collect();
        if joined.is_empty() && self.pending.len() >= PENDING_RANGES_MAX {
            return false;
        }
        let (mut from, mut to) = (prev, (last, token));
        for start in joined {
            from = from.min(start);
            if let Some(end) = self.pending.remove(&start).filter(|(end, _)| *end > to.0) {
                to = end;
            }
        }
        self.pending.insert(from, to);
        true
    }

    /// Lets the watermark rise over every kept range that it has reached.
    fn chain(&mut self) {
        while let Some(first) = self.pending.first_entry() {
            if *first.key() > self.watermark.seq {
                return;
            }
            let (last, token) = first.remove();
            if last > self.watermark.seq {
                self.watermark.seq = last;
                self.watermark.token = token;
            }
        }
    }
}
