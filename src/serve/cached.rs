//! Answers a read from one snapshot, with the bytes upstream would send at that version.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderName, HeaderValue, Response, header};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::{
    api::{gvr::Gvr, resource_version::ResourceVersion, status::Status},
    route::{Read, Want},
    store::Snapshot,
};

use super::{
    Body, error,
    list_body::{LOOKED_AT, ListBody, Selection, Step},
};

/// Lists that end within this many bytes are sent whole, with their length.
const WHOLE: usize = 256 << 10;

/// Long scans at the same time. Each gives up its turn often, but were hundreds of them in the run queue (held reads all
/// released by one sync), everything urgent would wait for a turn of each.
const MAX_SCANS: usize = 2;
static SCANS: Semaphore = Semaphore::const_new(MAX_SCANS);

const X_FOREBAY: HeaderName = HeaderName::from_static("x-forebay");
const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");

/// A cached answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// Send this.
    Found(Response<Body>),
    /// Nothing was found; this is what says so, if the absence is proven.
    Nothing(Response<Body>),
    /// More objects than the limit: upstream pages.
    OverLimit,
}

/// Answers `read` from `snapshot`.
pub(super) async fn answer(read: &Read, snapshot: &Arc<Snapshot>) -> Answer {
    match &read.want {
        Want::Object { name, key } => match snapshot.get(key) {
            Some(object) => Answer::Found(json(Body::ready(object.get_body()), snapshot)),
            None => Answer::Nothing(missing(&read.gvr, name, snapshot)),
        },
        Want::Collection { labels, fields, limit } => {
            let selection = Selection { scope: read.scope.clone(), labels: labels.clone(), fields: fields.clone() };
            // Boxed, so that a GET does not carry it about.
            Box::pin(list(snapshot, selection, *limit)).await
        }
        Want::Refusal(status) => Answer::Found(error::response(status)),
    }
}

/// What tells where an answer comes from: `hit; rv=123; age=4`. `age` is the time in seconds since it was last proven
/// that the store had all that happened: the answer is at most that old.
pub(super) fn mark(response: &mut Response<Body>, how: &str, rv: ResourceVersion, age: Duration) {
    let mut text = Vec::with_capacity(64);
    text.extend_from_slice(how.as_bytes());
    text.extend_from_slice(b"; rv=");
    push_number(&mut text, rv.0);
    text.extend_from_slice(b"; age=");
    push_number(&mut text, age.as_secs());
    if let Ok(value) = HeaderValue::try_from(text) {
        response.headers_mut().insert(X_FOREBAY, value);
    }
}

