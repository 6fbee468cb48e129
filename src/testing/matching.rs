//! Which requests are meant: the first half of a rule, and a question to the log.

use std::{fmt, sync::Arc};

use super::{call::Verb, log::Seen};

/// Which requests a rule is about. Also a [`Predicate`](super::Predicate) for the log.
#[derive(Clone)]
pub struct Match {
    tests: Vec<(String, Arc<Test>)>,
}

type Test = dyn Fn(&Seen) -> bool + Send + Sync;

/// Every request.
pub fn any() -> Match {
    Match { tests: Vec::new() }
}

/// GET of one object of `resource` (`pods`, `deployments.apps` or `apps/v1/deployments`).
pub fn get(resource: &str) -> Match {
    verb(resource, &[Verb::Get])
}

/// LIST of a resource, not its watches.
pub fn list(resource: &str) -> Match {
    verb(resource, &[Verb::List])
}

/// WATCH of a resource, streaming lists included.
pub fn watch(resource: &str) -> Match {
    verb(resource, &[Verb::Watch])
}

/// GET or LIST of a resource.
pub fn read(resource: &str) -> Match {
    verb(resource, &[Verb::Get, Verb::List])
}

/// POST of a resource.
pub fn create(resource: &str) -> Match {
    verb(resource, &[Verb::Create])
}

/// PUT of a resource, subresources included.
pub fn update(resource: &str) -> Match {
    verb(resource, &[Verb::Update])
}

/// PATCH of a resource, subresources included.
pub fn patch(resource: &str) -> Match {
    verb(resource, &[Verb::Patch])
}

/// DELETE of one object or of a collection.
pub fn delete(resource: &str) -> Match {
    verb(resource, &[Verb::Delete, Verb::DeleteCollection])
}

/// Any write of a resource.
pub fn write(resource: &str) -> Match {
    verb(resource, &[Verb::Create, Verb::Update, Verb::Patch, Verb::Delete, Verb::DeleteCollection])
}

/// `/api`, `/apis` and what hangs below them without naming a resource.
pub fn discovery() -> Match {
    let is = |s: &Seen| s.call.resource.is_empty() && (s.path() == "/api" || s.path().starts_with("/api"));
    any().and("discovery", is)
}

/// Requests of exactly this path, for instance `/version`.
pub fn named_path(path: &str) -> Match {
    let path = path.to_owned();
    any().and(&format!("path {path}"), move |s| s.path() == path)
}

fn verb(resource: &str, verbs: &'static [Verb]) -> Match {
    let name = resource.to_owned();
    let words: Vec<&str> = verbs.iter().map(|v| v.as_str()).collect();
    let label = format!("{} {name}", words.join("/"));
    any().and(&label, move |s| verbs.contains(&s.call.verb) && s.call.is_resource(&name))
}

// === impl Match ===

impl Match {
    /// Also requires a condition of the test's own; `label` names it in failures.
    #[must_use]
    pub fn and(mut self, label: &str, test: impl Fn(&Seen) -> bool + Send + Sync + 'static) -> Self {
        self.tests.push((label.to_owned(), Arc::new(test)));
        self
    }

    /// Only in this namespace.
    #[must_use]
    pub fn namespace(self, namespace: &str) -> Self {
        let want = namespace.to_owned();
        self.and(&format!("namespace {want}"), move |s| s.call.namespace.as_deref() == Some(&*want))
    }

    /// Only the object of this name.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        let want = name.to_owned();
        self.and(&format!("name {want}"), move |s| s.call.name.as_deref() == Some(&*want))
    }

    /// Only with this query parameter.
    #[must_use]
    pub fn query(self, name: &str, value: &str) -> Self {
        let (name, value) = (name.to_owned(), value.to_owned());
        self.and(&format!("{name}={value}"), move |s| s.param(&name) == Some(&*value))
    }

    /// Only from a client whose User-Agent begins like this.
    #[must_use]
    pub fn user_agent(self, prefix: &str) -> Self {
        let prefix = prefix.to_owned();
        self.and(&format!("user agent {prefix}"), move |s| s.user_agent.starts_with(&prefix))
    }

    /// Only this subresource, for instance `status`.
    #[must_use]
    pub fn subresource(self, subresource: &str) -> Self {
        let want = subresource.to_owned();
        self.and(&format!("subresource {want}"), move |s| s.call.subresource == want)
    }

    /// Only pages after the first: requests with a continue token.
    #[must_use]
    pub fn continued(self) -> Self {
        self.and("continued", |s| s.param("continue").is_some_and(|t| !t.is_empty()))
    }

    /// Only streaming lists: watches with a true `sendInitialEvents`.
    #[must_use]
    pub fn streaming(self) -> Self {
        self.and("streaming list", |s| s.call.flag("sendInitialEvents"))
    }

    pub(super) fn matches(&self, seen: &Seen) -> bool {
        self.tests.iter().all(|(_, test)| test(seen))
    }
}

impl fmt::Debug for Match {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tests.iter().map(|(label, _)| label)).finish()
    }
}
