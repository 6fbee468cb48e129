//! Memory: what breaks the budget is forwarded and not tried again (MEM-02), what nobody reads is dropped and comes back,
//! a relist costs what has changed, and deleted objects are given back (MEM-01).

use std::time::{Duration, Instant};

use forebay::testing::{ApiServer, list, watch};
use serde_json::{Value, json};

use crate::rig::{LIMIT, Rig, eventually, own, upstream, upstream_with_pods};

const SECRETS: &str = "/api/v1/secrets";
const MAPS: &str = "/api/v1/configmaps";
const PODS: &str = "/api/v1/pods";
const POD: &str = "/api/v1/namespaces/team-000/pods/app-000000";

fn object(name: &str, bytes: usize) -> Value {
    json!({"metadata": {"name": name, "namespace": "a"}, "data": {"text": "x".repeat(bytes)}})
}

/// Three pods, and so many objects of so many bytes.
async fn upstream_with(resource: &str, count: usize, bytes: usize) -> ApiServer {
    let upstream = upstream_with_pods(3).await;
    for n in 0..count {
        upstream.world().create(resource, object(&format!("o-{n:05}"), bytes)).unwrap();
    }
    upstream
}

fn loads(rig: &Rig, resource: &str) -> usize {
    let log = rig.upstream.log();
    log.count(own(list(resource))) + log.count(own(watch(resource).streaming()))
}

async fn used(rig: &Rig) -> f64 {
    rig.forebay.metric("forebay_memory_used_bytes", &[]).await
}

async fn drops(rig: &Rig, resource: &str, reason: &str) -> f64 {
    let labels = [format!("resource=\"{resource}\""), format!("reason=\"{reason}\"")];
    rig.forebay.metric("forebay_store_drops_total", &[&labels[0], &labels[1]]).await
}

async fn forwarded(rig: &Rig, reason: &str) -> f64 {
    rig.forebay.metric("forebay_requests_total", &[&format!("reason=\"{reason}\"")]).await
}

#[tokio::test]
async fn what_is_too_large_is_forwarded_at_once_and_left_alone() {
    for pages in [false, true] {
        let builder = if pages { ApiServer::builder().without_watch_list() } else { ApiServer::builder() };
        let upstream = upstream(builder).await;
        upstream.world().fill_pods(3, 3).unwrap();
        for n in 0..400 {
            upstream.world().create("secrets", object(&format!("o-{n:05}"), 20_000)).unwrap();
        }
        let rig = Rig::with(upstream, &["--memory-budget=4Mi", "--on-hold-timeout=reject"]).await;
        rig.forebay.wait_cached(POD).await;
        let secret = "/api/v1/namespaces/a/secrets/o-00007";
        let client = rig.client();
        assert_eq!(client.get(secret).await.status, 200, "a Secret alone starts no cache");
        assert_eq!(loads(&rig, "secrets"), 0);

        // Nobody waits for the hold's deadline of a minute.
        let begun = Instant::now();
        let reads = (0..20).map(|n| {
            let client = rig.client();
            let path = if n % 2 == 0 { SECRETS } else { "/api/v1/namespaces/a/secrets" };
            tokio::spawn(async move { client.get(path).await })
        });
        for read in reads.collect::<Vec<_>>() {
            let reply = read.await.unwrap();
            assert_eq!((reply.status, reply.names().len(), reply.answered()), (200, 400, ""), "{reply}");
        }
        assert!(begun.elapsed() < LIMIT, "{:?}", begun.elapsed());
        // Without streaming lists the first request is in vain.
        let once = if pages { 2 } else { 1 };
        assert_eq!((drops(&rig, "secrets", "over_budget").await, loads(&rig, "secrets")), (1.0, once));

        for _ in 0..50 {
            let reply = client.get(secret).await;
            assert_eq!((reply.status, reply.answered()), (200, ""), "{reply}");
            assert_eq!(rig.forebay.wait_cached(POD).await.status, 200, "others stay");
        }
        assert_eq!(client.get("/api/v1/namespaces/a/secrets/none").await.status, 404);
        assert_eq!(loads(&rig, "secrets"), once, "not tried again");
        assert!(forwarded(&rig, "over_budget").await >= 50.0);
        let taken = used(&rig).await;
        assert!(taken < 100_000.0, "three pods take {taken} bytes");
        assert_eq!(rig.forebay.metric("forebay_memory_budget_bytes", &[]).await, 4_194_304.0);
        let ready = rig.forebay.admin("/readyz?verbose").await.text();
        assert!(ready.contains("over the memory budget: reads are forwarded"), "{ready}");
    }
}

/// A store that grows by events beyond the budget goes as well, and no load has to be under way for it.
#[tokio::test]
async fn what_grows_too_large_is_forwarded() {
    let upstream = upstream_with("configmaps", 50, 10_000).await;
    let rig = Rig::with(upstream, &["--memory-budget=1Mi"]).await;
    rig.forebay.wait_cached(POD).await;
    assert_eq!(rig.forebay.wait_cached(MAPS).await.names().len(), 50);
    for n in 50..150 {
        rig.upstream.world().create("configmaps", object(&format!("o-{n:05}"), 10_000)).unwrap();
    }
    eventually("the drop", || async { (drops(&rig, "configmaps", "over_budget").await == 1.0).then_some(()) }).await;
    let reply = rig.client().get(MAPS).await;
    assert_eq!((reply.names().len(), reply.answered()), (150, ""), "{reply}");
    assert_eq!(rig.forebay.wait_cached(POD).await.status, 200);
    assert_eq!(loads(&rig, "configmaps"), 1);
}

