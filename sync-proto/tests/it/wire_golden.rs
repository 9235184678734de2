//! Every message as bytes, compared with committed files, and bytes that are no message.
//!
//! The files are a draft of format 1: `ROWTIDE_GOLDEN=write cargo test -p sync-proto` writes them
//! anew. Once the format is frozen they are final.

use std::path::PathBuf;

use proptest::prelude::*;
use sync_proto::message::{
    Control, DownBatch, DownOutcome, DownReceipt, DownRequest, Hello, LanePosition, Limits,
    Outcome, Reason, Receipt, Refusal, Refused, Report, RowOutcome, TableReport, TableState,
    TableStatus, ToDevice, ToHub, UpBatch, Welcome,
};
use sync_proto::rows::{Row, TableRows, pack, unpack};
use sync_proto::schema::{Affinity, Authority, ColumnSpec, Modality, Scope, TableSpec};
use sync_proto::wire::{
    DecodeError, decode_to_device, decode_to_hub, encode_to_device, encode_to_hub,
};
use sync_proto::{
    Cursor, Digest, Epoch, Incarnation, InstanceId, Lane, Seq, SourceId, Token, Value, Version,
};
use uuid::Uuid;

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn rows() -> sync_proto::message::PackedRows {
    let row = |number, values, deleted, base| Row { number, base, values, deleted };
    let rows = vec![
        row(7, vec![Value::Int(1), Value::text("a"), Value::Real(0.5)], false, None),
        row(
            9,
            vec![Value::Int(2), Value::Blob(vec![0, 255]), Value::Null],
            false,
            Some(Version(0)),
        ),
        row(12, vec![Value::Int(3), Value::Null, Value::Null], true, None),
    ];
    let columns = ["id", "v", "x"].map(str::to_owned).to_vec();
    pack(&[TableRows { table: "t".to_owned(), columns, key: vec![0], rows }]).unwrap()
}

fn position(lane: Lane, seq: i64) -> LanePosition {
    LanePosition { lane, seq: Seq(seq), token: Token([1, 2, 3, 4, 5, 6, 7, 8]) }
}

fn to_hub() -> Vec<(&'static str, ToHub)> {
    let column = |name: &str, affinity, key_ordinal| ColumnSpec {
        name: name.to_owned(),
        affinity,
        key_ordinal,
        not_null: key_ordinal > 0,
    };
    let table = TableSpec {
        name: "t".to_owned(),
        dataspace: "space".to_owned(),
        modality: Modality::State,
        authority: Authority::Cloud,
        scope: Scope::All,
        columns: vec![column("id", Affinity::Integer, 1), column("v", Affinity::Numeric, 0)],
    };
    vec![
        (
            "hello",
            ToHub::Hello(Hello {
                device: SourceId(id(1)),
                database: "app".to_owned(),
                instance: InstanceId(id(2)),
                epoch: Epoch(id(3)),
                tables: vec![table],
                lanes: vec![position(Lane::State, 41), position(Lane::Backfill, 7)],
                floor: Version(1_000),
                cursor: Cursor { term: 5, hi: 6, lo: 7 },
                generation: 2,
                incarnation: Some(Incarnation(id(4))),
            }),
        ),
        (
            "up",
            ToHub::Up(UpBatch {
                database: "app".to_owned(),
                epoch: Epoch(id(3)),
                lane: Lane::Mutable,
                prev: Seq(6),
                last: Seq(12),
                token: Token([8; 8]),
                head: Seq(30),
                generation: 2,
                rows: rows(),
            }),
        ),
        (
            "down_request",
            ToHub::DownRequest(DownRequest {
                database: "app".to_owned(),
                epoch: Epoch(id(3)),
                cursor: Cursor { term: 1, hi: 2, lo: 3 },
                generation: 2,
                wait_ms: 25_000,
            }),
        ),
        (
            "down_receipt",
            ToHub::DownReceipt(DownReceipt {
                database: "app".to_owned(),
                epoch: Epoch(id(3)),
                cursor: Cursor { term: 1, hi: 2, lo: 3 },
                outcomes: vec![DownOutcome {
                    table: "t".to_owned(),
                    key: "i:1".to_owned(),
                    version: Version(3),
                    outcome: Outcome::Conflict,
                }],
                highest: Version(9),
            }),
        ),
        (
            "report",
            ToHub::Report(Report {
                database: "app".to_owned(),
                epoch: Epoch(id(3)),
                tables: vec![TableReport {
                    table: "t".to_owned(),
                    pending: 300,
                    quarantine: 1,
                    status: "live".to_owned(),
                }],
            }),
        ),
    ]
}

