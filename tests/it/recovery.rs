//! Streams as networks deliver them (SEL-12), and what happens when they end: the state in the end is upstream's, each
//! change is told once (CON-06), and nothing is listed again that need not be.

use std::{collections::BTreeMap, time::Duration};

use forebay::testing::{ApiServer, Gate, Resource, any, watch};
use serde_json::{Value, json};

use crate::{
    client::{Protocol, Stream},
    rig::{self, Forebay, LIMIT, Rig, eventually, forwarded, own, upstream, upstream_with_pods, within},
};

const PODS: &str = "/api/v1/pods";

/// 2-, 3- and 4-byte characters, escapes, and what JSON need not escape.
const TEXT: &str = "\u{e9}\u{20ac}\u{1f600} \"quoted\" \\ \n\t </script> \u{2028}";

fn loads(rig: &Rig) -> usize {
    rig::loads(&rig.upstream, "pods")
}

/// Waits until forebay's own list of pods is, byte for byte, the objects upstream has.
async fn equal(rig: &Rig, what: &str) {
    eventually(what, || async {
        let through = rig.client().get(PODS).await;
        let direct = rig.direct().get(PODS).await;
        let items = |body: &[u8]| body.split(|byte| *byte == b'[').skip(1).flatten().copied().collect::<Vec<u8>>();
        (!through.answered().is_empty() && items(&through.body) == items(&direct.body)).then_some(())
    })
    .await;
}

fn pod(name: &str, text: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "team-000", "annotations": {"text": text}}})
}

/// Creates, changes and deletes some pods.
fn stir(rig: &Rig, round: usize) {
    let world = rig.upstream.world();
    let name = format!("new-{round}");
    world.create("pods", pod(&name, TEXT)).unwrap();
    world.touch("pods", "team-000/app-000000").unwrap();
    world.update("pods", pod(&name, &TEXT.repeat(50))).unwrap();
    if round > 0 {
        world.delete("pods", &format!("team-000/new-{}", round - 1)).unwrap();
    }
}

#[tokio::test]
async fn the_size_of_the_pieces_does_not_matter() {
    for bytes in [1, 7, 4_095] {
        let upstream = upstream_with_pods(5).await;
        upstream.world().create("pods", pod("text", TEXT)).unwrap();
        upstream.on(own(watch("pods"))).dribble(bytes);
        let rig = Rig::with(upstream, &[]).await;
        equal(&rig, "the initial events").await;
        for round in 0..3 {
            stir(&rig, round);
            equal(&rig, "events").await;
        }
        assert_eq!(loads(&rig), 1, "{bytes} bytes: nothing broke");
    }
}

/// An object of 1.4 MB of multi-byte characters, in pieces of odd length, initially and as an event.
#[tokio::test]
async fn large_objects_pass_in_pieces() {
    let upstream = upstream_with_pods(2).await;
    upstream.world().create("pods", pod("big", &"\u{20ac}\u{1f600}".repeat(200_000))).unwrap();
    upstream.on(own(watch("pods"))).dribble(4_095);
    let rig = Rig::with(upstream, &[]).await;
    equal(&rig, "the initial events").await;
    rig.upstream.world().update("pods", pod("big", &"\u{1f600}\u{e9}".repeat(230_000))).unwrap();
    equal(&rig, "the event").await;
    assert_eq!(loads(&rig), 1);
}

/// Several events in one piece, CRLF and empty lines between them, and blanks where JSON allows them.
#[tokio::test]
async fn how_events_are_separated_does_not_matter() {
    let rig = Rig::with(upstream_with_pods(2).await, &[]).await;
    equal(&rig, "the list").await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    // Versions that upstream has spent on other things, for events that are not in its world.
    let rv = rig.upstream.world().advance(10);
    let event = |kind: &str, name: &str, rv: u64| {
        let meta = json!({"name": name, "namespace": "team-000", "resourceVersion": rv.to_string(), "uid": name});
        json!({"type": kind, "object": {"kind": "Pod", "apiVersion": "v1", "metadata": meta}}).to_string()
    };
    let [a, b, c] = [event("ADDED", "a", rv - 9), event("ADDED", "b", rv - 8), event("ADDED", "c", rv - 7)];
    let [d, e] = [event("MODIFIED", "a", rv - 6), event("DELETED", "b", rv - 5)];
    let e = e.replace("\":", "\" : ").replace(',', " ,\t");
    let piece = format!("{a}\r\n{b}\n\n\r\n{c}\n{d}\r\n  {e}  \r\n");
    rig.upstream.watches("pods").inject(piece);
    let names = || async {
        let reply = rig.client().get("/api/v1/namespaces/team-000/pods?resourceVersion=0").await;
        let names = reply.names();
        (names.contains(&"c".to_owned())).then_some(names)
    };
    assert_eq!(eventually("the injected events", names).await, ["a", "app-000000", "c"]);
    assert_eq!(loads(&rig), 1);
}

