//! Urgent requests never wait behind bulk: a lease, another write, an event, discovery, a watch and a cached read are
//! answered while lists lie unread, reads are held, a sync stalls and uploads find no reader, all on one HTTP/2
//! connection. Nothing here measures time: what must not wait has an answer while the rest provably has none.

use bytes::Bytes;
use forebay::testing::{ApiServer, list, watch};
use http_body_util::BodyExt as _;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    h2::{Connection, STREAM_WINDOW},
    raw::{RawUpstream, UPSTREAM_TOKEN},
    rig::{Forebay, LIMIT, Rig, own, upstream_with_pods, within},
};

const PODS: &str = "/api/v1/pods";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/x/leases";
const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/x/leases/leader";

/// Pods that make a list of several windows.
const MANY: usize = 8_000;

fn lease(holder: usize) -> String {
    let spec = json!({"holderIdentity": holder.to_string(), "leaseDurationSeconds": 15});
    let meta = json!({"name": "leader", "namespace": "x"});
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta, "spec": spec}).to_string()
}

/// One of everything that is urgent, each with its whole answer.
async fn urgent(connection: &Connection, round: usize) {
    let put = connection.send(connection.request("PUT", LEASE, lease(round))).await;
    assert_eq!((put.status, put.json()["spec"]["holderIdentity"].as_str()), (200, Some(&*round.to_string())), "{put}");
    let got = connection.send(connection.request("GET", LEASE, "")).await;
    assert_eq!((got.status, got.answered()), (200, ""), "{got}");
    let map = json!({"metadata": {"name": format!("c-{round}"), "namespace": "x"}}).to_string();
    let made = connection.send(connection.request("POST", "/api/v1/namespaces/x/configmaps", map)).await;
    assert_eq!(made.status, 201, "{made}");
    let event = json!({"metadata": {"name": format!("e-{round}"), "namespace": "x"}, "reason": "Tested"}).to_string();
    let event = connection.send(connection.request("POST", "/api/v1/namespaces/x/events", event)).await;
    assert_eq!(event.status, 201, "{event}");
    let groups = connection.send(connection.request("GET", "/apis", "")).await;
    assert_eq!(groups.status, 200, "{groups}");
    let watching = connection.request("GET", "/api/v1/namespaces/x/services?watch=true", "");
    assert_eq!(connection.open_answer(watching).await.unwrap().status(), 200);
}

