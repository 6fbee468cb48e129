//! The detector against a forebay whose upstream misbehaves at random: cuts, silence, expiry, refusals, junk, lost answers.
//!
//! Upstream is the scripted one behind a gate, because a real API server cannot be made to do half of this on request. The
//! client is the real one. Each round draws its faults from a seed, lets them act while the detector works through its
//! keys, and ends them. Whatever happens in between, no answer may be wrong, and each status is written: once, and never
//! without having been sent.
//!
//! `FOREBAY_CHAOS_ROUNDS` and `FOREBAY_CHAOS_SEED` choose other rounds; a failure names the seed of its round.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

use forebay::testing::{ApiServer, Gate, Match, Rule, list, read, update, watch};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::Value;

use crate::forebay::Forebay;
use crate::process::Scratch;
use crate::programs::GoClient;

const DEPLOYMENTS: &str = "deployments.apps";

/// Objects in all; the detector knows some more keys that do not exist.
const OBJECTS: usize = 120;
const ABSENT: usize = 12;

/// Rounds in front of one forebay; the next one begins with empty caches.
const ROUNDS_OF_ONE: u64 = 6;

/// For one round, all its retries included.
const LIMIT: Duration = Duration::from_secs(120);

/// Everything the rounds share.
struct Stage {
    upstream: ApiServer,
    gate: Gate,
    scratch: Scratch,
}

/// One thing that goes wrong for a while.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// All connections are reset.
    Cut,
    /// One of them is.
    CutOne,
    /// They stay open, and what is sent vanishes.
    BlackHole,
    /// They stay open, and nothing moves.
    Pause,
    Slow,
    Narrow,
    /// New connections are reset.
    Refuse,
    GoAway,
    /// The watches end cleanly, as a timeout ends them.
    WatchesEnd,
    WatchesCut,
    /// ERROR event of a compacted history.
    WatchesGone,
    /// ERROR event of an internal error.
    WatchesFail,
    /// History is compacted while the connections are down.
    Compacted,
    /// Half an event, then more of them.
    HalfAnEvent,
    NotJson,
    /// An event of another resource.
    AnotherKind,
    /// Lists and watches of forebay's own are answered with this code.
    Own(u16),
    OwnReset,
    /// They break off in the middle.
    OwnCut,
    /// They stop in the middle.
    OwnStall,
    /// A balancer's login page.
    OwnHtml,
    NoBookmarks,
    /// Whatever clients read is answered with this code, or not at all.
    Reads(u16),
    ReadsReset,
    /// Status writes are answered with this code and not done.
    Writes(u16),
    WritesReset,
    /// They are done, and the answer is lost.
    WritesLost,
}

