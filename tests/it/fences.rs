//! Own writes (issue 3 section 4): once a write's response has passed, no read shows the state before it, however late
//! the event is. Each case runs with forebay's own watch held back, so that its store can't know.

use forebay::testing::{ApiServer, Hold, any, create, read, update, watch};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    client::{Client, Reply},
    rig::{LIMIT, Rig, eventually, forwarded, own, upstream, within},
};

const MAPS: &str = "/api/v1/namespaces/x/configmaps";
const A: &str = "/api/v1/namespaces/x/configmaps/a";
const NEW: &str = "/api/v1/namespaces/x/configmaps/new";
const POD: &str = "/api/v1/namespaces/x/pods/a";
const PODS: &str = "/api/v1/namespaces/x/pods";

/// How reads after a write are answered while its event is on the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Then {
    /// They wait for it: the response told the version.
    Wait,
    /// The object by upstream; lists too, or they wait for what that has shown.
    Upstream,
    /// From the cache as before: nothing was written.
    Cache,
}

/// A proxy whose store has synced and whose watches bring nothing until `events` lets them.
struct Late {
    rig: Rig,
    events: Hold,
    resource: &'static str,
}

fn map(name: &str, value: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "x"}, "data": {"value": value}})
}

/// Everything reads are compared by: status and objects, without the version of a list.
fn shown(reply: &Reply) -> (u16, Value) {
    let mut body = reply.json();
    if body["items"].is_array() {
        return (reply.status, body["items"].take());
    }
    (reply.status, body)
}

// === impl Late ===

impl Late {
    async fn start(resource: &'static str, flags: &[&str]) -> Self {
        let upstream = upstream(ApiServer::builder()).await;
        for (kind, finalizers) in [("configmaps", json!(["x.io/f"])), ("pods", json!([]))] {
            for name in ["a", "b"] {
                upstream.world().create(kind, map(name, "old")).unwrap();
            }
            let held = json!({"metadata": {"name": "held", "namespace": "x", "finalizers": finalizers}});
            upstream.world().create(kind, held).unwrap();
        }
        let events = upstream.on(own(watch(resource))).hold_body();
        let rig = Rig::with(upstream, if flags.is_empty() { &["--fence-timeout=30s"] } else { flags }).await;
        let sync = tokio::spawn({
            let client = rig.client();
            async move { client.get(&format!("/api/v1/namespaces/x/{resource}")).await }
        });
        // The initial events are one piece.
        events.wait_for(1, LIMIT).await.unwrap();
        events.release_one();
        assert_eq!(within("the first list", sync).await.unwrap().names(), ["a", "b", "held"]);
        rig.upstream.log().clear();
        Self { rig, events, resource }
    }

    fn list_path(&self) -> &'static str {
        if self.resource == "pods" { PODS } else { MAPS }
    }

    /// Reads of the object and of lists show what upstream has, now and once the event has come.
    async fn check(self, what: &str, then: Then, object: &str) {
        let paths = [object.to_owned(), self.list_path().to_owned(), format!("/api/v1/{}", self.resource)];
        let mut truth = Vec::new();
        for path in &paths {
            truth.push(shown(&self.rig.direct().get(path).await));
        }
        self.rig.upstream.log().clear();
        // The object alone first: once upstream has shown it, everything else may wait for that version.
        let mut replies = Vec::new();
        if then != Then::Wait {
            let reply = self.rig.client().get(object).await;
            assert_eq!(reply.answered(), if then == Then::Cache { "hit" } else { "" }, "{what}: {reply}");
            replies.push((0, reply));
        }
        let mut reads = JoinSet::new();
        for (n, path) in paths.iter().cloned().enumerate().skip(replies.len()) {
            let client = self.rig.client();
            reads.spawn(async move { (n, client.get(&path).await) });
        }
        // Each has been answered or is held, while the event is still on the way.
        let mut held = 0;
        within(what, async {
            while replies.len() + held < paths.len() {
                held = self.rig.forebay.metric("forebay_held_requests", &[]).await as usize;
                replies.extend(std::iter::from_fn(|| reads.try_join_next()).map(Result::unwrap));
            }
        })
        .await;
        assert!(then != Then::Wait || replies.is_empty(), "{what}: an answer before the event");
        assert!(then != Then::Cache || held == 0, "{what}: {held} reads wait");
        self.events.release();
        while let Some(reply) = within(what, reads.join_next()).await {
            replies.push(reply.unwrap());
        }
        for (n, reply) in replies {
            assert_eq!(shown(&reply), truth[n], "{what}: {} {reply}", paths[n]);
        }
        for (path, truth) in paths.iter().zip(&truth) {
            let reply = self.rig.forebay.wait_cached(path).await;
            assert_eq!(&shown(&reply), truth, "{what}: {path} in the end: {reply}");
        }
        let reached = self.rig.upstream.log().count(forwarded(read(self.resource)));
        assert!(then == Then::Upstream || reached == 0, "{what}: {reached} reads reached upstream");
    }

    async fn write(&self, method: &str, path: &str, body: &Value) -> Reply {
        self.rig.client().write(method, path, body).await
    }
}

