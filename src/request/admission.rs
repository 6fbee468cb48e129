//! Whether a request is looked at at all: it must be addressed to this server, and must not come from a web page.
//!
//! The second line behind the token, against pages that resolve a name of their own to loopback (DNS rebinding) or send
//! requests across origins. Pure functions on what HTTP says of a request, before anybody is authenticated.
//!
//! - The host (`Host`, or `:authority` in HTTP/2) is one that forebay's certificate is for, on any port: what forwards a
//!   port to here has a port of its own. Anything else is 421, the code for "not this server"; client-go shows the Status
//!   that comes with it and does not try again.
//! - `Origin` names that same host and port, which WebSocket clients outside of browsers (Python's) send, or is absent.
//!   No page can be at that address: forebay serves none without the token. `Sec-Fetch-Site`, which only browsers send,
//!   is absent or `none`. The other `Sec-Fetch-*` say nothing: Node's `fetch` sends `Sec-Fetch-Mode: cors`.
//! - The target is a path. `http://host/path` is for forward proxies, `*` for servers as a whole.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use http::{
    HeaderMap, HeaderName, Uri, Version,
    header::{HOST, ORIGIN},
};

/// The names clients use: by the written kubeconfig, by hand, and in a pod by the in-cluster configuration.
const NAMES: [&str; 5] =
    ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Where this server is: the hosts that requests may be addressed to.
#[derive(Clone, Debug)]
pub struct Hosts {
    addresses: Vec<IpAddr>,
}

/// Why a request is not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Inadmissible {
    /// Not a path.
    #[error("the request target must be a path, like /api/v1/pods")]
    Target,
    /// None, several, or two that differ: RFC 9112 section 3.2, RFC 9113 section 8.3.1.
    #[error("the request has no host, or more than one; expected exactly one Host header")]
    Host,
    /// Somebody else's.
    #[error("this is forebay, not the host that the request is for; expected localhost or 127.0.0.1, on any port")]
    ForeignHost,
    /// From a web page.
    #[error("requests of web pages are refused; expected no Origin but this server's own, and no Sec-Fetch-Site")]
    Browser,
}

// === impl Hosts ===

impl Hosts {
    /// The hosts of a server that listens on `address`.
    pub fn of(address: IpAddr) -> Self {
        let mut addresses = vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
        if !addresses.contains(&address) {
            addresses.push(address);
        }
        Self { addresses }
    }

    /// As subject names of a certificate.
    pub fn names(&self) -> Vec<String> {
        NAMES.iter().map(ToString::to_string).chain(self.addresses.iter().map(ToString::to_string)).collect()
    }

    /// Judges a request.
    ///
    /// # Errors
    ///
    /// Why it must be refused.
    pub fn admit(&self, version: Version, uri: &Uri, headers: &HeaderMap) -> Result<(), Inadmissible> {
        let two = version == Version::HTTP_2;
        if uri.path_and_query().is_none() || !uri.path().starts_with('/') || (!two && uri.authority().is_some()) {
            return Err(Inadmissible::Target);
        }
        let mut lines = headers.get_all(HOST).iter();
        let host = match (uri.authority(), lines.next(), lines.next()) {
            (Some(authority), None, None) => authority.as_str().as_bytes(),
            (Some(authority), Some(line), None) if line.as_bytes() == authority.as_str().as_bytes() => line.as_bytes(),
            (None, Some(line), None) => line.as_bytes(),
            // What speaks HTTP/1.0 is no browser, and upstream does not ask it for a host either.
            (None, None, None) if version == Version::HTTP_10 => b"localhost",
            _ => return Err(Inadmissible::Host),
        };
        if !self.contains(host) {
            return Err(Inadmissible::ForeignHost);
        }
        if !headers.get_all(ORIGIN).iter().all(|origin| is_of(origin.as_bytes(), host))
            || !headers.get_all(SEC_FETCH_SITE).iter().all(|site| site == "none")
        {
            return Err(Inadmissible::Browser);
        }
        Ok(())
    }

    /// `host`, `host:port`, `[address]:port`.
    fn contains(&self, host: &[u8]) -> bool {
        let Ok(host) = std::str::from_utf8(host) else { return false };
        let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, "")) => (address, ""),
            Some((address, port)) => match port.strip_prefix(':') {
                Some(port) if address.contains(':') => (address, port),
                _ => return false,
            },
            None => host.split_once(':').unwrap_or((host, "")),
        };
        if !port.bytes().all(|b| b.is_ascii_digit()) {
            return false;
        }
        let name = name.strip_suffix('.').unwrap_or(name);
        match name.parse() {
            Ok(address) => self.addresses.contains(&address),
            Err(_) => NAMES.iter().any(|own| own.eq_ignore_ascii_case(name)),
        }
    }
}

