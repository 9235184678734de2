//! Values as JSON, exact in both directions.
//!
//! Integers are JSON integers over all 64 bits, reals carry a point or an exponent, and what JSON
//! cannot say has a `$` form: `{"$blob": base64}`, `{"$text": base64}` for text that is not UTF-8
//! or holds NUL, `{"$real": "inf"}`. Numbers are read from their own text, because a parsed number
//! no longer says whether it was an integer. Invariant: what is written here reads back bit for bit.

use std::collections::BTreeSet;
use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::{self, Deserialize, Deserializer, MapAccess, Visitor};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::value::RawValue;
use sync_proto::Value;

/// Why JSON is no value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ValueError {
    /// Not JSON, or a string that is no Unicode text.
    #[error("it is not JSON: {0}")]
    Json(String),
    /// An integer that SQLite has no room for.
    #[error("{0} does not fit a 64-bit integer; send it as a string, or as a real with a point")]
    IntegerRange(String),
    /// A real beyond the largest double.
    #[error("{0} does not fit a double; infinity is {{\"$real\": \"inf\"}}")]
    RealRange(String),
    /// A list, or an object that is none of the `$` forms.
    #[error(
        "a column holds no {0}: send it as a string, or as one of {{\"$blob\": base64}}, \
         {{\"$text\": base64}}, {{\"$real\": \"inf\"}}"
    )]
    Nested(&'static str),
    /// A `$` form whose content does not fit it.
    #[error("{form} takes {wanted}")]
    Form {
        /// The form.
        form: &'static str,
        /// What it takes.
        wanted: &'static str,
    },
}

/// A value that serialises as its exact JSON form.
#[derive(Clone, Copy, Debug)]
pub struct Exact<'a>(pub &'a Value);

impl Serialize for Exact<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            Value::Null => serializer.serialize_unit(),
            Value::Int(n) => serializer.serialize_i64(*n),
            Value::Real(n) if n.is_finite() => serializer.serialize_f64(*n),
            Value::Real(n) => form(serializer, "$real", real_name(*n)),
            Value::Blob(bytes) => form(serializer, "$blob", &BASE64.encode(bytes)),
            Value::Text(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) if !text.contains('\0') => serializer.serialize_str(text),
                Ok(_) | Err(_) => form(serializer, "$text", &BASE64.encode(bytes)),
            },
        }
    }
}

fn form<S: Serializer>(serializer: S, name: &str, content: &str) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(Some(1))?;
    map.serialize_entry(name, content)?;
    map.end()
}

/// A NaN never reaches a SQLite file, so it is named here but not read back.
const fn real_name(n: f64) -> &'static str {
    if n.is_nan() {
        "nan"
    } else if n > 0.0 {
        "inf"
    } else {
        "-inf"
    }
}

/// Reads a value from the text of one JSON value. `true` and `false` are 1 and 0.
///
/// # Errors
/// [`ValueError`] when the text is no JSON, or no value that a column holds exactly.
pub fn parse(text: &str) -> Result<Value, ValueError> {
    let text = text.trim_matches([' ', '\t', '\r', '\n']);
    match text.as_bytes().first() {
        Some(b'"') => Ok(Value::text(from_str::<String>(text)?)),
        Some(b'{') => parse_form(text),
        Some(b'[') => Err(ValueError::Nested("list")),
        Some(b't' | b'f') => Ok(Value::Int(from_str::<bool>(text)?.into())),
        Some(b'n') => from_str::<()>(text).map(|()| Value::Null),
        Some(_) | None => parse_number(text),
    }
}

fn from_str<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, ValueError> {
    serde_json::from_str(text).map_err(|error| ValueError::Json(error.to_string()))
}

fn parse_number(text: &str) -> Result<Value, ValueError> {
    // The standard library's number forms are wider than JSON's (`+1`, `inf`, `1.`).
    from_str::<&RawValue>(text)?;
    if text.contains(['.', 'e', 'E']) {
        match text.parse::<f64>() {
            Ok(n) if n.is_finite() => Ok(Value::Real(n)),
            Ok(_) | Err(_) => Err(ValueError::RealRange(text.to_owned())),
        }
    } else {
        text.parse().map(Value::Int).map_err(|_too_large| ValueError::IntegerRange(shorten(text)))
    }
}

