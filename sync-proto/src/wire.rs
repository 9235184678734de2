//! Frames: one format byte, then the message in postcard.
//!
//! Whatever bytes come in, decoding returns a message or an error. A frame of an unknown format is
//! an error that names the formats spoken here, so that the peer can be told.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::FRAME_BYTES_MAX;
use crate::message::{ToDevice, ToHub};

/// The format written here. A draft until it is frozen.
pub const FORMAT: u8 = 1;

/// The oldest format still read here.
pub const FORMAT_MIN: u8 = 1;

/// The media type of a frame over HTTPS.
pub const MEDIA_TYPE: &str = "application/vnd.rowtide.frame";

/// Why bytes are no frame.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum DecodeError {
    /// The first byte names a format that is not spoken here.
    #[error("frame format {got} is unknown; this end speaks {FORMAT_MIN} to {FORMAT}")]
    Format {
        /// The format named.
        got: u8,
    },
    /// More bytes than any legal frame has.
    #[error("frame of {got} bytes is larger than {FRAME_BYTES_MAX}")]
    TooLarge {
        /// Bytes given.
        got: usize,
    },
    /// The bytes are no message of that format.
    #[error("frame cannot be decoded: {0}")]
    Malformed(String),
}

/// The frame of a message to the hub.
#[must_use]
pub fn encode_to_hub(message: &ToHub) -> Vec<u8> {
    encode(message)
}

/// The frame of a message to a device.
#[must_use]
pub fn encode_to_device(message: &ToDevice) -> Vec<u8> {
    encode(message)
}

/// Reads a frame that came to the hub.
///
/// # Errors
/// [`DecodeError`] for any bytes that are not exactly one frame.
pub fn decode_to_hub(bytes: &[u8]) -> Result<ToHub, DecodeError> {
    decode(bytes)
}

/// Reads a frame that came to a device.
///
/// # Errors
/// [`DecodeError`] for any bytes that are not exactly one frame.
pub fn decode_to_device(bytes: &[u8]) -> Result<ToDevice, DecodeError> {
    decode(bytes)
}

#[expect(clippy::expect_used, reason = "postcard into a growing Vec fails only without memory")]
fn encode<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_extend(message, vec![FORMAT]).expect("every message has an encoding")
}

fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if bytes.len() > FRAME_BYTES_MAX {
        return Err(DecodeError::TooLarge { got: bytes.len() });
    }
    let Some((&format, body)) = bytes.split_first() else {
        return Err(DecodeError::Malformed("it is empty".to_owned()));
    };
    if !(FORMAT_MIN..=FORMAT).contains(&format) {
        return Err(DecodeError::Format { got: format });
    }
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok((_, rest)) => {
            Err(DecodeError::Malformed(format!("{} bytes follow the message", rest.len())))
        }
        Err(error) => Err(DecodeError::Malformed(error.to_string())),
    }
}