/// Runs one write of configmaps and checks what is shown after it.
async fn after(method: &str, path: &str, body: Value, code: u16, then: Then) {
    let late = Late::start("configmaps", &[]).await;
    let reply = late.write(method, path, &body).await;
    let what = format!("{method} {path}");
    assert_eq!(reply.status, code, "{what}: {reply}");
    let object = path.split('?').next().filter(|path| *path != MAPS).unwrap_or(NEW);
    late.check(&what, then, object).await;
}

#[tokio::test]
async fn writes_that_tell_their_version_are_waited_for() {
    after("POST", MAPS, map("new", "1"), 201, Then::Wait).await;
    after("PUT", A, map("a", "1"), 200, Then::Wait).await;
    after("PATCH", A, json!({"data": {"value": "1"}}), 200, Then::Wait).await;
    // Marked for deletion; its finalizer keeps it.
    after("DELETE", &format!("{MAPS}/held"), json!({}), 200, Then::Wait).await;
}

#[tokio::test]
async fn a_status_update_is_waited_for() {
    let late = Late::start("pods", &[]).await;
    let body = json!({"metadata": {"name": "a", "namespace": "x"}, "status": {"phase": "Failed"}});
    let reply = late.write("PUT", &format!("{POD}/status"), &body).await;
    assert_eq!(reply.json()["status"]["phase"], "Failed", "{reply}");
    late.check("PUT status", Then::Wait, POD).await;
}

#[tokio::test]
async fn writes_that_tell_no_version_send_reads_upstream() {
    after("DELETE", A, json!({}), 200, Then::Upstream).await;
    after("DELETE", MAPS, json!({}), 200, Then::Upstream).await;
}

#[tokio::test]
async fn the_last_finalizer_takes_the_object_with_it() {
    let late = Late::start("configmaps", &[]).await;
    let held = format!("{MAPS}/held");
    assert_eq!(late.write("DELETE", &held, &json!({})).await.status, 200);
    let freed = json!({"metadata": {"name": "held", "namespace": "x"}});
    let reply = late.write("PUT", &held, &freed).await;
    assert_eq!(reply.status, 200, "{reply}");
    assert!(reply.json()["metadata"]["deletionTimestamp"].is_string(), "the state before its end: {reply}");
    late.check("PUT without the last finalizer", Then::Upstream, &held).await;
}

#[tokio::test]
async fn writes_that_change_nothing_leave_the_cache_alone() {
    after("POST", &format!("{MAPS}?dryRun=All"), map("new", "1"), 201, Then::Cache).await;
    after("PUT", A, json!({"metadata": {"name": "other"}}), 400, Then::Cache).await;
}

