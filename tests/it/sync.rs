//! The first list appears whole (HLD-05), and a relist never shows less than what is there (HLD-02): by pages, by
//! streaming list, after a 410 as status and as event, with readers and writers at work.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use forebay::testing::{ApiServer, Hold, list, watch};
use serde_json::json;
use tokio::task::JoinSet;

use crate::{
    client::{Client, Protocol, Reply},
    rig::{LIMIT, Rig, eventually, own, upstream, upstream_with_pods, within},
};

const PODS: &str = "/api/v1/pods";
const FIRST: &str = "/api/v1/namespaces/team-000/pods/app-000000";
const LAST: &str = "/api/v1/namespaces/team-001/pods/app-000499";
const COUNT: usize = 500;

/// Readers that begin one after the other while a load is under way.
struct Crowd {
    client: Client,
    reads: JoinSet<Reply>,
}

/// Readers that list and get without a pause, and tell how many objects each list had.
struct Load {
    stop: Arc<AtomicBool>,
    reads: Arc<AtomicUsize>,
    readers: JoinSet<Vec<usize>>,
}

// === impl Crowd ===

impl Crowd {
    /// One more of each kind; none of those before may have been answered.
    async fn grow(&mut self, rig: &Rig) {
        for path in [PODS, FIRST, LAST] {
            let client = self.client.clone();
            self.reads.spawn(async move { client.get(path).await });
        }
        rig.forebay.wait_held(self.reads.len()).await;
        assert!(self.reads.try_join_next().is_none(), "an answer before the list was complete");
    }

    /// All are answered alike: the whole list, and both ends of it.
    async fn all_see(mut self, pods: usize) {
        while let Some(reply) = within("an answer", self.reads.join_next()).await {
            let reply = reply.unwrap();
            assert_eq!((reply.status, reply.answered()), (200, "held"), "{reply}");
            if reply.is_list() {
                assert_eq!(reply.names().len(), pods);
            }
        }
    }
}

// === impl Load ===

impl Load {
    fn start(rig: &Rig, readers: usize) -> Self {
        let (stop, reads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut tasks = JoinSet::new();
        for n in 0..readers {
            let client = rig.forebay.client_over([Protocol::Http1, Protocol::Http2][n % 2]);
            let (stop, reads) = (stop.clone(), reads.clone());
            tasks.spawn(async move {
                let mut counts = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let all = client.get(PODS).await;
                    assert_eq!(all.status, 200, "{all}");
                    counts.push(all.names().len());
                    assert_eq!(client.get(FIRST).await.status, 200);
                    reads.fetch_add(1, Ordering::Relaxed);
                }
                counts
            });
        }
        Self { stop, reads, readers: tasks }
    }

    /// Waits until so many more rounds of reads have been made.
    async fn goes_on(&self, rounds: usize) {
        let until = self.reads.load(Ordering::Relaxed) + rounds;
        eventually("reads go on", || async { (self.reads.load(Ordering::Relaxed) >= until).then_some(()) }).await;
    }

    /// The counts that were seen, by reader.
    async fn end(self) -> Vec<Vec<usize>> {
        self.stop.store(true, Ordering::Relaxed);
        within("the readers", self.readers.join_all()).await
    }
}

fn pod(name: &str) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": "team-000"}})
}

#[tokio::test]
async fn pages_appear_as_one() {
    let upstream = upstream(ApiServer::builder().without_watch_list()).await;
    upstream.world().fill_pods(3, COUNT).unwrap();
    let hold = upstream.on(own(list("pods"))).hold();
    let rig = Rig::with(upstream, &["--list-page-size=100", "--preload=pods"]).await;
    let mut crowd = Crowd { client: rig.client(), reads: JoinSet::new() };
    for page in 0..COUNT / 100 {
        hold.wait_for(1, LIMIT).await.unwrap();
        crowd.grow(&rig).await;
        let ready = rig.forebay.admin("/readyz?verbose").await;
        assert_eq!(ready.status, 500, "readiness follows the whole list: {ready}");
        if page > 0 {
            let progress = format!("(syncing, {}/{COUNT} objects", page * 100);
            assert!(ready.text().contains(&progress), "{progress} is not in {ready}");
        }
        if page == 2 {
            // All pages are of one moment; what is written meanwhile comes by the watch.
            rig.upstream.world().create("pods", pod("aaa")).unwrap();
            rig.upstream.world().delete("pods", "team-002/app-000497").unwrap();
        }
        hold.release_one();
    }
    crowd.all_see(COUNT).await;
    eventually("the end state", || async {
        let names = rig.client().get(PODS).await.names();
        (names == rig.direct().get(PODS).await.names()).then_some(())
    })
    .await;
    assert_eq!(rig.upstream.log().count(own(list("pods"))), COUNT / 100, "each page once");
    assert_eq!(rig.forebay.admin("/readyz").await.status, 200);
}