#[tokio::test]
async fn what_nobody_reads_is_dropped_and_comes_back() {
    let upstream = upstream_with("configmaps", 5, 10).await;
    let rig = Rig::with(upstream, &["--idle-timeout=300ms", "--preload=pods"]).await;
    rig.forebay.wait_cached(PODS).await;
    rig.forebay.wait_cached(MAPS).await;
    let open = async |resource: &str| {
        rig.forebay.admin("/metrics").await.text().lines().any(|line| {
            line.starts_with("forebay_store_objects{") && line.contains(&format!("resource=\"{resource}\""))
        })
    };
    eventually("it is dropped", || async { (!open("configmaps").await).then_some(()) }).await;
    assert_eq!(drops(&rig, "configmaps", "idle").await, 1.0);
    eventually("its watch ends", || async { (rig.upstream.watches("configmaps").count() == 0).then_some(()) }).await;

    // What clients have been shown meanwhile binds the store that comes back.
    let client = rig.client();
    let made = client.write("POST", "/api/v1/namespaces/a/configmaps", &object("new", 10)).await;
    assert_eq!(made.status, 201, "{made}");
    let reply = client.get(MAPS).await;
    assert_eq!((reply.names().len(), reply.answered()), (6, "held"), "{reply}");
    assert_eq!(loads(&rig, "configmaps"), 2);
    assert!(open("pods").await, "preloaded ones stay");
    assert_eq!((loads(&rig, "pods"), drops(&rig, "pods", "idle").await), (1, 0.0));
}

/// Reads come while the store is dropped again and again: each of them is answered, and right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_read_meets_a_store_that_is_being_dropped() {
    let rig = Rig::with(upstream_with("configmaps", 20, 10).await, &["--idle-timeout=4ms"]).await;
    rig.forebay.wait_cached(MAPS).await;
    let readers = (0..4).map(|reader| {
        let client = rig.client();
        tokio::spawn(async move {
            for n in 0..150 {
                let pause = Duration::from_micros((n * 7919 + reader * 104_729) % 12_000);
                tokio::time::sleep(pause).await;
                let reply = client.get(MAPS).await;
                assert_eq!((reply.status, reply.names().len()), (200, 20), "{reply}");
                let reply = client.get("/api/v1/namespaces/a/configmaps/o-00019").await;
                assert_eq!(reply.status, 200, "{reply}");
                assert_ne!(reply.answered(), "", "nothing is forwarded for it");
            }
        })
    });
    for reader in readers.collect::<Vec<_>>() {
        reader.await.unwrap();
    }
    eventually("a drop", || async { (drops(&rig, "configmaps", "idle").await >= 1.0).then_some(()) }).await;
    assert_eq!(rig.client().get(MAPS).await.names().len(), 20);
}

#[tokio::test]
async fn a_relist_costs_what_has_changed_and_deleted_objects_are_given_back() {
    const COUNT: usize = 1_000;
    let rig = Rig::with(upstream_with("configmaps", COUNT, 10_000).await, &[]).await;
    rig.forebay.wait_cached(MAPS).await;
    let steady = used(&rig).await;
    assert!((1.0..1.3).contains(&(steady / 10_000_000.0)), "{steady} bytes for 10 MB");
    // Each waits twice as long as the one before: one expiry after the other is met with patience.
    for round in 0..4 {
        let watches = rig.upstream.watches("configmaps");
        watches.wait_for(1, LIMIT).await.unwrap();
        watches.gone();
        eventually("another load", || async { (loads(&rig, "configmaps") == round + 2).then_some(()) }).await;
        watches.wait_for(1, LIMIT).await.unwrap();
        eventually("the end of the load", || async { (used(&rig).await == steady).then_some(()) }).await;
    }
    // One more, which stands still when all of its objects have come.
    let stands = rig.upstream.on(own(watch("configmaps").streaming())).times(1).drop_end_bookmark();
    rig.upstream.watches("configmaps").wait_for(1, LIMIT).await.unwrap();
    rig.upstream.watches("configmaps").gone();
    eventually("another load", || async { (stands.hits() > 0).then_some(()) }).await;
    let count = rig.upstream.world().len("configmaps") as f64;
    let peak = eventually("all objects", || async {
        let used = used(&rig).await;
        (used >= steady + 48.0 * count).then_some(used)
    })
    .await;
    assert!(peak < steady * 1.1, "{peak} bytes at the peak, {steady} before");
    assert_eq!(rig.client().get("/api/v1/namespaces/a/configmaps/o-00000").await.answered(), "hit");
    rig.upstream.watches("configmaps").cut();
    eventually("the end of the load", || async { (used(&rig).await == steady).then_some(()) }).await;
    let world = rig.upstream.world();
    for n in COUNT / 100..COUNT {
        world.delete("configmaps", &format!("a/o-{n:05}")).unwrap();
    }
    eventually("the bytes of deleted objects", || async { (used(&rig).await <= steady * 0.011).then_some(()) }).await;
}