/// In decimal: the formatting machinery costs more than the rest of a header.
fn push_number(out: &mut Vec<u8>, mut number: u64) {
    let mut digits = [b'0'; 20];
    let mut start = digits.len();
    while let Some(digit) = digits[..start].last_mut() {
        start -= 1;
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

/// Gives the answer an audit id, the request's own if it brought one, as upstream does.
pub(super) fn identify(request: &HeaderMap, response: &mut Response<Body>) {
    let id = request.get(AUDIT_ID).cloned().unwrap_or_else(new_audit_id);
    response.headers_mut().insert(AUDIT_ID, id);
}

async fn list(snapshot: &Arc<Snapshot>, selection: Selection, limit: Option<u64>) -> Answer {
    let mut scanning = None;
    // At exactly the limit upstream's answer depends on whether any other key follows.
    if let Some(limit) = limit
        && has_at_least(snapshot, &selection, limit, &mut scanning).await
    {
        return Answer::OverLimit;
    }
    let mut body = ListBody::new(snapshot.clone(), selection);
    let mut frames = Vec::new();
    let mut size = 0;
    loop {
        match body.step() {
            Step::Frame(frame) => {
                size += frame.len();
                frames.push(frame);
            }
            // Until something is found it may still be an answer of nothing, which needs its proof first.
            Step::Yield if body.written() == 0 => give_way(&mut scanning).await,
            Step::Yield => break,
            Step::Done => {
                let nothing = body.written() == 0;
                let whole = match frames.len() {
                    1 => frames.swap_remove(0),
                    _ => frames.concat().into(),
                };
                let response = json(Body::ready(whole), snapshot);
                return if nothing { Answer::Nothing(response) } else { Answer::Found(response) };
            }
        }
        if size > WHOLE {
            break;
        }
    }
    for frame in frames {
        body.push_back(frame);
    }
    Answer::Found(json(Body::list(body), snapshot))
}

/// A place among the long scans, once a scan has turned out to be one.
type Scanning = Option<SemaphorePermit<'static>>;

/// Lets others have their turn; a long scan goes on when it has a place.
async fn give_way(scanning: &mut Scanning) {
    match scanning {
        Some(_) => tokio::task::yield_now().await,
        // The semaphore is never closed.
        None => *scanning = SCANS.acquire().await.ok(),
    }
}

/// Whether so many objects are selected. Others get their turn meanwhile.
async fn has_at_least(snapshot: &Snapshot, selection: &Selection, limit: u64, scanning: &mut Scanning) -> bool {
    let mut found = 0;
    for (n, (key, object)) in snapshot.scoped(&selection.scope).enumerate() {
        if n % LOOKED_AT == LOOKED_AT - 1 {
            give_way(scanning).await;
        }
        found += u64::from(selection.matches(key, object));
        if found >= limit {
            return true;
        }
    }
    limit == 0
}

fn missing(gvr: &Gvr, name: &str, snapshot: &Snapshot) -> Response<Body> {
    let mut response = error::response(&Status::not_found(gvr, name));
    warn_of(snapshot, response.headers_mut());
    response
}

fn json(body: Body, snapshot: &Snapshot) -> Response<Body> {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    warn_of(snapshot, headers);
    response
}

/// Deprecated versions carry a warning on every answer.
fn warn_of(snapshot: &Snapshot, headers: &mut HeaderMap) {
    for warning in &snapshot.form.warnings {
        if let Ok(value) = HeaderValue::try_from(warning) {
            headers.append(header::WARNING, value);
        }
    }
}

/// A random UUID (RFC 9562 version 4).
fn new_audit_id() -> HeaderValue {
    let mut bytes: [u8; 16] = rand::random();
    bytes[6] = (bytes[6] & 0x0f) | 0x40;
    bytes[8] = (bytes[8] & 0x3f) | 0x80;
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (n, byte) in bytes.iter().enumerate() {
        at += usize::from(matches!(n, 4 | 6 | 8 | 10));
        text[at] = HEX[usize::from(byte >> 4)];
        text[at + 1] = HEX[usize::from(byte & 0x0f)];
        at += 2;
    }
    HeaderValue::from_bytes(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use std::{
        future::poll_fn,
        pin::pin,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
    };

    use super::*;
    use crate::{
        api::{field_selector::FieldSelector, gvr::Scope, label_selector::LabelSelector},
        store::{Budget, ListForm, Object, pair},
    };

    /// A snapshot of so many objects, and a list that selects none of them.
    fn in_vain(objects: usize, limit: Option<u64>) -> (Read, Arc<Snapshot>) {
        let (mut writer, reader) = pair(&Budget::default());
        let mut relist = writer.begin_relist();
        for n in 0..objects {
            let text = format!(
                "{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"p-{n}\",\"namespace\":\"x\",\"uid\":\"u\",\
                 \"resourceVersion\":\"1\"}}}}\n"
            );
            let (key, object) = Object::from_stored(text.into_bytes().into_boxed_slice()).unwrap();
            relist.stage(&key, object);
        }
        let form = ListForm::new("PodList".into(), "Pod", "v1".into(), false);
        writer.commit(relist, form, ResourceVersion(9)).unwrap();
        let (labels, fields) = (LabelSelector::parse("a=b").unwrap(), FieldSelector::parse("").unwrap());
        let want = Want::Collection { labels, fields, limit };
        (Read { gvr: Gvr::new("", "v1", "pods"), scope: Scope::All, want }, reader.snapshot().unwrap())
    }

    /// Answers, and counts the turns that takes.
    async fn counting(read: Read, snapshot: Arc<Snapshot>, turns: &AtomicUsize) -> Answer {
        let mut answering = pin!(answer(&read, &snapshot));
        poll_fn(|cx| {
            turns.fetch_add(1, Relaxed);
            answering.as_mut().poll(cx)
        })
        .await
    }

    /// However many objects a selector looks at in vain, other requests get their turn in between.
    #[tokio::test]
    async fn scans_yield() {
        for (limit, least) in [(None, 9), (Some(1), 18)] {
            let (read, snapshot) = in_vain(10 * LOOKED_AT, limit);
            let turns = AtomicUsize::new(0);
            assert!(matches!(counting(read, snapshot, &turns).await, Answer::Nothing(_)));
            assert!(turns.load(Relaxed) >= least, "{turns:?} turns, limit {limit:?}");
        }
    }

    /// And however many such scans there are, what is urgent does not wait for a turn of each.
    #[tokio::test]
    #[allow(clippy::disallowed_methods, reason = "a test needs no supervisor")]
    async fn scans_queue_elsewhere_than_in_front_of_others() {
        const SCANS: usize = 50;
        let turns = Arc::new(AtomicUsize::new(0));
        let (_, snapshot) = in_vain(20 * LOOKED_AT, None);
        let mut scans = tokio::task::JoinSet::new();
        for _ in 0..SCANS {
            let (read, _) = in_vain(0, None);
            let (snapshot, turns) = (snapshot.clone(), turns.clone());
            scans.spawn(async move { matches!(counting(read, snapshot, &turns).await, Answer::Nothing(_)) });
        }
        for _ in 0..15 {
            tokio::task::yield_now().await;
        }
        let before = turns.load(Relaxed);
        assert!((1..4 * SCANS).contains(&before), "{before} turns of scans before 15 of something urgent");
        assert!(scans.join_all().await.into_iter().all(|nothing| nothing));
    }

    #[test]
    fn numbers_are_decimal() {
        for number in [0, 7, 10, 1_234_567_890, u64::MAX] {
            let mut text = b"rv=".to_vec();
            push_number(&mut text, number);
            assert_eq!(String::from_utf8(text).unwrap(), format!("rv={number}"));
        }
    }

    #[test]
    fn audit_ids_are_random_uuids() {
        let id = new_audit_id();
        let id = id.to_str().unwrap();
        let shape: String = id.chars().map(|c| if c == '-' { '-' } else { 'x' }).collect();
        assert_eq!(shape, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx");
        assert_eq!(&id[14..15], "4");
        assert!(matches!(&id[19..20], "8" | "9" | "a" | "b"));
        assert_ne!(id, new_audit_id().to_str().unwrap());
    }
}