/// Keeps a message readable when a number has thousands of digits.
fn shorten(text: &str) -> String {
    const SHOWN_CHARS: usize = 40;
    match text.get(..SHOWN_CHARS) {
        Some(start) => format!("{start}… ({} digits)", text.len()),
        None => text.to_owned(),
    }
}

fn parse_form(text: &str) -> Result<Value, ValueError> {
    let Ok(Entries(entries)) = serde_json::from_str::<Entries<String>>(text) else {
        // Valid JSON whose members are not one string each, or not JSON at all.
        from_str::<de::IgnoredAny>(text)?;
        return Err(ValueError::Nested("object"));
    };
    let [(name, content)] = entries.as_slice() else {
        return Err(ValueError::Nested("object"));
    };
    let bytes = |form| {
        BASE64
            .decode(content)
            .map_err(|_not_base64| ValueError::Form { form, wanted: "base64 with its padding" })
    };
    match name.as_str() {
        "$blob" => Ok(Value::Blob(bytes("$blob")?)),
        "$text" => Ok(Value::Text(bytes("$text")?)),
        "$real" => match content.as_str() {
            "inf" => Ok(Value::Real(f64::INFINITY)),
            "-inf" => Ok(Value::Real(f64::NEG_INFINITY)),
            _ => Err(ValueError::Form { form: "$real", wanted: "\"inf\" or \"-inf\"" }),
        },
        _ => Err(ValueError::Nested("object")),
    }
}

/// The members of an object in their order, doubles included.
struct Entries<T>(Vec<(String, T)>);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Entries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T>(std::marker::PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Members<T> {
            type Value = Entries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }

        deserializer.deserialize_map(Members(std::marker::PhantomData))
    }
}

/// Named values as read from an object, in its order. Names differ in more than ASCII case.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Columns(pub Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Columns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Entries(entries) = Entries::<Box<RawValue>>::deserialize(deserializer)?;
        let mut seen = BTreeSet::new();
        let mut columns = Vec::with_capacity(entries.len());
        for (name, raw) in entries {
            if !seen.insert(name.to_ascii_lowercase()) {
                return Err(de::Error::custom(format!("column {name:?} is given twice")));
            }
            let value = parse(raw.get())
                .map_err(|error| de::Error::custom(format!("column {name:?}: {error}")))?;
            columns.push((name, value));
        }
        Ok(Self(columns))
    }
}

/// Named values that serialise as one object, in their order.
#[derive(Clone, Copy, Debug)]
pub struct ExactColumns<'a>(pub &'a [(String, Value)]);

