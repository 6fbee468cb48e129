use proptest::{prelude::*, sample::Index};

use super::*;

/// A message under construction, written as gogo does: fields in the order given.
#[derive(Clone, Debug, Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn varint(mut self, mut number: u64) -> Self {
        while number > 0x7f {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
        self
    }

    fn bytes(self, field: u64, value: impl AsRef<[u8]>) -> Self {
        let value = value.as_ref();
        let mut with_len = self.varint(field << 3 | 2).varint(value.len() as u64);
        with_len.0.extend(value);
        with_len
    }

    fn message(self, field: u64, value: &Encoder) -> Self {
        self.bytes(field, &value.0)
    }

    fn number(self, field: u64, value: u64) -> Self {
        self.varint(field << 3).varint(value)
    }

    fn entry(self, field: u64, key: &str, value: &str) -> Self {
        self.message(field, &message().bytes(1, key).bytes(2, value))
    }
}

fn message() -> Encoder {
    Encoder::default()
}

fn enveloped(api_version: &str, kind: &str, object: &Encoder) -> Vec<u8> {
    let types = message().bytes(1, api_version).bytes(2, kind);
    let unknown = message().message(1, &types).message(2, object).bytes(3, "").bytes(4, "");
    [&MAGIC[..], &unknown.0].concat()
}

fn time(seconds: u64) -> Encoder {
    message().number(1, seconds).number(2, 0)
}

/// ObjectMeta with the fields that Go always writes, and some of the others.
fn pod() -> Vec<u8> {
    let meta = message()
        .bytes(1, "b1")
        .bytes(2, "")
        .bytes(3, "wr")
        .bytes(4, "")
        .bytes(5, "u-1")
        .bytes(6, "77")
        .number(7, 2)
        .message(8, &time(1_790_000_000))
        .message(9, &time(1_790_000_030))
        .number(10, 30)
        .entry(11, "app", "e")
        .entry(11, "tier", "")
        .entry(12, "note", "x".repeat(300).as_str())
        .bytes(14, "verify.example.com/f")
        .bytes(14, "foregroundDeletion")
        .message(17, &message().bytes(1, "unknown"));
    let spec = message().bytes(10, "n-0").varint(20 << 3 | 5).bytes(0, "");
    // A fixed32 and a fixed64, which no field here uses but the wire format has.
    let mut fixed = spec.0;
    fixed.truncate(fixed.len() - 2);
    fixed.extend([1, 2, 3, 4]);
    fixed.extend([21 << 3 & 0x7f | 1 | 0x80, 1, 1, 2, 3, 4, 5, 6, 7, 8]);
    enveloped("v1", "Pod", &message().message(1, &meta).bytes(2, fixed))
}

#[test]
fn a_pod_is_read_by_the_field() {
    let body = pod();
    let found = facts(&body).unwrap();
    let want = Facts {
        api_version: "v1",
        kind: "Pod",
        raw: found.raw.clone(),
        name: Some("b1"),
        namespace: Some("wr"),
        uid: Some("u-1"),
        resource_version: Some("77"),
        labels: vec![("app", "e"), ("tier", "")],
        initial_events_end: false,
        deletion_timestamp: true,
        deletion_grace_period_seconds: Some(30),
        finalizers: 2,
    };
    assert_eq!(found, want);
    // The rest of the envelope is two empty fields; the object starts with its ObjectMeta.
    assert_eq!(&body[found.raw.end..], b"\x1a\0\x22\0");
    assert_eq!(body[found.raw.start], 0x0a);
}

#[test]
fn lists_and_statuses_have_a_list_meta() {
    // The smallest list there is, as recorded: `0a 09 0a 00 12 03 <rv> 1a 00`.
    let meta = message().bytes(1, "").bytes(2, "601").bytes(3, "");
    assert_eq!(meta.0, b"\x0a\0\x12\x03601\x1a\0");
    let body = enveloped("v1", "SecretList", &message().message(1, &meta).bytes(2, b"\x0a\x03\x0a\x01a"));
    let found = facts(&body).unwrap();
    assert_eq!((found.kind, found.resource_version, found.name), ("SecretList", Some("601"), None));
    assert!(found.is_list() && !found.is_status());

    let meta = message().bytes(1, "").bytes(2, "").bytes(3, "");
    let body = enveloped("v1", "Status", &message().message(1, &meta).bytes(2, "Failure").number(6, 404));
    let found = facts(&body).unwrap();
    assert!(found.is_status() && found.resource_version.is_none() && found.name.is_none());
}

