//! Who may call the test control plane: token users of a few roles. Each test takes users of its own, so that the audit log
//! tells the tests apart by user name as well as by user agent.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};

use crate::client::HttpClient;

/// How many users of each role exist. Taking more is a panic.
const EACH: usize = 60;

/// The namespace in which the `Namespaced` users have rights; made at the start.
pub(crate) const NAMESPACE: &str = "n1";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// `system:masters`: everything, past RBAC and past flow control.
    Admin,
    /// Every verb on every resource, by RBAC: what an ordinary controller has.
    Editor,
    /// get, list and watch on every resource.
    Reader,
    /// get on every resource.
    Getter,
    /// Everything in namespace `n1`, nothing elsewhere.
    Namespaced,
}

#[derive(Clone, Debug)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) token: String,
}

/// The users of one control plane.
#[derive(Debug, Default)]
pub(crate) struct Users {
    taken: [AtomicUsize; ROLES.len()],
}

const ROLES: [Role; 5] = [Role::Admin, Role::Editor, Role::Reader, Role::Getter, Role::Namespaced];

// === impl Role ===

impl Role {
    const fn group(self) -> &'static str {
        match self {
            Self::Admin => "system:masters",
            Self::Editor => "test:editors",
            Self::Reader => "test:readers",
            Self::Getter => "test:getters",
            Self::Namespaced => "test:namespaced",
        }
    }

    fn user(self, n: usize) -> User {
        let name = format!("{}-{n}", format!("{self:?}").to_lowercase());
        User { token: format!("token-of-{name}"), name }
    }
}

// === impl Users ===

impl Users {
    /// The file for `--token-auth-file`: token,user,uid,"groups".
    pub(crate) fn token_file() -> String {
        ROLES.iter().flat_map(|role| (0..EACH).map(move |n| (role, role.user(n)))).fold(
            String::new(),
            |mut file, (role, user)| {
                let _ = writeln!(file, "{},{},{},\"{}\"", user.token, user.name, user.name, role.group());
                file
            },
        )
    }

    /// The rig's own user; no test gets it.
    pub(crate) fn rig() -> User {
        Role::Admin.user(0)
    }

    /// A user that nobody else has.
    pub(crate) fn take(&self, role: Role) -> User {
        let n = 1 + self.taken[ROLES.iter().position(|r| *r == role).unwrap()].fetch_add(1, Ordering::Relaxed);
        assert!(n < EACH, "more than {EACH} {role:?} users: raise users::EACH");
        role.user(n)
    }
}

/// Creates the RBAC objects behind the roles, and the namespace.
pub(crate) async fn install(admin: &HttpClient) {
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    for (role, verbs) in [
        (Role::Editor, json!(["*"])),
        (Role::Reader, json!(["get", "list", "watch"])),
        (Role::Getter, json!(["get"])),
        (Role::Namespaced, json!(["*"])),
    ] {
        let name = role.group();
        let rules = json!([{"apiGroups": ["*"], "resources": ["*"], "verbs": verbs}]);
        admin
            .post(
                &format!("{rbac}/clusterroles"),
                &object("rbac.authorization.k8s.io/v1", "ClusterRole", name, json!({"rules": rules})),
            )
            .await;
        let binding = json!({
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": name}],
        });
        let (kind, path) = match role {
            Role::Namespaced => ("RoleBinding", format!("{rbac}/namespaces/{NAMESPACE}/rolebindings")),
            _ => ("ClusterRoleBinding", format!("{rbac}/clusterrolebindings")),
        };
        if role == Role::Namespaced {
            admin.post("/api/v1/namespaces", &object("v1", "Namespace", NAMESPACE, json!({}))).await;
        }
        admin.post(&path, &object("rbac.authorization.k8s.io/v1", kind, name, binding)).await;
    }
}

/// An object with a name and the given further keys.
pub(crate) fn object(api_version: &str, kind: &str, name: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}});
    if let (Some(to), Value::Object(from)) = (object.as_object_mut(), rest) {
        to.extend(from);
    }
    object
}
