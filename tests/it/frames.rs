//! Watch events that upstream should not have sent: each has its outcome, is counted, and never becomes a wrong answer.
//!
//! What comes before an odd event is good; the event itself is taken only if it is true of its own object; and where
//! something must have been missed, everything is loaded anew.

use forebay::testing::ApiServer;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::rig::{LIMIT, Rig, eventually, loads, own, upstream_with_pods};

const NAMESPACE: &str = "/api/v1/namespaces/team-000/pods?resourceVersion=0";

/// What becomes of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Becomes {
    /// Nothing happens.
    Same,
    /// The watch is begun anew where it was.
    Resumed,
    /// Everything is loaded anew.
    Loaded,
    /// Its reads are forwarded.
    Uncacheable,
}

fn event(kind: &str, name: &str, rv: u64) -> Value {
    let meta =
        json!({"name": name, "namespace": "team-000", "resourceVersion": rv.to_string(), "uid": format!("u-{name}")});
    json!({"type": kind, "object": {"kind": "Pod", "apiVersion": "v1", "metadata": meta}})
}

fn line(event: &Value) -> String {
    format!("{event}\n")
}

async fn odd(rig: &Rig, what: &str) -> f64 {
    rig.forebay.metric("forebay_store_odd_events_total", &[&format!("what=\"{what}\"")]).await
}

/// Two pods of a namespace are cached; `frames`, given the latest version upstream has spent, come.
async fn case(what: &'static str, becomes: Becomes, frames: fn(u64, &ApiServer) -> String) {
    let rig = Rig::with(upstream_with_pods(4).await, &["--max-frame-bytes=100Ki"]).await;
    rig.forebay.wait_cached(NAMESPACE).await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    let rv = rig.upstream.world().advance(10);
    let watches = rig.upstream.log().count(own(forebay::testing::watch("pods")));
    rig.upstream.watches("pods").inject(frames(rv, &rig.upstream));
    if what == "cut" {
        rig.upstream.watches("pods").end();
    }
    if becomes == Becomes::Same {
        // A true event behind it shows that it has been taken.
        rig.upstream.watches("pods").inject(line(&event("ADDED", "after", rv)));
        eventually(what, || async {
            rig.client().get(NAMESPACE).await.names().contains(&"after".to_owned()).then_some(())
        })
        .await;
        assert_eq!(loads(&rig.upstream, "pods"), 1, "{what}");
        assert_eq!(rig.forebay.metric("forebay_store_odd_events_total", &[]).await, 0.0, "{what}");
        return;
    }
    eventually(what, || async { (odd(&rig, what).await >= 1.0).then_some(()) }).await;
    if becomes == Becomes::Uncacheable {
        eventually(what, || async {
            let reply = rig.client().get(NAMESPACE).await;
            (reply.status == 200 && reply.answered().is_empty()).then_some(())
        })
        .await;
        let ready = rig.forebay.admin("/readyz?verbose").await.text();
        assert!(ready.contains("not cached"), "{what}: {ready}");
        return;
    }
    // It goes on, with what upstream has.
    rig.upstream.log().wait_count(own(forebay::testing::watch("pods")), watches + 1, LIMIT).await.unwrap();
    rig.upstream.world().create("pods", json!({"metadata": {"name": "later", "namespace": "team-000"}})).unwrap();
    eventually(what, || async {
        let reply = rig.client().get(NAMESPACE).await;
        let names = reply.names();
        (reply.answered() == "hit" && names == ["app-000000", "app-000003", "later"]).then_some(())
    })
    .await;
    let expected = if becomes == Becomes::Loaded { 2 } else { 1 };
    assert_eq!(loads(&rig.upstream, "pods"), expected, "{what}");
    assert_eq!(odd(&rig, what).await, 1.0, "{what}: told once");
    for other in ["cut", "unreadable", "other_kind", "version_back", "added_known", "modified_unknown"] {
        assert!(other == what || odd(&rig, other).await == 0.0, "{what} counted as {other}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_odd_event_has_its_outcome() {
    let mut cases = JoinSet::new();
    let mut add = |what, becomes, frames| cases.spawn(case(what, becomes, frames));
    // What is cut off is no event; what is whole before it counts.
    add("cut", Becomes::Resumed, |rv, _| line(&event("ADDED", "x", rv - 1))[..60].to_owned());
    add("unreadable", Becomes::Resumed, |_, _| "<html>502 Bad Gateway</html>\n".to_owned());
    add("unreadable", Becomes::Resumed, |_, _| "{\"type\":\"ADDED\"}\n".to_owned());
    add("unreadable", Becomes::Resumed, |rv, _| line(&event("RENAMED", "app-000000", rv)));
    add("other_kind", Becomes::Resumed, |rv, _| {
        let mut event = event("ADDED", "x", rv);
        event["object"]["kind"] = "ConfigMap".into();
        line(&event)
    });
    add("other_kind", Becomes::Resumed, |rv, _| {
        let mut event = event("MODIFIED", "app-000000", rv);
        event["object"]["apiVersion"] = "v2".into();
        line(&event)
    });
    add("version_back", Becomes::Loaded, |_, _| line(&event("DELETED", "app-000000", 1)));
    add("version_back", Becomes::Loaded, |_, _| {
        let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "spec": {}});
        line(&json!({"type": "BOOKMARK", "object": object}))
    });
    add("added_known", Becomes::Loaded, |rv, _| line(&event("ADDED", "app-000000", rv)));
    add("modified_unknown", Becomes::Loaded, |rv, _| line(&event("MODIFIED", "x", rv)));
    add("deleted_unknown", Becomes::Loaded, |rv, _| line(&event("DELETED", "x", rv)));
    add("modified_unknown", Becomes::Loaded, |rv, _| {
        line(&event("DELETED", "app-000000", rv - 1)) + &line(&event("MODIFIED", "app-000000", rv))
    });
    // A repetition of what is held is no contradiction.
    add("repeated", Becomes::Same, |_, upstream| {
        let text = upstream.world().text("pods", "team-000/app-000003").unwrap();
        format!("{{\"type\":\"ADDED\",\"object\":{}}}\n", String::from_utf8_lossy(&text).trim_end())
    });
    add("too_large", Becomes::Uncacheable, |rv, _| {
        let mut event = event("ADDED", "x", rv);
        event["object"]["spec"] = "x".repeat(200_000).into();
        line(&event)
    });
    add("version_no_number", Becomes::Uncacheable, |rv, _| {
        let mut event = event("ADDED", "x", rv);
        event["object"]["metadata"]["resourceVersion"] = "1a".into();
        line(&event)
    });
    while let Some(case) = cases.join_next().await {
        case.unwrap();
    }
}

