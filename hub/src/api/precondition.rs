//! `ETag`, `If-Match` and `If-None-Match`: a row's version in HTTP's headers.
//!
//! An entity tag is the version in quotes. What a condition means for a write is decided under the
//! row's lock, behind the hub; here headers are only read.

use axum::http::{HeaderMap, HeaderValue, header};
use sync_proto::Version;

use super::error::ApiError;
use crate::plane::WriteCondition;

/// The entity tag of a version.
pub(super) fn etag(version: Version) -> HeaderValue {
    HeaderValue::try_from(format!("\"{version}\"")).expect("digits in quotes are a header's value")
}

/// The condition of a write.
pub(super) fn of_write(headers: &HeaderMap) -> Result<WriteCondition, ApiError> {
    let (matches, none_match) = (one(headers, &header::IF_MATCH)?, none_match(headers)?);
    match (matches, none_match) {
        (None, None) => Ok(WriteCondition::None),
        (None, Some("*")) => Ok(WriteCondition::Absent),
        (None, Some(_)) => Err(ApiError::bad_request(
            "invalid_header",
            "a write takes If-None-Match only as *, which means create only",
        )),
        (Some(tag), None) => version(tag).map(WriteCondition::Match).ok_or_else(|| {
            ApiError::bad_request(
                "invalid_header",
                format!("If-Match must be one version in quotes as in the ETag, not {tag}"),
            )
        }),
        (Some(_), Some(_)) => Err(ApiError::bad_request(
            "invalid_header",
            "If-Match and If-None-Match exclude each other",
        )),
    }
}

/// Whether a reader holds this version already.
pub(super) fn is_held(headers: &HeaderMap, stored: Version) -> Result<bool, ApiError> {
    let Some(tags) = none_match(headers)? else { return Ok(false) };
    // A reader may hold any of several, and a proxy may have marked one as weak.
    let held = |tag: &str| {
        let tag = tag.trim();
        tag == "*" || version(tag.strip_prefix("W/").unwrap_or(tag)) == Some(stored)
    };
    Ok(tags.split(',').any(held))
}

fn none_match(headers: &HeaderMap) -> Result<Option<&str>, ApiError> {
    one(headers, &header::IF_NONE_MATCH)
}

fn one<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Result<Option<&'a str>, ApiError> {
    let mut values = headers.get_all(name).iter();
    let (first, more) = (values.next(), values.next());
    match (first.map(|value| value.to_str()), more) {
        (None, _) => Ok(None),
        (Some(Ok(value)), None) => Ok(Some(value.trim())),
        (Some(_), _) => {
            let message = format!("{name} is there twice, or is no text");
            Err(ApiError::bad_request("invalid_header", message))
        }
    }
}

/// The version that a tag names; quotes may be missing, because shells eat them.
fn version(tag: &str) -> Option<Version> {
    let bare = tag.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(tag);
    let number: i64 = bare.parse().ok()?;
    (number.to_string() == bare).then_some(Version(number))
}

#[cfg(test)]
mod tests {
    use axum::http::{HeaderMap, HeaderName, HeaderValue};
    use sync_proto::Version;

    use super::{is_held, of_write};
    use crate::plane::WriteCondition;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs.iter().map(pair) {
            headers.append(name, value);
        }
        headers
    }

    #[test]
    fn a_write_has_one_condition_or_none() {
        for (pairs, condition) in [
            (&[][..], WriteCondition::None),
            (&[("if-match", "\"7\"")], WriteCondition::Match(Version(7))),
            (&[("if-match", "7")], WriteCondition::Match(Version(7))),
            (&[("if-none-match", "*")], WriteCondition::Absent),
        ] {
            assert_eq!(of_write(&headers(pairs)).unwrap(), condition);
        }
        for pairs in [
            &[("if-match", "*")][..],
            &[("if-match", "W/\"7\"")],
            &[("if-match", "\"7\", \"8\"")],
            &[("if-match", "\"07\"")],
            &[("if-match", "\"7")],
            &[("if-match", "\"7\""), ("if-match", "\"8\"")],
            &[("if-none-match", "\"7\"")],
            &[("if-match", "\"7\""), ("if-none-match", "*")],
        ] {
            of_write(&headers(pairs)).unwrap_err();
        }
    }

    #[test]
    fn a_reader_holds_what_it_names() {
        for (tags, held) in [
            ("\"7\"", true),
            ("W/\"7\"", true),
            ("\"6\", \"7\"", true),
            ("*", true),
            ("\"6\"", false),
        ] {
            assert_eq!(is_held(&headers(&[("if-none-match", tags)]), Version(7)).unwrap(), held);
        }
        assert!(!is_held(&headers(&[]), Version(7)).unwrap());
    }
}
