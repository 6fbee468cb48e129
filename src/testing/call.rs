//! What a request means: verb, resource, namespace, name and query, by upstream's path grammar.

use percent_encoding::percent_decode_str;

/// What a request wants done, in the words of RBAC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// GET of one object.
    Get,
    /// GET of a collection.
    List,
    /// GET of a collection with a true `watch` parameter.
    Watch,
    /// POST to a collection.
    Create,
    /// PUT of an object.
    Update,
    /// PATCH of an object.
    Patch,
    /// DELETE of an object.
    Delete,
    /// DELETE of a collection.
    DeleteCollection,
    /// Anything else: discovery, health, OPTIONS.
    Other,
}

/// A parsed request line.
#[derive(Clone, Debug)]
pub struct Call {
    /// What is wanted.
    pub verb: Verb,
    /// API group; empty for the core group and for paths that name no resource.
    pub group: String,
    /// API version.
    pub version: String,
    /// Plural resource name; empty for paths that name no resource.
    pub resource: String,
    /// Subresource such as `status`, with anything after it; empty for the object itself.
    pub subresource: String,
    /// Namespace in the path.
    pub namespace: Option<String>,
    /// Object name in the path.
    pub name: Option<String>,
    /// Path as it came.
    pub path: String,
    /// Decoded query parameters in order.
    pub query: Vec<(String, String)>,
}

// === impl Verb ===

impl Verb {
    /// The word RBAC uses, for instance in 403 messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
            Self::Other => "other",
        }
    }
}

// === impl Call ===

impl Call {
    /// Reads a method and a target.
    pub fn parse(method: &str, path: &str, query: Option<&str>) -> Self {
        let mut call = Self {
            verb: Verb::Other,
            group: String::new(),
            version: String::new(),
            resource: String::new(),
            subresource: String::new(),
            namespace: None,
            name: None,
            path: path.to_owned(),
            query: query.map(parse_query).unwrap_or_default(),
        };
        let mut watches = false;
        let segments: Vec<String> = path.trim_matches('/').split('/').map(decode).collect();
        let segments: Vec<&str> = segments.iter().map(String::as_str).collect();
        let rest = match segments[..] {
            ["api", version, ref rest @ ..] if !rest.is_empty() => {
                version.clone_into(&mut call.version);
                rest
            }
            ["apis", group, version, ref rest @ ..] if !rest.is_empty() => {
                group.clone_into(&mut call.group);
                version.clone_into(&mut call.version);
                rest
            }
            _ => return call,
        };
        let rest = match rest {
            ["watch", rest @ ..] if !rest.is_empty() => {
                watches = true;
                rest
            }
            _ => rest,
        };
        let rest = match rest {
            ["namespaces", ns, rest @ ..] if !matches!(rest, [] | ["status" | "finalize", ..]) => {
                if !ns.is_empty() {
                    call.namespace = Some((*ns).to_owned());
                }
                rest
            }
            _ => rest,
        };
        let [resource, rest @ ..] = rest else { return call };
        (*resource).clone_into(&mut call.resource);
        if let [name, sub @ ..] = rest {
            call.name = Some((*name).to_owned());
            call.subresource = sub.join("/");
        }
        call.verb = match (method, &call.name) {
            ("GET" | "HEAD", _) if watches => Verb::Watch,
            ("GET" | "HEAD", Some(_)) => Verb::Get,
            ("GET" | "HEAD", None) if call.flag("watch") => Verb::Watch,
            ("GET" | "HEAD", None) => Verb::List,
            ("POST", _) => Verb::Create,
            ("PUT", _) => Verb::Update,
            ("PATCH", _) => Verb::Patch,
            ("DELETE", Some(_)) => Verb::Delete,
            ("DELETE", None) => Verb::DeleteCollection,
            _ => Verb::Other,
        };
        call
    }

    /// The first value of a query parameter.
    pub fn param(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    /// A parameter by upstream's rule for booleans: absent, `0` and `false` are false, everything else is true.
    pub fn flag(&self, name: &str) -> bool {
        self.param(name).is_some_and(|v| v != "0" && !v.eq_ignore_ascii_case("false"))
    }

    /// The resource as messages name it: `deployments.apps`.
    pub fn group_resource(&self) -> String {
        if self.group.is_empty() { self.resource.clone() } else { format!("{}.{}", self.resource, self.group) }
    }

    /// Whether `name` means this request's resource: `pods`, `deployments.apps` or `apps/v1/deployments`.
    pub fn is_resource(&self, name: &str) -> bool {
        if self.resource.is_empty() {
            return false;
        }
        let core = format!("{}/{}", self.version, self.resource);
        let full = if self.group.is_empty() { core } else { format!("{}/{core}", self.group) };
        self.resource == name || self.group_resource() == name || full == name
    }
}

fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

fn parse_query(query: &str) -> Vec<(String, String)> {
    query
        .split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (decode(&name.replace('+', " ")), decode(&value.replace('+', " ")))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_follow_upstreams_grammar() {
        for (method, target, verb, resource, namespace, name, sub) in [
            ("GET", "/api/v1/pods", Verb::List, "pods", None, None, ""),
            ("GET", "/api/v1/pods?watch", Verb::Watch, "pods", None, None, ""),
            ("GET", "/api/v1/pods?watch=0", Verb::List, "pods", None, None, ""),
            ("GET", "/api/v1/watch/pods", Verb::Watch, "pods", None, None, ""),
            ("GET", "/api/v1/namespaces/x/pods/y?watch=1", Verb::Get, "pods", Some("x"), Some("y"), ""),
            ("GET", "/api/v1/namespaces/x", Verb::Get, "namespaces", None, Some("x"), ""),
            ("PUT", "/api/v1/namespaces/x/status", Verb::Update, "namespaces", None, Some("x"), "status"),
            ("GET", "/api/v1/namespaces", Verb::List, "namespaces", None, None, ""),
            ("GET", "/api/v1/namespaces//pods", Verb::List, "pods", None, None, ""),
            ("POST", "/apis/apps/v1/namespaces/x/deployments", Verb::Create, "deployments", Some("x"), None, ""),
            (
                "PATCH",
                "/apis/apps/v1/namespaces/x/deployments/d/scale",
                Verb::Patch,
                "deployments",
                Some("x"),
                Some("d"),
                "scale",
            ),
            ("DELETE", "/apis/g/v1/things/a%3Ab", Verb::Delete, "things", None, Some("a:b"), ""),
            ("DELETE", "/apis/g/v1/things", Verb::DeleteCollection, "things", None, None, ""),
            ("GET", "/apis/apps/v1", Verb::Other, "", None, None, ""),
            ("GET", "/api/v1", Verb::Other, "", None, None, ""),
            ("GET", "/healthz", Verb::Other, "", None, None, ""),
        ] {
            let (path, query) = target.split_once('?').map_or((target, None), |(p, q)| (p, Some(q)));
            let call = Call::parse(method, path, query);
            let got = (call.verb, &*call.resource, call.namespace.as_deref(), call.name.as_deref(), &*call.subresource);
            assert_eq!(got, (verb, resource, namespace, name, sub), "{method} {target}");
        }
    }
}
