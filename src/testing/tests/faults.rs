//! Every scripted fault, as a client sees it.

use serde_json::json;
use tokio::time::Instant;

use super::{super::*, client::End, *};

const PODS: &str = "/api/v1/pods";

async fn with_pods(count: usize) -> (ApiServer, Client) {
    let (server, client) = start().await;
    server.world().fill_pods(3, count).unwrap();
    (server, client)
}

#[tokio::test]
async fn held_requests_wait_until_released() {
    let (server, client) = with_pods(1).await;
    let hold = server.on(list("pods")).hold();
    let ask = || {
        let client = client.clone();
        tokio::spawn(async move { client.get(PODS).await.status })
    };
    let (first, second) = (ask(), ask());
    hold.wait_for(2, LIMIT).await.unwrap();
    assert_eq!(client.get("/api/v1/configmaps").await.status, 200, "other resources are not held");
    hold.release_one();
    tokio::time::timeout(LIMIT, async {
        while hold.waiting() != 1 {
            tokio::task::yield_now().await
        }
    })
    .await
    .unwrap();
    assert!(!(first.is_finished() && second.is_finished()));
    hold.release();
    assert_eq!((first.await.unwrap(), second.await.unwrap()), (200, 200));
    assert_eq!(client.get(PODS).await.status, 200, "later ones pass");
    assert_eq!(hold.rule().hits(), 3);
}

#[tokio::test]
async fn a_held_request_ends_with_its_client() {
    let (server, client) = with_pods(1).await;
    let hold = server.on(list("pods")).hold();
    let asking = tokio::spawn(async move { client.get(PODS).await.status });
    hold.wait_for(1, LIMIT).await.unwrap();
    asking.abort();
    hold.wait_empty(LIMIT).await.unwrap();
}

#[tokio::test]
async fn one_page_per_release() {
    let (server, client) = with_pods(5).await;
    let hold = server.on(list("pods")).hold();
    hold.release_one();
    let page = client.get(&format!("{PODS}?limit=2")).await;
    let token = page.json()["metadata"]["continue"].as_str().unwrap().to_owned();
    let next = tokio::spawn(async move { client.get(&format!("{PODS}?limit=2&continue={token}")).await.names().len() });
    hold.wait_for(1, LIMIT).await.unwrap();
    hold.release_one();
    assert_eq!(next.await.unwrap(), 2);
}

#[tokio::test]
async fn scripted_replies() {
    let (server, client) = with_pods(1).await;
    let rule = server.on(list("pods")).reply_status(403);
    let reply = client.get("/api/v1/namespaces/x/pods").await;
    let want = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods is forbidden: User \"system:serviceaccount:default:forebay\" cannot list resource \"pods\" in API group \"\" in the namespace \"x\"","reason":"Forbidden","details":{"kind":"pods"},"code":403}"#;
    assert_eq!((reply.status, reply.text.trim_end()), (403, want));
    rule.remove();
    assert_eq!(client.get(PODS).await.status, 200);

    for (code, retry_after) in [(401, ""), (404, ""), (410, ""), (429, "1"), (500, ""), (503, ""), (504, "")] {
        server.on(list("pods")).times(1).reply_status(code);
        let reply = client.get(PODS).await;
        assert_eq!((reply.status, reply.header("retry-after")), (code, retry_after));
        assert_eq!(reply.json()["code"], code);
    }
    assert_eq!(client.get(PODS).await.status, 200, "each once");

    server.on(get("pods").name("a")).after(1).times(1).reply_retry_after(503, 7);
    let path = "/api/v1/namespaces/x/pods/a";
    let codes = [client.get(path).await.status, client.get(path).await.status, client.get(path).await.status];
    assert_eq!(codes, [404, 503, 404]);

    server.on(list("pods")).times(1).reply_html();
    let reply = client.get(PODS).await;
    assert_eq!((reply.status, reply.header("content-type")), (200, "text/html; charset=utf-8"));
    server.on(list("pods")).times(1).reply_too_many_requests();
    let reply = client.get(PODS).await;
    assert_eq!((reply.status, &*reply.text), (429, "Too many requests, please try again later.\n"));
    server.on(list("pods")).times(1).content_type("text/plain");
    assert_eq!(client.get(PODS).await.header("content-type"), "text/plain");
    server.on(list("pods")).times(1).header("warning", "299 - \"old\"");
    assert_eq!(client.get(PODS).await.header("warning"), "299 - \"old\"");
}