fn to_device() -> Vec<(&'static str, ToDevice)> {
    let status = |table: &str, state, adopt| TableStatus { table: table.to_owned(), state, adopt };
    let outcome = |seq, outcome| RowOutcome { seq: Seq(seq), outcome };
    let reason = Reason { code: "null_key".to_owned(), message: "set a key".to_owned() };
    let refused = |code| ToDevice::Refused(Refused { code, message: "why".to_owned() });
    vec![
        (
            "welcome",
            ToDevice::Welcome(Welcome {
                database: "app".to_owned(),
                epoch: Epoch(id(3)),
                incarnation: Incarnation(id(4)),
                term: 1 << 40,
                base: Version(65_536),
                generation: 2,
                lanes: vec![position(Lane::Mutable, 12)],
                tables: vec![
                    status("a", TableState::Flowing, true),
                    status("b", TableState::Paused, false),
                    status("c", TableState::AuthorityMismatch { hub: "cloud".to_owned() }, false),
                    status("d", TableState::Refused { message: "rename it".to_owned() }, false),
                ],
                limits: Limits {
                    frame_bytes_max: 17 << 20,
                    batch_bytes_max: 16 << 20,
                    batch_rows_max: 4_096,
                    window: 4,
                },
            }),
        ),
        (
            "receipt",
            ToDevice::Receipt(Receipt {
                database: "app".to_owned(),
                epoch: Epoch(id(3)),
                lane: Lane::State,
                prev: Seq(6),
                last: Seq(12),
                digest: Digest([9; 32]),
                watermark: Seq(12),
                term: 77,
                outcomes: vec![
                    outcome(7, Outcome::Applied),
                    outcome(8, Outcome::Duplicate),
                    outcome(9, Outcome::Stale),
                    outcome(10, Outcome::Diverged),
                    outcome(11, Outcome::Rejected(reason)),
                ],
            }),
        ),
        (
            "down",
            ToDevice::Down(DownBatch {
                database: "app".to_owned(),
                prev: Cursor::ZERO,
                next: Cursor { term: 1, hi: 2, lo: 0 },
                generation: 2,
                rows: rows(),
            }),
        ),
        ("control_pause", ToDevice::Control(Control::Pause { table: "t".to_owned() })),
        ("control_resume", ToDevice::Control(Control::Resume { table: "t".to_owned() })),
        ("control_resnapshot", ToDevice::Control(Control::Resnapshot)),
        ("control_refresh_schema", ToDevice::Control(Control::RefreshSchema)),
        ("control_retry_after", ToDevice::Control(Control::RetryAfter { ms: 1_500 })),
        ("refused_format", refused(Refusal::Format { min: 1, max: 3 })),
        ("refused_malformed", refused(Refusal::Malformed)),
        ("refused_too_large", refused(Refusal::TooLarge)),
        ("refused_generation", refused(Refusal::Generation)),
        ("refused_epoch_closed", refused(Refusal::EpochClosed)),
        ("refused_unknown_epoch", refused(Refusal::UnknownEpoch)),
        ("refused_identity", refused(Refusal::Identity)),
        ("refused_busy", refused(Refusal::Busy)),
        ("noted", ToDevice::Noted),
    ]
}

/// Every message with its name and its frame.
fn frames() -> Vec<(String, Vec<u8>)> {
    let up = to_hub().into_iter().map(|(name, message)| (name, encode_to_hub(&message)));
    let down = to_device().into_iter().map(|(name, message)| (name, encode_to_device(&message)));
    up.chain(down).map(|(name, frame)| (name.to_owned(), frame)).collect()
}

#[test]
fn every_message_has_the_bytes_that_are_committed() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/draft-format1");
    for (name, frame) in frames() {
        let path = folder.join(format!("{name}.hex"));
        let text = format!("{}\n", hex::encode(&frame));
        if std::env::var_os("ROWTIDE_GOLDEN").is_some_and(|wish| wish == "write") {
            std::fs::write(&path, &text).unwrap();
        }
        let golden = std::fs::read_to_string(&path).expect("every message has a golden file");
        assert_eq!(text, golden, "{name}");
    }
}

#[test]
fn committed_bytes_are_read_as_the_messages_they_were() {
    for (_, message) in to_hub() {
        assert_eq!(decode_to_hub(&encode_to_hub(&message)), Ok(message));
    }
    for (_, message) in to_device() {
        assert_eq!(decode_to_device(&encode_to_device(&message)), Ok(message));
    }
}

#[test]
fn another_format_is_named_and_nothing_may_follow_a_message() {
    let mut frame = encode_to_device(&ToDevice::Noted);
    frame[0] = 9;
    assert_eq!(decode_to_device(&frame), Err(DecodeError::Format { got: 9 }));
    let mut frame = encode_to_device(&ToDevice::Noted);
    frame.push(0);
    assert!(matches!(decode_to_device(&frame), Err(DecodeError::Malformed(_))));
    assert!(matches!(decode_to_hub(&[]), Err(DecodeError::Malformed(_))));
}

/// What a hostile peer may do with bytes: nothing here may panic.
fn read(bytes: &[u8]) {
    if let Ok(ToHub::Up(batch)) = decode_to_hub(bytes) {
        let _rows = unpack(&batch.rows);
    }
    if let Ok(ToDevice::Down(batch)) = decode_to_device(bytes) {
        let _rows = unpack(&batch.rows);
    }
}

proptest! {
    #[test]
    fn reading_random_bytes_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        read(&bytes);
        if let Some(first) = bytes.first_mut() {
            *first = 1;
        }
        read(&bytes);
    }

    #[test]
    fn reading_a_damaged_frame_never_panics(
        which in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = frames();
        let mut frame = frames[which.index(frames.len())].1.clone();
        let at = at.index(frame.len());
        frame[at] = byte;
        read(&frame);
        frame.truncate(cut.index(frame.len() + 1));
        read(&frame);
    }
}
