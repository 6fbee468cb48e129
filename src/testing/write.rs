//! POST, PUT, PATCH and DELETE: changes of the world, answered with upstream's bodies.
//!
//! Patches are JSON merge patches; strategic merge and apply bodies in JSON are treated alike. The `status` subresource
//! changes only `status`, the object itself everything else.

use bytes::Bytes;

use super::{
    body::CHUNK,
    call::{Call, Verb},
    json::Node,
    negotiate::{self, Form},
    objects::{self, Object},
    options::ListOptions,
    resource::Resource,
    status::{self, Status},
    world::{World, WriteError},
};

/// Code and body of a successful write.
pub(super) struct Written {
    pub(super) code: u16,
    pub(super) body: Bytes,
}

/// Carries a Status through [`World::edit`].
enum Refused {
    World(WriteError),
    Status(Box<Status>),
    /// Not an error: the state a dry run would have led to.
    Dry(Box<Object>),
}

/// Does what a writing request asks for.
pub(super) fn handle(
    world: &World,
    call: &Call,
    resource: &Resource,
    content_type: &str,
    body: &[u8],
) -> Result<Written, Status> {
    let parse = || {
        Node::parse(body).map_err(|e| {
            Status::bad_request(format!("the object provided is unrecognized (must be of type {}): {e}", resource.kind))
        })
    };
    let dry = call.param("dryRun") == Some("All");
    match (call.verb, call.subresource.as_str()) {
        (Verb::Create, "") => create(world, call, resource, parse()?, dry),
        (Verb::Update, "" | "status" | "finalize") => replace(world, call, resource, dry, |_| parse()),
        (Verb::Patch, "" | "status") => {
            let media = content_type.split(';').next().unwrap_or_default().trim();
            let known = ["application/merge-patch+json", "application/strategic-merge-patch+json"];
            if !known.contains(&media) && !media.starts_with("application/apply-patch") {
                let message = "415: Unsupported Media Type";
                return Err(Status { details: Some("{}".into()), ..Status::new(415, "UnsupportedMediaType", message) });
            }
            let patch = parse()?;
            replace(world, call, resource, dry, |stored| {
                let mut node = stored.node();
                // A patch applies to whatever is stored, unless it names a version itself.
                node.object_mut("metadata").remove("resourceVersion");
                node.merge(&patch);
                Ok(node)
            })
        }
        (Verb::Delete, "") => delete(world, call, resource, body, dry),
        (Verb::DeleteCollection, _) => delete_collection(world, call, resource),
        _ => Err(Status::no_such_resource()),
    }
}

