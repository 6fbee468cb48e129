//! Held reads (issue 3 section 6.4, HLD-01, HLD-02, HLD-03): nothing is made up before the list is there, everybody is
//! answered from one list, and a hold ends in exactly one way.

use std::time::{Duration, Instant};

use forebay::testing::{ApiServer, Hold, Seen, discovery, get, list, read, watch};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    client::{Client, Protocol, Reply},
    rig::{LIMIT, Rig, eventually, forwarded, own, upstream_with_pods, within},
};

const PODS: &str = "/api/v1/pods";
const FIRST: &str = "/api/v1/namespaces/team-000/pods/app-000000";
const NONE: &str = "/api/v1/namespaces/team-000/pods/none";

/// Upstream's list of pods, however it is asked for, waits.
fn hold_lists(upstream: &ApiServer) -> [Hold; 2] {
    [upstream.on(own(watch("pods").streaming())).hold(), upstream.on(own(list("pods"))).hold()]
}

fn ask(reads: &mut JoinSet<(String, Reply)>, client: &Client, path: &str) {
    let (client, path) = (client.clone(), path.to_owned());
    reads.spawn(async move {
        let reply = client.get(&path).await;
        (path, reply)
    });
}

/// All answers; panics if one does not come.
async fn answers(mut reads: JoinSet<(String, Reply)>) -> Vec<(String, Reply)> {
    let mut replies = Vec::new();
    while let Some(reply) = within("an answer", reads.join_next()).await {
        replies.push(reply.unwrap());
    }
    replies
}

fn config_map(name: &str) -> Value {
    json!({"metadata": {"name": name}, "data": {"a": "b"}})
}

#[tokio::test]
async fn a_crowd_waits_for_one_list_and_is_answered_right() {
    let upstream = upstream_with_pods(60).await;
    let holds = hold_lists(&upstream);
    let rig = Rig::with(upstream, &["--preload=pods"]).await;
    let direct = rig.direct();
    let paths = [
        PODS,
        "/api/v1/namespaces/team-001/pods",
        "/api/v1/pods?labelSelector=tier%3Dback",
        "/api/v1/pods?labelSelector=tier%3Dnone",
        FIRST,
        "/api/v1/namespaces/team-002/pods/app-000059",
        NONE,
        "/api/v1/namespaces/nowhere/pods",
    ];
    let mut wants = Vec::new();
    for path in paths {
        wants.push((path, direct.get(path).await));
    }

    let clients = [rig.client(), rig.forebay.client_over(Protocol::Http2)];
    let mut reads = JoinSet::new();
    for n in 0..500 {
        ask(&mut reads, &clients[n % 2], paths[n % paths.len()]);
    }
    holds[0].wait_for(1, LIMIT).await.unwrap();
    rig.forebay.wait_held(500).await;
    assert!(reads.try_join_next().is_none(), "an answer before the list");

    // Health, writes and leases do not wait.
    assert_eq!(rig.forebay.admin("/livez").await.status, 200);
    let ready = rig.forebay.admin("/readyz?verbose").await;
    assert_eq!(ready.status, 500, "{ready}");
    assert!(ready.text().contains("[-]cache-sync/v1/pods failed: reason withheld (syncing, 0"), "{ready}");
    let begun = Instant::now();
    let client = rig.client();
    let made = client.write("POST", "/api/v1/namespaces/x/configmaps", &config_map("a")).await;
    assert_eq!(made.status, 201, "{made}");
    let lease = json!({"metadata": {"name": "l", "namespace": "x"}, "spec": {"holderIdentity": "me"}});
    let leases = "/apis/coordination.k8s.io/v1/namespaces/x/leases";
    assert_eq!(client.write("POST", leases, &lease).await.status, 201);
    assert_eq!(client.write("PUT", &format!("{leases}/l"), &lease).await.status, 200);
    assert_eq!(client.get(&format!("{leases}/l")).await.status, 200);
    let gone = client.send("DELETE", "/api/v1/namespaces/x/configmaps/a", &[], "").await;
    assert_eq!(gone.status, 200, "{gone}");
    assert!(begun.elapsed() < Duration::from_secs(5), "behind held reads: {:?}", begun.elapsed());
    assert!(reads.try_join_next().is_none(), "an answer before the list");

    holds.iter().for_each(Hold::release);
    for (path, reply) in answers(reads).await {
        let want = &wants.iter().find(|(known, _)| *known == path).unwrap().1;
        assert_eq!(reply.status, want.status, "{path}: {reply}");
        // A list's version is that of the moment of the list: writes have been made since.
        match want.status {
            200 if want.is_list() => assert_eq!(reply.names(), want.names(), "{path}"),
            _ => assert_eq!(reply.body, want.body, "{path}"),
        }
    }
    let log = rig.upstream.log();
    let lists = log.count(own(list("pods"))) + log.count(own(watch("pods").streaming()));
    assert_eq!(lists, 1, "one list for all");
    eventually("ready", || async { (rig.forebay.admin("/readyz").await.status == 200).then_some(()) }).await;
}

