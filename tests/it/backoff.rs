//! An upstream in trouble is asked seldom, one that comes back is found at once, and a crowd comes back a few at a time.

use std::time::{Duration, Instant};

use forebay::testing::{ApiServer, Gate, any, list, watch};

use crate::rig::{Forebay, LIMIT, Rig, eventually, loads, own, own_list, upstream, upstream_with_pods, within};

const PODS: &str = "/api/v1/pods";
const ALL: [&str; 6] = ["namespaces", "nodes", "pods", "services", "configmaps", "deployments"];

fn preload() -> String {
    format!("--preload={}", ALL.join(",").replace("deployments", "deployments.apps"))
}

async fn everything_cached(upstream: &ApiServer) {
    for resource in ALL {
        upstream.watches(resource).wait_for(1, LIMIT).await.unwrap();
    }
}

#[tokio::test]
async fn an_upstream_that_refuses_everything_is_asked_seldom() {
    let rig = Rig::with(upstream_with_pods(5).await, &[&preload()]).await;
    everything_cached(&rig.upstream).await;
    let asked = rig.upstream.log().count(own(any()));
    let trouble = rig.upstream.on(own(any())).reply_retry_after(503, 1);
    rig.upstream.reset_connections();
    tokio::time::sleep(Duration::from_secs(4)).await;
    let during = rig.upstream.log().count(own(any())) - asked;
    // After 1, 1.6 and 3.2 s at the soonest for each store; discovery may have asked as well.
    assert!((ALL.len()..=4 * ALL.len() + 4).contains(&during), "{during} requests");
    trouble.remove();
    let back = Instant::now();
    everything_cached(&rig.upstream).await;
    // The first that succeeds wakes the others.
    assert!(back.elapsed() < Duration::from_secs(10), "{:?}", back.elapsed());
    for resource in ALL {
        assert_eq!(loads(&rig.upstream, resource), 1, "{resource} went on where it was");
    }
}

#[tokio::test]
async fn retry_after_is_respected() {
    let upstream = upstream_with_pods(5).await;
    upstream.on(own(watch("pods").streaming())).times(2).reply_retry_after(429, 2);
    let rig = Rig::with(upstream, &[]).await;
    assert_eq!(rig.client().get(PODS).await.names().len(), 5);
    let tries = rig.upstream.log().wait_count(own(watch("pods").streaming()), 3, LIMIT).await.unwrap();
    for pair in tries.windows(2) {
        let waited = pair[1].at - pair[0].at;
        assert!(waited >= Duration::from_secs(2), "{waited:?}");
    }
}

/// A read that is held while upstream is away does not wait for the end of a long pause when it is back.
#[tokio::test]
async fn who_waits_is_served_soon_after_upstream_is_back() {
    let server = upstream_with_pods(5).await;
    let gate = Gate::start(server.addr()).await.unwrap();
    gate.refuse(true);
    let forebay = Forebay::start(&server.kubeconfig_yaml_via(&format!("https://{}", gate.addr())), &[]).await;
    let client = forebay.client();
    let read = tokio::spawn(async move { client.get(PODS).await });
    // By then pauses are some seconds long.
    eventually("five attempts", || async { (gate.attempts() >= 5).then_some(()) }).await;
    gate.refuse(false);
    let reply = within("the read", read).await.unwrap();
    assert_eq!((reply.status, reply.names().len()), (200, 5), "{reply}");
}

/// After a restart lost watches go on a few at a time.
#[tokio::test]
async fn a_crowd_comes_back_a_few_at_a_time() {
    let rig = Rig::with(upstream_with_pods(5).await, &[&preload()]).await;
    everything_cached(&rig.upstream).await;
    let probes = own(any()).and("probe", |seen| seen.param("fieldSelector").is_some());
    let held = rig.upstream.on(probes).hold();
    rig.upstream.reset_connections();
    held.wait_for(4, LIMIT).await.unwrap();
    // Two more would come if they could: they are all awake by now.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(held.waiting(), 4);
    held.release();
    everything_cached(&rig.upstream).await;
}

/// Loads that nobody waits for are not in the way of one that a read is held for, even if it was preloaded itself.
#[tokio::test]
async fn what_is_read_is_loaded_first() {
    let upstream = upstream(ApiServer::builder().without_watch_list()).await;
    upstream.world().fill_pods(3, 5).unwrap();
    let held = upstream.on(own(any()).and("a load", |seen| seen.param("limit").is_some())).hold();
    let rig = Rig::with(upstream, &[&preload(), "--max-initial-lists=1"]).await;
    held.wait_for(1, LIMIT).await.unwrap();
    let first = ALL.iter().find(|resource| rig.upstream.log().count(own_list(resource)) > 0).unwrap();
    // The last in the queue.
    let wanted = if *first == "deployments" { "services" } else { "deployments" };
    let path = if wanted == "services" { "/api/v1/services" } else { "/apis/apps/v1/deployments" };
    let client = rig.client();
    let read = tokio::spawn(async move { client.get(path).await });
    held.wait_for(2, LIMIT).await.unwrap();
    let log = rig.upstream.log();
    let begun: Vec<_> = ALL.into_iter().filter(|resource| log.count(own(list(resource))) > 0).collect();
    assert!(begun.len() == 2 && begun.contains(&wanted), "{begun:?}");
    held.release();
    assert_eq!(within("the read", read).await.unwrap().status, 200);
}

/// Nothing is wrong with the answer, there is only nothing in it: a server or a balancer that is going down.
#[tokio::test]
async fn watches_that_end_at_once_are_opened_seldom() {
    let upstream = upstream_with_pods(5).await;
    let rig = Rig::with(upstream, &["--preload=pods"]).await;
    rig.forebay.wait_cached(PODS).await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    let plain = own(watch("pods")).and("no load", |seen| seen.param("sendInitialEvents").is_none());
    let before = rig.upstream.log().count(own(watch("pods")));
    let _rule = rig.upstream.on(plain).reply(200, "application/json", "");
    rig.upstream.watches("pods").end();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let asked = rig.upstream.log().count(own(watch("pods"))) - before;
    // After 0.8 and 1.6 s.
    assert!((2..=6).contains(&asked), "{asked} watches in 3 s");
}
