//! Who sends a request: somebody who holds this process's own token, somebody else, or nobody in particular.
//!
//! Only [`Caller::Local`] may be answered from the cache and reach upstream with our credentials; the decision is taken
//! elsewhere, from these facts. Upstream's order is kept: the `Authorization` header first, then a bearer token smuggled
//! in as a WebSocket subprotocol, which is always somebody else's.

use std::fmt;

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{
    HeaderMap,
    header::{AUTHORIZATION, SEC_WEBSOCKET_PROTOCOL, USER_AGENT},
};
use rand::{TryRng, rngs::SysRng};
use subtle::ConstantTimeEq;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Caller {
    /// Presented the local token.
    Local,
    /// Presented other credentials: they are upstream's to judge.
    Foreign,
    /// Presented none.
    Anonymous,
}

/// What the headers say about the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity<'h> {
    /// Whose credentials.
    pub caller: Caller,
    /// The request carries an `Impersonate-*` header: it is to be judged as somebody else's, whoever sends it.
    pub impersonates: bool,
    /// The first `User-Agent`, if it is text. Never trusted; for logs and metrics.
    pub user_agent: Option<&'h str>,
}

/// Several `Authorization` headers. Upstream reads the first, others the last; and one of them may be the local token,
/// which must not be passed on. A request that is two people's is nobody's: refuse it with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("request has {0} authorization headers, expected at most 1")]
pub struct AmbiguousCredentials(pub usize);

/// The system's random generator failed.
#[derive(Clone, Debug, thiserror::Error)]
#[error("can't read 32 random bytes from the system for a token: {0}")]
pub struct NoRandomness(String);

/// A bearer token. Never printed: [`Token::expose`] is the only way to its text.
#[derive(Clone)]
pub struct Token(String);

/// How upstream spells "the next part is a token" in a list of WebSocket subprotocols.
const SUBPROTOCOL_PREFIX: &str = "base64url.bearer.authorization.k8s.io.";

// === impl Identity ===

impl<'h> Identity<'h> {
    /// Reads the headers of a request.
    pub fn of(headers: &'h HeaderMap, local: &Token) -> Result<Self, AmbiguousCredentials> {
        let mut lines = headers.get_all(AUTHORIZATION).iter();
        let caller = match (lines.next(), lines.count()) {
            (None, _) if has_subprotocol_token(headers) => Caller::Foreign,
            (None, _) => Caller::Anonymous,
            (Some(credentials), 0) => match bearer(credentials.as_bytes()) {
                Some(token) if local.matches(token) => Caller::Local,
                _ => Caller::Foreign,
            },
            (Some(_), more) => return Err(AmbiguousCredentials(1 + more)),
        };
        Ok(Self {
            caller,
            impersonates: headers.keys().any(|name| name.as_str().starts_with("impersonate-")),
            user_agent: headers.get(USER_AGENT).and_then(|value| value.to_str().ok()),
        })
    }
}

// === impl Token ===

impl Token {
    /// Takes over a token.
    pub fn new(token: String) -> Self {
        Self(token)
    }

    /// Makes a new token: 32 bytes from the system's random generator, in URL-safe base64 without padding.
    pub fn generate() -> Result<Self, NoRandomness> {
        let mut bytes = [0u8; 32];
        SysRng.try_fill_bytes(&mut bytes).map_err(|error| NoRandomness(error.to_string()))?;
        Ok(Self(URL_SAFE_NO_PAD.encode(bytes)))
    }

    /// The text, for the one place that has to write it down.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// Compares in a time that does not depend on where the two differ. An empty token matches nothing.
    pub fn matches(&self, presented: &[u8]) -> bool {
        !self.0.is_empty() && bool::from(self.0.as_bytes().ct_eq(presented))
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<redacted>")
    }
}

/// The token of bearer credentials. The scheme is written in any case: Python's client sends `bearer`.
fn bearer(credentials: &[u8]) -> Option<&[u8]> {
    let credentials = credentials.trim_ascii();
    let (scheme, token) = credentials.split_at(credentials.iter().position(|&b| b == b' ')?);
    scheme.eq_ignore_ascii_case(b"bearer").then(|| token.trim_ascii_start())
}

