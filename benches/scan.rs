//! How fast raw JSON is scanned and cut, next to `serde_json` and `memcpy` in the same run.
//!
//! `cargo bench --bench scan` (or `--profile quick-release` for a shorter build). Pods are synthetic, in the API server's
//! key order. Each figure is the best of several rounds on one core; compare rows, not runs.

use std::{borrow::Cow, hint::black_box, time::Duration};

use forebay::api::json::{
    frames::FrameDecoder,
    list::{ListError, Splitter},
    normal, object,
};
use tokio::time::Instant;

const ROUNDS: usize = 50;
const PODS: usize = 500;
/// What hyper hands on at once: a read of HTTP/1.1, a frame of HTTP/2.
const CHUNKS: [usize; 2] = [64 << 10, 16 << 10];

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Partial<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    api_version: Cow<'a, str>,
    #[serde(borrow)]
    metadata: Meta<'a>,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "camelCase")]
struct Meta<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(borrow)]
    namespace: Cow<'a, str>,
    #[serde(borrow)]
    uid: Cow<'a, str>,
    #[serde(borrow)]
    resource_version: Cow<'a, str>,
    #[serde(borrow)]
    labels: std::collections::BTreeMap<Cow<'a, str>, Cow<'a, str>>,
}

#[derive(serde::Deserialize)]
struct List<'a> {
    #[serde(borrow)]
    items: Vec<&'a serde_json::value::RawValue>,
}

fn main() {
    for (name, containers, managed) in [("4 KB", 2, 0), ("6 KB", 2, 2), ("10 KB", 3, 4)] {
        let pods: Vec<Vec<u8>> = (0..PODS).map(|n| pod(n, containers, managed).into_bytes()).collect();
        let bytes = pods.iter().map(Vec::len).sum();
        println!("\npods of {name} ({} bytes, {PODS} of them)", bytes / PODS);
        objects(&pods, bytes);
        lists(&pods);
        watches(&pods);
    }
}

fn objects(pods: &[Vec<u8>], bytes: usize) {
    let each = |label: &str, mut f: Box<dyn FnMut(&[u8])>| {
        report(label, bytes, pods.len(), || pods.iter().for_each(|pod| f(black_box(pod))));
    };
    let mut buffer = Vec::new();
    each(
        "memcpy into one buffer",
        Box::new(move |pod| {
            buffer.clear();
            buffer.extend_from_slice(pod);
            black_box(&buffer);
        }),
    );
    each("copy into Box<[u8]>", Box::new(|pod| drop(black_box(Box::<[u8]>::from(pod)))));
    each("object::scan", Box::new(|pod| drop(black_box(object::scan(pod)))));
    each("object::scan_whole", Box::new(|pod| drop(black_box(object::scan_whole(pod)))));
    each(
        "object::value spec.nodeName",
        Box::new(|pod| {
            black_box(object::value(pod, &["spec", "nodeName"]).is_ok());
        }),
    );
    each(
        "serde_json partial struct",
        Box::new(|pod| {
            let Ok(read) = serde_json::from_slice::<Partial<'_>>(pod) else { return };
            black_box((read.kind, read.api_version, read.metadata.name, read.metadata.namespace));
            black_box((read.metadata.uid, read.metadata.resource_version, read.metadata.labels));
        }),
    );
    each("serde_json skip all", Box::new(|pod| drop(black_box(serde_json::from_slice::<serde::de::IgnoredAny>(pod)))));
}