#[tokio::test]
async fn progress_is_shown_while_objects_come() {
    let upstream = upstream_with_pods(500).await;
    let hold = upstream.on(own(watch("pods").streaming())).hold_body();
    let rig = Rig::with(upstream, &["--preload=pods"]).await;
    hold.wait_for(1, LIMIT).await.unwrap();
    hold.release_one();
    eventually("progress", || async {
        let text = rig.forebay.admin("/readyz?verbose").await.text();
        let line = text.lines().find(|line| line.starts_with("[-]cache-sync/v1/pods failed"))?;
        let loaded: usize = line.split_once("(syncing, ")?.1.split(' ').next()?.parse().ok()?;
        (1..500).contains(&loaded).then_some(())
    })
    .await;
    let waiting = tokio::spawn({
        let client = rig.client();
        async move { client.get(PODS).await }
    });
    rig.forebay.wait_held(1).await;
    hold.release();
    assert_eq!(waiting.await.unwrap().names().len(), 500);
}

#[tokio::test]
async fn others_get_data_when_the_first_waiter_leaves() {
    let rig = Rig::with(upstream_with_pods(20).await, &[]).await;
    let holds = hold_lists(&rig.upstream);
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let client = rig.forebay.client_over(protocol);
        let first = tokio::spawn(async move { client.get(PODS).await.status });
        rig.forebay.wait_held(1).await;
        first.abort();
        rig.forebay.wait_held(0).await;
    }
    holds[0].wait_for(1, LIMIT).await.unwrap();
    let mut reads = JoinSet::new();
    (0..20).for_each(|n| ask(&mut reads, &rig.client(), [PODS, FIRST][n % 2]));
    rig.forebay.wait_held(20).await;
    holds.iter().for_each(Hold::release);
    for (path, reply) in answers(reads).await {
        assert_eq!((reply.status, reply.answered()), (200, "held"), "{path}: {reply}");
    }
    assert_eq!(rig.upstream.log().count(watch("pods")), 1, "the load of the first waiter went on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn five_thousand_wait_and_the_next_is_refused() {
    const MOST: usize = 5_000;
    let rig = Rig::with(upstream_with_pods(20).await, &["--max-holds=5000", "--max-concurrent-streams=10000"]).await;
    let holds = hold_lists(&rig.upstream);
    // An empty resource may be synced between the question for it and the look at its store.
    let _nodes = rig.upstream.on(own(watch("nodes").streaming())).hold();
    let client = rig.forebay.client_over(Protocol::Http2);
    let (mut staying, mut leaving) = (JoinSet::new(), JoinSet::new());
    for n in 0..MOST {
        ask(if n % 2 == 0 { &mut staying } else { &mut leaving }, &client, FIRST);
    }
    rig.forebay.wait_held(MOST).await;
    for _ in 0..50 {
        let refused = client.get(FIRST).await;
        let message = refused.status_message(429);
        assert!(message.contains("--max-holds"), "{message}");
        assert!(refused.header("retry-after").parse::<u32>().unwrap() > 0, "{refused}");
    }
    assert_eq!(client.get("/api/v1/nodes").await.status, 429, "a resource that is not synced would have to wait too");
    assert_eq!(client.get("/version").await.status, 200);
    let made = rig.client().write("POST", "/api/v1/namespaces/x/configmaps", &config_map("a")).await;
    assert_eq!(made.status, 201, "writes are never refused for reads: {made}");

    // Slots are free again as clients leave.
    leaving.shutdown().await;
    rig.forebay.wait_held(MOST / 2).await;
    (0..100).for_each(|_| ask(&mut staying, &client, FIRST));
    rig.forebay.wait_held(MOST / 2 + 100).await;
    holds.iter().for_each(Hold::release);
    let replies = answers(staying).await;
    assert_eq!(replies.len(), MOST / 2 + 100);
    for (_, reply) in replies {
        assert_eq!((reply.status, reply.answered()), (200, "held"), "{reply}");
    }
    rig.forebay.wait_held(0).await;
    assert_eq!(rig.upstream.log().count(watch("pods")), 1);
}

