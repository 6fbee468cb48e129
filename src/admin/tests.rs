//! The admin port over a real socket.

use http_body_util::{BodyExt, Empty};
use hyper::client::conn;

use super::*;
use crate::{
    config::{Environment, Flags},
    lifecycle::{Class, Drain},
};

const PATIENCE: Duration = Duration::from_secs(20);

struct Rig {
    drain: Drain,
    tasks: Tasks,
    readiness: Readiness,
    client: conn::http1::SendRequest<Empty<Bytes>>,
}

impl Rig {
    async fn start(resources: Vec<ResourceCheck>) -> Self {
        let drain = Drain::new();
        let tasks = Tasks::new(drain.token());
        let readiness = Readiness::new();
        let config = crate::config::load(&Flags::default(), &Environment::new(), &[]).expect("config");
        let metrics = Arc::new(registry::root("1.2.3"));
        let admin = Admin::new(readiness.clone(), Arc::new(move || resources.clone()), metrics, &config);
        let socket = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = socket.local_addr().expect("address");
        tasks.spawn("admin", Class::Critical, admin.serve(socket, tasks.clone(), drain.token()));
        let stream = TcpStream::connect(address).await.expect("connect");
        let (client, connection) = conn::http1::handshake(TokioIo::new(stream)).await.expect("handshake");
        tasks.spawn_connection(async { drop(connection.await) });
        Self { drain, tasks, readiness, client }
    }

    async fn send(&mut self, request: Request<Empty<Bytes>>) -> (u16, String, String) {
        let response = tokio::time::timeout(PATIENCE, self.client.send_request(request)).await;
        let response = response.expect("in time").expect("answer");
        let status = response.status().as_u16();
        let content_type = response.headers()[header::CONTENT_TYPE].to_str().expect("ascii").to_owned();
        let body = response.into_body().collect().await.expect("body").to_bytes();
        (status, content_type, String::from_utf8(body.to_vec()).expect("utf-8"))
    }

    async fn get(&mut self, path: &str) -> (u16, String) {
        let request = Request::get(path).header(header::HOST, "x").body(Empty::new()).expect("request");
        let (status, _, body) = self.send(request).await;
        (status, body)
    }
}

fn check(name: &str, ready: bool, required: bool, detail: &str) -> ResourceCheck {
    ResourceCheck { name: name.into(), ready, required, detail: detail.into() }
}

#[tokio::test]
async fn readiness_is_tokens_and_required_resources() {
    let mut rig = Rig::start(vec![
        check("cache-sync/v1/pods", true, true, "7 objects"),
        check("cache-sync/apps/v1/deployments", false, false, "1200/2000 objects, 350/s, 3s left"),
    ])
    .await;
    let listeners = rig.readiness.add("listeners");
    let want = "[+]ping ok\n[-]listeners failed: reason withheld\n[+]cache-sync/v1/pods ok (7 objects)\n\
                [+]cache-sync/apps/v1/deployments ok (syncing, not waited for: 1200/2000 objects, 350/s, 3s left)\n\
                readyz check failed\n";
    assert_eq!(rig.get("/readyz").await, (500, want.to_owned()));
    assert_eq!(rig.get("/readyz/listeners").await.0, 500);
    assert_eq!(rig.get("/readyz/cache-sync/v1/pods").await, (200, "ok".to_owned()));
    assert_eq!(rig.get("/livez").await, (200, "ok".to_owned()));
    listeners.mark_ready();
    assert_eq!(rig.get("/readyz").await, (200, "ok".to_owned()));
    assert_eq!(rig.get("/healthz").await, (200, "ok".to_owned()));

    let mut rig = Rig::start(vec![check("cache-sync/v1/pods", false, true, "3/4 objects")]).await;
    assert_eq!(rig.get("/readyz").await.0, 500);
    assert_eq!(rig.get("/livez?verbose").await, (200, "[+]ping ok\nlivez check passed\n".to_owned()));
}

#[tokio::test]
async fn health_is_served_while_draining_and_not_after_the_abort() {
    let mut rig = Rig::start(Vec::new()).await;
    let shutdown = rig.readiness.add("shutdown");
    shutdown.mark_ready();
    assert_eq!(rig.get("/readyz").await.0, 200);
    rig.drain.start();
    shutdown.mark_pending();
    assert_eq!(rig.get("/readyz").await.0, 500);
    assert_eq!(rig.get("/livez").await.0, 200);
    rig.drain.abort();
    tokio::time::timeout(PATIENCE, rig.tasks.ended()).await.expect("ends");
}

#[tokio::test]
async fn metrics_in_the_form_asked_for() {
    let mut rig = Rig::start(Vec::new()).await;
    let (_, body) = rig.get("/metrics").await;
    assert!(body.contains("forebay_build_info{version=\"1.2.3\"} 1\n") && !body.contains("# EOF"), "{body}");
    let request = Request::get("/metrics").header(header::ACCEPT, "application/openmetrics-text; version=1.0.0");
    let (status, content_type, body) = rig.send(request.body(Empty::new()).expect("request")).await;
    assert_eq!((status, content_type.starts_with("application/openmetrics-text")), (200, true));
    assert!(body.ends_with("# EOF\n"));
}

#[tokio::test]
async fn configz_is_the_effective_configuration() {
    let mut rig = Rig::start(Vec::new()).await;
    let (status, body) = rig.get("/configz").await;
    let value: serde_json::Value = serde_json::from_str(&body).expect("json");
    assert_eq!(
        (status, &value["forebay"]["securePort"], &value["forebay"]["holdTimeout"]),
        (200, &6480.into(), &"1m0s".into())
    );
}

#[tokio::test]
async fn unknown_paths_and_methods_say_what_there_is() {
    let mut rig = Rig::start(Vec::new()).await;
    for path in ["/", "/readyz/nothing", "/metricsx"] {
        let (status, body) = rig.get(path).await;
        assert!(status == 404 && body.contains("/readyz\n"), "{path}: {status} {body}");
    }
    let post = Request::post("/metrics").body(Empty::new()).expect("request");
    assert_eq!(rig.send(post).await.0, 405);
}