/// Half an event and then the end, a clean one or not: the half counts for nothing.
#[tokio::test]
async fn half_an_event_is_none() {
    for clean in [true, false] {
        let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
        equal(&rig, "the list").await;
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        let half = r#"{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"app-000000","#;
        rig.upstream.watches("pods").inject(half);
        if clean {
            rig.upstream.watches("pods").end()
        } else {
            rig.upstream.watches("pods").cut()
        }
        // Or what comes next would be its other half.
        rig.upstream.watches("pods").wait_for(0, LIMIT).await.unwrap();
        stir(&rig, 0);
        equal(&rig, "after the half").await;
        assert_eq!(loads(&rig), 1, "clean: {clean}: what came before is good, and the rest comes again");
    }
}

/// A watch that ends as they all do goes on from the last bookmark: no list, and nothing is told twice.
#[tokio::test]
async fn a_watch_that_ends_goes_on_from_its_last_bookmark() {
    let rig = Rig::with(upstream_with_pods(5).await, &[]).await;
    equal(&rig, "the list").await;
    for round in 0..5 {
        rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
        // Upstream moves on without pods, and tells so.
        let rv = rig.upstream.world().advance(100);
        rig.upstream.world().bookmark("pods");
        let reached = || async {
            let ready = rig.forebay.admin("/readyz?verbose").await.text();
            ready.contains(&format!("rv {rv},")).then_some(())
        };
        eventually("the bookmark", reached).await;
        let asked = rig.upstream.log().count(own(watch("pods")));
        rig.upstream.watches("pods").end();
        let watches = rig.upstream.log().wait_count(own(watch("pods")), asked + 1, LIMIT).await.unwrap();
        assert_eq!(watches.last().unwrap().param("resourceVersion"), Some(&*rv.to_string()), "round {round}");
        stir(&rig, round);
        equal(&rig, "after the end").await;
    }
    assert_eq!(loads(&rig), 1);
}

/// CON-06: a client that lists, then watches from the list's version, is told each later change once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn list_then_watch_loses_nothing_and_repeats_nothing() {
    let rig = Rig::with(upstream_with_pods(20).await, &[]).await;
    rig.forebay.wait_cached(PODS).await;
    let world = rig.upstream.world().clone();
    let writing = tokio::spawn(async move {
        for n in 0..400 {
            let name = format!("w-{}", n % 7);
            let key = format!("team-000/{name}");
            match (n / 7) % 3 {
                0 => world.create("pods", pod(&name, "created")).unwrap(),
                1 => world.touch("pods", &key).unwrap(),
                _ => world.delete("pods", &key).unwrap(),
            };
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    });
    let mut clients = Vec::new();
    while !writing.is_finished() {
        let client = rig.forebay.client_over([Protocol::Http1, Protocol::Http2][clients.len() % 2]);
        let reply = client.get(if clients.len() % 3 == 0 { "/api/v1/pods?resourceVersion=0" } else { PODS }).await;
        assert_eq!(reply.status, 200, "{reply}");
        let listed = reply.json();
        let rv = listed["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
        let stream = client.stream(&format!("{PODS}?watch=1&resourceVersion={rv}")).await;
        clients.push((objects(&listed), rv.parse::<u64>().unwrap(), stream));
    }
    within("the writer", writing).await.unwrap();
    let last = rig.upstream.world().touch("pods", "team-000/app-000000").unwrap();
    let truth = objects(&rig.direct().get(PODS).await.json());
    assert!(clients.len() > 10, "{} clients", clients.len());
    for (mut state, from, mut stream) in clients {
        follow(&mut state, from, last, &mut stream).await;
        assert_eq!(state, truth, "a client that began at {from}");
    }
    assert!(rig.forebay.metric("forebay_requests_total", &["outcome=\"hit\"", "verb=\"LIST\""]).await > 0.0);
}

/// Versions by name.
fn objects(list: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| (text(&item["metadata"]["name"]), text(&item["metadata"]["resourceVersion"]))).collect()
}

