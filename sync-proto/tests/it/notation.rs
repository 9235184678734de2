//! The notation of values in the golden files: a class and the value, so that a port in another
//! language can read them with a split and a hex decoder.

use sync_proto::Value;

/// Reads `null`, `int -1`, `real 3ff0000000000000`, `text 616263` or `blob 00ff`.
pub(crate) fn value(text: &str) -> Value {
    let text = text.trim();
    let (class, rest) = text.split_once(' ').unwrap_or((text, ""));
    match class {
        "null" => Value::Null,
        "int" => Value::Int(rest.parse().expect("an integer in decimal")),
        "real" => {
            let bits = u64::from_str_radix(rest, 16).expect("a double's bits in hex");
            Value::Real(f64::from_bits(bits))
        }
        "text" => Value::Text(hex::decode(rest).expect("bytes in hex")),
        "blob" => Value::Blob(hex::decode(rest).expect("bytes in hex")),
        other => panic!("unknown class {other:?}"),
    }
}

/// The lines of a golden file as (left, right) of ` => `, without comments.
pub(crate) fn cases(file: &str) -> Vec<(&str, &str)> {
    let cases: Vec<_> = file
        .lines()
        .filter(|line| !line.starts_with('#') && !line.is_empty())
        .map(|line| line.split_once(" => ").expect("left => right"))
        .collect();
    assert!(!cases.is_empty(), "a golden file has cases");
    cases
}
