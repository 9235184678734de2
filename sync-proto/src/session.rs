//! The device's side of the protocol as a pure machine: [`Input`]s in, [`Effect`]s out.
//!
//! The drive contract is one law: hand in one input, then drain every effect, in order, before the
//! next input. Effects that persist come before effects that speak, so that nothing leaves the
//! device that a power cut could still undo. Time is a duration since any fixed start; randomness
//! for jitter comes in as a seed. Doing the effects is the agent's job.

pub mod effect;
pub mod input;

pub use effect::{Effect, LinkState, Outgoing};
pub use input::{Facts, Failure, Input, OutBatch, SendId};
