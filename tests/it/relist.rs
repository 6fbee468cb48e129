//! When everything is loaded anew: after an expired version, in whatever form it is told, and never because a server is
//! behind. A load that fails changes nothing.

use std::time::{Duration, Instant};

use forebay::testing::{ApiServer, watch};
use serde_json::json;

use crate::rig::{LIMIT, Rig, eventually, loads, own, own_list, upstream, upstream_with_pods};

const PODS: &str = "/api/v1/pods";
const COUNT: usize = 500;

fn pod(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": "team-000"}})
}

/// Half of the new state is not shown, also when the other half does not come.
#[tokio::test]
async fn a_load_that_fails_half_way_changes_nothing() {
    for pages in [false, true] {
        let builder = ApiServer::builder();
        let upstream = upstream(if pages { builder.without_watch_list() } else { builder }).await;
        upstream.world().fill_pods(3, COUNT).unwrap();
        let rig = Rig::with(upstream, &["--list-page-size=100", "--max-staleness=1h"]).await;
        let before = rig.forebay.wait_cached(PODS).await;
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        if pages {
            rig.upstream.on(own_list("pods").continued()).after(2).times(2).reset();
        } else {
            rig.upstream.on(own(watch("pods").streaming())).times(2).cut_after(300_000);
        }
        // Nothing but the load tells that these are gone.
        let held = rig.upstream.on(own(watch("pods"))).times(1).reply_status(410);
        rig.upstream.watches("pods").end();
        for n in 0..50 {
            rig.upstream.world().delete("pods", &format!("team-{:03}/app-{n:06}", n % 3)).unwrap();
        }
        rig.upstream.world().compact();
        let after = eventually("the new state", || async {
            let reply = rig.client().get("/api/v1/pods?resourceVersion=0").await;
            assert_eq!((reply.status, reply.answered()), (200, "hit"), "{reply}");
            if reply.body == before.body { None } else { Some(reply) }
        })
        .await;
        assert_eq!(after.names(), rig.direct().get(PODS).await.names());
        assert_eq!(after.names().len(), COUNT - 50);
        assert!(held.hits() > 0 && loads(&rig.upstream, "pods") >= 4, "two loads failed");
    }
}

/// 410 on a continue token: the walk took longer than upstream keeps its version. It is done again, in one piece.
#[tokio::test]
async fn a_walk_that_expires_is_done_in_one_piece() {
    let upstream = upstream(ApiServer::builder().without_watch_list()).await;
    upstream.world().fill_pods(3, COUNT).unwrap();
    upstream.on(own_list("pods").continued()).after(2).reply_status(410);
    let rig = Rig::with(upstream, &["--list-page-size=100"]).await;
    assert_eq!(rig.client().get(PODS).await.names().len(), COUNT);
    let lists = rig.upstream.log().wait_count(own_list("pods"), 5, LIMIT).await.unwrap();
    assert_eq!((lists.len(), lists[4].param("limit")), (5, None), "three pages, the 410, and all of it");
    assert!(rig.forebay.metric("forebay_store_relists_total", &["reason=\"torn\""]).await == 1.0);
}