#[tokio::test]
async fn a_deadline_ends_the_hold_with_503_and_the_next_read_tries_again() {
    let rig = Rig::with(upstream_with_pods(20).await, &["--hold-timeout=300ms"]).await;
    let holds = hold_lists(&rig.upstream);
    for path in [PODS, FIRST, NONE] {
        let reply = rig.client().get(path).await;
        let message = reply.status_message(503);
        assert!(message.contains("pods") && message.contains("loading"), "{message}");
        assert!(reply.header("retry-after").parse::<u32>().unwrap() > 0, "{reply}");
        assert_eq!(reply.json()["details"]["retryAfterSeconds"].to_string(), reply.header("retry-after"));
    }
    assert_eq!(rig.upstream.log().count(forwarded(read("pods"))), 0);
    holds.iter().for_each(Hold::release);
    assert_eq!(rig.forebay.wait_cached(PODS).await.names().len(), 20);
}

#[tokio::test]
async fn a_deadline_may_end_in_forwarding() {
    let rig = Rig::with(upstream_with_pods(20).await, &["--hold-timeout=200ms", "--on-hold-timeout=forward"]).await;
    let _holds = hold_lists(&rig.upstream);
    for (path, status) in [(PODS, 200), (FIRST, 200), (NONE, 404)] {
        let reply = rig.client().get(path).await;
        assert_eq!((reply.status, reply.answered()), (status, ""), "{path}: {reply}");
        assert_eq!(reply.body, rig.direct().get(path).await.body, "{path}");
    }
}

#[tokio::test]
async fn the_requests_own_timeout_bounds_its_hold() {
    let rig = Rig::with(upstream_with_pods(20).await, &[]).await;
    let _holds = hold_lists(&rig.upstream);
    for (path, least) in [("?timeout=1s", 500), ("?timeout=100ms", 50), ("?timeout=1", 0)] {
        let begun = Instant::now();
        let reply = rig.client().get(&format!("{PODS}{path}")).await;
        // `1` is no duration: upstream's to judge.
        if path == "?timeout=1" {
            assert_eq!(reply.answered(), "", "{reply}");
            continue;
        }
        reply.status_message(503);
        let took = begun.elapsed();
        assert!(took >= Duration::from_millis(least) && took < Duration::from_secs(10), "{path} took {took:?}");
    }
}

/// HLD-01: where forebay may not list, reads are forwarded at once; caching begins by itself with the right to.
#[tokio::test]
async fn refused_upstream_ends_the_hold_and_rights_begin_it() {
    for code in [401, 403] {
        let upstream = upstream_with_pods(20).await;
        let refused = [own(watch("pods")), own(list("pods"))].map(|m| upstream.on(m).reply_status(code));
        let rig = Rig::with(upstream, &["--preload=pods"]).await;
        for (path, status) in [(PODS, 200), (FIRST, 200), (NONE, 404)] {
            let reply = within("a forwarded read", rig.client().get(path)).await;
            assert_eq!((reply.status, reply.answered()), (status, ""), "{path}: {reply}");
        }
        let ready = rig.forebay.admin("/readyz?verbose").await;
        assert!(ready.text().contains(&format!("(upstream answers {code}: reads are forwarded)")), "{ready}");
        assert!(rig.forebay.metric("forebay_requests_total", &["reason=\"refused_upstream\""]).await >= 3.0);
        // Where the client may not either, it sees upstream's own answer.
        let own_too = rig.upstream.on(forwarded(get("pods"))).reply_status(403);
        let reply = rig.client().get(FIRST).await;
        assert_eq!((reply.status, reply.body), (403, rig.direct().get(FIRST).await.body));
        own_too.remove();
        refused.iter().for_each(|rule| rule.remove());
        assert_eq!(rig.forebay.wait_cached(PODS).await.names().len(), 20);

        // Withdrawn while synced: what is held may not be shown any more.
        let refused = [own(watch("pods")), own(list("pods"))].map(|m| rig.upstream.on(m).reply_status(code));
        rig.upstream.watches("pods").end();
        eventually("reads are forwarded", || async {
            (rig.client().get(PODS).await.answered().is_empty()).then_some(())
        })
        .await;
        assert!(refused[0].hits() > 0);
    }
}

