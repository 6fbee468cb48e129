//! Proof of life: a quiet connection is not a dead one, a dead one sends reads upstream, and without upstream what is held
//! is shown and says how old it is.

use std::time::{Duration, Instant};

use forebay::testing::{ApiServer, Gate, get, watch};

use serde_json::json;

use crate::rig::{Forebay, LIMIT, eventually, forwarded, loads, own, upstream, upstream_with_pods, within};

const PODS: &str = "/api/v1/pods";
const FIRST: &str = "/api/v1/namespaces/team-000/pods/app-000000";

/// A proxy whose way to upstream leads through a gate.
async fn behind_gate(server: &ApiServer, flags: &[&str]) -> (Gate, Forebay) {
    let gate = Gate::start(server.addr()).await.unwrap();
    let scheme = if server.ca_pem().is_some() { "https" } else { "http" };
    let config = server.kubeconfig_yaml_via(&format!("{scheme}://{}", gate.addr()));
    let forebay = Forebay::start(&config, flags).await;
    forebay.wait_cached(PODS).await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    (gate, forebay)
}

/// `age=` of `X-Forebay`.
fn age(reply: &crate::client::Reply) -> u64 {
    let header = reply.header("x-forebay");
    header.rsplit_once("age=").unwrap_or_else(|| panic!("no age in {header:?}")).1.parse().unwrap()
}

#[tokio::test]
async fn silence_with_pings_answered_is_life() {
    let server = upstream_with_pods(5).await;
    let (_gate, forebay) = behind_gate(&server, &["--max-staleness=600ms"]).await;
    let begun = Instant::now();
    // Nothing is said on the watch for five times as long.
    while begun.elapsed() < Duration::from_secs(3) {
        let reply = forebay.client().get(PODS).await;
        // A busy machine may be late with a ping; that is told by a forwarded answer, and must be the exception.
        assert!(matches!(reply.answered(), "hit" | ""), "{reply}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let hits = forebay.metric("forebay_requests_total", &["outcome=\"hit\""]).await;
    let stale = forebay.metric("forebay_requests_total", &["reason=\"stale\""]).await;
    assert!(hits > 4.0 * stale, "{hits} hits, {stale} forwarded");
}

#[tokio::test]
async fn a_dead_watch_sends_reads_upstream_while_upstream_answers() {
    let server = upstream_with_pods(5).await;
    let (gate, forebay) = behind_gate(&server, &["--max-staleness=1s"]).await;
    // Whatever is open now dies without a word; new connections are well.
    let before = gate.accepted();
    gate.links().iter().for_each(|link| link.black_hole(true));
    let died = Instant::now();
    server.world().delete("pods", "team-000/app-000000").unwrap();
    let reply = eventually("a read that upstream answers", || async {
        let reply = forebay.client().get(PODS).await;
        assert_eq!(reply.status, 200, "{reply}");
        reply.answered().is_empty().then_some(reply)
    })
    .await;
    assert_eq!(reply.names().len(), 4, "the truth");
    assert!(died.elapsed() > Duration::from_millis(500), "{:?}", died.elapsed());
    let ready = forebay.admin("/readyz?verbose").await.text();
    assert!(ready.contains("not proven since: reads are forwarded"), "{ready}");
    assert!(forebay.metric("forebay_store_age_seconds", &["resource=\"pods\""]).await > 1.0);
    // The dead connection is found by its pings, and the store lives again.
    eventually("a hit", || async {
        let reply = forebay.client().get(PODS).await;
        assert_eq!((reply.status, reply.names().len()), (200, 4), "{reply}");
        (reply.answered() == "hit").then_some(())
    })
    .await;
    // 15 s are promised; machines are busy.
    assert!(died.elapsed() < Duration::from_secs(20), "{:?}", died.elapsed());
    assert!(gate.accepted() > before);
    assert_eq!(loads(&server, "pods"), 1, "it went on where it was");
}

