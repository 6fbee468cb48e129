//! POST, PUT, PATCH, DELETE.

use serde_json::json;

use super::*;

const MAPS: &str = "/api/v1/namespaces/x/configmaps";
const MERGE: (&str, &str) = ("content-type", "application/merge-patch+json");

#[tokio::test]
async fn create_update_conflict_delete() {
    let (server, client) = start().await;
    let made = client.ask("POST", MAPS, &[], r#"{"metadata":{"name":"a"},"data":{"k":"<"}}"#).await;
    assert_eq!((made.status, made.json()["metadata"]["namespace"].as_str()), (201, Some("x")));
    assert_eq!(made.text.trim_end().as_bytes(), server.world().text("configmaps", "x/a").unwrap());
    let again = client.ask("POST", MAPS, &[], r#"{"metadata":{"name":"a"}}"#).await;
    let want = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"configmaps \"a\" already exists","reason":"AlreadyExists","details":{"name":"a","kind":"configmaps"},"code":409}"#;
    assert_eq!((again.status, again.text.trim_end()), (409, want));

    let same = client.ask("PUT", &format!("{MAPS}/a"), &[], &made.text).await;
    assert_eq!((same.status, &same.text), (200, &made.text), "nothing changed, no new version");
    let changed = client.ask("PATCH", &format!("{MAPS}/a"), &[MERGE], r#"{"data":{"k":"2"}}"#).await;
    assert_ne!(changed.json()["metadata"]["resourceVersion"], made.json()["metadata"]["resourceVersion"]);
    let stale = client.ask("PUT", &format!("{MAPS}/a"), &[], &made.text).await;
    let message = "Operation cannot be fulfilled on configmaps \"a\": the object has been modified; please apply your changes to the latest version and try again";
    assert_eq!((stale.status, &stale.json()["message"]), (409, &json!(message)));

    let uid = made.json()["metadata"]["uid"].as_str().unwrap().to_owned();
    let deleted = client.ask("DELETE", &format!("{MAPS}/a"), &[], "").await;
    let want = format!(
        r#"{{"kind":"Status","apiVersion":"v1","metadata":{{}},"status":"Success","details":{{"name":"a","kind":"configmaps","uid":"{uid}"}}}}"#
    );
    assert_eq!((deleted.status, deleted.text.trim_end()), (200, &*want));
    assert_eq!(client.ask("DELETE", &format!("{MAPS}/a"), &[], "").await.status, 404);
    assert_eq!(client.ask("PUT", &format!("{MAPS}/a"), &[], &made.text).await.status, 404);
}

#[tokio::test]
async fn status_and_spec_are_written_apart() {
    let (server, client) = start().await;
    let path = "/apis/example.com/v1/namespaces/x/widgets";
    client.ask("POST", path, &[], r#"{"metadata":{"name":"w"},"spec":{"size":1}}"#).await;
    let body = r#"{"spec":{"size":9},"status":{"ready":true}}"#;
    let status = client.ask("PATCH", &format!("{path}/w/status"), &[MERGE], body).await.json();
    assert_eq!((&status["spec"]["size"], &status["status"]["ready"]), (&json!(1), &json!(true)));
    let whole =
        client.ask("PATCH", &format!("{path}/w"), &[MERGE], r#"{"spec":{"size":2},"status":null}"#).await.json();
    assert_eq!((&whole["spec"]["size"], &whole["status"]["ready"]), (&json!(2), &json!(true)));
    assert_eq!(whole["metadata"]["generation"], 2);
    let stale = server.world().object("widgets", "x/w").unwrap().with_rv(1);
    let put = client.ask("PUT", &format!("{path}/w/status"), &[], std::str::from_utf8(&stale.text).unwrap()).await;
    assert_eq!(put.status, 409, "a status write carries its precondition");
}

#[tokio::test]
async fn finalizers_delay_the_end() {
    let (server, client) = start().await;
    client.ask("POST", MAPS, &[], r#"{"metadata":{"name":"f","finalizers":["example.com/f"]}}"#).await;
    let marked = client.ask("DELETE", &format!("{MAPS}/f"), &[], "").await.json();
    assert_eq!((&marked["kind"], &marked["metadata"]["deletionGracePeriodSeconds"]), (&json!("ConfigMap"), &json!(0)));
    let last = client.ask("PATCH", &format!("{MAPS}/f"), &[MERGE], r#"{"metadata":{"finalizers":null}}"#).await;
    assert_eq!(
        (last.status, &last.json()["metadata"]["resourceVersion"]),
        (200, &json!(server.world().revision().to_string()))
    );
    assert_eq!(client.get(&format!("{MAPS}/f")).await.status, 404);
}

#[tokio::test]
async fn preconditions_dry_runs_and_collections() {
    let (server, client) = start().await;
    server.world().create("configmaps", config_map("x", "a")).unwrap();
    let rv = server.world().create("configmaps", config_map("x", "b")).unwrap();
    let dry = client.ask("POST", &format!("{MAPS}?dryRun=All"), &[], r#"{"metadata":{"name":"d"}}"#).await;
    assert_eq!((dry.status, &dry.json()["metadata"]["resourceVersion"]), (201, &json!(null)));
    let dry = client.ask("PATCH", &format!("{MAPS}/a?dryRun=All"), &[MERGE], r#"{"data":{"a":"dry"}}"#).await;
    assert_eq!((dry.status, &dry.json()["data"]["a"]), (200, &json!("dry")));
    assert_eq!(client.ask("DELETE", &format!("{MAPS}/a?dryRun=All"), &[], "").await.status, 200);
    let kept = client.ask("DELETE", &format!("{MAPS}/a"), &[], r#"{"preconditions":{"resourceVersion":"1"}}"#).await;
    assert_eq!((kept.status, &kept.json()["reason"]), (409, &json!("Conflict")));
    assert_eq!((server.world().len("configmaps"), server.world().revision()), (2, rv), "nothing has happened");

    let gone = client.ask("DELETE", &format!("{MAPS}?labelSelector=name%3Da"), &[], "").await;
    assert_eq!((gone.names(), server.world().keys("configmaps").len()), (vec!["a".to_owned()], 1));
    let json_patch = client.ask("PATCH", &format!("{MAPS}/b"), &[("content-type", "application/foo")], "[]").await;
    assert_eq!(json_patch.status, 415);
}

#[tokio::test]
async fn leases_are_resources_like_any_other() {
    let (_server, client) = start().await;
    let path = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
    let body = r#"{"metadata":{"name":"leader"},"spec":{"holderIdentity":"me"}}"#;
    let lease = client.ask("POST", path, &[], body).await;
    let renewed = lease.text.replace(r#""me""#, r#""you""#);
    assert_eq!(client.ask("PUT", &format!("{path}/leader"), &[], &renewed).await.status, 200);
    assert_eq!(client.get(&format!("{path}/leader")).await.json()["spec"]["holderIdentity"], "you");
}

#[tokio::test]
async fn generated_names() {
    let (server, client) = start().await;
    let made = client.ask("POST", MAPS, &[], r#"{"metadata":{"generateName":"gg-"}}"#).await;
    assert!(made.text.contains(r#""metadata":{"name":"gg-"#), "{}", made.text);
    assert_eq!(server.world().len("configmaps"), 1);
}