/// Rights in one namespace only: its reads are cached, all others are upstream's to refuse.
#[tokio::test]
async fn a_grant_for_one_namespace_is_used() {
    let upstream = upstream_with_pods(30).await;
    let elsewhere = |seen: &Seen| seen.call.namespace.as_deref() != Some("team-001");
    for matches in [watch("pods"), list("pods"), get("pods")] {
        upstream.on(matches.and("not in team-001", elsewhere)).reply_status(403);
    }
    let rig = Rig::with(upstream, &[]).await;
    let team = "/api/v1/namespaces/team-001/pods";
    let want = rig.direct().get(team).await;
    assert_eq!(rig.forebay.wait_cached(team).await.names(), want.names());
    assert_eq!(rig.forebay.wait_cached(&format!("{team}/app-000001")).await.status, 200);
    assert_eq!(rig.forebay.wait_cached(&format!("{team}/none")).await.status, 404);
    for path in [PODS, FIRST, "/api/v1/namespaces/team-002/pods"] {
        let reply = within("upstream's refusal", rig.client().get(path)).await;
        assert_eq!((reply.status, reply.answered()), (403, ""), "{path}: {reply}");
        assert_eq!(reply.body, rig.direct().get(path).await.body, "{path}");
    }
}

#[tokio::test]
async fn upstreams_trouble_with_our_list_is_retried_and_never_shown() {
    let rig = Rig::with(upstream_with_pods(20).await, &[]).await;
    // Streaming: too many requests, then an error that means "no streaming lists here". Pages: 503, then well.
    rig.upstream.on(own(watch("pods").streaming())).times(1).reply_status(429);
    rig.upstream.on(own(watch("pods").streaming())).after(1).reply_status(500);
    let rule = rig.upstream.on(own(list("pods"))).times(1).reply_retry_after(503, 1);
    let mut reads = JoinSet::new();
    for n in 0..30 {
        ask(&mut reads, &rig.client(), [PODS, FIRST, NONE][n % 3]);
    }
    for (path, reply) in answers(reads).await {
        let status = if path == NONE { 404 } else { 200 };
        assert_eq!((reply.status, reply.answered()), (status, "held"), "{path}: {reply}");
    }
    assert_eq!(rule.hits(), 2);
    assert_eq!(rig.upstream.log().count(forwarded(read("pods"))), 0);
}

/// HLD-02: before upstream has been reached once, nothing is known, not even which resources there are.
#[tokio::test]
async fn without_discovery_reads_wait_within_the_same_limits() {
    let upstream = upstream_with_pods(20).await;
    let hold = upstream.on(own(discovery())).hold();
    let rig = Rig::with(upstream, &["--max-holds=5"]).await;
    let mut reads = JoinSet::new();
    for n in 0..5 {
        ask(&mut reads, &rig.client(), [PODS, FIRST][n % 2]);
    }
    rig.forebay.wait_held(5).await;
    rig.client().get(PODS).await.status_message(429);
    let made = rig.client().write("POST", "/api/v1/namespaces/x/configmaps", &config_map("a")).await;
    assert_eq!(made.status, 201, "writes need no discovery: {made}");
    let lease = rig.client().get("/apis/coordination.k8s.io/v1/namespaces/x/leases/none").await;
    assert_eq!(lease.status, 404, "leases never wait: {lease}");
    hold.release();
    for (path, reply) in answers(reads).await {
        assert_eq!((reply.status, reply.answered()), (200, "held"), "{path}: {reply}");
    }
}

/// A type without objects is empty at once after its sync, and not before.
#[tokio::test]
async fn an_empty_resource_is_empty_only_once_synced() {
    const WIDGETS: &str = "/apis/example.com/v1/widgets";
    let rig = Rig::start(&[]).await;
    let hold = rig.upstream.on(own(watch("widgets").streaming())).hold();
    let mut reads = JoinSet::new();
    ask(&mut reads, &rig.client(), WIDGETS);
    hold.wait_for(1, LIMIT).await.unwrap();
    rig.forebay.wait_held(1).await;
    hold.release();
    let (_, reply) = answers(reads).await.remove(0);
    assert_eq!((reply.status, reply.answered()), (200, "held"), "{reply}");
    assert_eq!(reply.json()["items"], json!([]));
    assert_eq!(rig.client().get(WIDGETS).await.answered(), "hit");
}
