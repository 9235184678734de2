//! A session against a model hub over a bad link, in virtual time: loss, duplicates, late answers,
//! restarts of the device at any step.
//!
//! The model device keeps a log and the facts that a file would keep; the model hub decides with
//! the real rules. At the end both are equal, no version had two contents, nothing stale was
//! applied. One seed drives everything; a failing one is printed.

use std::collections::BTreeMap;
use std::time::Duration;

use sync_proto::continuity::{Continuity, KnownLane};
use sync_proto::message::{
    Hello, LanePosition, Limits, Outcome, Receipt, RowOutcome, ToDevice, ToHub, UpBatch, Welcome,
};
use sync_proto::range::LaneProgress;
use sync_proto::rows::{Row, TableRows, pack, unpack};
use sync_proto::session::{
    Effect, Facts, Failure, Input, OutBatch, Outgoing, SendId, Session, SessionConfig,
};
use sync_proto::wire::{decode_to_hub, encode_to_hub};
use sync_proto::{
    Cursor, Digest, Epoch, Incarnation, InstanceId, Lane, NaturalKey, RowHash, Seq, SourceId,
    Stamp, Token, Value, Verdict, Version, decide,
};
use uuid::Uuid;

const LANE: Lane = Lane::Mutable;
const EPOCH: Epoch = Epoch(Uuid::from_u128(3));
const SEEDS: u64 = 300;

/// A number of the log and the key that it labels.
type Labelled = (i64, i64);

struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

fn token(seq: i64) -> Token {
    Token(seq.to_le_bytes())
}

fn at(seq: i64) -> LanePosition {
    LanePosition {
        lane: LANE,
        seq: Seq(seq),
        token: if seq == 0 { Token::default() } else { token(seq) },
    }
}

/// The file: rows, the newest number of each changed key, and what continuity needs.
struct Device {
    rows: BTreeMap<i64, i64>,
    log: BTreeMap<i64, i64>,
    next: i64,
    received: LaneProgress,
    sent: Vec<LanePosition>,
    /// By range: the digest, and the labelled keys.
    in_flight: BTreeMap<(i64, i64), (Digest, Vec<Labelled>)>,
}

impl Device {
    fn write(&mut self, dice: &mut Dice) {
        let key = i64::try_from(dice.below(12)).unwrap();
        if dice.below(4) == 0 {
            self.rows.remove(&key);
        } else {
            self.rows.insert(key, self.next);
        }
        self.log.insert(key, self.next);
        self.next += 1;
    }

    fn facts(&self) -> Facts {
        let hello = Hello {
            device: SourceId(Uuid::from_u128(1)),
            database: "app".to_owned(),
            instance: InstanceId(Uuid::from_u128(2)),
            epoch: EPOCH,
            tables: Vec::new(),
            lanes: vec![self.received.watermark()],
            floor: Version(0),
            cursor: Cursor::ZERO,
            generation: 1,
            incarnation: None,
        };
        let known = KnownLane { received: self.received.watermark(), sent: self.sent.clone() };
        Facts { hello, known: vec![known] }
    }

    fn fill(&mut self, mut prev: i64, batches: usize, rows_max: usize) -> Vec<OutBatch> {
        let mut labelled: Vec<(i64, i64)> =
            self.log.iter().map(|(key, seq)| (*seq, *key)).filter(|(seq, _)| *seq > prev).collect();
        labelled.sort_unstable();
        let head = labelled.last().map_or(0, |(seq, _)| *seq);
        let mut out = Vec::new();
        for part in labelled.chunks(rows_max).take(batches) {
            let row = |(seq, key): &(i64, i64)| {
                let content = self.rows.get(key);
                let value = content.map_or(Value::Null, |content| Value::Int(*content));
                Row {
                    number: *seq,
                    base: None,
                    values: vec![Value::Int(*key), value],
                    deleted: content.is_none(),
                }
            };
            let table = TableRows {
                table: "t".to_owned(),
                columns: vec!["k".to_owned(), "v".to_owned()],
                key: vec![0],
                rows: part.iter().map(row).collect(),
            };
            let rows = pack(&[table]).unwrap();
            let (last, digest) = (part[part.len() - 1].0, rows.digest);
            let frame = encode_to_hub(&ToHub::Up(UpBatch {
                database: "app".to_owned(),
                epoch: EPOCH,
                lane: LANE,
                prev: Seq(prev),
                last: Seq(last),
                token: token(last),
                head: Seq(head),
                generation: 1,
                rows,
            }));
            self.sent.push(at(last));
            self.in_flight.insert((prev, last), (digest, part.to_vec()));
            out.push(OutBatch {
                lane: LANE,
                prev: Seq(prev),
                last: Seq(last),
                token: token(last),
                digest,
                frame,
            });
            prev = last;
        }
        out
    }

    fn settle(&mut self, receipt: &Receipt) {
        let range = (receipt.prev.0, receipt.last.0);
        let Some((digest, keys)) = self.in_flight.remove(&range) else { return };
        assert_eq!(digest, receipt.digest, "a receipt of other bytes was handed on");
        for (seq, key) in keys {
            if self.log.get(&key).is_some_and(|newest| *newest <= seq) {
                self.log.remove(&key);
            }
        }
        self.received.offer(receipt.prev, receipt.last, token(receipt.last.0));
    }