/// Applies events to a list, each of which must be news, and possible.
async fn follow(state: &mut BTreeMap<String, String>, from: u64, last: u64, stream: &mut Stream) {
    let mut at = from;
    while at < last {
        let (kind, name, rv) = stream.event().await;
        assert!(rv > at, "{kind} {name} of {rv} after {at}");
        at = rv;
        let known = state.contains_key(&name);
        match kind.as_str() {
            "ADDED" => assert!(!known, "{name} is added a second time"),
            "MODIFIED" | "DELETED" => assert!(known, "{kind} of {name}, which was never there"),
            other => panic!("{other}"),
        }
        if kind == "DELETED" {
            state.remove(&name);
        } else {
            state.insert(name, rv.to_string());
        }
    }
}

/// Upstream dies and another process takes its place, with the same state or a newer one.
#[tokio::test]
async fn a_restarted_upstream_is_found_again() {
    let first = upstream_with_pods(5).await;
    let gate = Gate::start(first.addr()).await.unwrap();
    let config = first.kubeconfig_yaml_via(&format!("https://{}", gate.addr()));
    // Another certificate would be refused: the new one is the old one's world on the old one's socket, cut and back.
    let forebay = Forebay::start(&config, &[]).await;
    forebay.wait_cached(PODS).await;
    for round in 0..2 {
        first.watches("pods").wait_for(1, LIMIT).await.unwrap();
        gate.refuse(true);
        gate.cut();
        first.watches("pods").wait_for(0, LIMIT).await.unwrap();
        first.world().create("pods", pod(&format!("while-away-{round}"), "")).unwrap();
        assert_eq!(forebay.client().get(PODS).await.names().len(), 5 + round, "what is held is still shown");
        gate.refuse(false);
        eventually("caught up", || async {
            (forebay.client().get(PODS).await.names().len() == 6 + round).then_some(())
        })
        .await;
    }
    assert_eq!(rig::loads(&first, "pods"), 1, "watches go on where they were");
    assert_eq!(first.log().count(forwarded(any())), 0);
}

/// The history is gone when it comes back: one list, and objects that went meanwhile are gone as well.
#[tokio::test]
async fn a_long_absence_costs_one_list() {
    let upstream = upstream(ApiServer::builder().history(10)).await;
    upstream.world().fill_pods(3, 50).unwrap();
    let rig = Rig::with(upstream, &[]).await;
    equal(&rig, "the list").await;
    rig.upstream.watches("pods").wait_for(1, LIMIT).await.unwrap();
    let away = rig.upstream.on(own(watch("pods"))).hold();
    rig.upstream.watches("pods").end();
    away.wait_for(1, LIMIT).await.unwrap();
    for n in 0..30 {
        rig.upstream.world().delete("pods", &format!("team-{:03}/app-{n:06}", n % 3)).unwrap();
    }
    away.release();
    equal(&rig, "after the absence").await;
    assert_eq!(rig.client().get(PODS).await.names().len(), 20);
    assert_eq!(loads(&rig), 2);
}

/// CRD-01 and CRD-05: a resource that is no longer served takes its objects along, and one that comes (again) is found
/// within seconds, with its own objects only.
#[tokio::test]
async fn resources_come_and_go() {
    const WIDGETS: &str = "/apis/example.com/v1/widgets";
    let rig = Rig::start(&[]).await;
    rig.upstream.world().fill_custom("widgets", 1, 5).unwrap();
    for round in 0..2 {
        let before = rig.forebay.wait_cached(WIDGETS).await;
        assert_eq!(before.names().len(), 5 - round);
        rig.upstream.world().unregister("widgets");
        let gone = || async {
            let reply = rig.client().get(WIDGETS).await;
            (reply.status == 404).then_some(reply)
        };
        assert_eq!(eventually("gone", gone).await.body, rig.direct().get(WIDGETS).await.body);
        for _ in 0..5 {
            assert_eq!(rig.client().get(WIDGETS).await.status, 404, "and stays so");
        }
        rig.upstream.world().register(Resource::widgets());
        rig.upstream.world().fill_custom("widgets", 1, 4 - round).unwrap();
        let truth = rig.direct().get(WIDGETS).await.json();
        let again = rig.forebay.wait_cached(WIDGETS).await.json();
        assert_eq!(again["items"], truth["items"], "other objects under the old names");
    }
}
