//! The control plane breaks under clients that read and write all the time: kube-apiserver is killed, etcd is killed, and
//! another kube-apiserver takes over that is behind.
//!
//! Whatever happens, no read goes back, none misses what was written, nothing is missing that is there, and no write is made
//! twice. Errors are allowed while something is broken; afterwards everything is fresh again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use forebay::testing::Gate;
use http::Method;
use serde_json::{Value, json};
use tokio::time::sleep;

use crate::client::{Answer, HttpClient};
use crate::control_plane::{ControlPlane, Options};
use crate::fixtures::{config_map, eventually, in_namespace};
use crate::forebay::Forebay;
use crate::pair::list_rv;
use crate::users::{Role, Users};

const CLIENTS: usize = 4;
const JSON: [(&str, &str); 1] = [("content-type", "application/json")];
const MERGE_PATCH: [(&str, &str); 1] = [("content-type", "application/merge-patch+json")];

/// A kube-apiserver needs some 10 s to come up, on a busy machine more.
const LIMIT: Duration = Duration::from_secs(120);

/// One client and what it knows.
struct Oracle {
    name: String,
    collection: String,
    client: HttpClient,
    /// Highest version of its own object it has seen.
    rv: u64,
    list_rv: u64,
    /// Its last write that was confirmed, and the last it has sent.
    confirmed: u64,
    sent: u64,
    /// Writes whose outcome nobody knows: one may take effect late, after the next.
    unknown: BTreeSet<u64>,
    /// By their mark: whether the creation was confirmed.
    created: BTreeMap<String, bool>,
}

