//! Batches up: what to ask capture for, what to send, and which receipts count.
//!
//! Three lanes, each with a window of its own, served in the order state, mutable, backfill. It
//! leaves waiting for the link to the session, and reading rows and clearing the log to capture.
//! Invariant (P5): a lane's position moves by a receipt that names epoch, lane, range and digest
//! of a batch in flight, or by a Welcome, and by nothing else.

mod window;

use std::time::Duration;

use window::{Counted, LaneWindow};

use super::config::SessionConfig;
use super::effect::Effect;
use super::input::{OutBatch, SendId};
use super::liveness::Sent;
use super::outbox::Outbox;
use super::status::LaneStatus;
use crate::backoff::Backoff;
use crate::id::{Epoch, Lane, Seq};
use crate::limits::{BATCH_BYTES_MIN, GROW_AFTER_RECEIPTS};
use crate::message::{Limits, Receipt, Welcome};

#[derive(Debug)]
pub(super) struct Uplink {
    lanes: [LaneWindow; 3],
    /// The epoch of the batches in flight; none before the first Welcome.
    epoch: Option<Epoch>,
    generation: u64,
    window_wanted: usize,
    batch_bytes_wanted: usize,
    /// What the hub allows, as of the last Welcome.
    limits: Option<Limits>,
    /// Raw bytes of a batch now: halved when one was too large, doubled after many receipts.
    batch_bytes: usize,
    receipts_in_row: u32,
    /// The Fill that capture has not answered.
    asked: Option<Asked>,
    /// For lanes that are held back while the others go on.
    backoff: Backoff,
    last_receipt: Option<Duration>,
}

#[derive(Debug)]
struct Asked {
    lanes: Vec<Lane>,
    batch_bytes: usize,
}

/// What a receipt means for the session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Progress {
    /// It moves nothing.
    None,
    /// A batch is received.
    Received,
    /// A batch is received, but the hub lost others that it had received before.
    HubForgot,
}

impl Uplink {
    pub(super) fn new(config: &SessionConfig, seed: u64) -> Self {
        Self {
            lanes: Lane::ALL.map(LaneWindow::new),
            epoch: None,
            generation: 0,
            window_wanted: config.window.max(1),
            batch_bytes_wanted: config.batch_bytes.max(BATCH_BYTES_MIN),
            limits: None,
            batch_bytes: config.batch_bytes.max(BATCH_BYTES_MIN),
            receipts_in_row: 0,
            asked: None,
            backoff: Backoff::new(config.backoff, seed),
            last_receipt: None,
        }
    }

    /// Goes on from an adopted Welcome. Batches that another epoch, another generation of
    /// authority or another hub's history built are forgotten.
    pub(super) fn adopt(&mut self, welcome: &Welcome, hub_lost: bool) {
        let other_history = hub_lost || self.epoch != Some(welcome.epoch);
        let other_generation = self.generation != welcome.generation;
        self.epoch = Some(welcome.epoch);
        self.generation = welcome.generation;
        if self.limits != Some(welcome.limits) {
            self.limits = Some(welcome.limits);
            self.batch_bytes = self.batch_bytes_max();
            self.receipts_in_row = 0;
        }
        for lane in &mut self.lanes {
            let position = position_in(welcome, lane.lane);
            if other_history {
                lane.restart(position);
            } else if other_generation {
                lane.forget();
            }
            lane.adopt(position);
        }
    }

    /// Whether a Welcome, asked for by the message `hello`, shows that the hub lost a range that
    /// it had given a receipt for before.
    pub(super) fn is_forgotten_in(&self, welcome: &Welcome, hello: SendId) -> bool {
        self.epoch == Some(welcome.epoch)
            && self
                .lanes
                .iter()
                .any(|lane| lane.is_forgotten_at(position_in(welcome, lane.lane), hello))
    }

    /// Capture may have something for any lane.
    pub(super) fn work(&mut self) {
        for lane in &mut self.lanes {
            lane.hungry = true;
            lane.worked = true;
        }
    }

    /// Takes what capture built. Lanes that it had nothing for are not asked again before it
    /// finds work.
    pub(super) fn filled(&mut self, batches: Vec<OutBatch>, now: Duration) {
        let Some(asked) = self.asked.take() else { return };
        for lane in &mut self.lanes {
            if asked.lanes.contains(&lane.lane)
                && !batches.iter().any(|batch| batch.lane == lane.lane)
            {
                lane.hungry = lane.worked;
            }
        }
        let (frame_bytes_max, window) = (self.frame_bytes_max(), self.window());
        for batch in batches {
            let lane = batch.lane;
            if batch.frame.len() > frame_bytes_max {
                let error = format!(
                    "a batch of lane {} is a frame of {} bytes, the hub takes {frame_bytes_max}",
                    lane.name(),
                    batch.frame.len(),
                );
                self.cut_smaller(lane, asked.batch_bytes, error, now);
            } else if self.lane(lane).len() < window {
                self.lane(lane).push(batch, asked.batch_bytes);
            }
        }
    }

    /// Capture could not build batches.
    pub(super) fn fill_undone(&mut self) {
        self.asked = None;
    }