#[tokio::test]
async fn a_streaming_list_appears_as_one() {
    let upstream = upstream_with_pods(COUNT).await;
    let hold = upstream.on(own(watch("pods").streaming())).hold_body();
    let rig = Rig::with(upstream, &[]).await;
    let mut crowd = Crowd { client: rig.client(), reads: JoinSet::new() };
    crowd.grow(&rig).await;
    // 500 pods of 2 KB come in pieces of 128 KB. The last one ends with the bookmark.
    let pieces = rig.direct().get(PODS).await.body.len() / (128 << 10);
    assert!(pieces > 4);
    for _ in 0..pieces - 1 {
        hold.wait_for(1, LIMIT).await.unwrap();
        hold.release_one();
        crowd.grow(&rig).await;
    }
    hold.release();
    crowd.all_see(COUNT).await;
}

/// A streaming list that ends before it has said that it is complete is no list.
#[tokio::test]
async fn without_the_bookmark_at_its_end_a_streaming_list_is_no_list() {
    let upstream = upstream_with_pods(COUNT).await;
    // Ends cleanly after 100 of 500 objects.
    upstream.on(own(watch("pods").streaming())).times(1).end_watch_after(100);
    upstream.on(own(watch("pods").streaming())).times(1).drop_end_bookmark();
    // Breaks off.
    upstream.on(own(watch("pods").streaming())).after(1).times(1).cut_after(300_000);
    let rig = Rig::with(upstream, &[]).await;
    let mut crowd = Crowd { client: rig.client(), reads: JoinSet::new() };
    crowd.grow(&rig).await;
    crowd.all_see(COUNT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relists_never_show_less_than_there_is() {
    for pages in [false, true] {
        let builder = ApiServer::builder();
        let upstream = upstream(if pages { builder.without_watch_list() } else { builder }).await;
        upstream.world().fill_pods(3, COUNT).unwrap();
        let rig = Rig::with(upstream, &["--list-page-size=100"]).await;
        assert_eq!(rig.client().get(PODS).await.names().len(), COUNT);
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        let load = Load::start(&rig, 4);
        load.goes_on(4).await;

        // 410 as an event, the next list held in the middle; twenty objects go meanwhile, unseen by any watch.
        let hold = hold_load(&rig, pages);
        rig.upstream.watches("pods").gone();
        hold.wait_for(1, LIMIT).await.unwrap();
        load.goes_on(8).await;
        if pages {
            // The first page fixes the moment that all pages show.
            (0..20).for_each(|n| delete(&rig, COUNT - 1 - n));
            rig.upstream.world().compact();
            hold.release_one();
            hold.wait_for(1, LIMIT).await.unwrap();
        } else {
            hold.release_one();
            hold.wait_for(1, LIMIT).await.unwrap();
        }
        load.goes_on(8).await;
        hold.release();
        if !pages {
            (0..20).for_each(|n| delete(&rig, COUNT - 1 - n));
        }
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        see(&rig, COUNT - 20).await;

        // 410 as a status: the watch ends, and cannot go on where it was. Ten more go in the gap.
        let refused = rig.upstream.on(own(watch("pods"))).times(1).reply_status(410);
        let held = rig.upstream.on(own(watch("pods"))).times(1).hold();
        rig.upstream.watches("pods").end();
        held.wait_for(1, LIMIT).await.unwrap();
        (20..30).for_each(|n| delete(&rig, COUNT - 1 - n));
        rig.upstream.world().compact();
        load.goes_on(8).await;
        held.release();
        see(&rig, COUNT - 30).await;
        assert!(refused.hits() > 0);

        load.goes_on(4).await;
        for counts in load.end().await {
            assert!(counts.iter().all(|count| (COUNT - 30..=COUNT).contains(count)), "{counts:?}");
            assert!(counts.is_sorted_by(|a, b| a >= b), "objects came back: {counts:?}");
        }
        let relists = rig.forebay.metric("forebay_store_relists_total", &["reason=\"expired\""]).await;
        assert!(relists >= 2.0, "{relists} relists");
    }
}

fn hold_load(rig: &Rig, pages: bool) -> Hold {
    if pages {
        rig.upstream.on(own(list("pods"))).hold()
    } else {
        rig.upstream.on(own(watch("pods").streaming())).hold_body()
    }
}

fn delete(rig: &Rig, n: usize) {
    let key = format!("team-{:03}/app-{n:06}", n % 3);
    rig.upstream.world().delete("pods", &key).unwrap();
}

/// Waits until forebay shows so many pods, the ones upstream has.
async fn see(rig: &Rig, count: usize) {
    let names = eventually("the deleted ones are gone", || async {
        let reply = rig.client().get(PODS).await;
        let names = reply.names();
        (names.len() == count && !reply.answered().is_empty()).then_some(names)
    })
    .await;
    assert_eq!(names, rig.direct().get(PODS).await.names());
}

/// Upstream's history went back (etcd restored): the next relist shows it, and what was held is forgotten.
#[tokio::test]
async fn a_restored_upstream_is_believed() {
    let rig = Rig::with(upstream_with_pods(20).await, &[]).await;
    let backup = rig.upstream.world().backup();
    rig.upstream.world().create("pods", pod("lost")).unwrap();
    rig.upstream.world().advance(1_000);
    rig.upstream.world().touch("pods", "team-000/app-000000").unwrap();
    assert_eq!(rig.client().get(PODS).await.names().len(), 21);
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    rig.upstream.world().restore(&backup);
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    rig.upstream.watches("pods").gone();
    see(&rig, 20).await;
    assert_eq!(rig.client().get("/api/v1/namespaces/team-000/pods/lost").await.status, 404);
}