/// What comes in one piece with an error that ends the stream is not lost with it.
#[tokio::test]
async fn events_before_an_error_count() {
    for error in [500, 504] {
        let rig = Rig::with(upstream_with_pods(4).await, &[]).await;
        rig.forebay.wait_cached(NAMESPACE).await;
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        let rv = rig.upstream.world().advance(10);
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": error});
        let error = json!({"type": "ERROR", "object": status});
        rig.upstream.watches("pods").inject(line(&event("ADDED", "x", rv)) + &line(&error));
        // It is not in upstream's world, so only the event can have told it.
        eventually("the event", || async {
            rig.client().get(NAMESPACE).await.names().contains(&"x".to_owned()).then_some(())
        })
        .await;
        let watches = rig.upstream.log().wait_count(own(forebay::testing::watch("pods")), 2, LIMIT).await.unwrap();
        assert_eq!(watches[1].param("resourceVersion"), Some(&*rv.to_string()));
        assert_eq!(loads(&rig.upstream, "pods"), 1);
    }
}

/// A stream that keeps making no sense is no base for answers: upstream gives them.
#[tokio::test]
async fn nonsense_without_end_is_given_up() {
    let upstream = upstream_with_pods(4).await;
    upstream.on(own(forebay::testing::watch("pods"))).inject("nonsense\n");
    let rig = Rig::with(upstream, &[]).await;
    eventually("forwarded", || async {
        let reply = rig.client().get(NAMESPACE).await;
        assert_eq!((reply.status, reply.names().len()), (200, 2), "{reply}");
        let ready = rig.forebay.admin("/readyz?verbose").await.text();
        (reply.answered().is_empty() && ready.contains("upstream's stream makes no sense")).then_some(())
    })
    .await;
    assert!(loads(&rig.upstream, "pods") <= 4, "{} loads", loads(&rig.upstream, "pods"));
}
