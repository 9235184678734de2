//! Same history or another: what a Welcome means, as a table.

use sync_proto::continuity::{Continuity, KnownLane, compare};
use sync_proto::message::LanePosition;
use sync_proto::{Incarnation, Lane, Seq, Token};
use uuid::Uuid;

fn at(lane: Lane, seq: i64, token: u8) -> LanePosition {
    LanePosition { lane, seq: Seq(seq), token: Token([token; 8]) }
}

fn known(received: LanePosition, sent: &[LanePosition]) -> KnownLane {
    KnownLane { received, sent: sent.to_vec() }
}

fn hub(n: u128) -> Incarnation {
    Incarnation(Uuid::from_u128(n))
}

/// The state lane of a device that has a receipt up to 10 and sent up to 30, against a hub.
fn state_lane(hub_at: &[LanePosition]) -> Continuity {
    let state = Lane::State;
    let sent = [at(state, 20, 2), at(state, 30, 3)];
    compare(Some(hub(1)), &[known(at(state, 10, 1), &sent)], hub(1), hub_at)
}

fn same(lost: &[(Lane, i64)]) -> Continuity {
    let lost_receipts = lost.iter().map(|(lane, seq)| (*lane, Seq(*seq))).collect();
    Continuity::Same { lost_receipts }
}

fn forked(lane: Lane, seq: i64) -> Continuity {
    Continuity::DeviceForked { lane, seq: Seq(seq) }
}

#[test]
fn one_lane() {
    let state = Lane::State;
    assert_eq!(state_lane(&[at(state, 10, 1)]), same(&[]), "both at 10");
    assert_eq!(state_lane(&[at(state, 20, 2)]), same(&[(state, 20)]), "one receipt lost");
    assert_eq!(state_lane(&[at(state, 30, 3)]), same(&[(state, 30)]), "two receipts lost");
    assert_eq!(state_lane(&[at(state, 30, 9)]), forked(state, 30), "another file sent 30");
    assert_eq!(state_lane(&[at(state, 10, 9)]), forked(state, 10), "another file sent 10");
    assert_eq!(
        state_lane(&[at(state, 25, 2)]),
        forked(state, 25),
        "this file ended no range at 25"
    );
    assert_eq!(state_lane(&[at(state, 40, 4)]), forked(state, 40), "this file never got to 40");
    assert_eq!(state_lane(&[at(state, 5, 5)]), Continuity::HubLost, "the hub went back");
    assert_eq!(state_lane(&[at(state, 0, 0)]), Continuity::HubLost, "the hub has nothing");
    assert_eq!(state_lane(&[]), Continuity::HubLost, "the hub does not know the lane");
}

#[test]
fn the_first_hello() {
    assert_eq!(compare(None, &[], hub(1), &[]), same(&[]));
    let fresh = known(at(Lane::State, 0, 0), &[]);
    assert_eq!(compare(None, &[fresh], hub(1), &[at(Lane::State, 0, 0)]), same(&[]));
    // A file that knows nothing meets a hub that knows its epoch: the file is an old copy.
    assert_eq!(compare(None, &[], hub(1), &[at(Lane::Mutable, 7, 1)]), forked(Lane::Mutable, 7));
}

#[test]
fn another_hub_or_a_rolled_back_one() {
    let lane = known(at(Lane::State, 10, 1), &[at(Lane::State, 20, 2)]);
    let lanes = std::slice::from_ref(&lane);
    let compare = |positions: &[LanePosition]| compare(Some(hub(1)), lanes, hub(2), positions);
    assert_eq!(compare(&[]), Continuity::HubLost);
    assert_eq!(compare(&[at(Lane::State, 10, 1)]), Continuity::HubLost);
    assert_eq!(compare(&[at(Lane::State, 3, 7)]), Continuity::HubLost);
    // The file was replaced too: a new epoch first; the Hello in it finds the other hub.
    assert_eq!(compare(&[at(Lane::State, 30, 3)]), forked(Lane::State, 30));
}

#[test]
fn a_fork_in_any_lane_wins() {
    let lanes = [
        known(at(Lane::State, 10, 1), &[]),
        known(at(Lane::Mutable, 0, 0), &[at(Lane::Mutable, 15, 5)]),
        known(at(Lane::Backfill, 4, 4), &[]),
    ];
    let compare = |positions: &[LanePosition]| compare(Some(hub(1)), &lanes, hub(1), positions);
    let (state, mutable) = (at(Lane::State, 10, 1), at(Lane::Mutable, 15, 5));
    let backfill = at(Lane::Backfill, 4, 4);
    assert_eq!(compare(&[state, mutable, backfill]), same(&[(Lane::Mutable, 15)]));
    assert_eq!(compare(&[backfill, mutable, state]), same(&[(Lane::Mutable, 15)]));
    let lost = at(Lane::State, 9, 9);
    assert_eq!(compare(&[lost, mutable, backfill]), Continuity::HubLost);
    let fork = at(Lane::Backfill, 6, 6);
    assert_eq!(compare(&[lost, mutable, fork]), forked(Lane::Backfill, 6));
}