#[test]
fn bookmarks_that_end_the_initial_events_are_known() {
    for (key, value, want) in
        [(INITIAL_EVENTS_END, "true", true), (INITIAL_EVENTS_END, "no", false), ("a", "true", false)]
    {
        let meta = message().bytes(1, "").bytes(6, "9").entry(12, key, value);
        let body = enveloped("v1", "ConfigMap", &message().message(1, &meta));
        assert_eq!(facts(&body).unwrap().initial_events_end, want);
    }
}

#[test]
fn bytes_that_no_api_server_sends_are_errors() {
    let with = |rest: &[u8]| [&MAGIC[..], rest].concat();
    let meta = |meta: Encoder| enveloped("v1", "Pod", &message().message(1, &meta));
    for (body, want) in [
        (b"{\"kind\":\"Pod\"}".to_vec(), Error::NotEnveloped),
        (b"k8s".to_vec(), Error::NotEnveloped),
        (with(&[0x0a]), Error::Truncated { at: 5, end: 5 }),
        (with(&[0x0a, 5, 1]), Error::Truncated { at: 6, end: 7 }),
        (with(&[&[0x12], &[0xff; 9][..], &[1]].concat()), Error::Truncated { at: 15, end: 15 }),
        (with(&[&[0x12], &[0xff; 9][..], &[2]].concat()), Error::Overflow { at: 5 }),
        (with(&[0x80; 11]), Error::Overflow { at: 4 }),
        (with(&[0x09, 1]), Error::Truncated { at: 5, end: 6 }),
        (with(&[0x0b]), Error::Key { at: 4, key: 0x0b }),
        (with(&[0x02, 0]), Error::Key { at: 4, key: 2 }),
        (with(&[0x10, 1]), Error::WireType { field: "raw" }),
        (with(&[0x1a, 1, b'z']), Error::ContentEncoding),
        (meta(message().bytes(1, b"\xff")), Error::Text { field: "metadata.name" }),
        (meta(message().number(1, 1)), Error::WireType { field: "metadata.name" }),
        (meta(message().bytes(10, "x")), Error::WireType { field: "metadata.deletionGracePeriodSeconds" }),
    ] {
        assert_eq!(facts(&body), Err(want), "{body:x?}");
    }
    assert_eq!(facts(MAGIC), Ok(Facts::default()));
}

proptest! {
    #[test]
    fn a_body_cut_short_is_never_read_further(at in any::<Index>()) {
        let body = pod();
        let cut = &body[..at.index(body.len())];
        // A cut between two fields of the envelope leaves a valid, shorter one.
        if let Ok(found) = facts(cut) {
            prop_assert!(found.raw.end <= cut.len());
            prop_assert!(found.name.is_none() || found == facts(&body).unwrap());
        }
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200), at in any::<Index>(), byte in any::<u8>()) {
        let _ = facts(&[&MAGIC[..], &bytes].concat());
        let mut body = pod();
        let at = at.index(body.len());
        body[at] = byte;
        let _ = facts(&body);
    }
}

#[test]
fn the_version_of_a_list_is_in_its_first_bytes() {
    let meta = [&[0x0a, 0, 0x12, 3][..], b"123", &[0x1a, 0]].concat();
    let list = [&[0x0a, meta.len() as u8][..], &meta, &[0x12, 0x50]].concat();
    // 200 bytes of list are announced, of which these are the first.
    let body = [&b"k8s\0\x0a\x02\x12\x00"[..], &[0x12, 0xc8, 0x01], &list].concat();
    assert_eq!(list_version(&body), Some("123"));
    for cut in 0..body.len() - 2 {
        assert_eq!(list_version(&body[..cut]), None, "{cut}");
    }
    assert_eq!(list_version(b"{\"kind\":\"PodList\"}"), None);
}
