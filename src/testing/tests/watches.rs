//! WATCH: resuming, streaming lists, bookmarks, selectors, ends.

use serde_json::json;

use super::{super::*, client::End, *};

const MAPS: &str = "/api/v1/namespaces/x/configmaps?watch=1";
const STREAM: &str = "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";

fn event(kind: &str, name: &str, rv: u64) -> (String, String, u64) {
    (kind.to_owned(), name.to_owned(), rv)
}

#[tokio::test]
async fn resumes_strictly_after_a_version() {
    let (server, client) = start().await;
    let world = server.world();
    let first = world.create("configmaps", config_map("x", "a")).unwrap();
    let second = world.touch("configmaps", "x/a").unwrap();
    world.create("configmaps", config_map("y", "elsewhere")).unwrap();
    let mut stream = client.open(&format!("{MAPS}&resourceVersion={first}")).await;
    let text = String::from_utf8(world.text("configmaps", "x/a").unwrap().to_vec()).unwrap();
    assert_eq!(stream.line().await, Ok(format!(r#"{{"type":"MODIFIED","object":{text}}}"#)));
    let deleted = world.delete("configmaps", "x/a").unwrap();
    let text = text.replace(&format!(r#""{second}""#), &format!(r#""{deleted}""#));
    let line = stream.line().await.unwrap();
    assert!(line.starts_with(r#"{"type":"DELETED","object":{"kind":"ConfigMap","#), "{line}");
    assert!(line.contains(&format!(r#""resourceVersion":"{deleted}""#)), "{line} {text}");
}

#[tokio::test]
async fn streaming_lists_end_with_the_marked_bookmark() {
    let (server, client) = start().await;
    let world = server.world();
    let a = world.create("configmaps", config_map("x", "a")).unwrap();
    let b = world.create("configmaps", config_map("x", "b")).unwrap();
    world.advance(10);
    let rv = world.revision();
    let mut stream = client.open(&format!("{MAPS}&{STREAM}")).await;
    assert_eq!(stream.event().await, event("ADDED", "a", a));
    assert_eq!(stream.event().await, event("ADDED", "b", b));
    let want = format!(
        r#"{{"type":"BOOKMARK","object":{{"kind":"ConfigMap","apiVersion":"v1","metadata":{{"resourceVersion":"{rv}","annotations":{{"k8s.io/initial-events-end":"true"}}}}}}}}"#
    );
    assert_eq!(stream.line().await, Ok(want));
    let c = world.create("configmaps", config_map("x", "c")).unwrap();
    assert_eq!(stream.event().await, event("ADDED", "c", c));
    let mut custom = client.open(&format!("/apis/example.com/v1/widgets?watch=1&{STREAM}")).await;
    let rv = world.revision();
    let want = format!(
        r#"{{"type":"BOOKMARK","object":{{"apiVersion":"example.com/v1","kind":"Widget","metadata":{{"annotations":{{"k8s.io/initial-events-end":"true"}},"resourceVersion":"{rv}"}}}}}}"#
    );
    assert_eq!(custom.line().await, Ok(want));
}

#[tokio::test]
async fn bookmarks_come_when_asked_for() {
    let (server, client) = start().await;
    let world = server.world();
    let rv = world.create("pods", json!({"metadata": {"namespace": "x", "name": "p"}})).unwrap();
    let mut with = client.open(&format!("/api/v1/pods?watch=1&allowWatchBookmarks=true&resourceVersion={rv}")).await;
    let mut without = client.open(&format!("/api/v1/pods?watch=1&resourceVersion={rv}")).await;
    server.watches("pods").wait_for(2, LIMIT).await.unwrap();
    // Both streams are at rest once they have seen this.
    let touched = world.touch("pods", "x/p").unwrap();
    assert_eq!(with.event().await, event("MODIFIED", "p", touched));
    assert_eq!(without.event().await, event("MODIFIED", "p", touched));
    let moved = world.advance(5);
    world.bookmark("pods");
    let want = format!(
        r#"{{"type":"BOOKMARK","object":{{"kind":"Pod","apiVersion":"v1","metadata":{{"resourceVersion":"{moved}"}},"spec":{{"containers":null}},"status":{{}}}}}}"#
    );
    assert_eq!(with.line().await, Ok(want));
    let touched = world.touch("pods", "x/p").unwrap();
    assert_eq!(without.event().await, event("MODIFIED", "p", touched));
}

#[tokio::test]
async fn periodic_bookmarks() {
    let builder = ApiServer::builder().bookmark_every(Duration::from_millis(20));
    let (server, client) = start_with(builder).await.unwrap();
    let rv = server.world().revision();
    let mut stream = client.open(&format!("{MAPS}&allowWatchBookmarks=true&resourceVersion={rv}")).await;
    assert_eq!(stream.event().await, event("BOOKMARK", "", rv));
    assert_eq!(stream.event().await, event("BOOKMARK", "", rv));
}

#[tokio::test]
async fn objects_enter_and_leave_a_selector() {
    let (server, client) = start().await;
    let world = server.world();
    let rv = world.create("configmaps", config_map("x", "a")).unwrap();
    let label = |value: &str| json!({"metadata": {"labels": {"tier": value}}});
    let mut stream = client.open(&format!("{MAPS}&labelSelector=tier%3Dfront&resourceVersion={rv}")).await;
    let entered = world.patch("configmaps", "x/a", label("front")).unwrap();
    assert_eq!(stream.event().await, event("ADDED", "a", entered));
    let left = world.patch("configmaps", "x/a", label("back")).unwrap();
    let line = stream.line().await.unwrap();
    assert!(line.contains(r#""type":"DELETED""#) && line.contains(r#""tier":"front""#), "the old state: {line}");
    assert!(line.contains(&format!(r#""resourceVersion":"{left}""#)), "under the revision of the change: {line}");
}

#[tokio::test]
async fn an_old_version_is_an_error_event() {
    let (server, client) = start().await;
    server.world().create("configmaps", config_map("x", "a")).unwrap();
    server.world().compact();
    let oldest = server.world().revision();
    let mut stream = client.open(&format!("{MAPS}&resourceVersion=1")).await;
    let want = format!(
        r#"{{"type":"ERROR","object":{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Failure","message":"too old resource version: 1 ({oldest})","reason":"Expired","code":410}}}}"#
    );
    assert_eq!(stream.line().await, Ok(want));
    assert_eq!(stream.line().await, Err(End::Clean));
    client.open(&format!("{MAPS}&resourceVersion={oldest}&timeoutSeconds=0")).await;
}

#[tokio::test(start_paused = true)]
async fn timeout_seconds_ends_it_cleanly() {
    let (_server, client) = start().await;
    let begin = tokio::time::Instant::now();
    let mut stream = client.open(&format!("{MAPS}&resourceVersion=1&timeoutSeconds=5")).await;
    assert_eq!(stream.line().await, Err(End::Clean));
    assert!(begin.elapsed() >= Duration::from_secs(5));
}

#[tokio::test]
async fn commands_reach_running_watches() {
    let (server, client) = start().await;
    let open = async || {
        let stream = client.open(&format!("{MAPS}&resourceVersion=1")).await;
        server.watches("configmaps").wait_for(1, LIMIT).await.unwrap();
        stream
    };
    let mut stream = open().await;
    server.watches("pods").end();
    server.watches("configmaps").inject("not json\n");
    assert_eq!(stream.line().await, Ok("not json".to_owned()));
    server.watches("configmaps").end();
    assert_eq!(stream.line().await, Err(End::Clean));
    server.watches("configmaps").wait_for(0, LIMIT).await.unwrap();

    let mut stream = open().await;
    server.watches("configmaps").gone();
    assert!(stream.line().await.unwrap().contains(r#""reason":"Expired","code":410"#));
    server.watches("configmaps").wait_for(0, LIMIT).await.unwrap();

    let mut stream = open().await;
    server.watches("configmaps").cut();
    assert_eq!(stream.line().await, Err(End::Broken));
    server.watches("configmaps").wait_for(0, LIMIT).await.unwrap();

    let mut stream = open().await;
    server.world().restore(&server.world().backup());
    assert_eq!(stream.line().await, Err(End::Clean));
}

#[tokio::test]
async fn a_watch_ends_with_its_client() {
    let (server, client) = start().await;
    let stream = client.open(&format!("{MAPS}&resourceVersion=1")).await;
    server.watches("configmaps").wait_for(1, LIMIT).await.unwrap();
    drop(stream);
    server.watches("configmaps").wait_for(0, LIMIT).await.unwrap();
}

#[tokio::test]
async fn wrong_options_are_422() {
    let (_server, client) = start().await;
    for (query, message) in [
        ("sendInitialEvents=true", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"),
        (
            "resourceVersionMatch=NotOlderThan",
            "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided",
        ),
        ("continue=abc", "resourceVersionMatch is forbidden when continue is provided"),
    ] {
        let reply = client.get(&format!("{MAPS}&{query}")).await;
        let want = format!("ListOptions.meta.k8s.io \"\" is invalid: resourceVersionMatch: Forbidden: {message}");
        assert_eq!((reply.status, &reply.json()["message"]), (422, &json!(want)));
    }
    let (_server, client) = start_with(ApiServer::builder().without_watch_list()).await.unwrap();
    assert_eq!(client.get(&format!("{MAPS}&{STREAM}")).await.status, 422);
}
