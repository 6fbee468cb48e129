//! Hop-by-hop headers (RFC 9110, section 7.6.1): what belongs to one connection and is never passed on.
//!
//! Pure functions on a header map, for both directions. A `Connection` header may name further headers to drop, and that
//! is where a peer could make a request leave under another identity or with another framing (`Connection:
//! authorization`): such a message is refused as a whole. Framing itself is hyper's.

use http::{
    HeaderMap, HeaderName, HeaderValue,
    header::{
        AUTHORIZATION, CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HOST, SEC_WEBSOCKET_PROTOCOL, TE, TRANSFER_ENCODING,
        UPGRADE,
    },
};

/// The message names an end-to-end header in `Connection` whose loss would change what the message means or who sent it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("connection header names {0}, expected only hop-by-hop headers")]
pub struct ProtectedHeader(pub HeaderName);

/// Removes the hop-by-hop headers: `Connection` and all it names, `Keep-Alive`, `Transfer-Encoding`, `Upgrade`,
/// `Proxy-*`, and `TE` except for `trailers`. To pass an upgrade on, ask [`upgrade_protocol`] first and set the two
/// headers anew.
///
/// Headers that identify or frame a message can't be named. Then the map is left as it was.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Result<(), ProtectedHeader> {
    if !headers.keys().any(is_hop_by_hop) {
        return Ok(());
    }
    let mut doomed = Vec::new();
    for option in connection_options(headers) {
        // What is no header name can't remove a header.
        let Ok(name) = HeaderName::from_bytes(option) else { continue };
        if is_protected(&name) {
            return Err(ProtectedHeader(name));
        }
        doomed.push(name);
    }
    doomed.extend(headers.keys().filter(|name| name.as_str().starts_with("proxy-")).cloned());
    let trailers = headers.get_all(TE).iter().any(|value| {
        value.as_bytes().split(|&b| b == b',').any(|coding| coding.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    });
    for name in &doomed {
        headers.remove(name);
    }
    for name in [CONNECTION, HeaderName::from_static("keep-alive"), TRANSFER_ENCODING, UPGRADE, TE] {
        headers.remove(name);
    }
    if trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
    }
    Ok(())
}

/// The protocol that is to be switched to (`SPDY/3.1`, `websocket`), if the message both has an `Upgrade` header and
/// names it in `Connection`.
pub fn upgrade_protocol(headers: &HeaderMap) -> Option<HeaderValue> {
    let protocol = headers.get(UPGRADE)?;
    connection_options(headers).any(|option| option.eq_ignore_ascii_case(b"upgrade")).then(|| protocol.clone())
}

fn connection_options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(CONNECTION).iter();
    lines.flat_map(|line| line.as_bytes().split(|&b| b == b',').map(<[u8]>::trim_ascii))
}

/// Whether there is anything to do: most requests have none of these.
fn is_hop_by_hop(name: &HeaderName) -> bool {
    [CONNECTION, TRANSFER_ENCODING, UPGRADE, TE].contains(name)
        || name.as_str().starts_with("proxy-")
        || name.as_str() == "keep-alive"
}

fn is_protected(name: &HeaderName) -> bool {
    // A bearer token may travel as a WebSocket subprotocol.
    [AUTHORIZATION, HOST, CONTENT_LENGTH, CONTENT_TYPE, SEC_WEBSOCKET_PROTOCOL].contains(name)
        || name.as_str().starts_with("impersonate-")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn what_belongs_to_the_connection_goes() {
        for (before, after) in [
            (vec![("accept", "*/*")], vec![("accept", "*/*")]),
            (vec![("connection", "close"), ("accept", "*/*")], vec![("accept", "*/*")]),
            (
                vec![
                    ("connection", "keep-alive, X-Hop"),
                    ("connection", " x-other ,"),
                    ("x-hop", "1"),
                    ("x-hop", "2"),
                    ("x-other", "1"),
                    ("x-stays", "1"),
                ],
                vec![("x-stays", "1")],
            ),
            (vec![("keep-alive", "timeout=5"), ("transfer-encoding", "chunked"), ("upgrade", "websocket")], vec![]),
            (
                vec![("proxy-connection", "x"), ("proxy-authorization", "x"), ("proxy-foo", "x"), ("x-proxy", "x")],
                vec![("x-proxy", "x")],
            ),
            (vec![("te", "gzip, trailers;q=1")], vec![]),
            (vec![("te", "gzip, Trailers"), ("connection", "te")], vec![("te", "trailers")]),
            (vec![("connection", "not a name, @@"), ("accept", "*/*")], vec![("accept", "*/*")]),
            (vec![("authorization", "Bearer x"), ("connection", "close")], vec![("authorization", "Bearer x")]),
        ] {
            let mut map = headers(&before);
            assert_eq!(strip_hop_by_hop(&mut map), Ok(()), "{before:?}");
            assert_eq!(map, headers(&after), "{before:?}");
        }
    }

    #[test]
    fn nobody_can_have_an_identity_or_a_frame_removed() {
        for name in [
            "authorization",
            "host",
            "content-length",
            "content-type",
            "impersonate-user",
            "impersonate-extra-scopes",
            "sec-websocket-protocol",
        ] {
            let value = format!("close, {}", name.to_uppercase());
            let before = headers(&[("connection", &value), ("authorization", "Bearer x"), ("te", "gzip")]);
            let mut map = before.clone();
            assert_eq!(strip_hop_by_hop(&mut map), Err(ProtectedHeader(name.parse().unwrap())));
            assert_eq!(map, before);
        }
    }

    #[test]
    fn an_upgrade_needs_both_headers() {
        for (lines, want) in [
            (vec![("connection", "Upgrade"), ("upgrade", "SPDY/3.1")], Some("SPDY/3.1")),
            (vec![("connection", "keep-alive, upgrade"), ("upgrade", "websocket")], Some("websocket")),
            (
                vec![("connection", "keep-alive"), ("connection", "upgrade"), ("upgrade", "websocket")],
                Some("websocket"),
            ),
            (vec![("upgrade", "websocket")], None),
            (vec![("connection", "Upgrade")], None),
            (vec![("connection", "xupgrade"), ("upgrade", "websocket")], None),
        ] {
            assert_eq!(upgrade_protocol(&headers(&lines)), want.map(HeaderValue::from_static), "{lines:?}");
        }
    }

    proptest! {
        #[test]
        fn authorization_survives_or_the_message_is_refused(connection in "[ -~]{0,40}|(authorization|,| |x){0,6}") {
            let mut map = headers(&[("connection", &connection), ("authorization", "Bearer x"), ("x", "1")]);
            let stripped = strip_hop_by_hop(&mut map);
            prop_assert!(map.contains_key(AUTHORIZATION));
            let named = connection.split(',').any(|o| o.trim().eq_ignore_ascii_case("authorization"));
            prop_assert_eq!(stripped.is_err(), named);
        }
    }
}
