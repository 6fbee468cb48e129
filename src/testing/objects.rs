//! One stored object: its exact JSON text, and the little that answers need without parsing it again.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use bytes::Bytes;

use super::{json::Node, resource::Resource};

/// Go's order of the fields of ObjectMeta.
pub(super) const META_ORDER: [&str; 15] = [
    "name",
    "generateName",
    "namespace",
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "labels",
    "annotations",
    "ownerReferences",
    "finalizers",
    "managedFields",
];

/// An object as the server holds and prints it.
#[derive(Debug)]
pub struct Object {
    /// `namespace/name`, or `name` for cluster-scoped objects: sorts as upstream's storage keys do.
    pub key: Arc<str>,
    /// `metadata.uid`.
    pub uid: String,
    /// `metadata.resourceVersion`.
    pub rv: u64,
    /// The text of a GET, without the newline; also the `object` of a watch event.
    pub text: Bytes,
    /// Labels, for selectors.
    pub labels: Vec<(String, String)>,
    /// Where a list item continues after its `{`: built-in kinds leave out kind and apiVersion there.
    pub(super) item_start: usize,
}

// === impl Object ===

impl Object {
    /// Prints `node` the way upstream prints objects of `resource`.
    pub(super) fn new(resource: &Resource, node: &Node, rv: u64) -> Self {
        let namespace = node.str_at(&["metadata", "namespace"]).unwrap_or_default();
        let name = node.str_at(&["metadata", "name"]).unwrap_or_default();
        let labels = match node.at(&["metadata", "labels"]) {
            Some(Node::Object(members)) => members
                .iter()
                .map(|(k, v)| (k.clone(), if let Node::String(s) = v { s.clone() } else { String::new() }))
                .collect(),
            _ => Vec::new(),
        };
        let mut node = node.clone();
        node.object_mut("metadata").set("resourceVersion", Node::String(rv.to_string()));
        normalise(resource, &mut node);
        Self::from_text(
            resource,
            key(namespace, name),
            node.str_at(&["metadata", "uid"]).unwrap_or_default().to_owned(),
            rv,
            node.text().into(),
            labels,
        )
    }

    /// Takes text that is already in upstream's form.
    pub(super) fn from_text(
        resource: &Resource,
        key: Arc<str>,
        uid: String,
        rv: u64,
        text: Bytes,
        labels: Vec<(String, String)>,
    ) -> Self {
        let item_start = if resource.custom { 1 } else { type_prefix(resource).len() };
        Self { key, uid, rv, text, labels, item_start }
    }

    /// The text after the `{` of a list item.
    pub(super) fn item_tail(&self) -> &[u8] {
        self.text.get(self.item_start..).unwrap_or_default()
    }

