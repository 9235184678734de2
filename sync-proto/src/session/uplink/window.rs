//! One lane's batches on their way: chained, each with its exact bytes until its receipt came.
//!
//! A window of slots. The first slot starts at the watermark, each other one where the slot before
//! it ends; a slot whose receipt came early keeps its place, without its bytes, until those before
//! it are received too. So the watermark moves only by receipts, and only without a gap.

use std::collections::VecDeque;
use std::time::Duration;

use crate::id::{Digest, Lane, Seq};
use crate::message::Receipt;
use crate::session::input::{OutBatch, SendId};

#[derive(Debug)]
pub(super) struct LaneWindow {
    pub(super) lane: Lane,
    /// Up to where everything has a receipt.
    watermark: Seq,
    /// The highest watermark that the hub named in this session.
    hub_watermark: Seq,
    slots: VecDeque<Slot>,
    /// Whether capture may have something for this lane.
    pub(super) hungry: bool,
    /// Whether capture found work again after it was asked.
    pub(super) worked: bool,
    /// Nothing is asked for before this time.
    pub(super) hold_until: Option<Duration>,
    /// What keeps the lane from progress.
    pub(super) error: Option<String>,
}

#[derive(Debug)]
struct Slot {
    prev: Seq,
    last: Seq,
    digest: Digest,
    /// The size that was asked for when the batch was built.
    batch_bytes: usize,
    state: SlotState,
}

#[derive(Debug)]
enum SlotState {
    /// To be sent when the link is live.
    Unsent { frame: Vec<u8> },
    /// On its way.
    Sent { frame: Vec<u8>, id: SendId },
    /// Received, but something before it is not. `by` lies above every message sent until then.
    Received { by: SendId },
}

/// What a receipt did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Counted {
    /// Nothing: no batch in flight is the one that it speaks of.
    No,
    /// Its batch is received.
    Yes,
    /// Its batch is received, and the hub shows that it lost ranges that it had received before.
    HubForgot,
}

impl LaneWindow {
    pub(super) const fn new(lane: Lane) -> Self {
        Self {
            lane,
            watermark: Seq::ZERO,
            hub_watermark: Seq::ZERO,
            slots: VecDeque::new(),
            hungry: false,
            worked: false,
            hold_until: None,
            error: None,
        }
    }

    /// Goes on from the hub's position. What it holds is received; the rest is kept if it chains
    /// from there.
    pub(super) fn adopt(&mut self, position: Seq) {
        // Receipts that came after the hub wrote the Welcome are ahead of it.
        let position = position.max(self.watermark);
        while self.slots.front().is_some_and(|slot| slot.last <= position) {
            self.slots.pop_front();
        }
        if self.slots.front().is_some_and(|slot| slot.prev > position) {
            self.slots.clear();
        }
        self.watermark = position;
        self.hub_watermark = position;
        self.hungry = true;
        self.pop_received();
    }

    /// Starts at the hub's position in another history: nothing of before counts.
    pub(super) fn restart(&mut self, position: Seq) {
        self.forget();
        self.watermark = position;
        self.hub_watermark = position;
    }

    /// Whether the hub's position, asked for by the message `hello`, shows that it lost a range
    /// that it had given a receipt for before.
    pub(super) fn is_forgotten_at(&self, position: Seq, hello: SendId) -> bool {
        self.slots.iter().any(|slot| {
            matches!(slot.state, SlotState::Received { by } if by <= hello)
                && slot.prev <= position
                && position < slot.last
        })
    }

    /// Lets go of every batch: what they carried is read again from the watermark on.
    pub(super) fn forget(&mut self) {
        self.slots.clear();
        self.hungry = true;
    }

    /// Where the next range starts.
    pub(super) fn next(&self) -> Seq {
        self.slots.back().map_or(self.watermark, |slot| slot.last)
    }

    pub(super) const fn watermark(&self) -> Seq {
        self.watermark
    }

    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Bytes of the frames that are kept.
    pub(super) fn frame_bytes(&self) -> usize {
        self.slots.iter().filter_map(|slot| slot.state.frame()).map(Vec::len).sum()
    }

    /// Takes a batch that starts where the last one ends; any other is dropped.
    pub(super) fn push(&mut self, batch: OutBatch, batch_bytes: usize) -> bool {
        if batch.prev != self.next() || batch.last <= batch.prev {
            return false;
        }
        self.slots.push_back(Slot {
            prev: batch.prev,
            last: batch.last,
            digest: batch.digest,
            batch_bytes,
            state: SlotState::Unsent { frame: batch.frame },
        });
        true
    }

    /// Sends every batch that is not on its way, in order, as `send` names it.
    pub(super) fn send(&mut self, mut send: impl FnMut(Vec<u8>) -> SendId) {
        for slot in &mut self.slots {
            if let SlotState::Unsent { frame } = &mut slot.state {
                let frame = std::mem::take(frame);
                let id = send(frame.clone());
                slot.state = SlotState::Sent { frame, id };
            }
        }
    }

    /// Counts a receipt if it is that of a batch in flight; `by` lies above every message sent.
    pub(super) fn receipt(&mut self, receipt: &Receipt, by: SendId) -> Counted {
        let Some(slot) = self.slots.iter_mut().find(|slot| slot.is_of(receipt)) else {
            return Counted::No;
        };
        slot.state = SlotState::Received { by };
        self.hub_watermark = self.hub_watermark.max(receipt.watermark);
        self.error = None;
        self.pop_received();
        // With everything up to here received, the last of these receipts to be written named a
        // watermark that is not below, in whatever order they came.
        if self.hub_watermark < self.watermark { Counted::HubForgot } else { Counted::Yes }
    }

    /// Whether the batch sent under this id still waits for its receipt.
    pub(super) fn awaits(&self, id: SendId) -> bool {
        self.position(id).is_some()
    }

    /// The batch sent under this id got no answer: it is to be sent again.
    pub(super) fn unsend(&mut self, id: SendId) {
        let Some(slot) = self.position(id).and_then(|index| self.slots.get_mut(index)) else {
            return;
        };
        if let SlotState::Sent { frame, .. } = &mut slot.state {
            slot.state = SlotState::Unsent { frame: std::mem::take(frame) };
        }
    }

    /// The size that the batch sent under this id was built for.
    pub(super) fn batch_bytes(&self, id: SendId) -> Option<usize> {
        self.position(id).map(|index| self.slots[index].batch_bytes)
    }

    fn position(&self, sent: SendId) -> Option<usize> {
        self.slots
            .iter()
            .position(|slot| matches!(&slot.state, SlotState::Sent { id, .. } if *id == sent))
    }

    fn pop_received(&mut self) {
        while let Some(slot) = self.slots.front() {
            if !matches!(slot.state, SlotState::Received { .. }) {
                return;
            }
            self.watermark = self.watermark.max(slot.last);
            self.slots.pop_front();
        }
    }
}

impl Slot {
    /// Whether the receipt speaks of exactly this batch, and is the first to do so.
    fn is_of(&self, receipt: &Receipt) -> bool {
        !matches!(self.state, SlotState::Received { .. })
            && self.prev == receipt.prev
            && self.last == receipt.last
            && self.digest == receipt.digest
    }
}

impl SlotState {
    const fn frame(&self) -> Option<&Vec<u8>> {
        match self {
            Self::Unsent { frame } | Self::Sent { frame, .. } => Some(frame),
            Self::Received { .. } => None,
        }
    }
}