fn rv(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Errors of something that is broken: whoever gets them knows that he knows nothing.
fn is_outage(answer: &Answer) -> bool {
    answer.status.is_server_error() || answer.status == 429
}

// === impl Oracle ===

impl Oracle {
    fn path(&self) -> String {
        format!("{}/{}", self.collection, self.name)
    }

    /// Writes, reads at once, creates, lists; asserts all that must hold.
    async fn round(&mut self) -> bool {
        self.sent += 1;
        let patch = json!({"data": {"n": self.sent.to_string()}}).to_string();
        let wrote = self.client.try_request(Method::PATCH, &self.path(), &MERGE_PATCH, patch).await;
        match wrote {
            Ok(answer) if answer.status == 200 => {
                self.confirmed = self.sent;
                self.see(&answer.json(), "the write itself");
            }
            Ok(answer) => {
                assert!(is_outage(&answer), "{}: {}", self.name, answer.describe());
                self.unknown.insert(self.sent);
            }
            Err(_) => drop(self.unknown.insert(self.sent)),
        }
        let healthy = self.read().await;
        if self.sent.is_multiple_of(4) {
            self.create().await;
        }
        self.list().await && healthy
    }

    async fn read(&mut self) -> bool {
        let Ok(answer) = self.client.try_request(Method::GET, &self.path(), &[], "").await else { return false };
        if is_outage(&answer) {
            return false;
        }
        assert_eq!(answer.status, 200, "{} exists: {}", self.name, answer.describe());
        let by = format!("a GET, x-forebay {:?}", answer.header("x-forebay"));
        self.see(&answer.json(), &by);
        true
    }

    /// The object as somebody has shown it: not older than what was seen, and not without what was written.
    fn see(&mut self, object: &Value, by: &str) {
        let shown = rv(object);
        assert!(shown >= self.rv, "{}: {by} went back from {} to {shown}", self.name, self.rv);
        self.rv = shown;
        let n: u64 = object["data"]["n"].as_str().unwrap().parse().unwrap();
        assert!(
            n == self.confirmed || self.unknown.contains(&n),
            "{}: {by} shows {n} after {}, {:?}",
            self.name,
            self.confirmed,
            self.unknown
        );
    }

    async fn create(&mut self) {
        let mark = format!("{}-{}", self.name, self.sent);
        let mut body = config_map("x", json!({"mark": mark, "client": self.name}), json!({}));
        body["metadata"]["name"] = Value::Null;
        body["metadata"]["generateName"] = json!(format!("{mark}-"));
        let made = self.client.try_request(Method::POST, &self.collection, &JSON, body.to_string()).await;
        let confirmed = match made {
            Ok(answer) if answer.status == 201 => true,
            Ok(answer) => {
                assert!(is_outage(&answer), "{mark}: {}", answer.describe());
                false
            }
            Err(_) => false,
        };
        self.created.insert(mark, confirmed);
    }

    async fn list(&mut self) -> bool {
        let path = format!("{}?labelSelector=client%3D{}", self.collection, self.name);
        let Ok(answer) = self.client.try_request(Method::GET, &path, &[], "").await else { return false };
        if is_outage(&answer) {
            return false;
        }
        assert_eq!(answer.status, 200, "{}", answer.describe());
        let shown = list_rv(&answer.body);
        assert!(shown >= self.list_rv, "{}: a list went back from {} to {shown}", self.name, self.list_rv);
        self.list_rv = shown;
        self.compare(&answer);
        true
    }

    /// Each confirmed creation is there once, each other one at most once.
    fn compare(&self, list: &Answer) {
        let mut found = BTreeMap::<String, usize>::new();
        for item in list.json()["items"].as_array().unwrap() {
            *found.entry(item["metadata"]["labels"]["mark"].as_str().unwrap().to_owned()).or_default() += 1;
        }
        for (mark, confirmed) in &self.created {
            let times = found.get(mark).copied().unwrap_or_default();
            assert!(times <= 1, "{mark} was made {times} times");
            assert!(times == 1 || !confirmed, "{mark} is missing: x-forebay {:?}", list.header("x-forebay"));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_outage_makes_a_read_wrong_or_a_write_twice() {
    let mut plane = ControlPlane::start(Options::default()).unwrap();
    let namespace = plane.namespace("outage").await;
    let collection = in_namespace("/api/v1/configmaps", &namespace);
    let direct = plane.client(&Users::rig()).with_user_agent("rig");
    let front = Gate::start(plane.address_of(0)).await.unwrap();
    let user = plane.user(Role::Admin);
    let forebay = Forebay::start(&plane.kubeconfig_to(&user, &format!("https://{}", front.addr()))).await;

    let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut oracles = tokio::task::JoinSet::new();
    for n in 0..CLIENTS {
        let name = format!("client-{n}");
        direct.post(&collection, &config_map(&name, json!({}), json!({"n": "0"}))).await;
        let (client, collection) = (forebay.client().await.with_user_agent("oracle"), collection.clone());
        let mut oracle = Oracle {
            name,
            collection,
            client,
            rv: 0,
            list_rv: 0,
            confirmed: 0,
            sent: 0,
            unknown: BTreeSet::new(),
            created: BTreeMap::new(),
        };
        let (stop, rounds) = (stop.clone(), rounds.clone());
        oracles.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                if oracle.round().await {
                    rounds.fetch_add(1, Ordering::Relaxed);
                }
                sleep(Duration::from_millis(20)).await;
            }
            oracle
        });
    }
    // Reads and writes of all clients succeed, and the cache answers.
    let probe = forebay.client().await;
    let healthy = async |what: &str| {
        let before = rounds.load(Ordering::Relaxed);
        eventually(LIMIT, what, async || rounds.load(Ordering::Relaxed) > before + 10 * CLIENTS).await;
        let path = format!("{collection}/client-0");
        eventually(LIMIT, &format!("{what}: cached"), async || {
            probe.get(&path).await.header("x-forebay").starts_with("hit")
        })
        .await;
    };
    healthy("before").await;

    plane.lose_apiserver(Duration::from_secs(2)).await;
    healthy("after the death of kube-apiserver").await;
    plane.lose_etcd(Duration::from_secs(2)).await;
    healthy("after the death of etcd").await;

    // Another server takes over, which has heard nothing for a while.
    let behind = Gate::start(plane.etcd_address()).await.unwrap();
    plane.add_apiserver(&format!("http://{}", behind.addr())).await;
    behind.pause(true);
    let before = rounds.load(Ordering::Relaxed);
    eventually(LIMIT, "writes that the other has not heard of", async || {
        rounds.load(Ordering::Relaxed) > before + 5 * CLIENTS
    })
    .await;
    front.retarget(plane.address_of(1));
    front.cut();
    sleep(Duration::from_secs(3)).await;
    behind.pause(false);
    healthy("after the switch to a server that was behind").await;
    // And back again.
    front.retarget(plane.address_of(0));
    front.cut();
    healthy("after the switch back").await;

    stop.store(true, Ordering::Relaxed);
    while let Some(oracle) = oracles.join_next().await {
        let mut oracle = oracle.unwrap();
        assert!(oracle.read().await && oracle.list().await, "{}: everything is well again", oracle.name);
        let truth = direct.get(&format!("{}?labelSelector=client%3D{}", oracle.collection, oracle.name)).await;
        oracle.compare(&truth);
        assert!(oracle.created.len() > 5 && oracle.confirmed > 20, "{}: too little was done", oracle.name);
    }
}
