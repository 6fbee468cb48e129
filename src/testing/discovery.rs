//! `/api`, `/apis` and below: aggregated and plain discovery, made from the registered resources.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{json::Node, resource::Resource};

/// The media type of aggregated discovery.
pub(super) const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Whether an `Accept` asks for aggregated discovery, in the version answered here.
pub(super) fn is_aggregated(accept: &str) -> bool {
    let first = accept.split(',').next().unwrap_or_default();
    let has = |part: &str| first.split(';').any(|p| p.trim() == part);
    has("g=apidiscovery.k8s.io") && has("v=v2") && has("as=APIGroupDiscoveryList")
}

/// The document at `path`, if it is a discovery path. The order of keys is upstream's.
pub(super) fn document(path: &str, resources: &[Arc<Resource>], aggregated: bool, address: &str) -> Option<String> {
    let segments: Vec<&str> = path.trim_matches('/').split('/').collect();
    match segments[..] {
        ["api"] if aggregated => Some(groups(resources, |group| group.is_empty())),
        ["apis"] if aggregated => Some(groups(resources, |group| !group.is_empty())),
        ["api"] => Some(format!(
            r#"{{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[{{"clientCIDR":"0.0.0.0/0","serverAddress":"{address}"}}]}}"#
        )),
        ["apis"] => {
            let names = group_names(resources);
            let groups: Vec<String> =
                names.iter().filter(|g| !g.is_empty()).map(|g| group(g, resources, false)).collect();
            Some(format!(r#"{{"kind":"APIGroupList","apiVersion":"v1","groups":[{}]}}"#, groups.join(",")))
        }
        ["apis", name] if resources.iter().any(|r| *r.gvr.group == *name) => Some(group(name, resources, true)),
        ["api", version] => list("", version, resources),
        ["apis", name, version] => list(name, version, resources),
        _ => None,
    }
}

fn group_names(resources: &[Arc<Resource>]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for resource in resources {
        if !names.iter().any(|n| **n == *resource.gvr.group) {
            names.push(resource.gvr.group.to_string());
        }
    }
    names
}

fn versions(group: &str, resources: &[Arc<Resource>]) -> Vec<String> {
    let mut versions: Vec<String> = Vec::new();
    for resource in resources.iter().filter(|r| *r.gvr.group == *group) {
        if !versions.iter().any(|v| **v == *resource.gvr.version) {
            versions.push(resource.gvr.version.to_string());
        }
    }
    versions
}

fn group(name: &str, resources: &[Arc<Resource>], alone: bool) -> String {
    let entry = |v: &String| format!(r#"{{"groupVersion":"{name}/{v}","version":"{v}"}}"#);
    let versions: Vec<String> = versions(name, resources).iter().map(entry).collect();
    let head = if alone { r#""kind":"APIGroup","apiVersion":"v1","# } else { "" };
    let preferred = versions.first().cloned().unwrap_or_default();
    format!(r#"{{{head}"name":"{name}","versions":[{}],"preferredVersion":{preferred}}}"#, versions.join(","))
}

fn text(ordered: &[(&str, Value)]) -> String {
    let members = ordered.iter().filter(|(_, v)| *v != Value::Null).map(|(k, v)| ((*k).to_owned(), v.clone().into()));
    Node::Object(members.collect()).text()
}

/// An APIResourceList.
fn list(group: &str, version: &str, resources: &[Arc<Resource>]) -> Option<String> {
    let mut entries = Vec::new();
    for r in resources.iter().filter(|r| *r.gvr.group == *group && *r.gvr.version == *version) {
        let short = if r.short_names.is_empty() { Value::Null } else { json!(r.short_names) };
        entries.push(text(&[
            ("name", json!(&*r.gvr.resource)),
            ("singularName", json!(r.singular)),
            ("namespaced", json!(r.namespaced)),
            ("kind", json!(r.kind)),
            ("verbs", json!(r.verbs)),
            ("shortNames", short),
            ("storageVersionHash", json!(storage_hash(r))),
        ]));
        if r.status {
            entries.push(text(&[
                ("name", json!(format!("{}/status", r.gvr.resource))),
                ("singularName", json!("")),
                ("namespaced", json!(r.namespaced)),
                ("kind", json!(r.kind)),
                ("verbs", json!(["get", "patch", "update"])),
            ]));
        }
    }
    let group_version = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    (!entries.is_empty()).then(|| {
        let version = if group.is_empty() { "" } else { r#""apiVersion":"v1","# };
        format!(
            r#"{{"kind":"APIResourceList",{version}"groupVersion":"{group_version}","resources":[{}]}}"#,
            entries.join(",")
        )
    })
}

/// An APIGroupDiscoveryList.
fn groups(resources: &[Arc<Resource>], wanted: impl Fn(&str) -> bool) -> String {
    let mut items = Vec::new();
    for name in group_names(resources).iter().filter(|n| wanted(n)) {
        let meta = if name.is_empty() { "{}".to_owned() } else { format!(r#"{{"name":"{name}"}}"#) };
        let versions: Vec<String> = versions(name, resources)
            .iter()
            .map(|version| {
                let here = resources.iter().filter(|r| *r.gvr.group == **name && *r.gvr.version == **version);
                let entries: Vec<String> = here.map(|r| aggregated_resource(r)).collect();
                format!(r#"{{"version":"{version}","resources":[{}],"freshness":"Current"}}"#, entries.join(","))
            })
            .collect();
        items.push(format!(r#"{{"metadata":{meta},"versions":[{}]}}"#, versions.join(",")));
    }
    format!(
        r#"{{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{{}},"items":[{}]}}"#,
        items.join(",")
    )
}

fn aggregated_resource(r: &Resource) -> String {
    let group = &r.gvr.group;
    let kind = text(&[("group", json!(&**group)), ("version", json!(&*r.gvr.version)), ("kind", json!(r.kind))]);
    let scope = if r.namespaced { "Namespaced" } else { "Cluster" };
    let short =
        if r.short_names.is_empty() { String::new() } else { format!(r#","shortNames":{}"#, json!(r.short_names)) };
    let status = if r.status {
        format!(
            r#","subresources":[{{"subresource":"status","responseKind":{kind},"verbs":["get","patch","update"]}}]"#
        )
    } else {
        String::new()
    };
    format!(
        r#"{{"resource":"{}","responseKind":{kind},"scope":"{scope}","singularResource":"{}","verbs":{}{short}{status}}}"#,
        r.gvr.resource,
        r.singular,
        json!(r.verbs)
    )
}

/// Equal for resources that share stored objects; here every resource has its own.
fn storage_hash(r: &Resource) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let hash = format!("{}/{}", r.gvr.group, r.kind)
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    STANDARD.encode(hash.to_be_bytes())
}
