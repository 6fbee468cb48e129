//! The same request to the API server and through forebay, and the comparison of the two answers.

use bytes::Bytes;
use http::Method;

use crate::client::{Answer, HttpClient};
use crate::control_plane::ControlPlane;
use crate::forebay::Forebay;
use crate::users::{Role, User};

/// The user agent of the requests that do not go through forebay.
pub(crate) const DIRECT: &str = "pair/direct";

/// How often a pair of requests is repeated when other tests change what it reads.
const ATTEMPTS: usize = 40;

/// Two clients with the same rights: one talks to the API server, one to a forebay that has the rights of `user`.
#[derive(Debug)]
pub(crate) struct Pair {
    pub(crate) direct: HttpClient,
    pub(crate) through: HttpClient,
    pub(crate) forebay: Forebay,
    /// Forebay's identity upstream, its own for this pair.
    pub(crate) user: User,
}

// === impl Pair ===

impl Pair {
    /// Starts a forebay with a fresh user of the role. The direct client is the same user, because a 403 names it; its
    /// user agent, `pair/direct`, tells its requests apart.
    pub(crate) async fn start(plane: &ControlPlane, role: Role) -> Self {
        Self::start_with(plane, role, &[]).await
    }

    /// As `start`, with further flags for forebay.
    pub(crate) async fn start_with(plane: &ControlPlane, role: Role, flags: &[&str]) -> Self {
        let user = plane.user(role);
        let forebay = Forebay::start_with(&plane.kubeconfig(&user), flags).await;
        let direct = plane.client(&user).with_user_agent(DIRECT);
        let through = forebay.client().await.with_user_agent("pair/through");
        Self { direct, through, forebay, user }
    }

    /// GETs the path on both sides and asserts that status, Content-Type and body are the same. Returns forebay's answer.
    pub(crate) async fn same(&self, path: &str) -> Answer {
        self.same_with(Method::GET, path, &[("accept", "application/json")]).await
    }

    /// As `same`, for any method without a body and any headers.
    ///
    /// In a body of a list its own resource version is masked, and nothing else: `items` must be equal to the byte. While
    /// other tests write, forebay's answer counts only if the API server gives one answer before and after it.
    pub(crate) async fn same_with(&self, method: Method, path: &str, headers: &[(&str, &str)]) -> Answer {
        for _ in 0..ATTEMPTS {
            let before = self.direct.request(method.clone(), path, headers, "").await;
            let through = self.through.request(method.clone(), path, headers, "").await;
            let after = self.direct.request(method.clone(), path, headers, "").await;
            if (before.status, masked(&before.body)) == (after.status, masked(&after.body)) {
                assert_same(&format!("{method} {path} {headers:?}"), &before, &through);
                return through;
            }
        }
        panic!("{method} {path}: the API server itself did not give the same answer twice in {ATTEMPTS} attempts");
    }
}

/// Asserts status, Content-Type, Warning and masked body equal.
pub(crate) fn assert_same(what: &str, direct: &Answer, through: &Answer) {
    assert_eq!(direct.status, through.status, "{what}: direct {}, through {}", direct.describe(), through.describe());
    for header in ["content-type", "warning", "x-content-type-options", "retry-after", "cache-control"] {
        assert_eq!(direct.header(header), through.header(header), "{what}: header {header}, {}", through.describe());
    }
    let (expected, found) = (masked(&direct.body), masked(&through.body));
    if expected == found {
        return;
    }
    let at = expected.iter().zip(found.iter()).take_while(|(a, b)| a == b).count();
    let around = |body: &[u8]| {
        let range = at.saturating_sub(80)..(at + 80).min(body.len());
        String::from_utf8_lossy(&body[range]).into_owned()
    };
    panic!(
        "{what}: bodies of {} and {} bytes differ at byte {at}:\n direct  {}\n through {}",
        expected.len(),
        found.len(),
        around(&expected),
        around(&found)
    );
}

/// A warm answer from the cache says so.
pub(crate) fn assert_hit(what: &str, answer: &Answer) {
    assert!(
        answer.header("x-forebay").starts_with("hit"),
        "{what}: X-Forebay is {:?}, expected a hit: {}",
        answer.header("x-forebay"),
        answer.describe()
    );
}

