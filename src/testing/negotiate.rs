//! Which form an answer takes: JSON objects, or JSON metadata only.
//!
//! Protobuf, Table and YAML are not produced here: clauses that ask for them are skipped, as if this server were one
//! that does not offer them.

use http::HeaderMap;

use super::{
    json::Node,
    objects::{META_ORDER, Object},
    resource::Resource,
    status::Status,
};

/// The form of objects in an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// Whole objects.
    Whole,
    /// `PartialObjectMetadata` or its list.
    Metadata,
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Object,
    List,
    Watch,
}

/// Chooses the form by the first `Accept` line.
pub(super) fn form(headers: &HeaderMap, wanted: Wanted, resource: &Resource) -> Result<Form, Status> {
    let accept = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or_default();
    if accept.trim().is_empty() {
        return Ok(Form::Whole);
    }
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        let media = parts.next().unwrap_or_default();
        // Built-in kinds pass a router first that does not know `application/*`.
        let json = matches!(media, "application/json" | "*/*") || (media == "application/*" && resource.custom);
        if !json {
            continue;
        }
        let found: Vec<(&str, &str)> = parts.filter_map(|p| p.split_once('=')).collect();
        let value = |key| found.iter().find(|(k, _)| *k == key).map(|(_, v)| *v);
        match (value("as"), value("g"), value("v")) {
            (None, ..) => return Ok(Form::Whole),
            (Some("PartialObjectMetadata"), Some("meta.k8s.io"), Some("v1")) if wanted != Wanted::List => {
                return Ok(Form::Metadata);
            }
            (Some("PartialObjectMetadataList"), Some("meta.k8s.io"), Some("v1")) if wanted == Wanted::List => {
                return Ok(Form::Metadata);
            }
            _ => {}
        }
    }
    let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    Err(Status::new(406, "NotAcceptable", message))
}

/// The text of one object in this form.
pub(super) fn whole_text(form: Form, object: &Object) -> Vec<u8> {
    match form {
        Form::Whole => object.text.to_vec(),
        Form::Metadata => metadata_text(object).into_bytes(),
    }
}

/// Appends one list item in this form.
pub(super) fn push_item(form: Form, object: &Object, out: &mut Vec<u8>) {
    match form {
        Form::Whole => {
            out.push(b'{');
            out.extend_from_slice(object.item_tail());
        }
        Form::Metadata => out.extend_from_slice(metadata_text(object).as_bytes()),
    }
}

fn metadata_text(object: &Object) -> String {
    let mut meta = object.node().remove("metadata").unwrap_or(Node::Object(Vec::new()));
    // Struct order also for custom resources, whose own text is sorted.
    meta.order(&META_ORDER);
    let entries: [(&str, &[&str]); 2] = [
        ("managedFields", &["manager", "operation", "apiVersion", "time", "fieldsType", "fieldsV1", "subresource"]),
        ("ownerReferences", &["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"]),
    ];
    if let Node::Object(members) = &mut meta {
        for (key, value) in members {
            let Some((_, order)) = entries.iter().find(|(k, _)| k == key) else { continue };
            if let Node::Array(items) = value {
                items.iter_mut().for_each(|item| item.order(order));
            }
        }
    }
    format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{}}}"#, meta.text())
}