#[tokio::test]
async fn bodies_are_cut_where_the_script_says() {
    let (server, h1) = with_pods(300).await;
    let whole = h1.get(PODS).await.text;
    for client in [h1, Client::new(&server, true)] {
        for at in [0, 1, 1_000, 400_000] {
            server.on(list("pods")).times(1).cut_after(at);
            let (bytes, end) = client.open(PODS).await.rest().await;
            assert_eq!((bytes.len(), end), (at, End::Broken));
            assert_eq!(bytes, &whole.as_bytes()[..at]);
        }
    }
}

#[tokio::test]
async fn bodies_stall_where_the_script_says() {
    let (server, client) = with_pods(300).await;
    server.on(list("pods")).stall_after(200_000);
    let response = client.send("GET", PODS, &[], "").await.unwrap();
    let mut body = response.into_body();
    let mut got = 0;
    while got < 200_000 {
        let frame = tokio::time::timeout(LIMIT, http_body_util::BodyExt::frame(&mut body)).await.unwrap();
        got += frame.unwrap().unwrap().into_data().unwrap().len();
    }
    assert_eq!(got, 200_000);
    let more = tokio::time::timeout(Duration::from_millis(50), http_body_util::BodyExt::frame(&mut body)).await;
    assert!(more.is_err(), "neither data nor an end");
}

#[tokio::test]
async fn a_reset_leaves_no_answer() {
    let (server, client) = with_pods(1).await;
    server.on(list("pods")).times(1).reset();
    client.send("GET", PODS, &[], "").await.unwrap_err();
    assert_eq!(client.get(PODS).await.status, 200);

    let mut stream = client.open(&format!("{PODS}?watch=1&resourceVersion=1000")).await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    server.reset_connections();
    assert_eq!(stream.line().await, Err(End::Broken));
    server.watches("pods").wait_for(0, LIMIT).await.unwrap();
}

#[tokio::test]
async fn goaway_lets_requests_finish_and_moves_clients_on() {
    let (server, _) = with_pods(1).await;
    let client = Client::new(&server, true);
    let hold = server.on(list("pods")).hold();
    let asking = {
        let client = client.clone();
        tokio::spawn(async move { client.get(PODS).await.status })
    };
    hold.wait_for(1, LIMIT).await.unwrap();
    server.go_away();
    hold.release();
    assert_eq!(asking.await.unwrap(), 200);
    assert_eq!(client.get("/version").await.status, 200);
    assert_eq!(server.accepted(), 2);
}