fn lists(pods: &[Vec<u8>]) {
    let prefix = normal::prefix("Pod", "v1").len();
    let mut body = br#"{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"1"},"items":["#.to_vec();
    for (n, pod) in pods.iter().enumerate() {
        body.extend(if n > 0 { &b","[..] } else { b"" });
        body.push(b'{');
        body.extend(&pod[prefix..]);
    }
    body.extend(b"]}\n");
    for size in CHUNKS {
        let split = |on_item: &mut dyn FnMut(&[u8])| {
            let mut splitter = Splitter::new(1 << 24);
            for chunk in body.chunks(size) {
                let _ = splitter.feed(chunk, |item| {
                    on_item(item);
                    Ok::<_, ListError>(())
                });
            }
            let _ = black_box(splitter.finish());
        };
        let kib = size >> 10;
        report(&format!("list, {kib} KiB pieces: split only"), body.len(), pods.len(), || {
            split(&mut |item| {
                black_box(item);
            });
        });
        report(&format!("list, {kib} KiB pieces: split, store"), body.len(), pods.len(), || {
            let mut kept = Vec::with_capacity(PODS);
            split(&mut |item| kept.push(normal::from_list_item(item, "Pod", "v1", false)));
            black_box(kept);
        });
        report(&format!("list, {kib} KiB pieces: split, store, scan"), body.len(), pods.len(), || {
            let mut kept = Vec::with_capacity(PODS);
            split(&mut |item| {
                let stored = normal::from_list_item(item, "Pod", "v1", false);
                black_box(object::scan(&stored).is_ok());
                kept.push(stored);
            });
            black_box(kept);
        });
    }
    report("list: serde_json &RawValue, copied", body.len(), pods.len(), || {
        let Ok(list) = serde_json::from_slice::<List<'_>>(&body) else { return };
        let copy = |item: &&serde_json::value::RawValue| Box::<[u8]>::from(item.get().as_bytes());
        black_box(list.items.iter().map(copy).collect::<Vec<_>>());
    });
    report("list: copy into Box<[u8]>, cuts known", body.len(), pods.len(), || {
        black_box(pods.iter().map(|pod| Box::<[u8]>::from(&pod[..])).collect::<Vec<_>>());
    });
}

fn watches(pods: &[Vec<u8>]) {
    let mut body = Vec::new();
    for pod in pods {
        body.extend(br#"{"type":"ADDED","object":"#);
        body.extend(pod);
        body.extend(b"}\n");
    }
    for size in CHUNKS {
        report(&format!("watch, {} KiB pieces: frames", size >> 10), body.len(), pods.len(), || {
            let mut decoder = FrameDecoder::new(1 << 24);
            for chunk in body.chunks(size) {
                decoder.feed(chunk);
                while let Ok(Some(frame)) = decoder.next_frame() {
                    black_box(frame);
                }
            }
        });
    }
}

/// Prints the best of [`ROUNDS`] rounds, in MB of input a second and time for each object.
fn report(label: &str, bytes: usize, objects: usize, mut round: impl FnMut()) {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let start = Instant::now();
        round();
        best = best.min(start.elapsed());
    }
    let (mb, ns) = (bytes as f64 / best.as_secs_f64() / 1e6, best.as_nanos() / objects as u128);
    println!("  {label:<42} {mb:>7.0} MB/s {ns:>7} ns/object");
}