    fn adopt(&mut self, continuity: &Continuity) {
        let Continuity::Same { lost_receipts } = continuity else {
            panic!("nothing was restored, yet: {continuity:?}")
        };
        for (_, seq) in lost_receipts {
            self.log.retain(|_, newest| *newest > seq.0);
            self.received = LaneProgress::new(at(seq.0), Vec::new());
        }
    }
}

#[derive(Default)]
struct Hub {
    rows: BTreeMap<NaturalKey, (Stamp, Option<Value>)>,
    contents: BTreeMap<(NaturalKey, i64), RowHash>,
    lane: Option<LaneProgress>,
    applied: u64,
}

impl Hub {
    fn answer(&mut self, frame: &[u8]) -> ToDevice {
        let lane = self.lane.get_or_insert_with(|| LaneProgress::new(at(0), Vec::new()));
        match decode_to_hub(frame).unwrap() {
            ToHub::Hello(hello) => ToDevice::Welcome(Welcome {
                database: hello.database,
                epoch: hello.epoch,
                incarnation: Incarnation(Uuid::from_u128(9)),
                term: 1,
                base: Version(0),
                generation: 1,
                lanes: if lane.watermark().seq > Seq::ZERO {
                    vec![lane.watermark()]
                } else {
                    Vec::new()
                },
                tables: Vec::new(),
                limits: Limits {
                    frame_bytes_max: 1 << 20,
                    batch_bytes_max: 1 << 20,
                    batch_rows_max: 100,
                    window: 4,
                },
            }),
            ToHub::Up(batch) => {
                lane.offer(batch.prev, batch.last, batch.token);
                let watermark = lane.watermark().seq;
                let outcomes = self.store(&batch);
                ToDevice::Receipt(Receipt {
                    database: batch.database,
                    epoch: batch.epoch,
                    lane: batch.lane,
                    prev: batch.prev,
                    last: batch.last,
                    digest: batch.rows.digest,
                    watermark,
                    term: 1,
                    outcomes,
                })
            }
            ToHub::DownRequest(_) | ToHub::DownReceipt(_) | ToHub::Report(_) => ToDevice::Noted,
        }
    }

    fn store(&mut self, batch: &UpBatch) -> Vec<RowOutcome> {
        let mut outcomes = Vec::new();
        for table in unpack(&batch.rows).unwrap() {
            for row in &table.rows {
                let (key, hash) = (table.key_of(row), table.hash_of(row));
                let known = self.contents.insert((key.clone(), row.number), hash);
                assert!(
                    known.is_none_or(|known| known == hash),
                    "version {} of {key} has two contents",
                    row.number
                );
                let incoming = Stamp { version: Version(row.number), hash };
                let outcome = match decide(self.rows.get(&key).map(|(stamp, _)| *stamp), incoming) {
                    Verdict::Apply => {
                        let value = (!row.deleted).then(|| row.values[1].clone());
                        self.rows.insert(key, (incoming, value));
                        self.applied += 1;
                        continue;
                    }
                    Verdict::Duplicate => Outcome::Duplicate,
                    Verdict::Stale => Outcome::Stale,
                    verdict @ (Verdict::Diverged | Verdict::OutOfRange) => panic!("{verdict:?}"),
                };
                outcomes.push(RowOutcome { seq: Seq(row.number), outcome });
            }
        }
        outcomes
    }
}

/// What is under way, by the time when it arrives.
enum Parcel {
    ToHub(SendId, Vec<u8>),
    ToDevice(SendId, Box<ToDevice>),
    Broken(SendId),
}

struct World {
    dice: Dice,
    now: Duration,
    device: Device,
    hub: Hub,
    session: Session,
    parcels: Vec<(Duration, Parcel)>,
    bad: bool,
}

impl World {
    fn new(seed: u64) -> Self {
        let device = Device {
            rows: BTreeMap::new(),
            log: BTreeMap::new(),
            next: 1,
            received: LaneProgress::new(at(0), Vec::new()),
            sent: Vec::new(),
            in_flight: BTreeMap::new(),
        };
        Self {
            dice: Dice(seed),
            now: Duration::ZERO,
            device,
            hub: Hub::default(),
            session: Session::new(SessionConfig::new("app"), seed),
            parcels: Vec::new(),
            bad: true,
        }
    }

    fn send(&mut self, parcel: Parcel) {
        let delay = Duration::from_millis(self.dice.below(if self.bad { 3_000 } else { 20 }));
        self.parcels.push((self.now + delay, parcel));
    }

    fn transmit(&mut self, id: SendId, frame: &[u8]) {
        let fate = if self.bad { self.dice.below(10) } else { 9 };
        match fate {
            0 => {} // Lost without a word.
            1 => self.send(Parcel::Broken(id)),
            2 => {
                self.send(Parcel::ToHub(id, frame.to_vec()));
                self.send(Parcel::ToHub(id, frame.to_vec()));
            }
            _ => self.send(Parcel::ToHub(id, frame.to_vec())),
        }
    }