impl Serialize for ExactColumns<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, Exact(value))))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use sync_proto::Value;

    use super::{Columns, Exact, ExactColumns, ValueError, parse};

    fn write(value: &Value) -> String {
        serde_json::to_string(&Exact(value)).unwrap()
    }

    #[test]
    fn each_class_has_its_form() {
        for (value, json) in [
            (Value::Null, "null"),
            (Value::Int(0), "0"),
            (Value::Int(i64::MAX), "9223372036854775807"),
            (Value::Int(i64::MIN), "-9223372036854775808"),
            (Value::Real(1.0), "1.0"),
            (Value::Real(-0.0), "-0.0"),
            (Value::Real(0.1), "0.1"),
            (Value::Real(f64::INFINITY), r#"{"$real":"inf"}"#),
            (Value::Real(f64::NEG_INFINITY), r#"{"$real":"-inf"}"#),
            (Value::text(""), r#""""#),
            (Value::text("a\"\\\n\u{e9}\u{1f600}"), "\"a\\\"\\\\\\n\u{e9}\u{1f600}\""),
            (Value::text("a\0b"), r#"{"$text":"YQBi"}"#),
            (Value::Text(vec![0xff, 0x41]), r#"{"$text":"/0E="}"#),
            (Value::Blob(Vec::new()), r#"{"$blob":""}"#),
            (Value::Blob(vec![0, 1, 0xff]), r#"{"$blob":"AAH/"}"#),
        ] {
            assert_eq!(write(&value), json);
            assert_eq!(parse(json).unwrap(), value, "{json}");
        }
    }

    #[test]
    fn reals_at_the_edges_read_back_as_reals() {
        for n in [5e-324, 1e308, f64::MAX, f64::MIN_POSITIVE, 1e15, 1e16, 2_f64.powi(63), 0.1 + 0.2]
        {
            for n in [n, -n] {
                assert_eq!(parse(&write(&Value::Real(n))).unwrap(), Value::Real(n));
            }
        }
    }

    #[test]
    fn other_forms_are_read_too() {
        for (json, value) in [
            (" true ", Value::Int(1)),
            ("false", Value::Int(0)),
            ("-0", Value::Int(0)),
            ("1E2", Value::Real(100.0)),
            ("1e+2", Value::Real(100.0)),
            (r#""a\u0000b""#, Value::Text(b"a\0b".to_vec())),
            (r#"{"$text":"YWJj"}"#, Value::text("abc")),
            ("0.1e-400", Value::Real(0.0)),
        ] {
            assert_eq!(parse(json).unwrap(), value, "{json}");
        }
    }

    #[test]
    fn what_no_column_holds_exactly_is_refused() {
        assert!(matches!(parse("9223372036854775808"), Err(ValueError::IntegerRange(_))));
        assert!(matches!(parse("-9223372036854775809"), Err(ValueError::IntegerRange(_))));
        assert!(matches!(parse("18446744073709551616"), Err(ValueError::IntegerRange(_))));
        assert!(matches!(parse("1e400"), Err(ValueError::RealRange(_))));
        assert!(matches!(parse("[1]"), Err(ValueError::Nested("list"))));
        for object in ["{}", r#"{"a":1}"#, r#"{"$blob":"","$text":""}"#, r#"{"$blob":1}"#] {
            assert!(matches!(parse(object), Err(ValueError::Nested("object"))), "{object}");
        }
        for wrong in [r#"{"$blob":"A"}"#, r#"{"$text":"*"}"#, r#"{"$real":"nan"}"#] {
            assert!(matches!(parse(wrong), Err(ValueError::Form { .. })), "{wrong}");
        }
        for text in ["", "nul", "+1", "inf", "1.", ".5", "01", "1 2", "\"\\ud800\"", "{", "tru"] {
            assert!(matches!(parse(text), Err(ValueError::Json(_))), "{text:?}");
        }
    }

    #[test]
    fn columns_keep_their_order_and_refuse_doubles() {
        let text = r#"{"z":1,"a":1.0,"m":{"$blob":"AQ=="}}"#;
        let Columns(columns) = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_string(&ExactColumns(&columns)).unwrap(), text);
        let error = serde_json::from_str::<Columns>(r#"{"a":1,"A":2}"#).unwrap_err();
        assert!(error.to_string().contains("\"A\" is given twice"), "{error}");
        let error = serde_json::from_str::<Columns>(r#"{"a":[1]}"#).unwrap_err();
        assert!(error.to_string().contains("column \"a\": a column holds no list"), "{error}");
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let bits = any::<u64>().prop_map(f64::from_bits).prop_filter("no NaN", |n| !n.is_nan());
        prop_oneof![
            Just(Value::Null),
            any::<i64>().prop_map(Value::Int),
            bits.prop_map(Value::Real),
            any::<f32>().prop_filter("no NaN", |n| !n.is_nan()).prop_map(|n| Value::Real(n.into())),
            any::<String>().prop_map(Value::text),
            any::<Vec<u8>>().prop_map(Value::Text),
            any::<Vec<u8>>().prop_map(Value::Blob),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn every_value_reads_back_bit_for_bit(value in any_value()) {
            prop_assert_eq!(parse(&write(&value)).unwrap(), value);
        }

        #[test]
        fn every_row_reads_back(values in prop::collection::vec(any_value(), 0..8)) {
            let named = |(index, value)| (format!("c{index}"), value);
            let columns: Vec<(String, Value)> = values.into_iter().enumerate().map(named).collect();
            let text = serde_json::to_string(&ExactColumns(&columns)).unwrap();
            prop_assert_eq!(serde_json::from_str::<Columns>(&text).unwrap().0, columns);
        }
    }
}