/// Whether an origin is that of `host`, by any scheme: clients differ in what they write for `wss`.
fn is_of(origin: &[u8], host: &[u8]) -> bool {
    let at = origin.windows(3).position(|three| three == b"://");
    at.is_some_and(|at| origin[at + 3..].eq_ignore_ascii_case(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts() -> Hosts {
        Hosts::of(IpAddr::from([127, 0, 0, 7]))
    }

    fn judge(version: Version, target: &str, lines: &[(&str, &str)]) -> Result<(), Inadmissible> {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(name.parse::<HeaderName>().unwrap(), value.parse().unwrap());
        }
        hosts().admit(version, &target.parse().unwrap(), &headers)
    }

    #[test]
    fn only_our_own_hosts_are_addressed() {
        for (host, ours) in [
            ("localhost", true),
            ("LocalHost:6480", true),
            ("localhost:", true),
            ("127.0.0.1", true),
            ("127.0.0.1:6480", true),
            ("127.0.0.7:1", true),
            ("[::1]", true),
            ("[::1]:6480", true),
            ("[0:0:0:0:0:0:0:1]:6480", true),
            ("kubernetes", true),
            ("kubernetes.default:443", true),
            ("kubernetes.default.svc", true),
            ("kubernetes.default.svc.", true),
            ("kubernetes.default.svc.cluster.local:443", true),
            ("", false),
            (":6480", false),
            ("example.com", false),
            ("localhost.example.com", false),
            ("kubernetes.default.svc.example.com", false),
            ("127.0.0.1.example.com", false),
            ("127.0.0.2", false),
            ("10.0.0.1:6480", false),
            ("[::2]:6480", false),
            ("[::1", false),
            ("::1", false),
            ("[localhost]:1", false),
            ("[::1]x", false),
            ("localhost:x", false),
            ("localhost:1:2", false),
            ("user@localhost", false),
            ("localhost/", false),
            ("localhost, localhost", false),
        ] {
            let want = if ours { Ok(()) } else { Err(Inadmissible::ForeignHost) };
            assert_eq!(judge(Version::HTTP_11, "/api", &[("host", host)]), want, "{host}");
        }
    }

    #[test]
    fn there_is_exactly_one_host() {
        let (one, two) = (Version::HTTP_11, Version::HTTP_2);
        for (version, target, lines, want) in [
            (one, "/", vec![], Err(Inadmissible::Host)),
            (Version::HTTP_10, "/", vec![], Ok(())),
            (Version::HTTP_10, "/", vec![("host", "example.com")], Err(Inadmissible::ForeignHost)),
            (one, "/", vec![("host", "localhost"), ("host", "localhost")], Err(Inadmissible::Host)),
            (two, "https://localhost:1/", vec![], Ok(())),
            (two, "https://localhost:1/", vec![("host", "localhost:1")], Ok(())),
            (two, "https://localhost:1/", vec![("host", "localhost:2")], Err(Inadmissible::Host)),
            (two, "https://localhost/", vec![("host", "localhost"), ("host", "localhost")], Err(Inadmissible::Host)),
            (two, "https://example.com/", vec![], Err(Inadmissible::ForeignHost)),
            (two, "/", vec![("host", "localhost")], Ok(())),
            (two, "/", vec![], Err(Inadmissible::Host)),
        ] {
            assert_eq!(judge(version, target, &lines), want, "{version:?} {target} {lines:?}");
        }
    }

    #[test]
    fn the_target_is_a_path() {
        for (version, target) in [
            (Version::HTTP_11, "http://localhost/api"),
            (Version::HTTP_11, "localhost:443"),
            (Version::HTTP_11, "*"),
            (Version::HTTP_2, "*"),
            (Version::HTTP_2, "localhost:443"),
        ] {
            assert_eq!(judge(version, target, &[("host", "localhost")]), Err(Inadmissible::Target), "{target}");
        }
        assert_eq!(judge(Version::HTTP_11, "/?a=http://b/*", &[("host", "localhost")]), Ok(()));
    }

    #[test]
    fn pages_are_refused_and_other_websocket_clients_are_not() {
        for (lines, want) in [
            (vec![("origin", "https://127.0.0.1:6480")], Ok(())),
            (vec![("origin", "http://127.0.0.1:6480")], Ok(())),
            (vec![("origin", "https://127.0.0.1")], Err(Inadmissible::Browser)),
            (vec![("origin", "http://127.0.0.1:3000")], Err(Inadmissible::Browser)),
            (vec![("origin", "https://localhost:6480")], Err(Inadmissible::Browser)),
            (vec![("origin", "https://example.com")], Err(Inadmissible::Browser)),
            (vec![("origin", "null")], Err(Inadmissible::Browser)),
            (vec![("origin", "")], Err(Inadmissible::Browser)),
            (vec![("origin", "https://127.0.0.1:6480"), ("origin", "https://example.com")], Err(Inadmissible::Browser)),
            (vec![("sec-fetch-site", "none")], Ok(())),
            (vec![("sec-fetch-site", "cross-site")], Err(Inadmissible::Browser)),
            (vec![("sec-fetch-site", "same-site")], Err(Inadmissible::Browser)),
            (vec![("sec-fetch-site", "same-origin")], Err(Inadmissible::Browser)),
            (vec![("sec-fetch-mode", "cors")], Ok(())),
        ] {
            let mut lines = lines;
            lines.push(("host", "127.0.0.1:6480"));
            assert_eq!(judge(Version::HTTP_11, "/api", &lines), want, "{lines:?}");
        }
    }

    #[test]
    fn a_certificate_can_be_for_all_of_them() {
        let names = hosts().names();
        assert_eq!(names[..2], ["localhost", "kubernetes"]);
        assert_eq!(names[5..], ["127.0.0.1", "::1", "127.0.0.7"]);
        assert_eq!(Hosts::of(Ipv6Addr::LOCALHOST.into()).names().len(), 7);
    }
}
