//! Batches that were handed out and have no receipt yet: which keys each of them carried.
//!
//! Kept in memory only. After a restart they are unknown, their receipts are ignored, and their
//! keys are sent again under the same numbers.

use sync_proto::{Digest, Lane, Seq};

use crate::log::LoggedKey;

/// One batch without a receipt.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Flight {
    /// Its lane.
    pub(crate) lane: Lane,
    /// Where its range starts.
    pub(crate) prev: Seq,
    /// Where its range ends.
    pub(crate) last: Seq,
    /// The digest of its rows.
    pub(crate) digest: Digest,
    /// The keys of its rows, in the order of their labels.
    pub(crate) keys: Vec<LoggedKey>,
}

/// Every batch without a receipt.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight {
    flights: Vec<Flight>,
}

impl InFlight {
    /// Remembers a batch.
    pub(crate) fn add(&mut self, flight: Flight) {
        self.flights.push(flight);
    }

    /// Takes out the batch that a receipt speaks of.
    pub(crate) fn take(&mut self, lane: Lane, last: Seq, digest: Digest) -> Option<Flight> {
        let is =
            |flight: &Flight| flight.lane == lane && flight.last == last && flight.digest == digest;
        let at = self.flights.iter().position(is)?;
        Some(self.flights.remove(at))
    }

    /// Forgets the batches of a lane above `prev`: the lane goes on from there, so they are not on
    /// their way any more.
    pub(crate) fn forget_above(&mut self, lane: Lane, prev: Seq) {
        self.flights.retain(|flight| flight.lane != lane || flight.last <= prev);
    }

    /// Forgets the batches of a lane up to `seq`: they are settled.
    pub(crate) fn forget_up_to(&mut self, lane: Lane, seq: Seq) {
        self.flights.retain(|flight| flight.lane != lane || flight.last > seq);
    }

    /// Forgets everything: another epoch begins.
    pub(crate) fn clear(&mut self) {
        self.flights.clear();
    }
}