fn create(world: &World, call: &Call, resource: &Resource, mut node: Node, dry: bool) -> Result<Written, Status> {
    let meta = node.object_mut("metadata");
    if let Some(ns) = &call.namespace {
        meta.set("namespace", Node::String(ns.clone()));
    }
    if let (None, Some(prefix)) = (meta.str_at(&["name"]), meta.str_at(&["generateName"])) {
        const LETTERS: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
        let random: [u8; 5] = rand::random();
        let suffix: String = random.iter().map(|r| char::from(LETTERS[usize::from(*r) % LETTERS.len()])).collect();
        let name = format!("{prefix}{suffix}");
        meta.set("name", Node::String(name));
    }
    let name = meta.str_at(&["name"]).unwrap_or_default().to_owned();
    meta.remove("resourceVersion");
    for ours in ["uid", "creationTimestamp", "deletionTimestamp"] {
        meta.remove(ours);
    }
    if dry {
        let key = objects::key(call.namespace.as_deref().unwrap_or_default(), &name);
        if world.object(&resource.gvr.to_string(), &key).is_some() {
            return Err(Status::already_exists(&call.group_resource(), &name));
        }
        let meta = node.object_mut("metadata");
        meta.set("uid", Node::String(objects::uid()));
        meta.set("creationTimestamp", Node::String(objects::now()));
        let text = Object::new(resource, &node, 0).text;
        let text = String::from_utf8_lossy(&text).replacen(r#""resourceVersion":"0","#, "", 1);
        return Ok(Written { code: 201, body: format!("{text}\n").into() });
    }
    let made = world.create_in(&resource.gvr, node).map_err(|e| refusal(call, &name, &e))?;
    Ok(Written { code: 201, body: line(&made) })
}

fn replace(
    world: &World,
    call: &Call,
    resource: &Resource,
    dry: bool,
    make: impl FnOnce(&Object) -> Result<Node, Status>,
) -> Result<Written, Status> {
    let name = call.name.clone().unwrap_or_default();
    let key = objects::key(call.namespace.as_deref().unwrap_or_default(), &name);
    let edited = world.edit::<Refused>(&resource.gvr, &key, |stored, resource| {
        let mut node = make(stored)?;
        let before = stored.node();
        let meta = node.object_mut("metadata");
        if meta.str_at(&["name"]).is_none_or(str::is_empty) {
            meta.set("name", Node::String(name.clone()));
        }
        if let Some(ns) = &call.namespace {
            meta.set("namespace", Node::String(ns.clone()));
        }
        if meta.str_at(&["name"]) != Some(&name) {
            let given = meta.str_at(&["name"]).unwrap_or_default();
            let message = format!("the name of the object ({given}) does not match the name on the URL ({name})");
            return Err(Status::bad_request(message).into());
        }
        if let Some(uid) = meta.str_at(&["uid"]).filter(|uid| !uid.is_empty() && *uid != stored.uid) {
            let message = format!(
                "Operation cannot be fulfilled on {} \"{name}\": Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
                call.group_resource(),
                stored.uid
            );
            let details = Status::conflict(&call.group_resource(), &name).details;
            return Err(Status { details, ..Status::new(409, "Conflict", message) }.into());
        }
        let node = if call.subresource == "status" {
            let mut kept = before;
            let rv = node.str_at(&["metadata", "resourceVersion"]).unwrap_or_default().to_owned();
            kept.object_mut("metadata").set("resourceVersion", Node::String(rv));
            match node.remove("status") {
                Some(status) => kept.set("status", status),
                None => drop(kept.remove("status")),
            }
            kept
        } else {
            if resource.status && call.subresource.is_empty() {
                match before.get("status") {
                    Some(status) => node.set("status", status.clone()),
                    None => drop(node.remove("status")),
                }
            }
            for kept in ["deletionTimestamp", "deletionGracePeriodSeconds"] {
                if let Some(value) = before.at(&["metadata", kept]) {
                    node.object_mut("metadata").set(kept, value.clone());
                }
            }
            node
        };
        if dry {
            return Err(Refused::Dry(Box::new(Object::new(resource, &node, stored.rv))));
        }
        Ok(Some(node))
    });
    match edited {
        Ok(object) if is_terminated(&object) => {
            // The last finalizer is gone. Upstream answers with the final state under the deletion's revision.
            let last = world.edit::<Refused>(&resource.gvr, &key, |_, _| Ok(None));
            let last = last.map_err(|e| e.status(call, &name))?;
            let text = object.with_rv(last.rv);
            Ok(Written { code: 200, body: line(&text) })
        }
        Ok(object) => Ok(Written { code: 200, body: line(&object) }),
        Err(Refused::Dry(object)) => Ok(Written { code: 200, body: line(&object) }),
        Err(refused) => Err(refused.status(call, &name)),
    }
}

fn delete(world: &World, call: &Call, resource: &Resource, body: &[u8], dry: bool) -> Result<Written, Status> {
    let name = call.name.clone().unwrap_or_default();
    let key = objects::key(call.namespace.as_deref().unwrap_or_default(), &name);
    let options = Node::parse(body).unwrap_or(Node::Null);
    let mut uid = String::new();
    let deleted = world.edit::<Refused>(&resource.gvr, &key, |stored, resource| {
        uid.clone_from(&stored.uid);
        let preconditions =
            [("resourceVersion", "ResourceVersion", stored.rv.to_string()), ("uid", "UID", stored.uid.clone())];
        for (field, words, have) in preconditions {
            if let Some(given) = options.str_at(&["preconditions", field]).filter(|given| **given != have) {
                return Err(Status::precondition(&resource.kind, &name, words, given, &have).into());
            }
        }
        if dry {
            return Err(Refused::Dry(Box::new(stored.with_rv(stored.rv))));
        }
        let mut node = stored.node();
        let held = matches!(node.at(&["metadata", "finalizers"]), Some(Node::Array(f)) if !f.is_empty());
        if !held {
            return Ok(None);
        }
        let meta = node.object_mut("metadata");
        if meta.get("deletionTimestamp").is_none() {
            meta.set("deletionTimestamp", Node::String(objects::now()));
            meta.set("deletionGracePeriodSeconds", Node::Number("0".into()));
        }
        Ok(Some(node))
    });
    match deleted {
        Ok(object) if object.node().at(&["metadata", "finalizers"]).is_some() => {
            Ok(Written { code: 200, body: line(&object) })
        }
        Ok(_) | Err(Refused::Dry(_)) => {
            Ok(Written { code: 200, body: status::deleted(&call.group_resource(), &name, &uid) })
        }
        Err(refused) => Err(refused.status(call, &name)),
    }
}

/// Answers with the list as it was before.
fn delete_collection(world: &World, call: &Call, resource: &Resource) -> Result<Written, Status> {
    let options = ListOptions::parse(call, resource)?;
    let view = world.view(&resource.gvr).ok_or_else(Status::no_such_resource)?;
    let root = call.namespace.as_ref().map(|ns| format!("{ns}/")).unwrap_or_default();
    let mut items = Vec::with_capacity(CHUNK);
    for object in view.objects.values().filter(|o| o.key.starts_with(&root) && options.selector.matches(o)) {
        if !items.is_empty() {
            items.push(b',');
        }
        negotiate::push_item(Form::Whole, object, &mut items);
        let (namespace, name) = object.namespace_and_name();
        let one = Call {
            verb: Verb::Delete,
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..call.clone()
        };
        // Gone in between is what was wanted.
        let _ = delete(world, &one, resource, b"", false);
    }
    let items = String::from_utf8_lossy(&items);
    let (kind, api_version, rv) = (&resource.list_kind, resource.gvr.api_version(), view.revision);
    let body = if resource.custom {
        format!(
            r#"{{"apiVersion":"{api_version}","items":[{items}],"kind":"{kind}","metadata":{{"continue":"","resourceVersion":"{rv}"}}}}"#
        )
    } else {
        format!(
            r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{rv}"}},"items":[{items}]}}"#
        )
    };
    Ok(Written { code: 200, body: format!("{body}\n").into() })
}

fn line(object: &Object) -> Bytes {
    let mut text = object.text.to_vec();
    text.push(b'\n');
    text.into()
}

/// Whether only finalizers kept it, and none is left.
fn is_terminated(object: &Object) -> bool {
    let node = object.node();
    let held = matches!(node.at(&["metadata", "finalizers"]), Some(Node::Array(f)) if !f.is_empty())
        || matches!(node.at(&["spec", "finalizers"]), Some(Node::Array(f)) if !f.is_empty());
    node.at(&["metadata", "deletionTimestamp"]).is_some() && !held
}

fn refusal(call: &Call, name: &str, error: &WriteError) -> Status {
    let resource = call.group_resource();
    match error {
        WriteError::UnknownResource(_) => Status::no_such_resource(),
        WriteError::Exists(_) => Status::already_exists(&resource, name),
        WriteError::NotFound(_) => Status::not_found(&resource, name),
        WriteError::Conflict { .. } => Status::conflict(&resource, name),
        WriteError::NoName(_) | WriteError::NotJson(_) => Status::bad_request(error.to_string()),
    }
}

// === impl Refused ===

impl Refused {
    fn status(self, call: &Call, name: &str) -> Status {
        match self {
            Self::World(error) => refusal(call, name, &error),
            Self::Status(status) => *status,
            Self::Dry(_) => Status::new(500, "InternalError", "dry run was not answered"),
        }
    }
}

impl From<WriteError> for Refused {
    fn from(error: WriteError) -> Self {
        Self::World(error)
    }
}

impl From<Status> for Refused {
    fn from(status: Status) -> Self {
        Self::Status(Box::new(status))
    }
}