/// A pod of `containers` containers, and what `managers` managers say they own of it.
fn pod(n: usize, containers: usize, managers: usize) -> String {
    let join = |parts: Vec<String>| parts.join(",");
    let spec = join((0..containers).map(|c| format!(r#"{{"name":"c{c}","image":"registry.example.com/team/app-{c}:v1.{n}","args":["--listen=:8080","--log-format=json","--config=/etc/app/config.yaml"],"ports":[{{"name":"http","containerPort":8080,"protocol":"TCP"}}],"env":[{{"name":"POD_NAME","valueFrom":{{"fieldRef":{{"apiVersion":"v1","fieldPath":"metadata.name"}}}}}},{{"name":"MODE","value":"prod"}}],"resources":{{"limits":{{"cpu":"500m","memory":"512Mi"}},"requests":{{"cpu":"100m","memory":"128Mi"}}}},"volumeMounts":[{{"name":"kube-api-access-x{n}","readOnly":true,"mountPath":"/var/run/secrets/kubernetes.io/serviceaccount"}}],"livenessProbe":{{"httpGet":{{"path":"/healthz","port":8080,"scheme":"HTTP"}},"timeoutSeconds":1,"periodSeconds":10,"successThreshold":1,"failureThreshold":3}},"terminationMessagePath":"/dev/termination-log","terminationMessagePolicy":"File","imagePullPolicy":"IfNotPresent"}}"#)).collect());
    let owned = join((0..containers).map(|c| format!(r#""k:{{\"name\":\"c{c}\"}}":{{".":{{}},"f:args":{{}},"f:env":{{".":{{}},"k:{{\"name\":\"MODE\"}}":{{".":{{}},"f:name":{{}},"f:value":{{}}}}}},"f:image":{{}},"f:imagePullPolicy":{{}},"f:livenessProbe":{{".":{{}},"f:failureThreshold":{{}},"f:httpGet":{{".":{{}},"f:path":{{}},"f:port":{{}},"f:scheme":{{}}}}}},"f:name":{{}},"f:resources":{{".":{{}},"f:limits":{{".":{{}},"f:cpu":{{}},"f:memory":{{}}}}}}}}"#)).collect());
    let managed = join((0..managers).map(|m| format!(r#"{{"manager":"manager-{m}","operation":"Update","apiVersion":"v1","time":"2026-09-30T20:25:00Z","fieldsType":"FieldsV1","fieldsV1":{{"f:metadata":{{"f:generateName":{{}},"f:labels":{{".":{{}},"f:app":{{}},"f:pod-template-hash":{{}}}},"f:ownerReferences":{{".":{{}},"k:{{\"uid\":\"5b4c1c8a-53{m:02}\"}}":{{}}}}}},"f:spec":{{"f:containers":{{{owned}}},"f:dnsPolicy":{{}},"f:restartPolicy":{{}},"f:schedulerName":{{}},"f:securityContext":{{}}}}}}}}"#)).collect());
    let statuses = join((0..containers).map(|c| format!(r#"{{"name":"c{c}","state":{{"running":{{"startedAt":"2026-09-30T20:25:00Z"}}}},"lastState":{{}},"ready":true,"restartCount":0,"image":"registry.example.com/team/app-{c}:v1.{n}","imageID":"registry.example.com/team/app-{c}@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08","containerID":"containerd://2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae","started":true}}"#)).collect());
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"web-7d4b9c-{n}","generateName":"web-7d4b9c-","namespace":"team-{}","uid":"9f0c1c6e-6f5b-4c1c-8a53-{n:012}","resourceVersion":"{}","creationTimestamp":"2026-09-30T20:25:00Z","labels":{{"app":"web","app.kubernetes.io/part-of":"shop","pod-template-hash":"7d4b9c"}},"annotations":{{"checksum/config":"01ba4719c80b6fe911b091a7c05124b64eeece964e09c058ef8f9805daca546b"}},"ownerReferences":[{{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c","uid":"5b4c1c8a-5300-4c1c-8a53-000000000000","controller":true,"blockOwnerDeletion":true}}],"managedFields":[{managed}]}},"spec":{{"volumes":[{{"name":"kube-api-access-x{n}","projected":{{"sources":[{{"serviceAccountToken":{{"expirationSeconds":3607,"path":"token"}}}}],"defaultMode":420}}}}],"containers":[{spec}],"restartPolicy":"Always","terminationGracePeriodSeconds":30,"dnsPolicy":"ClusterFirst","serviceAccountName":"default","nodeName":"node-{}","securityContext":{{}},"schedulerName":"default-scheduler"}},"status":{{"phase":"Running","conditions":[{{"type":"Ready","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-09-30T20:25:00Z"}}],"hostIP":"10.0.0.1","podIP":"10.1.0.1","startTime":"2026-09-30T20:25:00Z","containerStatuses":[{statuses}],"qosClass":"Burstable"}}}}"#,
        n % 40,
        1_000_000 + n,
        n % 300
    )
}
