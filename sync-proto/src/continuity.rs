//! Same history or another? The rule that compares a Welcome with what the device knows.
//!
//! Pure: the positions come from the file, from the agent's own state and from the hub. A lost
//! receipt, a restored file and a rolled-back hub look alike at first; tokens tell them apart.

use crate::id::{Incarnation, Lane, Seq};
use crate::message::LanePosition;

/// What a Welcome means for the device's history.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Continuity {
    /// Both ends continue. Lanes where the hub holds a range whose receipt got lost are settled up
    /// to the hub's position.
    Same {
        /// (lane, position) to settle.
        lost_receipts: Vec<(Lane, Seq)>,
    },
    /// The hub holds a range that this file never sent: the file is not the one that sent it
    /// (restored, cloned, rolled back). New epoch, seed everything. This wins over
    /// [`Continuity::HubLost`], which the greeting in the new epoch finds again.
    DeviceForked {
        /// The lane that gave it away.
        lane: Lane,
        /// The hub's position there.
        seq: Seq,
    },
    /// The hub lost what it had given receipts for, or is another hub: seed everything and take
    /// the feed from its start.
    HubLost,
}

/// What the device knows of one lane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct KnownLane {
    /// The range end at the highest watermark that a receipt named: everything up to it is
    /// received. A receipt that came before that of an earlier range does not move it.
    pub received: LanePosition,
    /// Range ends sent since, receipted or not, as this file recorded them.
    pub sent: Vec<LanePosition>,
}

/// Compares the hub's positions with the device's.
#[must_use]
pub fn compare(
    known_incarnation: Option<Incarnation>,
    known: &[KnownLane],
    hub_incarnation: Incarnation,
    hub: &[LanePosition],
) -> Continuity {
    let mut hub_lost = known_incarnation.is_some_and(|known| known != hub_incarnation);
    let mut lost_receipts = Vec::new();
    for lane in Lane::ALL {
        let known = known.iter().find(|known| known.received.lane == lane);
        let received = known.map_or(Seq::ZERO, |known| known.received.seq);
        let hub_at = hub.iter().find(|position| position.lane == lane);
        let hub_seq = hub_at.map_or(Seq::ZERO, |position| position.seq);
        if hub_seq < received {
            hub_lost = true;
            continue;
        }
        let Some(hub_at) = hub_at.filter(|position| position.seq > Seq::ZERO) else { continue };
        let proven = known.is_some_and(|known| {
            known.received == *hub_at || known.sent.iter().any(|sent| sent == hub_at)
        });
        if !proven {
            return Continuity::DeviceForked { lane, seq: hub_at.seq };
        }
        if hub_at.seq > received {
            lost_receipts.push((lane, hub_at.seq));
        }
    }
    if hub_lost { Continuity::HubLost } else { Continuity::Same { lost_receipts } }
}