    /// Sends what is to be sent and asks capture for more, on a live link.
    pub(super) fn pump(&mut self, outbox: &mut Outbox, now: Duration) {
        for lane in &mut self.lanes {
            lane.hold_until = lane.hold_until.filter(|until| *until > now);
            let what = Sent::Up(lane.lane);
            lane.send(|frame| outbox.send_frame(what, frame, now));
        }
        if self.asked.is_some() {
            return;
        }
        let window = self.window();
        let mut wanted = Vec::new();
        for lane in &mut self.lanes {
            if lane.hungry && lane.hold_until.is_none() && lane.len() < window {
                lane.worked = false;
                wanted.push((lane.lane, lane.next(), window - lane.len()));
            }
        }
        if wanted.is_empty() {
            return;
        }
        let lanes = wanted.iter().map(|(lane, _, _)| *lane).collect();
        self.asked = Some(Asked { lanes, batch_bytes: self.batch_bytes });
        outbox.push(Effect::Fill { lanes: wanted, batch_bytes: self.batch_bytes });
    }

    /// When a lane that is held back may be asked for again.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.lanes.iter().filter_map(|lane| lane.hold_until).min()
    }

    /// Counts a receipt, and has what it covers settled, if it is that of a batch in flight.
    pub(super) fn receipt(
        &mut self,
        receipt: Receipt,
        outbox: &mut Outbox,
        now: Duration,
    ) -> Progress {
        if self.epoch != Some(receipt.epoch) {
            return Progress::None;
        }
        let counted = self.lane(receipt.lane).receipt(&receipt, outbox.liveness.next_id());
        if counted == Counted::No {
            return Progress::None;
        }
        outbox.push(Effect::Settle(receipt));
        self.last_receipt = Some(now);
        self.receipts_in_row += 1;
        if self.receipts_in_row >= GROW_AFTER_RECEIPTS {
            self.receipts_in_row = 0;
            self.batch_bytes = self.batch_bytes.saturating_mul(2).min(self.batch_bytes_max());
        }
        if counted == Counted::HubForgot { Progress::HubForgot } else { Progress::Received }
    }

    /// Whether the batch sent under this id still waits for its receipt.
    pub(super) fn awaits(&self, id: SendId) -> bool {
        self.lanes.iter().any(|lane| lane.awaits(id))
    }

    /// The batch sent under this id got no answer: the same bytes go again.
    pub(super) fn unsend(&mut self, lane: Lane, id: SendId) {
        self.lane(lane).unsend(id);
    }

    /// A batch is too large for the other end: the lane's batches are built anew, smaller. At the
    /// smallest size the lane is held back, because cutting has come to its end.
    pub(super) fn too_large(&mut self, lane: Lane, id: SendId, error: String, now: Duration) {
        if let Some(batch_bytes) = self.lane(lane).batch_bytes(id) {
            self.cut_smaller(lane, batch_bytes, error, now);
        }
    }

    /// The bytes of a batch will never be taken: the lane's batches are built anew after a long
    /// wait, while the other lanes go on.
    pub(super) fn hold(&mut self, lane: Lane, error: String, now: Duration) {
        let until = self.backoff.deadline_far(now);
        let lane = self.lane(lane);
        lane.forget();
        lane.hold_until = Some(until);
        lane.error = Some(error);
    }

    /// Every lane's batches are built anew.
    pub(super) fn forget(&mut self) {
        self.lanes.iter_mut().for_each(LaneWindow::forget);
    }

    pub(super) const fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    pub(super) const fn batch_bytes(&self) -> usize {
        self.batch_bytes
    }

    pub(super) const fn last_receipt(&self) -> Option<Duration> {
        self.last_receipt
    }

    pub(super) fn status(&self) -> Vec<LaneStatus> {
        self.lanes
            .iter()
            .map(|lane| LaneStatus {
                lane: lane.lane,
                watermark: lane.watermark(),
                in_flight: lane.len(),
                in_flight_bytes: lane.frame_bytes(),
                error: lane.error.clone(),
            })
            .collect()
    }

    fn cut_smaller(&mut self, lane: Lane, batch_bytes: usize, error: String, now: Duration) {
        self.receipts_in_row = 0;
        // Batches that were built larger than today's size say nothing about today's size.
        if batch_bytes <= self.batch_bytes {
            if self.batch_bytes <= BATCH_BYTES_MIN {
                self.hold(lane, error, now);
                return;
            }
            self.batch_bytes = (self.batch_bytes / 2).max(BATCH_BYTES_MIN);
        }
        self.lane(lane).forget();
    }

    fn lane(&mut self, lane: Lane) -> &mut LaneWindow {
        let [state, mutable, backfill] = &mut self.lanes;
        match lane {
            Lane::State => state,
            Lane::Mutable => mutable,
            Lane::Backfill => backfill,
        }
    }

    fn window(&self) -> usize {
        let allowed = self.limits.map_or(self.window_wanted, |limits| limits.window.into());
        self.window_wanted.min(allowed).max(1)
    }

    fn batch_bytes_max(&self) -> usize {
        let allowed = self.limits.map_or(u32::MAX, |limits| limits.batch_bytes_max);
        let allowed = usize::try_from(allowed).unwrap_or(usize::MAX);
        self.batch_bytes_wanted.min(allowed).max(BATCH_BYTES_MIN)
    }

    fn frame_bytes_max(&self) -> usize {
        let allowed = self.limits.map_or(u32::MAX, |limits| limits.frame_bytes_max);
        usize::try_from(allowed).unwrap_or(usize::MAX)
    }
}

/// The hub's watermark of a lane; none named is none received.
fn position_in(welcome: &Welcome, lane: Lane) -> Seq {
    let position = welcome.lanes.iter().find(|position| position.lane == lane);
    position.map_or(Seq::ZERO, |position| position.seq)
}
