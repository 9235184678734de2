//! Key texts: frozen vectors, exact round trips, and what a person may write in a URL.

use proptest::prelude::*;
use sync_proto::key::{KeyError, KeyType};
use sync_proto::{NaturalKey, Value};

use crate::{arbitrary, notation};

#[test]
fn texts_are_those_of_the_golden_file() {
    for (parts, wanted) in notation::cases(include_str!("../golden/keys.txt")) {
        let values: Vec<Value> =
            parts.split(" + ").filter(|part| *part != "document").map(notation::value).collect();
        let key = NaturalKey::of(&values);
        let wanted = wanted.trim_start_matches('|').trim_end_matches('|');
        assert_eq!(key.as_str(), wanted, "{parts}");
        assert_eq!(key.parts(), Ok(values), "{parts}");
        assert_eq!(NaturalKey::from_canonical(wanted), Ok(key), "{parts}");
    }
}

#[test]
fn a_text_that_is_not_canonical_is_refused() {
    for text in [
        "1",
        "x:1",
        ":",
        "i:",
        "i:+1",
        "i:01",
        "i:1.0",
        "i: 1",
        "i:9223372036854775808",
        "r:1",
        "r:1.00",
        "r:nan",
        "r:NaN",
        "r:+inf",
        "r:Infinity",
        "b:0",
        "b:0G",
        "b:FF",
        "t:%",
        "t:%4",
        "t:%41",
        "t:%2c",
        "t:a\u{0}",
        "t:a\n",
        "n:x",
        "i:1,",
        ",i:1",
        "i:1,,i:2",
        "t:%C3%A4",
    ] {
        assert!(NaturalKey::from_canonical(text).is_err(), "{text:?}");
    }
}

#[test]
fn a_bare_key_is_read_by_its_fields_types() {
    let read = |text: &str, types: &[KeyType]| NaturalKey::parse(text, types);
    let reads = |text, types: &[KeyType], wanted: &str| {
        let key = read(text, types).unwrap_or_else(|error| panic!("{text:?}: {error}"));
        assert_eq!(key.as_str(), wanted, "{text:?} as {types:?}");
    };
    use KeyType::{Any, Blob, Integer, Real, Text};
    reads("7", &[Integer], "i:7");
    reads("-7", &[Integer], "i:-7");
    reads("7", &[Text], "t:7");
    reads("7", &[Any], "i:7");
    reads("07", &[Any], "t:07");
    reads("abc", &[Any], "t:abc");
    reads("7", &[Real], "r:7.0");
    reads("-inf", &[Real], "r:-inf");
    reads("00ff", &[Blob], "b:00ff");
    reads("00FF", &[Blob], "b:00ff");
    reads("", &[Text], "t:");
    reads("", &[], "");
    reads("a,b", &[Text], "t:a%2Cb");
    reads("a,7", &[Text, Integer], "t:a,i:7");
    // The tagged form is accepted for any type, alone and part by part.
    reads("t:7", &[Integer], "t:7");
    reads("i:7,x", &[Any, Text], "i:7,t:x");
    reads("n:", &[Text], "n:");

    assert_eq!(read("a,b", &[Text]).unwrap(), NaturalKey::of(&[Value::text("a,b")]));
    assert_eq!(read("a", &[Text, Text]), Err(KeyError::PartCount { got: 1, want: 2 }));
    assert_eq!(read("x", &[]), Err(KeyError::PartCount { got: 1, want: 0 }));
    for (text, kind) in [("x", Integer), ("1.5", Integer), ("", Integer), ("x", Real)] {
        let refused = read(text, &[kind]);
        assert!(matches!(refused, Err(KeyError::WrongType { .. })), "{text:?}: {refused:?}");
    }
    for (text, kind) in [("nan", Real), ("NaN", Real), ("0", Blob), ("zz", Blob)] {
        let refused = read(text, &[kind]);
        assert!(matches!(refused, Err(KeyError::WrongType { .. })), "{text:?}: {refused:?}");
    }
}

#[test]
fn a_key_with_a_null_part_is_known() {
    assert!(NaturalKey::has_null(&[Value::Int(1), Value::Null]));
    assert!(!NaturalKey::has_null(&[Value::Int(1), Value::text("")]));
    assert!(!NaturalKey::has_null(&[]));
}

proptest! {
    #[test]
    fn every_key_comes_back_exactly(parts in prop::collection::vec(arbitrary::value(), 0..4)) {
        let key = NaturalKey::of(&parts);
        prop_assert_eq!(key.parts().unwrap(), parts);
        prop_assert_eq!(&NaturalKey::from_canonical(key.as_str()).unwrap(), &key);
        prop_assert!(key.as_str().chars().all(|c| !c.is_ascii_control()));
    }

    #[test]
    fn two_keys_never_share_a_text(
        a in prop::collection::vec(arbitrary::value(), 1..3),
        b in prop::collection::vec(arbitrary::value(), 1..3),
    ) {
        prop_assert_eq!(NaturalKey::of(&a) == NaturalKey::of(&b), a == b);
    }

    #[test]
    fn reading_any_text_gives_a_key_or_an_error(text in ".{0,40}", tagged in "[irtbn]:[0-9a-f%,.:-]{0,12}") {
        for text in [text, tagged] {
            if let Ok(key) = NaturalKey::from_canonical(&text) {
                let again = NaturalKey::of(&key.parts().unwrap());
                prop_assert_eq!(again.as_str(), text.as_str());
            }
            for types in [&[][..], &[KeyType::Any], &[KeyType::Blob], &[KeyType::Real; 2]] {
                if let Ok(key) = NaturalKey::parse(&text, types) {
                    prop_assert!(NaturalKey::from_canonical(key.as_str()).is_ok());
                }
            }
        }
    }
}
