use flate2::{Compression, write::GzEncoder};
use http::HeaderValue;

use super::*;
use crate::{
    api::gvr::{Gvr, Scope},
    store::{Fences, ListForm, Object, fences::View},
};

struct Case {
    fence: Arc<Fence>,
    registry: Registry,
    key: StoreKey,
}

impl Case {
    fn new() -> Self {
        let gvr = Gvr::new("", "v1", "pods");
        let fence = Fences::default().of(&gvr);
        Self { fence, registry: Registry::default(), key: StoreKey { gvr, scope: Scope::All } }
    }

    /// Lets a response pass in two pieces and gives what reads must respect then.
    fn pass(
        &self,
        act: Act,
        method: &Method,
        code: u16,
        headers: &[(&'static str, &'static str)],
        body: &[u8],
    ) -> View {
        let subject = Subject {
            fence: self.fence.clone(),
            key: Some("a/x".into()),
            namespace: Some("a".into()),
            registry: self.registry.clone(),
            store: self.key.clone(),
            also: Vec::new(),
            act,
        };
        let headers = headers
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect::<HeaderMap>();
        let observer = Observer::new(subject, method, StatusCode::from_u16(code).unwrap(), &headers, 1 << 20);
        if let Some(mut observer) = observer {
            let (first, second) = body.split_at(body.len() / 2);
            observer.data(&Bytes::copy_from_slice(first));
            observer.data(&Bytes::copy_from_slice(second));
            observer.end();
        }
        self.fence.view()
    }
}

const JSON: (&str, &str) = ("content-type", "application/json");
const GZIP: (&str, &str) = ("content-encoding", "gzip");
const WRITE: Act = Act::Write { opaque: false };

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

fn pod(rv: u64, extra: &str) -> String {
    format!(
        "{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"x\",\"namespace\":\"a\",\"resourceVersion\":\"{rv}\"{extra}}}}}"
    )
}

fn rv(n: u64) -> ResourceVersion {
    ResourceVersion(n)
}

#[test]
fn a_writes_response_raises_the_fence_or_leaves_doubt() {
    let gone = ",\"deletionTimestamp\":\"2026-01-01T00:00:00Z\"";
    let going = ",\"deletionTimestamp\":\"2026-01-01T00:00:00Z\",\"finalizers\":[\"f\"]";
    let raised = View { wait_for: rv(7), ..View::default() };
    let doubt = View { in_doubt: true, ..View::default() };
    let nothing = View::default();
    let status = "{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Success\",\"details\":{\"name\":\"x\",\"uid\":\"u\"}}";
    for (act, method, code, body, want) in [
        (WRITE, Method::POST, 201, pod(7, ""), raised),
        (WRITE, Method::PUT, 200, pod(7, going), raised),
        (WRITE, Method::PATCH, 200, pod(7, gone), doubt),
        (WRITE, Method::DELETE, 200, pod(7, gone), raised),
        (WRITE, Method::DELETE, 200, status.to_owned(), doubt),
        (Act::Write { opaque: true }, Method::PUT, 200, pod(7, ""), doubt),
        (WRITE, Method::PUT, 422, status.to_owned(), nothing),
        (WRITE, Method::PUT, 409, status.to_owned(), nothing),
        (WRITE, Method::PUT, 500, status.to_owned(), doubt),
        (WRITE, Method::PUT, 200, "<html>".to_owned(), doubt),
    ] {
        let got = Case::new().pass(act, &method, code, &[JSON], body.as_bytes());
        assert_eq!(got, want, "{method} {code} {body}");
        let got = Case::new().pass(act, &method, code, &[JSON, GZIP], &gzip(&body));
        assert_eq!(got, want, "compressed {method} {code} {body}");
    }
    let unreadable = ("content-encoding", "br");
    assert_eq!(Case::new().pass(WRITE, &Method::PUT, 200, &[JSON, unreadable], b"x"), doubt);
}

#[test]
fn what_a_read_shows_is_respected_or_asked_for() {
    let list = "{\"kind\":\"PodList\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"9\"},\"items\":[]}\n";
    let table =
        "{\"kind\":\"Table\",\"apiVersion\":\"meta.k8s.io/v1\",\"metadata\":{\"resourceVersion\":\"9\"},\"rows\":[]}\n";
    let behind = View { upstream_until: rv(9), ..View::default() };
    let doubt = View { in_doubt: true, ..View::default() };
    let get = |headers: &[_], body: &[u8]| Case::new().pass(Act::Get, &Method::GET, 200, headers, body);
    assert_eq!(get(&[JSON], pod(7, "").as_bytes()), View { wait_for: rv(7), ..View::default() });
    assert_eq!(get(&[("content-type", "application/yaml")], b"kind: Pod"), doubt);
    let list_of =
        |headers: &[_], body: &[u8]| Case::new().pass(Act::List { whole: true }, &Method::GET, 200, headers, body);
    assert_eq!(list_of(&[JSON], list.as_bytes()), behind);
    assert_eq!(list_of(&[JSON, GZIP], &gzip(list)), behind);
    assert_eq!(list_of(&[JSON], table.as_bytes()), doubt);
}

#[test]
fn a_watchs_events_raise_the_fence_and_its_initial_events_prove_the_store() {
    let case = Case::new();
    let (reader, writer) = case.registry.open(&case.key);
    let mut writer = writer.unwrap();
    let mut relist = writer.begin_relist();
    let (key, object) = Object::from_stored(format!("{}\n", pod(7, "")).into_bytes().into()).unwrap();
    relist.stage(&key, object);
    writer.commit(relist, ListForm::new("PodList".into(), "Pod", "v1".into(), false), rv(8)).unwrap();

    let end = ",\"annotations\":{\"k8s.io/initial-events-end\":\"true\"}";
    let added = format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", pod(7, ""));
    let bookmark = format!("{{\"type\":\"BOOKMARK\",\"object\":{}}}\n", pod(20, end));
    // Upstream compresses each flush as a gzip member of its own.
    let body = [gzip(&added), gzip(&bookmark)].concat();
    let view = case.pass(Act::Watch { whole: true }, &Method::GET, 200, &[JSON, GZIP], &body);
    assert_eq!(view, View { wait_for: rv(7), follow: rv(20), ..View::default() });
    writer.check_claim().unwrap();
    assert_eq!(reader.status().rv, rv(20), "the store holds exactly what the client was shown at 20");
}