fn has_subprotocol_token(headers: &HeaderMap) -> bool {
    headers.get_all(SEC_WEBSOCKET_PROTOCOL).iter().any(|line| {
        let protocols = line.as_bytes().split(|&b| b == b',');
        protocols.map(<[u8]>::trim_ascii).any(|protocol| protocol.starts_with(SUBPROTOCOL_PREFIX.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use http::{HeaderName, HeaderValue};

    use super::*;

    fn headers(lines: &[(&str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in lines {
            map.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        map
    }

    #[test]
    fn callers_are_told_apart() {
        let local = Token::new("s3cret".into());
        for (credentials, caller) in [
            (vec![], Caller::Anonymous),
            (vec!["Bearer s3cret"], Caller::Local),
            (vec!["bearer s3cret"], Caller::Local),
            (vec!["BEARER   s3cret "], Caller::Local),
            (vec!["Bearer s3cre"], Caller::Foreign),
            (vec!["Bearer s3cretx"], Caller::Foreign),
            (vec!["Bearer S3CRET"], Caller::Foreign),
            (vec!["Bearer s3cret extra"], Caller::Foreign),
            (vec!["Bearer"], Caller::Foreign),
            (vec!["Bearer "], Caller::Foreign),
            (vec!["s3cret"], Caller::Foreign),
            (vec!["Basic s3cret"], Caller::Foreign),
            (vec![""], Caller::Foreign),
        ] {
            let lines: Vec<_> = credentials.iter().map(|c| ("authorization", *c)).collect();
            let map = headers(&lines);
            assert_eq!(Identity::of(&map, &local).unwrap().caller, caller, "{credentials:?}");
        }
    }

    #[test]
    fn several_credentials_are_refused() {
        let map = headers(&[("authorization", "Bearer s3cret"), ("authorization", "Bearer s3cret")]);
        assert_eq!(Identity::of(&map, &Token::new("s3cret".into())), Err(AmbiguousCredentials(2)));
    }

    #[test]
    fn a_token_among_subprotocols_is_foreign() {
        let local = Token::new("s3cret".into());
        let map =
            headers(&[("sec-websocket-protocol", "v5.channel.k8s.io, base64url.bearer.authorization.k8s.io.czNjcmV0")]);
        assert_eq!(Identity::of(&map, &local).unwrap().caller, Caller::Foreign);
        let map = headers(&[("sec-websocket-protocol", "v5.channel.k8s.io")]);
        assert_eq!(Identity::of(&map, &local).unwrap().caller, Caller::Anonymous);
    }

    #[test]
    fn impersonation_and_agent_are_seen() {
        let local = Token::new("s3cret".into());
        for (name, impersonates) in [
            ("Impersonate-User", true),
            ("impersonate-extra-scopes", true),
            ("Impersonate-Uid", true),
            ("X-Impersonate", false),
        ] {
            let map = headers(&[(name, "x"), ("user-agent", "kubectl/v1")]);
            let identity = Identity::of(&map, &local).unwrap();
            assert_eq!((identity.impersonates, identity.user_agent), (impersonates, Some("kubectl/v1")), "{name}");
        }
        let mut map = HeaderMap::new();
        map.insert(USER_AGENT, HeaderValue::from_bytes(b"\xff").unwrap());
        assert_eq!(Identity::of(&map, &local).unwrap().user_agent, None);
    }

    #[test]
    fn tokens_are_random_and_never_printed() {
        let (one, two) = (Token::generate().unwrap(), Token::generate().unwrap());
        assert_eq!(one.expose().len(), 43);
        assert_ne!(one.expose(), two.expose());
        assert!(HeaderValue::from_str(one.expose()).is_ok());
        assert_eq!(format!("{one} {one:?} {:?}", Some(&one)), "<redacted> <redacted> Some(<redacted>)");
        assert!(one.matches(one.expose().as_bytes()) && !one.matches(two.expose().as_bytes()));
        assert!(!Token::new(String::new()).matches(b""));
    }
}
