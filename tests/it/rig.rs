//! The whole proxy in this process, in front of a scripted API server.

use std::{collections::BTreeMap, future::Future, io::Write as _, time::Duration};

use clap::{Args as _, FromArgMatches as _};
use forebay::{
    app::{self, Running},
    config::{self, Flags},
    telemetry::logging,
    testing::{ApiServer, Match, apiserver::Builder, list, watch},
};
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Access, Client, Protocol, Reply};

/// No wait of a test is longer. Far above anything that passes, for machines that are busy.
pub(crate) const LIMIT: Duration = Duration::from_secs(30);

/// How often a condition that can only be looked at from outside is looked at.
const GLANCE: Duration = Duration::from_millis(5);

/// A running proxy and its files.
pub(crate) struct Forebay {
    running: Running,
    access: Access,
    dir: TempDir,
}

/// A proxy and its upstream.
pub(crate) struct Rig {
    pub(crate) upstream: ApiServer,
    pub(crate) forebay: Forebay,
}

/// Looks again and again until `look` gives something.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(what: &str, mut look: impl FnMut() -> F) -> T {
    let deadline = Instant::now() + LIMIT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(Instant::now() < deadline, "not within {LIMIT:?}: {what}");
        sleep(GLANCE).await;
    }
}

/// A future that must end in time.
pub(crate) async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap_or_else(|_| panic!("not within {LIMIT:?}: {what}"))
}

/// A scripted API server.
pub(crate) async fn upstream(builder: Builder) -> ApiServer {
    builder.start().await.unwrap()
}

/// An API server with so many pods in three namespaces.
pub(crate) async fn upstream_with_pods(pods: usize) -> ApiServer {
    let upstream = upstream(ApiServer::builder()).await;
    upstream.world().fill_pods(3, pods).unwrap();
    upstream
}

/// Only forebay's own requests, not those it forwards.
pub(crate) fn own(matches: Match) -> Match {
    matches.user_agent("forebay/")
}

/// forebay's own lists of a resource; its probes ask for one key.
pub(crate) fn own_list(resource: &str) -> Match {
    own(list(resource)).and("no probe", |seen| seen.param("fieldSelector").is_none())
}

/// Loads of a resource that reached upstream: lists and streaming lists of forebay's own.
pub(crate) fn loads(upstream: &ApiServer, resource: &str) -> usize {
    upstream.log().count(own_list(resource)) + upstream.log().count(own(watch(resource).streaming()))
}

/// Only what it forwards.
pub(crate) fn forwarded(matches: Match) -> Match {
    matches.and("forwarded", |seen| !seen.user_agent.starts_with("forebay/"))
}

// === impl Forebay ===

impl Forebay {
    /// Starts a proxy on ports of the kernel's choice.
    pub(crate) async fn start(upstream_kubeconfig: &str, flags: &[&str]) -> Self {
        // What main does. Fails only if there is a default already, and then it is this one.
        let _ = rustls::crypto::ring::default_provider().install_default();
        if std::env::var_os("FOREBAY_TEST_LOG").is_some() {
            // Installed once for all tests of this process.
            let _ = logging::init(logging::Format::Text, 5);
        }
        let dir = tempfile::tempdir().unwrap();
        let upstream = dir.path().join("upstream");
        std::fs::File::create(&upstream).unwrap().write_all(upstream_kubeconfig.as_bytes()).unwrap();
        let own = dir.path().join("kubeconfig");
        let mut given = vec![
            format!("--kubeconfig={}", upstream.display()),
            format!("--write-kubeconfig={}", own.display()),
            "--secure-port=0".to_owned(),
            "--admin-address=127.0.0.1:0".to_owned(),
        ];
        given.extend(flags.iter().map(|&flag| flag.to_owned()));
        let command = Flags::augment_args(clap::Command::new("forebay").no_binary_name(true));
        let flags = Flags::from_arg_matches(&command.try_get_matches_from(given).unwrap()).unwrap();
        let config = config::load(&flags, &BTreeMap::new(), &[]).unwrap();
        let running = app::start(config).await.unwrap();
        Self { running, access: Access::read(&own), dir }
    }

    /// A client over HTTP/1.1 with forebay's own token.
    pub(crate) fn client(&self) -> Client {
        self.client_over(Protocol::Http1)
    }

    pub(crate) fn client_over(&self, protocol: Protocol) -> Client {
        Client::of(&self.access, protocol)
    }

    /// What clients are given.
    pub(crate) fn access(&self) -> &Access {
        &self.access
    }

    /// The folder of its kubeconfig.
    pub(crate) fn folder(&self) -> &std::path::Path {
        self.dir.path()
    }

    pub(crate) fn running(&self) -> &Running {
        &self.running
    }

    /// GET on the admin port.
    pub(crate) async fn admin(&self, path: &str) -> Reply {
        Client::plain(&self.running.admin_url).get(path).await
    }

    /// The sum of a metric's series whose labels contain all of `labels`.
    pub(crate) async fn metric(&self, name: &str, labels: &[&str]) -> f64 {
        let text = self.admin("/metrics").await.text();
        let series = text.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' '])) && labels.iter().all(|label| line.contains(label))
        });
        series.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
    }

    /// Waits until exactly so many reads are held.
    pub(crate) async fn wait_held(&self, reads: usize) {
        eventually(&format!("{reads} reads held"), || async {
            let held = self.metric("forebay_held_requests", &[]).await;
            (held == reads as f64).then_some(())
        })
        .await;
    }

    /// Waits until this read is answered from the cache, and gives that answer.
    pub(crate) async fn wait_cached(&self, path: &str) -> Reply {
        let client = self.client();
        eventually(&format!("{path} from the cache"), || async {
            let reply = client.get(path).await;
            matches!(reply.answered(), "hit" | "held").then_some(reply)
        })
        .await
    }
}

// === impl Rig ===

impl Rig {
    /// The usual upstream, empty.
    pub(crate) async fn start(flags: &[&str]) -> Self {
        Self::with(upstream(ApiServer::builder()).await, flags).await
    }

    /// An upstream that has been prepared.
    pub(crate) async fn with(upstream: ApiServer, flags: &[&str]) -> Self {
        let forebay = Forebay::start(&upstream.kubeconfig_yaml(), flags).await;
        Self { upstream, forebay }
    }

    pub(crate) fn client(&self) -> Client {
        self.forebay.client()
    }

    /// A client of upstream itself, for the truth.
    pub(crate) fn direct(&self) -> Client {
        let access = Access {
            server: self.upstream.url(),
            token: self.upstream.token(),
            ca_pem: self.upstream.ca_pem().unwrap_or_default().into_bytes(),
        };
        Client::of(&access, Protocol::Http1)
    }
}