    /// The same state under another resource version: what DELETED events carry.
    pub(super) fn with_rv(&self, rv: u64) -> Self {
        let old = format!(r#""resourceVersion":"{}""#, self.rv);
        let new = format!(r#""resourceVersion":"{rv}""#);
        // Inside strings the quotes are escaped, so the first plain occurrence is the object's own.
        let text = match memchr::memmem::find(&self.text, old.as_bytes()) {
            Some(at) => [&self.text[..at], new.as_bytes(), &self.text[at + old.len()..]].concat().into(),
            None => self.text.clone(),
        };
        Self {
            key: self.key.clone(),
            uid: self.uid.clone(),
            rv,
            text,
            labels: self.labels.clone(),
            item_start: self.item_start,
        }
    }

    /// The object as a tree.
    pub fn node(&self) -> Node {
        // The text was printed from a tree, or made by the generators and checked by their tests.
        Node::parse(&self.text).unwrap_or(Node::Null)
    }

    /// Namespace and name; the namespace is empty for cluster-scoped objects.
    pub fn namespace_and_name(&self) -> (&str, &str) {
        self.key.split_once('/').unwrap_or(("", &self.key))
    }
}

/// The storage key of an object below its resource.
pub(super) fn key(namespace: &str, name: &str) -> Arc<str> {
    if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() }
}

/// How the text of a built-in object begins, up to its `metadata`.
pub(super) fn type_prefix(resource: &Resource) -> String {
    format!(r#"{{"kind":"{}","apiVersion":"{}","#, resource.kind, resource.gvr.api_version())
}

/// Brings the keys into upstream's order: sorted for custom resources, Go's struct order for built-in ones.
fn normalise(resource: &Resource, node: &mut Node) {
    node.set("kind", Node::String(resource.kind.clone()));
    node.set("apiVersion", Node::String(resource.gvr.api_version()));
    if resource.custom {
        node.sort();
        return;
    }
    node.order(&["kind", "apiVersion", "metadata"]);
    let meta = node.object_mut("metadata");
    meta.order(&META_ORDER);
    for map in ["labels", "annotations"] {
        if meta.get(map).is_some() {
            meta.object_mut(map).sort();
        }
    }
    for data in ["data", "binaryData", "stringData"] {
        if let Some(Node::Object(_)) = node.get(data) {
            node.object_mut(data).sort();
        }
    }
}

/// The time as Kubernetes writes it: `2026-11-30T20:30:00Z`.
pub(super) fn now() -> String {
    timestamp(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO))
}

fn timestamp(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // Howard Hinnant's days-to-civil, for dates after 1970.
    let z = days + 719_468;
    let era = z / 146_097;
    let doe = z % 146_097;
    let yoe = (doe - doe / 1_460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", of_day / 3_600, of_day / 60 % 60, of_day % 60)
}

/// A random version 4 UUID.
pub(super) fn uid() -> String {
    format_uid(rand::random())
}

pub(super) fn format_uid(bits: u128) -> String {
    let bits = (bits & !(0xf << 76) & !(0x3 << 62)) | (0x4 << 76) | (0x2 << 62);
    let hex = format!("{bits:032x}");
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typed_objects_are_in_struct_order_and_items_lose_their_type() {
        let node = Node::parse(br#"{"data":{"b":"1","a":"<"},"metadata":{"labels":{"z":"1","a":"2"},"uid":"u","namespace":"x","name":"n"}}"#).unwrap();
        let object = Object::new(&Resource::config_maps(), &node, 7);
        let meta =
            r#""metadata":{"name":"n","namespace":"x","uid":"u","resourceVersion":"7","labels":{"a":"2","z":"1"}}"#;
        let want = format!(
            "{{\"kind\":\"ConfigMap\",\"apiVersion\":\"v1\",{meta},\"data\":{{\"a\":\"\\u003c\",\"b\":\"1\"}}}}"
        );
        assert_eq!(object.text, want);
        assert!(object.item_tail().starts_with(br#""metadata":{"name":"n""#));
        assert_eq!(&*object.key, "x/n");
    }

    #[test]
    fn custom_objects_are_sorted_and_items_keep_their_type() {
        let node = Node::parse(br#"{"spec":{"z":1,"a":2},"metadata":{"name":"n","uid":"u"}}"#).unwrap();
        let object = Object::new(&Resource::widgets(), &node, 7);
        let want = r#"{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"n","resourceVersion":"7","uid":"u"},"spec":{"a":2,"z":1}}"#;
        assert_eq!(object.text, want);
        assert_eq!(object.item_tail(), &want.as_bytes()[1..]);
        assert_eq!(object.with_rv(1234).text, want.replace("\"7\"", "\"1234\""));
    }

    #[test]
    fn timestamps_are_civil_dates() {
        assert_eq!(timestamp(Duration::from_secs(0)), "1970-01-01T00:00:00Z");
        assert_eq!(timestamp(Duration::from_secs(951_827_696)), "2000-02-29T12:34:56Z");
        assert_eq!(timestamp(Duration::from_secs(1_796_070_600)), "2026-11-30T20:30:00Z");
    }
}