/// A conflict is news: whoever lost it must not be shown the version it lost with.
#[tokio::test]
async fn a_lost_write_sends_the_next_read_upstream() {
    // Somebody else changes, creates or deletes the object; the client finds out by its own write.
    let late = Late::start("configmaps", &[]).await;
    let mut stale = late.rig.client().get(A).await.json();
    late.rig.upstream.world().update("configmaps", map("a", "theirs")).unwrap();
    stale["data"]["value"] = json!("mine");
    assert_eq!(late.write("PUT", A, &stale).await.status, 409);
    late.check("PUT conflict", Then::Upstream, A).await;

    let late = Late::start("configmaps", &[]).await;
    late.rig.upstream.world().create("configmaps", map("new", "theirs")).unwrap();
    assert_eq!(late.write("POST", MAPS, &map("new", "mine")).await.status, 409);
    late.check("POST of what exists", Then::Upstream, NEW).await;

    for method in ["PUT", "PATCH", "DELETE"] {
        let late = Late::start("configmaps", &[]).await;
        late.rig.upstream.world().delete("configmaps", "x/a").unwrap();
        assert_eq!(late.write(method, A, &json!({"metadata": {"name": "a"}})).await.status, 404, "{method}");
        late.check(&format!("{method} of what is gone"), Then::Upstream, A).await;
    }
}

#[tokio::test]
async fn an_eviction_sends_reads_upstream() {
    let late = Late::start("pods", &[]).await;
    let done = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success","code":201}"#;
    late.rig.upstream.on(create("pods").subresource("eviction")).reply(201, "application/json", done);
    late.rig.upstream.world().delete("pods", "x/a").unwrap();
    let body = json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "a", "namespace": "x"}});
    assert_eq!(late.write("POST", &format!("{POD}/eviction"), &body).await.status, 201);
    late.check("eviction", Then::Upstream, POD).await;
}

/// Upstream has done the write, and nobody hears of it: a 502 says so, it is not sent again, and reads find out.
#[tokio::test]
async fn a_write_whose_answer_is_lost_is_sent_once_and_never_denied() {
    let bodies = [("POST", MAPS, map("new", "1"), NEW), ("PUT", A, map("a", "1"), A), ("DELETE", A, json!({}), A)];
    for (method, path, body, object) in bodies {
        let late = Late::start("configmaps", &[]).await;
        let writes = move || any().and("write", |seen| seen.method != "GET");
        late.rig.upstream.on(writes()).reset_when_done();
        let reply = late.write(method, path, &body).await;
        let message = reply.status_message(502);
        assert!(message.contains("outcome of this write is unknown"), "{message}");
        assert_eq!(late.rig.upstream.log().count(writes()), 1, "{method}");
        late.check(&format!("{method} that broke off"), Then::Upstream, object).await;
    }
}

/// Nor when upstream answers with an error that does not say what has become of it, or is too slow to answer.
#[tokio::test]
async fn a_write_in_doubt_sends_reads_upstream() {
    let late = Late::start("configmaps", &["--request-timeout=500ms"]).await;
    let rule = late.rig.upstream.on(update("configmaps")).reply_status(500);
    assert_eq!(late.write("PUT", A, &map("a", "1")).await.status, 500);
    rule.remove();
    late.check("PUT with 500", Then::Upstream, A).await;

    let late = Late::start("configmaps", &["--request-timeout=500ms"]).await;
    let slow = late.rig.upstream.on(update("configmaps")).hold();
    let message = late.write("PUT", A, &map("a", "1")).await.status_message(504);
    assert!(message.contains("outcome of this write is unknown"), "{message}");
    slow.rule().remove();
    late.check("PUT without an answer", Then::Upstream, A).await;

    // The client leaves before the answer.
    let late = Late::start("configmaps", &[]).await;
    let slow = late.rig.upstream.on(update("configmaps")).hold();
    let client = late.rig.client();
    let writing = tokio::spawn(async move { client.write("PUT", A, &map("a", "1")).await.status });
    slow.wait_for(1, LIMIT).await.unwrap();
    writing.abort();
    slow.wait_empty(LIMIT).await.unwrap();
    slow.rule().remove();
    late.check("PUT whose client left", Then::Upstream, A).await;
}

#[tokio::test]
async fn a_fence_that_is_not_reached_in_time_ends_in_forwarding() {
    let late = Late::start("configmaps", &["--fence-timeout=200ms"]).await;
    assert_eq!(late.write("PUT", A, &map("a", "1")).await.status, 200);
    let reply = late.rig.client().get(A).await;
    assert_eq!((reply.answered(), &reply.json()["data"]["value"]), ("", &json!("1")), "{reply}");
    let forwarded = ["outcome=\"forwarded\"", "reason=\"fence_timeout\""];
    assert_eq!(late.rig.forebay.metric("forebay_requests_total", &forwarded).await, 1.0);
}