/// 410 again and again: each time everything is loaded, at growing intervals, and reads go on.
#[tokio::test]
async fn expiry_in_a_row_backs_off() {
    let upstream = upstream_with_pods(20).await;
    upstream.on(own(watch("pods"))).watch_error(410);
    let rig = Rig::with(upstream, &[]).await;
    rig.forebay.wait_cached(PODS).await;
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(4) {
        let reply = rig.client().get("/api/v1/pods?resourceVersion=0").await;
        assert_eq!((reply.status, reply.names().len()), (200, 20), "{reply}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    // At 0, 0, 0.8, 2.4 and 5.6 s, give or take a fifth.
    let loads = loads(&rig.upstream, "pods");
    assert!((3..=5).contains(&loads), "{loads} loads");
}

/// "Too large resource version" comes from a server that is behind: it is waited for, and nothing is listed.
#[tokio::test]
async fn a_server_that_is_behind_costs_no_list() {
    for event in [true, false] {
        let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
        let before = rig.forebay.wait_cached(PODS).await;
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        let asked = rig.upstream.log().count(own(watch("pods")));
        let behind = if event {
            rig.upstream.on(own(watch("pods"))).times(2).watch_error(504)
        } else {
            rig.upstream.on(own(watch("pods"))).times(2).reply_retry_after(504, 1)
        };
        rig.upstream.watches("pods").error(504);
        let watches = rig.upstream.log().wait_count(own(watch("pods")), asked + 3, LIMIT).await.unwrap();
        assert!(behind.hits() >= 2);
        let rv = before.json()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        for watch in &watches[asked..] {
            assert_eq!(watch.param("resourceVersion"), Some(&*rv), "it never goes back, nor elsewhere");
        }
        rig.upstream.world().create("pods", pod("later")).unwrap();
        eventually("it goes on", || async {
            let reply = rig.client().get(PODS).await;
            (reply.answered() == "hit" && reply.names().len() == 6).then_some(())
        })
        .await;
        assert_eq!(loads(&rig.upstream, "pods"), 1);
    }
}

/// An upstream that has been restored while the connection was lost is found out before anything is taken from it.
#[tokio::test]
async fn a_restored_upstream_is_found_out_when_the_watch_goes_on() {
    let rig = Rig::with(upstream_with_pods(20).await, &["--preload=pods,services"]).await;
    let backup = rig.upstream.world().backup();
    rig.upstream.world().advance(1_000);
    rig.upstream.world().create("pods", pod("lost")).unwrap();
    let lost = "/api/v1/namespaces/team-000/pods/lost";
    rig.forebay.wait_cached(lost).await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    rig.upstream.world().restore(&backup);
    rig.upstream.reset_connections();
    // No client asks: nothing but the watch could tell.
    eventually("everything is loaded anew", || async {
        let relists = rig.forebay.metric("forebay_store_relists_total", &["reason=\"went_back\""]).await;
        (relists >= 1.0 && rig.upstream.watches("pods").count() == 1).then_some(())
    })
    .await;
    assert_eq!(rig.client().get(lost).await.status, 404);
    assert_eq!(rig.client().get(PODS).await.names().len(), 20);
    rig.upstream.world().create("pods", pod("new")).unwrap();
    eventually("and followed", || async {
        let reply = rig.client().get(PODS).await;
        (reply.answered() == "hit" && reply.names().len() == 21).then_some(())
    })
    .await;
}

/// Another server takes over whose watches are behind: until one has come as far as upstream's state, reads are forwarded.
#[tokio::test]
async fn a_watch_that_is_behind_proves_nothing() {
    let rig = Rig::with(upstream_with_pods(5).await, &["--max-staleness=1s"]).await;
    rig.forebay.wait_cached(PODS).await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    let behind = rig.upstream.on(own(watch("pods"))).stall_after(0);
    rig.upstream.reset_connections();
    rig.upstream.world().create("pods", pod("later")).unwrap();
    let forwarded = eventually("forwarded", || async {
        let reply = rig.client().get(PODS).await;
        reply.answered().is_empty().then_some(reply)
    })
    .await;
    assert_eq!(forwarded.names().len(), 6);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        let reply = rig.client().get(PODS).await;
        assert_eq!((reply.status, reply.names().len(), reply.answered()), (200, 6, ""), "{reply}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    behind.remove();
    rig.upstream.reset_connections();
    eventually("it catches up", || async {
        let reply = rig.client().get(PODS).await;
        assert_eq!(reply.names().len(), 6, "{reply}");
        (reply.answered() == "hit").then_some(())
    })
    .await;
    assert_eq!(loads(&rig.upstream, "pods"), 1);
}

/// One streaming list that failed does not make every later list one in pages.
#[tokio::test]
async fn streaming_is_tried_again() {
    let upstream = upstream_with_pods(20).await;
    upstream.on(own(watch("pods").streaming())).times(1).reply_status(500);
    let rig = Rig::with(upstream, &[]).await;
    assert_eq!(rig.client().get(PODS).await.names().len(), 20);
    assert_eq!(rig.upstream.log().count(own_list("pods")), 1, "in pages");
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    rig.upstream.watches("pods").gone();
    rig.upstream.log().wait_count(own(watch("pods").streaming()), 2, LIMIT).await.unwrap();
    assert_eq!(rig.upstream.log().count(own_list("pods")), 1);
}

/// A quiet resource may be within what upstream has come to since it was restored, and be of the lost future nevertheless.
#[tokio::test]
async fn a_restore_found_by_one_store_is_believed_by_all() {
    let upstream = upstream(ApiServer::builder().bookmark_every(Duration::from_secs(600))).await;
    upstream.world().fill_pods(3, 5).unwrap();
    let map = |name: &str| json!({"metadata": {"name": name, "namespace": "team-000"}});
    upstream.world().create("configmaps", map("kept")).unwrap();
    let rig = Rig::with(upstream, &["--preload=pods,configmaps"]).await;
    let kept = "/api/v1/namespaces/team-000/configmaps/kept";
    let ghost = "/api/v1/namespaces/team-000/configmaps/ghost";
    rig.forebay.wait_cached(kept).await;
    let backup = rig.upstream.world().backup();
    // A future that will be lost.
    rig.upstream.world().create("configmaps", map("ghost")).unwrap();
    rig.upstream.world().delete("configmaps", "team-000/kept").unwrap();
    rig.forebay.wait_cached(ghost).await;
    rig.upstream.world().advance(1_000);
    rig.upstream.world().create("pods", json!({"metadata": {"name": "lost", "namespace": "team-000"}})).unwrap();
    rig.forebay.wait_cached("/api/v1/namespaces/team-000/pods/lost").await;
    for resource in ["pods", "configmaps"] {
        rig.upstream.watches(resource).wait_for(1, LIMIT).await.unwrap();
    }
    rig.upstream.world().restore(&backup);
    rig.upstream.world().advance(500);
    rig.upstream.reset_connections();
    // Its own version tells nothing: upstream has come further since. The other store's does.
    let (ghosts, keeps) = eventually("both from the cache", || async {
        let relists = rig.forebay.metric("forebay_store_relists_total", &["reason=\"went_back\""]).await;
        let watched = rig.upstream.watches("pods").count() == 1 && rig.upstream.watches("configmaps").count() == 1;
        let (ghosts, keeps) = (rig.client().get(ghost).await, rig.client().get(kept).await);
        let hit = ghosts.answered() == "hit" && keeps.answered() == "hit";
        (relists >= 1.0 && watched && hit).then_some((ghosts, keeps))
    })
    .await;
    assert_eq!((ghosts.status, keeps.status), (404, 200), "{ghosts} {keeps}");
}
