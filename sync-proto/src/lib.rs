//! Rowtide's rules and messages: the pure core that device and hub share.
//!
//! Events in, effects out. Nothing here reads a clock, a file, a socket or a random source; time
//! and randomness are arguments. What lives here exists once: version comparison
//! ([`version::decide`]), key text ([`key::NaturalKey`]), row hashing ([`value::RowHash`]), the
//! schema fingerprint ([`schema::fingerprint`]), the wire ([`wire`], [`message`], [`rows`]),
//! the progress of a lane ([`range::LaneProgress`]) and the session machine
//! ([`session::Session`]).
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod backoff;
mod bounded;
pub mod continuity;
pub mod id;
pub mod key;
pub mod limits;
pub mod message;
pub mod range;
pub mod rows;
pub mod schema;
pub mod session;
pub mod value;
pub mod version;
pub mod wire;

pub use id::{Cursor, Digest, Epoch, Incarnation, InstanceId, Lane, Seq, SourceId, Token};
pub use key::NaturalKey;
pub use range::{LaneProgress, Offer};
pub use value::{RowHash, Value};
pub use version::{Stamp, Verdict, Version, decide};