/// While no watch is open the event can't come: upstream is asked, and not after the whole time for a fence.
#[tokio::test]
async fn without_a_watch_no_fence_is_waited_for() {
    let upstream = upstream(ApiServer::builder()).await;
    upstream.world().create("configmaps", map("a", "old")).unwrap();
    let rig = Rig::with(upstream, &["--fence-timeout=1h"]).await;
    rig.forebay.wait_cached(MAPS).await;
    let refused = rig.upstream.on(own(watch("configmaps"))).reply_retry_after(503, 60);
    rig.upstream.watches("configmaps").cut();
    eventually("the watch is lost", || async { (refused.hits() > 0).then_some(()) }).await;
    assert_eq!(rig.client().write("PUT", A, &map("a", "1")).await.status, 200);
    let reply = within("the read", rig.client().get(A)).await;
    assert_eq!((reply.answered(), &reply.json()["data"]["value"]), ("", &json!("1")), "{reply}");
}

/// Monotonic reads: what a watch or a forwarded read has shown, a cached read does not take back.
#[tokio::test]
async fn reads_do_not_go_behind_what_was_shown() {
    let late = Late::start("configmaps", &[]).await;
    let from = late.rig.upstream.world().revision();
    let mut watching = late.rig.client().stream(&format!("{MAPS}?watch=1&resourceVersion={from}")).await;
    late.rig.upstream.world().update("configmaps", map("a", "1")).unwrap();
    assert_eq!(watching.event().await.0, "MODIFIED");
    late.check("an event that was passed on", Then::Wait, A).await;

    let late = Late::start("configmaps", &[]).await;
    late.rig.upstream.world().update("configmaps", map("a", "1")).unwrap();
    let live = late.rig.client().send("GET", A, &[("cache-control", "no-cache")], "").await;
    assert_eq!((live.answered(), &live.json()["data"]["value"]), ("", &json!("1")));
    late.check("a live GET", Then::Wait, A).await;

    let late = Late::start("configmaps", &[]).await;
    late.rig.upstream.world().delete("configmaps", "x/a").unwrap();
    let live = late.rig.client().send("GET", MAPS, &[("cache-control", "no-cache")], "").await;
    assert_eq!((live.answered(), live.names().len()), ("", 2));
    late.check("a live LIST", Then::Upstream, A).await;
}

/// Eight clients that read what they have just written, over a watch that is always late.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_see_their_own_writes() {
    const ROUNDS: usize = 8;
    let upstream = upstream(ApiServer::builder()).await;
    upstream.on(own(watch("configmaps"))).pace(std::time::Duration::from_millis(10));
    let rig = Rig::with(upstream, &[]).await;
    assert_eq!(rig.client().get(MAPS).await.status, 200);
    let mut clients = JoinSet::new();
    for n in 0..8 {
        let client = rig.client();
        clients.spawn(async move {
            let (name, path) = (format!("own-{n}"), format!("{MAPS}/own-{n}"));
            for round in 0..ROUNDS {
                let value = round.to_string();
                assert_eq!(client.write("POST", MAPS, &map(&name, "new")).await.status, 201);
                see(&client, &path, &name, Some("new")).await;
                assert_eq!(client.write("PUT", &path, &map(&name, &value)).await.status, 200);
                see(&client, &path, &name, Some(&value)).await;
                assert_eq!(client.write("DELETE", &path, &json!({})).await.status, 200);
                see(&client, &path, &name, None).await;
            }
        });
    }
    within("all clients", clients.join_all()).await;
    eventually("caught up", || async { rig.client().get(MAPS).await.names().is_empty().then_some(()) }).await;
}

async fn see(client: &Client, path: &str, name: &str, value: Option<&str>) {
    let one = client.get(path).await;
    assert_eq!(one.status, if value.is_some() { 200 } else { 404 }, "{one}");
    let all = client.get(MAPS).await.json();
    let item = all["items"].as_array().unwrap().iter().find(|item| item["metadata"]["name"] == name).cloned();
    if let Some(value) = value {
        assert_eq!(one.json()["data"]["value"], value);
    }
    assert_eq!(item.map(|item| item["data"]["value"].clone()), value.map(|value| json!(value)));
}
