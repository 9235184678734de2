//! Natural keys: the canonical text of a row's key columns, in declared order.
//!
//! Every part carries its storage class (`i:1`, `t:abc`, `b:00ff`, `r:0.5`, `n:`), so that 1, '1'
//! and x'31' never collide. Parts are joined with `,`; inside text, `%`, `,`, control bytes and
//! bytes that are not UTF-8 are `%XX`. A document table's key has no parts and its text is empty.
//! The text is canonical: one key has one text, and parsing refuses any other.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::value::{Value, write_hex};

/// The canonical text of a key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
pub struct NaturalKey(String);

/// Why a key text was refused.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum KeyError {
    /// A part has no known class tag.
    #[error("key part {part:?} has no class tag (i: t: b: r: n:)")]
    NoTag {
        /// The part as given.
        part: String,
    },
    /// A part's text does not fit its class, or is not in canonical form.
    #[error("key part {part:?} is not a canonical {class}")]
    NotCanonical {
        /// The part as given.
        part: String,
        /// The class that its tag names.
        class: &'static str,
    },
    /// A bare key has another number of parts than the table's key has columns.
    #[error("key has {got} part(s), the table's key has {want}")]
    PartCount {
        /// Parts given.
        got: usize,
        /// Columns of the key.
        want: usize,
    },
    /// A bare part does not fit the declared type of its field.
    #[error("key part {part:?} does not fit its field's type {wanted}")]
    WrongType {
        /// The part as given.
        part: String,
        /// The declared type.
        wanted: &'static str,
    },
}

/// How a bare key part in a URL is read: from the field's declared type.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum KeyType {
    /// No declared type: an integer where it is a canonical one, else text.
    Any,
    /// A 64-bit integer.
    Integer,
    /// A double.
    Real,
    /// Text.
    Text,
    /// A blob, in hex.
    Blob,
}

impl NaturalKey {
    /// The key of a document table: no parts.
    pub const DOCUMENT: Self = Self(String::new());

    /// The key of these parts.
    #[must_use]
    pub fn of(parts: &[Value]) -> Self {
        let mut text = String::new();
        for (index, part) in parts.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            push_part(&mut text, part);
        }
        Self(text)
    }

    /// Whether a part is NULL: such a row has no identity and is set aside.
    #[must_use]
    pub fn has_null(parts: &[Value]) -> bool {
        parts.iter().any(Value::is_null)
    }

    /// The canonical text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Takes a canonical text as it is, after checking it.
    ///
    /// # Errors
    /// [`KeyError`] when the text is not what [`NaturalKey::of`] writes.
    pub fn from_canonical(text: &str) -> Result<Self, KeyError> {
        parse_canonical(text)?;
        Ok(Self(text.to_owned()))
    }

    /// The parts of the key.
    ///
    /// # Errors
    /// [`KeyError`] when the text is not canonical; it cannot be, unless it was deserialised.
    pub fn parts(&self) -> Result<Vec<Value>, KeyError> {
        parse_canonical(&self.0)
    }

    /// Reads a key as a person writes it in a URL: tagged, or bare by the fields' types.
    ///
    /// # Errors
    /// [`KeyError`] when the number of parts or a part's form does not fit.
    pub fn parse(text: &str, types: &[KeyType]) -> Result<Self, KeyError> {
        if let Ok(parts) = parse_canonical(text) {
            if parts.len() == types.len() {
                return Ok(Self(text.to_owned()));
            }
        }
        // A single bare part may hold commas; of several, each comma separates.
        let bare: Vec<&str> = if types.len() == 1 { vec![text] } else { text.split(',').collect() };
        if bare.len() != types.len() {
            return Err(KeyError::PartCount { got: bare.len(), want: types.len() });
        }
        let parts: Result<Vec<Value>, KeyError> =
            bare.iter().zip(types).map(|(part, kind)| parse_bare(part, *kind)).collect();
        Ok(Self::of(&parts?))
    }
}

impl fmt::Display for NaturalKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[expect(clippy::expect_used, reason = "writing into a String cannot fail")]
fn push_part(text: &mut String, part: &Value) {
    match part {
        Value::Null => text.push_str("n:"),
        Value::Int(n) => write!(text, "i:{n}").expect("a String takes every write"),
        Value::Real(n) => write!(text, "r:{n:?}").expect("a String takes every write"),
        Value::Blob(bytes) => {
            text.push_str("b:");
            write_hex(text, bytes).expect("a String takes every write");
        }
        Value::Text(bytes) => {
            text.push_str("t:");
            for chunk in bytes.utf8_chunks() {
                for c in chunk.valid().chars() {
                    if c == '%' || c == ',' || c.is_ascii_control() {
                        write!(text, "%{:02X}", u32::from(c)).expect("a String takes every write");
                    } else {
                        text.push(c);
                    }
                }
                for byte in chunk.invalid() {
                    write!(text, "%{byte:02X}").expect("a String takes every write");
                }
            }
        }
    }
}

fn parse_canonical(text: &str) -> Result<Vec<Value>, KeyError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    text.split(',').map(parse_tagged).collect()
}

fn parse_tagged(part: &str) -> Result<Value, KeyError> {
    let (class, value) = match part.split_once(':') {
        Some(("n", "")) => ("null", Some(Value::Null)),
        Some(("i", rest)) => ("integer", rest.parse().ok().map(Value::Int)),
        Some(("r", rest)) => {
            ("real", rest.parse().ok().filter(|n: &f64| !n.is_nan()).map(Value::Real))
        }
        Some(("b", rest)) => ("blob", unhex(rest).map(Value::Blob)),
        Some(("t", rest)) => ("text", unescape(rest).map(Value::Text)),
        _ => return Err(KeyError::NoTag { part: part.to_owned() }),
    };
    // One key, one text: whatever encodes differently from how it was written is refused.
    value
        .filter(|value| NaturalKey::of(std::slice::from_ref(value)).0 == part)
        .ok_or_else(|| KeyError::NotCanonical { part: part.to_owned(), class })
}

fn parse_bare(part: &str, kind: KeyType) -> Result<Value, KeyError> {
    let wrong = |wanted| KeyError::WrongType { part: part.to_owned(), wanted };
    if let Ok(value) = parse_tagged(part) {
        return Ok(value);
    }
    match kind {
        KeyType::Integer => part.parse().map(Value::Int).map_err(|_not_int| wrong("integer")),
        KeyType::Real => match part.parse::<f64>() {
            Ok(n) if !n.is_nan() => Ok(Value::Real(n)),
            Ok(_) | Err(_) => Err(wrong("real")),
        },
        KeyType::Blob => unhex(part).map(Value::Blob).ok_or_else(|| wrong("blob (hex)")),
        KeyType::Text => Ok(Value::text(part)),
        KeyType::Any => Ok(match part.parse::<i64>() {
            Ok(n) if n.to_string() == part => Value::Int(n),
            Ok(_) | Err(_) => Value::text(part),
        }),
    }
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if digits.len() % 2 != 0 {
        return None;
    }
    digits.chunks(2).map(hex_byte).collect()
}

fn hex_byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|n| u8::try_from(n).ok());
    match pair {
        [high, low] => Some((digit(*high)? << 4) | digit(*low)?),
        _ => None,
    }
}

fn unescape(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, tail)) = rest.split_first() {
        if byte == b'%' {
            bytes.push(hex_byte(tail.get(..2)?)?);
            rest = &tail[2..];
        } else {
            bytes.push(byte);
            rest = tail;
        }
    }
    Some(bytes)
}