/// The body with the digits of the list's own resource version removed. Anything but a list is returned as it is.
pub(crate) fn masked(body: &Bytes) -> Bytes {
    let Some(digits) = list_version(body) else { return body.clone() };
    let mut masked = body[..digits.start].to_vec();
    masked.extend_from_slice(&body[digits.end..]);
    masked.into()
}

/// The resource version of a list, from its bytes.
pub(crate) fn list_rv(body: &Bytes) -> u64 {
    let digits = list_version(body).expect("a list with a resource version");
    std::str::from_utf8(&body[digits]).unwrap().parse().unwrap()
}

/// Where the digits are. Built-in kinds have their list metadata first, custom resources last, after the items.
fn list_version(body: &[u8]) -> Option<std::ops::Range<usize>> {
    // Other forms than compact JSON: pretty JSON and YAML by their indentation, protobuf by ListMeta's empty selfLink.
    for (list, key) in [
        (&b"\n  \"items\": ["[..], &b"\n    \"resourceVersion\": \""[..]),
        (b"\nitems:", b"\n  resourceVersion: \""),
        (b"k8s\0", b"\x0a\0\x12"),
    ] {
        if find(body, list).is_some()
            && let Some(at) = find(body, key)
        {
            // Protobuf has the length before the digits.
            let start = at + key.len() + usize::from(list.starts_with(b"k8s"));
            let digits = body.get(start..)?.iter().take_while(|byte| byte.is_ascii_digit()).count();
            return (digits > 0).then_some(start..start + digits);
        }
    }
    const KEY: &[u8] = br#""resourceVersion":""#;
    let key = if body.starts_with(br#"{"kind":""#) {
        let metadata = find(&body[..body.len().min(200)], br#""metadata":{"#)?;
        let items = find(&body[..body.len().min(600)], br#","items":"#)?;
        metadata + find(&body[metadata..items], KEY)?
    } else if body.starts_with(br#"{"apiVersion":""#) && find(&body[..body.len().min(200)], br#""items":["#).is_some() {
        memchr::memmem::rfind(body, KEY)?
    } else {
        return None;
    };
    let start = key + KEY.len();
    Some(start..start + body[start..].iter().position(|b| *b == b'"')?)
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(haystack, needle)
}

#[test]
fn only_the_version_of_the_list_itself_is_masked() {
    for (body, expected) in [
        (
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12"},"items":[{"metadata":{"resourceVersion":"9"}}]}"#,
            r#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":""},"items":[{"metadata":{"resourceVersion":"9"}}]}"#,
        ),
        (
            r#"{"apiVersion":"g/v1","items":[{"metadata":{"resourceVersion":"9"}}],"kind":"L","metadata":{"continue":"","resourceVersion":"12"}}"#,
            r#"{"apiVersion":"g/v1","items":[{"metadata":{"resourceVersion":"9"}}],"kind":"L","metadata":{"continue":"","resourceVersion":""}}"#,
        ),
        (
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#,
            r#"{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"9"}}"#,
        ),
        (
            r#"{"apiVersion":"g/v1","kind":"W","metadata":{"resourceVersion":"9"}}"#,
            r#"{"apiVersion":"g/v1","kind":"W","metadata":{"resourceVersion":"9"}}"#,
        ),
        ("404 page not found\n", "404 page not found\n"),
        (
            "{\n  \"kind\": \"PodList\",\n  \"metadata\": {\n    \"resourceVersion\": \"12\"\n  },\n  \"items\": []\n}",
            "{\n  \"kind\": \"PodList\",\n  \"metadata\": {\n    \"resourceVersion\": \"\"\n  },\n  \"items\": []\n}",
        ),
        (
            "apiVersion: v1\nitems:\n- metadata:\n    resourceVersion: \"9\"\nmetadata:\n  resourceVersion: \"12\"\n",
            "apiVersion: v1\nitems:\n- metadata:\n    resourceVersion: \"9\"\nmetadata:\n  resourceVersion: \"\"\n",
        ),
        ("k8s\0\x0a\x01x\x12\x09\x0a\x07\x0a\0\x12\x0212\x1a\0", "k8s\0\x0a\x01x\x12\x09\x0a\x07\x0a\0\x12\x02\x1a\0"),
    ] {
        assert_eq!(masked(&Bytes::from_static(body.as_bytes())), expected.as_bytes());
    }
}