    /// Hands in one input and does every effect, in order.
    fn drive(&mut self, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            self.session.handle(input, self.now);
            let mut answers = Vec::new();
            while let Some(effect) = self.session.poll_effect() {
                match effect {
                    Effect::LoadFacts => answers.push(Input::Facts(Box::new(self.device.facts()))),
                    Effect::AdoptWelcome { continuity, .. } => {
                        self.device.adopt(&continuity);
                        answers.push(Input::Welcomed);
                    }
                    Effect::Fill { lanes, .. } => {
                        let rows_max = 1 + usize::try_from(self.dice.below(4)).unwrap();
                        let mut batches = Vec::new();
                        for (lane, prev, wanted) in lanes {
                            if lane == LANE {
                                batches.extend(self.device.fill(prev.0, wanted, rows_max));
                            }
                        }
                        answers.push(Input::Filled(batches));
                    }
                    Effect::Settle(receipt) => {
                        self.device.settle(&receipt);
                        answers.push(Input::Settled);
                    }
                    Effect::Send { id, message } => {
                        let frame = match message {
                            Outgoing::Frame(frame) => frame,
                            Outgoing::Message(message) => encode_to_hub(&message),
                        };
                        self.transmit(id, &frame);
                    }
                    Effect::Link(_) | Effect::Obey(_) => {}
                    effect @ (Effect::StartEpoch { .. } | Effect::Apply(_)) => panic!("{effect:?}"),
                }
            }
            answers.reverse();
            inputs.extend(answers);
        }
    }

    fn arrive(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::ToHub(id, frame) => {
                let answer = self.hub.answer(&frame);
                if !self.bad || self.dice.below(6) > 0 {
                    self.send(Parcel::ToDevice(id, Box::new(answer)));
                }
            }
            Parcel::ToDevice(id, answer) => self.drive(Input::Answer(id, *answer)),
            Parcel::Broken(id) => {
                let error = "cut".to_owned();
                self.drive(Input::Failed(id, Failure::Retry { error, after: None }));
            }
        }
    }

    /// The next thing that happens: an arrival or a deadline.
    fn step(&mut self) {
        let soonest = self.parcels.iter().enumerate().min_by_key(|(_, (at, _))| *at);
        let soonest = soonest.map(|(index, (at, _))| (index, *at));
        let deadline = self.session.poll_timeout();
        match (soonest, deadline) {
            (Some((index, at)), deadline) if deadline.is_none_or(|due| at <= due) => {
                let (_, parcel) = self.parcels.swap_remove(index);
                self.now = self.now.max(at);
                self.arrive(parcel);
            }
            (_, Some(due)) => {
                self.now = self.now.max(due);
                self.drive(Input::Timeout);
            }
            (_, None) => {
                self.now += Duration::from_secs(1);
                self.drive(Input::Work);
            }
        }
    }

    fn restart_device(&mut self) {
        self.device.in_flight.clear();
        // Answers to the process before go nowhere; what is on its way to the hub arrives.
        self.parcels.retain(|(_, parcel)| matches!(parcel, Parcel::ToHub(..)));
        let seed = self.dice.below(u64::from(u32::MAX));
        // Message ids begin anew; parcels of the old process must not be mistaken for them.
        for (_, parcel) in &mut self.parcels {
            if let Parcel::ToHub(id, _) = parcel {
                *id = SendId(u64::MAX - id.0);
            }
        }
        self.session = Session::new(SessionConfig::new("app"), seed);
        self.drive(Input::Work);
    }

    fn check(&self, seed: u64) {
        let hub: BTreeMap<i64, i64> = self
            .hub
            .rows
            .iter()
            .filter_map(|(key, (_, value))| match (key.parts().unwrap().as_slice(), value) {
                ([Value::Int(key)], Some(Value::Int(value))) => Some((*key, *value)),
                _ => None,
            })
            .collect();
        assert_eq!(hub, self.device.rows, "seed {seed}");
        assert!(self.device.log.is_empty(), "seed {seed}: {:?} still waits", self.device.log);
    }
}

fn run(seed: u64) {
    let mut world = World::new(seed);
    world.drive(Input::Work);
    for _ in 0..400 {
        for _ in 0..world.dice.below(3) {
            world.device.write(&mut world.dice);
        }
        if world.dice.below(3) == 0 {
            world.drive(Input::Work);
        }
        if world.dice.below(60) == 0 {
            world.restart_device();
        }
        world.step();
    }
    world.bad = false;
    world.drive(Input::Work);
    for _ in 0..5_000 {
        if world.device.log.is_empty() {
            break;
        }
        world.step();
    }
    world.check(seed);
    assert!(world.hub.applied > 0, "seed {seed}: nothing flowed");
}

#[test]
#[expect(clippy::print_stdout, reason = "the last seed printed is the one that failed")]
fn device_and_hub_end_equal_over_a_bad_link() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        run(seed);
    }
}
