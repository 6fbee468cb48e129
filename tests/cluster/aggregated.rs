//! APIs that another server answers for, and types that cannot be watched (CRD-06): they pass as they are, whatever state
//! that server is in, and nothing else notices.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::control_plane::ControlPlane;
use crate::fixtures::eventually;
use crate::pair::{Pair, assert_same};
use crate::toy::{Asked, Reply, Toy};
use crate::users::{Role, Users, object};

/// kube-apiserver looks at an aggregated server once in a while.
const LIMIT: Duration = Duration::from_secs(90);

/// What passes at once takes no longer than this beside what upstream itself takes; what is held takes 60 s.
const AT_ONCE: Duration = Duration::from_secs(25);

const CORE: [&str; 2] = ["/api/v1/configmaps", "/api/v1/namespaces"];

/// How the aggregated server behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Fine,
    Unavailable,
    Slow,
    WithoutVersion,
    OddVersion,
    NoWatch,
}

fn answer(mode: Mode, group: &str, asked: &Asked) -> Reply {
    let api = format!("{group}/v1");
    let status = |code: u16, reason: &str| {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"});
        let mut status = status;
        (status["reason"], status["code"]) = (json!(reason), json!(code));
        Reply::code(code, status)
    };
    if asked.path == "/apis" {
        let version = json!({"groupVersion": api, "version": "v1"});
        let known = json!({"name": group, "versions": [version], "preferredVersion": version});
        return Reply::json(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [known]}));
    }
    if asked.path == format!("/apis/{api}") {
        let verbs = ["get", "list", "watch"];
        let things =
            json!({"name": "things", "singularName": "thing", "namespaced": false, "kind": "Thing", "verbs": verbs});
        return Reply::json(
            json!({"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": [things]}),
        );
    }
    if !asked.path.starts_with(&format!("/apis/{api}/things")) || asked.method != Method::GET {
        return status(404, "NotFound");
    }
    if mode == Mode::Unavailable {
        return status(503, "ServiceUnavailable");
    }
    if asked.query.contains("watch=") {
        // A server with an older library than ours.
        return if mode == Mode::NoWatch { status(405, "MethodNotAllowed") } else { status(422, "Invalid") };
    }
    let version = match mode {
        Mode::WithoutVersion => json!({}),
        Mode::OddVersion => json!({"resourceVersion": "a|b"}),
        _ => json!({"resourceVersion": "5"}),
    };
    let mut metadata = version.clone();
    metadata["name"] = json!("one");
    let thing = json!({"kind": "Thing", "apiVersion": api, "metadata": metadata});
    let reply = if asked.path.ends_with("/one") {
        Reply::json(thing)
    } else {
        Reply::json(json!({"kind": "ThingList", "apiVersion": api, "metadata": version, "items": [thing]}))
    };
    if mode == Mode::Slow { reply.after(Duration::from_secs(10)) } else { reply }
}

/// Registers the group of `toy` with the API server, and waits until it answers for it.
async fn register(plane: &ControlPlane, group: &str, toy: &Toy) {
    let rig = plane.client(&Users::rig()).with_user_agent("rig");
    let name = group.split('.').next().unwrap();
    let service = json!({"spec": {"type": "ExternalName", "externalName": "localhost"}});
    rig.post("/api/v1/namespaces/default/services", &object("v1", "Service", name, service)).await;
    let spec = json!({"spec": {
        "group": group, "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 15, "insecureSkipTLSVerify": true,
        "service": {"name": name, "namespace": "default", "port": toy.port()},
    }});
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let api_service = object("apiregistration.k8s.io/v1", "APIService", &format!("v1.{group}"), spec);
    rig.post(services, &api_service).await;
    let path = format!("/apis/{group}/v1/things");
    eventually(LIMIT, "the aggregated server answers", async || rig.get(&path).await.status == 200).await;
}

async fn core_types_are_cached(pair: &Pair, what: &str) {
    for path in CORE {
        let begun = Instant::now();
        eventually(LIMIT, &format!("{what}: {path} from the cache"), async || {
            pair.through.get(path).await.header("x-forebay").starts_with("hit")
        })
        .await;
        assert!(begun.elapsed() < AT_ONCE, "{what}: {path} took {:?}", begun.elapsed());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_aggregated_server_in_every_state() {
    let plane = ControlPlane::shared();
    let group = format!("{}.forebay.dev", plane.unique("toy"));
    let mode = Arc::new(Mutex::new(Mode::Fine));
    let toy = {
        let (mode, group) = (mode.clone(), group.clone());
        Toy::start(plane, move |asked| answer(*mode.lock(), &group, &asked)).await
    };
    register(plane, &group, &toy).await;
    let paths = [format!("/apis/{group}/v1/things"), format!("/apis/{group}/v1/things/one")];
    for current in [Mode::Fine, Mode::WithoutVersion, Mode::OddVersion, Mode::NoWatch, Mode::Slow, Mode::Unavailable] {
        *mode.lock() = current;
        // Each of them meets that state from the start: what forebay knows of the type, it has learned in it.
        let sees = Pair::start(plane, Role::Reader).await;
        for path in &paths {
            passes(&sees, path, &format!("{current:?}")).await;
        }
        core_types_are_cached(&sees, &format!("{current:?}")).await;
    }
}

/// The same answer as without forebay, and no later.
async fn passes(pair: &Pair, path: &str, what: &str) {
    let begun = Instant::now();
    let direct = pair.direct.get(path).await;
    let took = begun.elapsed();
    let begun = Instant::now();
    let through = pair.through.get(path).await;
    let passed = begun.elapsed();
    assert_same(&format!("{what}: {path}"), &direct, &through);
    assert!(passed < took + AT_ONCE, "{what}: {path} took {passed:?}, without forebay {took:?}");
}

#[tokio::test]
async fn types_that_cannot_be_watched_pass_at_once() {
    let plane = ControlPlane::shared();
    let pair = Pair::start(plane, Role::Editor).await;
    let begun = Instant::now();
    for path in ["/api/v1/componentstatuses", "/api/v1/componentstatuses/none"] {
        // Their contents change from one probe to the next.
        let (direct, through) = (pair.direct.get(path).await, pair.through.get(path).await);
        assert_eq!((direct.status, ""), (through.status, through.header("x-forebay")), "{path}");
    }
    let json = [("content-type", "application/json")];
    for (path, kind, group, spec) in [
        (
            "/apis/authentication.k8s.io/v1/tokenreviews",
            "TokenReview",
            "authentication.k8s.io/v1",
            json!({"token": "x"}),
        ),
        (
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "SelfSubjectAccessReview",
            "authorization.k8s.io/v1",
            json!({"resourceAttributes": {"verb": "get", "resource": "pods"}}),
        ),
    ] {
        let body: Value = json!({"kind": kind, "apiVersion": group, "spec": spec});
        let answer = pair.through.request(Method::POST, path, &json, body.to_string()).await;
        assert_eq!(answer.status, 201, "{path}: {}", answer.describe());
        let (direct, through) = (pair.direct.get(path).await, pair.through.get(path).await);
        assert_eq!(direct.status, through.status, "{path}: {}", through.describe());
    }
    assert!(begun.elapsed() < AT_ONCE, "{:?}", begun.elapsed());
}