#[tokio::test(start_paused = true)]
async fn delays_and_pacing() {
    let (server, client) = with_pods(300).await;
    let bytes = client.get(PODS).await.text.len();
    let begin = Instant::now();
    server.on(list("pods")).times(1).delay(Duration::from_secs(3));
    client.get(PODS).await;
    assert!(begin.elapsed() >= Duration::from_secs(3));
    let begin = Instant::now();
    server.on(list("pods")).times(1).pace(Duration::from_millis(500));
    client.get(PODS).await;
    let pieces = u32::try_from(bytes / (160 * 1024)).unwrap();
    assert!(begin.elapsed() >= Duration::from_millis(500) * pieces, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn bodies_held_frame_by_frame() {
    let (server, client) = with_pods(300).await;
    let hold = server.on(list("pods")).hold_body();
    let response = client.send("GET", PODS, &[], "").await.unwrap();
    assert_eq!(response.status(), 200, "the head comes at once");
    let mut body = response.into_body();
    hold.wait_for(1, LIMIT).await.unwrap();
    hold.release_one();
    let frame = tokio::time::timeout(LIMIT, http_body_util::BodyExt::frame(&mut body)).await.unwrap();
    assert!(!frame.unwrap().unwrap().into_data().unwrap().is_empty());
    hold.wait_for(1, LIMIT).await.unwrap();
    hold.release();
    let rest = tokio::time::timeout(LIMIT, http_body_util::BodyExt::collect(body)).await.unwrap();
    assert!(rest.unwrap().to_bytes().ends_with(b"]}\n"));
}

#[tokio::test]
async fn watches_go_wrong_on_request() {
    let (server, client) = with_pods(2).await;
    let stream =
        format!("{PODS}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true");
    server.on(watch("pods").streaming()).times(1).reply_status(410);
    assert_eq!(client.get(&stream).await.status, 410);

    server.on(watch("pods")).times(1).watch_error(410);
    let mut lines = client.open(&stream).await;
    let kinds = [lines.event().await.0, lines.event().await.0, lines.event().await.0, lines.event().await.0];
    assert_eq!(kinds, ["ADDED", "ADDED", "BOOKMARK", "ERROR"]);
    assert_eq!(lines.line().await, Err(End::Clean));

    server.on(watch("pods")).times(1).end_watch_after(1);
    let mut lines = client.open(&stream.replace("allowWatchBookmarks=true", "")).await;
    assert_eq!(lines.event().await.0, "ADDED");
    assert_eq!(lines.line().await, Err(End::Clean));

    server.on(watch("pods")).times(1).inject("{\"type\":\n");
    let mut lines = client.open(&stream).await;
    for _ in 0..3 {
        lines.line().await.unwrap();
    }
    assert_eq!(lines.line().await, Ok("{\"type\":".to_owned()));

    let rule = server.on(watch("pods")).times(1).drop_end_bookmark();
    let mut lines = client.open(&stream).await;
    server.watches("pods").wait_for(2, LIMIT).await.unwrap();
    let kinds = [lines.event().await.0, lines.event().await.0];
    server.world().touch("pods", "team-000/app-000000").unwrap();
    assert_eq!((kinds, lines.event().await.0), (["ADDED".into(), "ADDED".into()], "MODIFIED".to_owned()));
    assert_eq!(rule.hits(), 1);
}

#[tokio::test]
async fn the_log_knows_every_request() {
    let (server, client) = with_pods(1).await;
    let waiting = server.log().wait_for(list("pods").user_agent("karmada"), LIMIT);
    let headers = [("user-agent", "karmada-controller-manager/v1")];
    let asked = client.ask("GET", "/api/v1/pods?limit=5", &headers, "");
    let (seen, _) = tokio::join!(waiting, asked);
    let seen = seen.unwrap();
    assert_eq!((seen.verb(), seen.path(), seen.query.as_str()), (Verb::List, PODS, "limit=5"));
    assert_eq!((seen.param("limit"), seen.header("user-agent")), (Some("5"), "karmada-controller-manager/v1"));
    client.get(&format!("{PODS}?watch=1&timeoutSeconds=0")).await;
    client.get("/apis").await;
    let log = server.log();
    assert_eq!((log.count(list("pods")), log.count(watch("pods")), log.count(discovery())), (1, 1, 1));
    assert_eq!((log.count(any()), log.count(|s: &Seen| s.method == "GET"), log.total()), (3, 3, 3));
    let late = log.wait_for(get("pods"), Duration::from_millis(10)).await;
    assert_eq!(late.unwrap_err().found, 0);
    log.clear();
    assert_eq!(log.count(any()), 0);
    assert_eq!(json!(log.total()), json!(3));
}

#[tokio::test]
async fn upgrades_switch_and_echo() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let (server, client) = with_pods(1).await;
    let path = "/api/v1/namespaces/team-000/pods/app-000000/exec?command=sh&stdin=true";
    let refused = client.ask("POST", path, &[], "").await;
    assert_eq!((refused.status, &refused.json()["message"]), (400, &json!("Upgrade request required")));
    let headers = [("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];
    let response = client.send("POST", path, &headers, "").await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["upgrade"].as_bytes()), (101, &b"SPDY/3.1"[..]));
    let upgraded = tokio::time::timeout(LIMIT, hyper::upgrade::on(response)).await.unwrap().unwrap();
    let mut stream = hyper_util::rt::TokioIo::new(upgraded);
    stream.write_all(b"\x80\x03anything").await.unwrap();
    let mut back = [0; 10];
    tokio::time::timeout(LIMIT, stream.read_exact(&mut back)).await.unwrap().unwrap();
    assert_eq!(&back, b"\x80\x03anything");
    assert_eq!(server.log().all().last().unwrap().status(), Some(101));
}

#[tokio::test]
async fn logs_are_text_and_follow_stays_open() {
    let (_server, client) = with_pods(1).await;
    let path = "/api/v1/namespaces/team-000/pods/app-000000/log";
    let reply = client.get(path).await;
    assert_eq!((reply.header("content-type"), &*reply.text), ("text/plain", "line 1\nline 2\nline 3\n"));
    let mut lines = client.open(&format!("{path}?follow=true")).await;
    for n in 1..=3 {
        assert_eq!(lines.line().await, Ok(format!("line {n}")));
    }
    let more = tokio::time::timeout(Duration::from_millis(50), lines.line()).await;
    assert!(more.is_err(), "neither a line nor an end");
}

#[tokio::test]
async fn running_watches_stall() {
    let (server, client) = with_pods(1).await;
    let mut lines = client.open(&format!("{PODS}?watch=1&resourceVersion={}", server.world().revision())).await;
    server.watches("pods").wait_for(1, LIMIT).await.unwrap();
    // Once this has come the stream is at rest, and takes the command before any other event.
    server.world().touch("pods", "team-000/app-000000").unwrap();
    lines.line().await.unwrap();
    server.watches("pods").stall();
    server.world().touch("pods", "team-000/app-000000").unwrap();
    let more = tokio::time::timeout(Duration::from_millis(50), lines.line()).await;
    assert!(more.is_err(), "neither an event nor an end");
}