const FAULTS: [Fault; 33] = [
    Fault::Cut,
    Fault::CutOne,
    Fault::BlackHole,
    Fault::Pause,
    Fault::Slow,
    Fault::Narrow,
    Fault::Refuse,
    Fault::GoAway,
    Fault::WatchesEnd,
    Fault::WatchesCut,
    Fault::WatchesGone,
    Fault::WatchesFail,
    Fault::Compacted,
    Fault::HalfAnEvent,
    Fault::NotJson,
    Fault::AnotherKind,
    Fault::Own(401),
    Fault::Own(403),
    Fault::Own(410),
    Fault::Own(429),
    Fault::Own(500),
    Fault::Own(503),
    Fault::OwnReset,
    Fault::OwnCut,
    Fault::OwnStall,
    Fault::OwnHtml,
    Fault::NoBookmarks,
    Fault::Reads(503),
    Fault::ReadsReset,
    Fault::Writes(503),
    Fault::Writes(429),
    Fault::WritesReset,
    Fault::WritesLost,
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_fault_makes_an_answer_wrong() {
    let number = |name: &str, default: u64| std::env::var(name).map_or(default, |text| text.parse().unwrap());
    let (rounds, seed) = (number("FOREBAY_CHAOS_ROUNDS", 30), number("FOREBAY_CHAOS_SEED", 1));
    let stage = Stage::start().await;
    let keys = stage.keys();
    let mut forebay = None;
    let mut all = BTreeMap::new();
    for n in 0..rounds {
        if n % ROUNDS_OF_ONE == 0 {
            forebay = Some(stage.forebay().await);
        }
        // Statuses are numbered by the round; the objects start with 2.
        let report = stage.round(forebay.as_ref().unwrap(), &keys, seed + n, 10 + n).await;
        for (name, value) in report.as_object().unwrap() {
            *all.entry(name.clone()).or_insert(0.0) += value.as_f64().unwrap_or(0.0);
        }
    }
    let mut text = format!("[cluster] {rounds} rounds of faults from seed {seed}:");
    for (name, sum) in all.iter().filter(|(name, _)| !name.ends_with("_ms")) {
        let _ = write!(text, " {name}={sum}");
    }
    let _ = writeln!(std::io::stderr(), "{text}");
}

// === impl Stage ===

impl Stage {
    async fn start() -> Self {
        let upstream = ApiServer::builder().keep_requests(100_000).start().await.unwrap();
        upstream.world().fill_deployments(5, OBJECTS).unwrap();
        let gate = Gate::start(upstream.addr()).await.unwrap();
        Self { upstream, gate, scratch: Scratch::new().unwrap() }
    }

    async fn forebay(&self) -> Forebay {
        let config = self.upstream.kubeconfig_yaml_via(&format!("https://{}", self.gate.addr()));
        let path = self.scratch.path().join("upstream");
        std::fs::write(&path, config).unwrap();
        // Shorter than by default, so that a round is not spent waiting for what a fault has swallowed.
        Forebay::start_with(&path, &["--request-timeout=3s", "--connect-timeout=2s", "--hold-timeout=10s"]).await
    }

    /// The keys of the detector: all objects, and some that do not exist.
    fn keys(&self) -> Vec<String> {
        let objects = self.upstream.world().keys(DEPLOYMENTS);
        let absent = objects.iter().take(ABSENT).map(|key| format!("!{key}-absent"));
        objects.iter().map(ToString::to_string).chain(absent).collect()
    }

    /// One run of the detector amid faults; its report.
    async fn round(&self, forebay: &Forebay, keys: &[String], seed: u64, status: u64) -> Value {
        let mut random = StdRng::seed_from_u64(seed);
        let file = self.scratch.path().join("keys");
        let mut shuffled = keys.to_vec();
        for i in (1..shuffled.len()).rev() {
            shuffled.swap(i, random.random_range(0..=i));
        }
        std::fs::write(&file, shuffled.join("\n")).unwrap();
        self.upstream.log().clear();
        let args = [format!("--keys={}", file.display()), format!("--round={status}")];
        let mut args: Vec<&str> = args.iter().map(String::as_str).collect();
        args.extend(["--workers=8", "--qps=100", "--burst=10", "--retries=200", "--verify", "--list-every=4"]);
        let mut detector = GoClient::start("detector", forebay.kubeconfig(), &args, &[]).await;
        let mut faults = Vec::new();
        let acting = async {
            // The detector is at work.
            let asked = self.upstream.log().wait_for(forwarded(watch(DEPLOYMENTS)), LIMIT);
            asked.await.unwrap();
            for _ in 0..random.random_range(3..8) {
                // What acts together, and when, is part of what the seed decides.
                tokio::time::sleep(Duration::from_millis(random.random_range(0..400))).await;
                let fault = FAULTS[random.random_range(0..FAULTS.len())];
                faults.push(fault);
                self.act(fault, &mut random).await;
            }
            self.heal();
        };
        let (lines, ()) = tokio::join!(detector.until("done", LIMIT), acting);
        detector.finish(LIMIT).await;
        let report = lines.last().unwrap();
        let what = format!("seed {seed}, faults {faults:?}");
        let trouble = || {
            let remarks: Vec<_> = lines[..lines.len() - 1].iter().map(ToString::to_string).collect();
            format!("{what}\n{}\nforebay:\n{}", remarks.join("\n"), tail(&forebay.log(), 60))
        };
        assert_eq!(report["wrong_answers"], 0, "{}", trouble());
        assert_eq!(report["errors"], 0, "{}", trouble());
        self.check_writes(report, status, &what);
        let told = ["queue_empty_ms", "synced_ms", "retries"].map(|field| format!("{field} {}", report[field]));
        let _ = writeln!(std::io::stderr(), "[cluster] {what}: {}", told.join(", "));
        report.clone()
    }

    /// Every status is written, and no write has reached upstream more often than it was sent.
    fn check_writes(&self, report: &Value, status: u64, what: &str) {
        let world = self.upstream.world();
        let sent: BTreeMap<String, usize> = serde_json::from_value(report["statuses_sent"].clone()).unwrap();
        let mut reached: BTreeMap<String, usize> = BTreeMap::new();
        let mut done: BTreeMap<String, usize> = BTreeMap::new();
        for seen in self.upstream.log().matching(update(DEPLOYMENTS).subresource("status")) {
            let parts: Vec<&str> = seen.path().split('/').collect();
            let key = format!("{}/{}", parts[parts.len() - 4], parts[parts.len() - 2]);
            *reached.entry(key.clone()).or_default() += 1;
            *done.entry(key).or_default() += usize::from(seen.status() == Some(200));
        }
        for key in world.keys(DEPLOYMENTS) {
            let object: Value = serde_json::from_slice(&world.text(DEPLOYMENTS, &key).unwrap()).unwrap();
            assert_eq!(object["status"]["replicas"], status, "{what}: the status of {key} was never written");
            let (sent, reached) = (sent.get(&*key).copied().unwrap_or(0), reached.get(&*key).copied().unwrap_or(0));
            assert!(sent >= reached, "{what}: {key} was written {sent} times, and {reached} writes reached upstream");
            let done = done.get(&*key).copied().unwrap_or(0);
            assert!(done <= 1, "{what}: {key} was written {done} times with success");
        }
    }

    /// Lets one fault act for a moment. Some outlast it, until `heal`.
    async fn act(&self, fault: Fault, random: &mut StdRng) {
        let moment = Duration::from_millis(random.random_range(50..1_500));
        let watches = self.upstream.watches(DEPLOYMENTS);
        let own = |matches: Match| matches.user_agent("forebay/");
        let own_all = || [own(list(DEPLOYMENTS)), own(watch(DEPLOYMENTS))];
        let mut rules: Vec<Rule> = Vec::new();
        match fault {
            Fault::Cut => self.gate.cut(),
            Fault::CutOne => {
                let links = self.gate.links();
                if !links.is_empty() {
                    links[random.random_range(0..links.len())].cut();
                }
            }
            Fault::BlackHole => {
                self.gate.black_hole(true);
                tokio::time::sleep(moment).await;
                self.gate.black_hole(false);
                // What was swallowed would leave TLS out of step: such a connection ends.
                self.gate.cut();
            }
            Fault::Pause => self.gate.pause(true),
            Fault::Slow => self.gate.delay(moment / 10),
            Fault::Narrow => self.gate.throttle(Some(200_000)),
            Fault::Refuse => {
                self.gate.refuse(true);
                self.gate.cut();
            }
            Fault::GoAway => self.upstream.go_away(),
            Fault::WatchesEnd => watches.end(),
            Fault::WatchesCut => watches.cut(),
            Fault::WatchesGone => watches.gone(),
            Fault::WatchesFail => watches.error(500),
            Fault::Compacted => {
                self.gate.refuse(true);
                self.gate.cut();
                self.upstream.world().advance(1_000);
                self.upstream.world().compact();
            }
            Fault::HalfAnEvent => watches.inject(r#"{"type":"MODIFIED","object":{"kind":"Deploy"#),
            Fault::NotJson => watches.inject("upstream connect error or disconnect/reset before headers\n"),
            Fault::AnotherKind => {
                watches.inject(concat!(
                    r#"{"type":"DELETED","object":{"kind":"Pod","apiVersion":"v1","#,
                    r#""metadata":{"name":"app-000000","namespace":"team-000","resourceVersion":"1"}}}"#,
                    "\n"
                ));
            }
            Fault::Own(code) => rules.extend(own_all().map(|of| self.upstream.on(of).reply_status(code))),
            Fault::OwnReset => rules.extend(own_all().map(|of| self.upstream.on(of).reset())),
            Fault::OwnCut => rules.extend(own_all().map(|of| self.upstream.on(of).cut_after(100_000))),
            Fault::OwnStall => rules.extend(own_all().map(|of| self.upstream.on(of).stall_after(100_000))),
            Fault::OwnHtml => rules.extend(own_all().map(|of| self.upstream.on(of).reply_html())),
            Fault::NoBookmarks => {
                rules.extend(own_all().map(|of| self.upstream.on(of).drop_bookmarks()));
                watches.end();
            }
            Fault::Reads(code) => rules.push(self.upstream.on(forwarded(read(DEPLOYMENTS))).reply_status(code)),
            Fault::ReadsReset => rules.push(self.upstream.on(forwarded(read(DEPLOYMENTS))).reset()),
            Fault::Writes(code) => rules.push(self.upstream.on(update(DEPLOYMENTS)).reply_status(code)),
            Fault::WritesReset => rules.push(self.upstream.on(update(DEPLOYMENTS)).reset()),
            Fault::WritesLost => rules.push(self.upstream.on(update(DEPLOYMENTS)).times(5).reset_when_done()),
        }
        if matches!(fault, Fault::Own(_) | Fault::OwnReset | Fault::OwnCut | Fault::OwnStall | Fault::OwnHtml) {
            // They concern the next list or watch.
            watches.cut();
        }
        tokio::time::sleep(moment).await;
        rules.iter().for_each(Rule::remove);
        self.gate.pause(false);
        self.gate.refuse(false);
        if random.random_bool(0.5) {
            self.heal();
        }
    }

    fn heal(&self) {
        self.gate.delay(Duration::ZERO);
        self.gate.throttle(None);
    }
}

/// Requests of clients, which forebay has forwarded.
fn forwarded(matches: Match) -> Match {
    matches.and("forwarded", |seen| !seen.user_agent.starts_with("forebay/"))
}

fn tail(text: &str, lines: usize) -> String {
    let all: Vec<&str> = text.lines().collect();
    all[all.len().saturating_sub(lines)..].join("\n")
}