#[tokio::test]
async fn without_upstream_what_is_held_is_shown_with_its_age() {
    let server = upstream_with_pods(5).await;
    let (gate, forebay) = behind_gate(&server, &["--max-staleness=1s"]).await;
    for vanish in [true, false] {
        if vanish {
            gate.black_hole(true);
        } else {
            gate.refuse(true);
            gate.cut();
        }
        let since = Instant::now();
        let mut ages = Vec::new();
        while ages.len() < 3 || ages.last() < Some(&3) {
            for path in [PODS, FIRST] {
                let asked = Instant::now();
                let reply = within("an answer", forebay.client().get(path)).await;
                assert_eq!(reply.status, 200, "{reply}");
                if reply.answered() == "stale" {
                    assert!(age(&reply) <= since.elapsed().as_secs() + 1, "{reply}");
                    ages.push(age(&reply));
                } else {
                    assert_eq!(reply.answered(), "hit", "{reply} after {:?}", asked.elapsed());
                    assert!(age(&reply) <= 1, "{reply}");
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        assert!(ages.is_sorted(), "{ages:?}");
        // What is not held is not made up.
        let missing = within("an answer", forebay.client().get("/api/v1/namespaces/team-000/pods/none")).await;
        assert!(missing.status >= 404, "{missing}");
        gate.black_hole(false);
        gate.refuse(false);
        server.world().delete("pods", &format!("team-001/app-00000{}", if vanish { 1 } else { 4 })).unwrap();
        let left = if vanish { 4 } else { 3 };
        eventually("hits again", || async {
            let reply = forebay.client().get(PODS).await;
            (reply.answered() == "hit" && reply.names().len() == left).then_some(())
        })
        .await;
    }
    assert_eq!(loads(&server, "pods"), 1);
}

/// HTTP/1.1 has no pings: silence sends reads upstream, and one of them makes the watch prove itself again.
#[tokio::test]
async fn without_pings_silence_is_no_proof() {
    let server = upstream(ApiServer::builder().plain_http()).await;
    server.world().fill_pods(3, 5).unwrap();
    let (_gate, forebay) = behind_gate(&server, &["--max-staleness=500ms"]).await;
    eventually("a forwarded read", || async { forebay.client().get(FIRST).await.answered().is_empty().then_some(()) })
        .await;
    assert!(server.log().count(forwarded(get("pods"))) > 0);
    eventually("a hit", || async { (forebay.client().get(FIRST).await.answered() == "hit").then_some(()) }).await;
    assert_eq!(loads(&server, "pods"), 1);
}

/// A store that may have missed its creation does not say that an object is not there.
#[tokio::test]
async fn without_upstream_nothing_is_known_to_be_missing() {
    let server = upstream_with_pods(5).await;
    let gate = Gate::start(server.addr()).await.unwrap();
    let url = format!("https://{}", gate.addr());
    let forebay = Forebay::start(&server.kubeconfig_yaml_via(&url), &["--preload=pods", "--max-staleness=1s"]).await;
    forebay.wait_cached(PODS).await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    gate.refuse(true);
    gate.cut();
    server.world().create("pods", json!({"metadata": {"name": "made", "namespace": "team-000"}})).unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let reply = forebay.client().get("/api/v1/namespaces/team-000/pods/made").await;
    assert_ne!(reply.status, 404, "nobody can know");
}

/// Others are open and well: a read that upstream is about to answer goes on.
#[tokio::test]
async fn one_refused_connection_is_not_upstreams_absence() {
    let server = upstream_with_pods(5).await;
    let gate = Gate::start(server.addr()).await.unwrap();
    let url = format!("https://{}", gate.addr());
    let forebay =
        Forebay::start(&server.kubeconfig_yaml_via(&url), &["--preload=pods,services", "--max-staleness=1s"]).await;
    forebay.wait_cached(PODS).await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    server.on(own(watch("pods"))).reply_status(503);
    server.watches("pods").end();
    eventually("forwarded", || async {
        forebay.client().get("/api/v1/namespaces/team-001/pods/app-000001").await.answered().is_empty().then_some(())
    })
    .await;
    server.world().create("pods", json!({"metadata": {"name": "made", "namespace": "team-000"}})).unwrap();
    server.on(forwarded(get("pods"))).delay(Duration::from_millis(700));
    let client = forebay.client();
    let slow = tokio::spawn(async move { client.get("/api/v1/namespaces/team-000/pods/made").await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    gate.refuse(true);
    let _ = forebay.client().with_credential(Some("Bearer somebody")).get("/version").await;
    gate.refuse(false);
    let reply = within("slow", slow).await.unwrap();
    assert_eq!(reply.status, 200, "upstream has it");
}