async fn with_lease(rig: &Rig) -> Connection {
    let connection = Connection::open(rig.forebay.access()).await;
    let made = connection.send(connection.request("POST", LEASES, lease(0))).await;
    assert_eq!(made.status, 201, "{made}");
    connection
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_nobody_reads_hold_up_nothing_on_their_connection() {
    let rig = Rig::with(upstream_with_pods(MANY).await, &[]).await;
    let whole = rig.forebay.wait_cached(PODS).await.body.len();
    assert!(whole > 3 * STREAM_WINDOW as usize, "{whole} bytes");
    let connection = with_lease(&rig).await;
    let mut unread = Vec::new();
    for n in 0..6 {
        let mut request = connection.request("GET", PODS, "");
        if n % 3 == 2 {
            request.headers_mut().insert("cache-control", "no-cache".parse().unwrap());
        }
        let answer = connection.open_answer(request).await.unwrap();
        assert_eq!(answer.headers().contains_key("x-forebay"), n % 3 != 2);
        unread.push(answer.into_body());
    }
    for round in 1..6 {
        urgent(&connection, round).await;
        let pod =
            connection.send(connection.request("GET", &format!("{PODS}?fieldSelector=metadata.name=x"), "")).await;
        assert_eq!(pod.status, 200, "{pod}");
    }
    // They are whole all the same, once somebody reads them.
    for body in unread {
        let read = within("the rest of a list", body.collect()).await.unwrap().to_bytes();
        assert!(read.len().abs_diff(whole) < 1_000 && read.ends_with(b"]}\n"), "{} of {whole} bytes", read.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_held_reads_and_stalled_syncs_hold_up_nothing_on_their_connection() {
    const HELD: usize = 1_200;
    let rig = Rig::with(upstream_with_pods(20).await, &[]).await;
    let streaming = |resource| rig.upstream.on(own(watch(resource).streaming()));
    // One never begins, two break off.
    let syncs = [streaming("pods").hold(), streaming("nodes").hold_body(), streaming("deployments").hold_body()];
    let connection = with_lease(&rig).await;
    let mut held = JoinSet::new();
    for n in 0..HELD {
        let connection = connection.clone();
        let path = [PODS, "/api/v1/namespaces/team-000/pods/app-000000", "/api/v1/nodes", "/apis/apps/v1/deployments"];
        held.spawn(async move { connection.send(connection.request("GET", path[n % 4], "")).await });
    }
    rig.forebay.wait_held(HELD).await;
    for round in 1..6 {
        urgent(&connection, round).await;
    }
    assert_eq!(held.len(), HELD);
    assert!(held.try_join_next().is_none(), "none of them has been answered");
    syncs.iter().for_each(|hold| hold.release());
    while let Some(reply) = within("a held read", held.join_next()).await {
        let reply = reply.unwrap();
        assert_eq!(reply.status, 200, "{reply}");
    }
}

/// Uploads that upstream does not read fill their own windows, and leave room for others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_that_nobody_reads_hold_up_no_other() {
    const UPLOADS: usize = 10;
    let mut upstream = RawUpstream::start().await;
    let forebay = Forebay::start(&upstream.kubeconfig(), &[]).await;
    let connection = Connection::open(forebay.access()).await;
    let large = Bytes::from(vec![b' '; 16 << 20]);
    let mut uploads = JoinSet::new();
    let mut unread = Vec::new();
    for _ in 0..UPLOADS {
        let (connection, large) = (connection.clone(), large.clone());
        uploads.spawn(async move { connection.send(connection.request("POST", "/upload", large)).await });
        unread.push(upstream.next().await);
    }
    assert!(unread.iter().all(|request| request.target() == "/upload"));
    // By the end of these the uploads have filled whatever they can.
    for round in 0..200 {
        let body = lease(round);
        let putting = connection.send(connection.request("PUT", LEASE, body.clone()));
        let answering = async {
            let mut request = upstream.next().await;
            assert_eq!(request.target(), LEASE);
            assert_eq!(request.headers("authorization"), [format!("Bearer {UPSTREAM_TOKEN}")]);
            assert_eq!(request.read(body.len()).await, body.as_bytes());
            request.send("HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}").await;
        };
        let (put, ()) = tokio::join!(putting, answering);
        assert_eq!(put.status, 200, "{put}");
    }
    assert!(uploads.try_join_next().is_none());
    for mut request in unread {
        assert_eq!(request.read(large.len()).await.len(), large.len());
        request.send("HTTP/1.1 201 Created\r\ncontent-length: 0\r\n\r\n").await;
    }
    for reply in uploads.join_all().await {
        assert_eq!(reply.status, 201, "{reply}");
    }
}

/// On the way to upstream as well: what is slow there takes nothing from what is not.
#[tokio::test]
async fn upstream_requests_that_hang_hold_up_no_other() {
    let rig = Rig::with(ApiServer::builder().start().await.unwrap(), &[]).await;
    let connection = with_lease(&rig).await;
    let hanging = rig.upstream.on(list("services")).hold();
    let mut lists = JoinSet::new();
    for n in 0..200 {
        let connection = connection.clone();
        let path = format!("/api/v1/namespaces/x/services?limit={}&continue=x", n + 1);
        lists.spawn(async move { connection.send(connection.request("GET", &path, "")).await });
    }
    hanging.wait_for(200, LIMIT).await.unwrap();
    for round in 1..6 {
        urgent(&connection, round).await;
    }
    hanging.release();
    for reply in lists.join_all().await {
        let _: Value = reply.json();
    }
}
