//! Two instances of kube-controller-manager, of which one leads.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::build::KUBE_CONTROLLER_MANAGER;
use crate::client::HttpClient;
use crate::control_plane::ControlPlane;
use crate::fixtures::eventually;
use crate::process::Process;
use crate::programs::built;

const LEASE: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager";
/// What controllers log as an error when they lose a race and try again: against another writer, their own informer, or
/// the namespace's end. Which of them does so is chance, in any run.
const RACES: [&str; 3] =
    ["the object has been modified", "is not as new as written version", "because it is being terminated"];
/// Until one of them leads, the expiry of a dead leader's lease included.
const ELECTION: Duration = Duration::from_secs(120);

pub(super) struct Managers {
    /// Both at first, then the one that is left.
    running: Vec<(Process, PathBuf)>,
    logs: Vec<PathBuf>,
    killed: String,
}

/// What has been logged as an error.
pub(super) struct Errors {
    /// Kinds, with an example of each; races aside.
    pub(super) kinds: BTreeMap<String, String>,
    pub(super) races: usize,
}

// === impl Managers ===

impl Managers {
    /// Starts one, and another with the same kubeconfig once the first leads.
    pub(super) async fn start(plane: &ControlPlane, kubeconfig: &Path) -> Self {
        let program = built(&KUBE_CONTROLLER_MANAGER).await;
        let dir = plane.dir();
        let ca = dir.join("ca.crt");
        std::fs::write(&ca, plane.ca()).unwrap();
        let args = [
            format!("--kubeconfig={}", kubeconfig.display()),
            // Otherwise it would publish the CA of its kubeconfig to every namespace, which is forebay's.
            format!("--root-ca-file={}", ca.display()),
            "--kube-api-content-type=application/json".to_owned(),
            "--kube-api-qps=1000".to_owned(),
            "--kube-api-burst=1000".to_owned(),
            "--leader-elect-lease-duration=10s".to_owned(),
            "--leader-elect-renew-deadline=8s".to_owned(),
            "--leader-elect-retry-period=1s".to_owned(),
            "--secure-port=0".to_owned(),
        ];
        let mut managers = Self { running: Vec::new(), logs: Vec::new(), killed: String::new() };
        for n in 0..2 {
            let name = format!("kube-controller-manager-{n}");
            let log = dir.join(format!("{name}.log"));
            managers.running.push((Process::start(&name, &dir, &program, &args, &[]).unwrap(), log.clone()));
            managers.logs.push(log);
            eventually(ELECTION, "a leader", async || managers.leader().is_some()).await;
        }
        managers
    }

    /// Which of those that run has won an election.
    fn leader(&self) -> Option<usize> {
        self.running.iter().position(|(process, _)| process.log().contains("Successfully acquired lease"))
    }

    /// SIGKILL: it can't give its lease back.
    pub(super) async fn kill_the_leader(&mut self, rig: &HttpClient) {
        self.killed = holder(rig).await;
        let leader = self.leader().expect("a leader");
        drop(self.running.remove(leader));
    }

    /// Waits until the one that is left leads.
    pub(super) async fn another_leads(&self, rig: &HttpClient) {
        let moved = async || self.leader().is_some() && holder(rig).await != self.killed;
        eventually(ELECTION, "another leader", moved).await;
    }

    /// Ends them, and tells what they have logged as errors.
    pub(super) fn errors(self) -> Errors {
        for (process, log) in &self.running {
            assert!(process.pid().is_some_and(crate::process::alive), "{} has ended", log.display());
        }
        drop(self.running);
        let mut errors = Errors { kinds: BTreeMap::new(), races: 0 };
        for log in &self.logs {
            for line in std::fs::read_to_string(log).unwrap().lines().filter(|line| is_error(line)) {
                if RACES.iter().any(|race| line.contains(race)) {
                    errors.races += 1;
                } else {
                    errors.kinds.entry(kind(line)).or_insert_with(|| line.to_owned());
                }
            }
        }
        errors
    }
}

async fn holder(rig: &HttpClient) -> String {
    rig.get(LEASE).await.json()["spec"]["holderIdentity"].as_str().unwrap_or_default().to_owned()
}

/// `E1201 00:00:00.000000 ...`, klog's way to say error; F is fatal.
fn is_error(line: &str) -> bool {
    line.starts_with(['E', 'F']) && line[1..].starts_with(|c: char| c.is_ascii_digit())
}

/// Where it comes from, and its text without what names an object or a version.
fn kind(line: &str) -> String {
    let text = line.splitn(4, char::is_whitespace).last().unwrap_or(line).trim_start();
    let text = text.split_once(' ').map_or(text, |(_, text)| text);
    text.split_whitespace().filter(|word| !word.contains(|c: char| c.is_ascii_digit())).collect::<Vec<_>>().join(" ")
}
