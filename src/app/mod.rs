//! The composition root: everything is built, bound and started here, and nowhere else.
//!
//! ```text
//! identity -> sockets bound -> kubeconfig written -> client -> tasks started -> Running
//! ```
//!
//! Sockets are bound before anything is spawned, so a taken port ends the start; clients that connect from then on wait
//! in the kernel's queue for the few milliseconds until the accept loop runs, whatever upstream does.

pub mod kubeconfig;
mod preload;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::Context;
use tokio::time::Instant;
use tracing::info;

use crate::{
    admin::{Admin, ResourceCheck},
    api::gvr::Gvr,
    config::{self, Config},
    lifecycle::{Class, Drain, Drained, Readiness, ReadyToken, Signals, Tasks, Timing, supervise},
    request::{admission::Hosts, caller::Token},
    serve::{self, OnHoldTimeout, Proxy, Savings},
    server::{self, Limits, Listener, ServingIdentity},
    store::{Budget, Fences, Registry, metrics::StoreMetrics},
    telemetry::registry,
    upstream::{self, Client, ClientOptions, Discovery, Identity, ReflectorOptions, Reflectors, identity::Source},
};

use self::{kubeconfig::ClientKubeconfig, preload::Preload};

/// A running proxy.
pub struct Running {
    drain: Drain,
    tasks: Tasks,
    timing: Timing,
    metrics: serve::Metrics,
    upstream: upstream::Metrics,
    started: Instant,
    /// Fails readiness from the start of the shutdown.
    alive: ReadyToken,
    /// Where clients connect: `https://127.0.0.1:6480`.
    pub url: String,
    /// The admin port: `http://127.0.0.1:6481`.
    pub admin_url: String,
}

/// What upstream was spared, and what it was not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spared {
    /// Of clients' requests.
    pub requests: Savings,
    /// forebay's own lists and watches.
    pub own_reads: u64,
    /// Since the start.
    pub elapsed: Duration,
}

/// Runs until a signal or a failure ends it.
///
/// # Errors
///
/// When it can't start, or a critical task fails. Each message is one line that says what, where and what to do.
pub async fn run(config: Config) -> anyhow::Result<()> {
    let signals = Signals::install().context("can't catch signals")?;
    let running = start(config).await?;
    running.until(signals, std::future::pending()).await
}

/// Builds and starts everything. Signals are the caller's.
///
/// # Errors
///
/// As [`run`].
pub async fn start(config: Config) -> anyhow::Result<Running> {
    let started = Instant::now();
    let (source, files) = source(&config);
    let identity = Identity::load(&source, config.context.as_deref()).await?;
    let listener = Listener::bind(config.secure_address(), "secure-port").await?;
    let admin_listener = Listener::bind(config.admin_address, "admin-address").await?;

    let hosts = Hosts::of(config.bind_address.ip());
    let serving = ServingIdentity::generate(hosts.names()).context("can't make a serving certificate")?;
    let token = Token::generate()?;
    let url = format!("https://{}", listener.address());
    let names = &identity.names;
    let client_kubeconfig = ClientKubeconfig {
        context: &names.context,
        cluster: &names.cluster,
        user: &names.user,
        namespace: names.namespace.as_deref(),
        server: &url,
        ca_pem: serving.ca_pem(),
        token: token.expose(),
    };
    info!(upstream = identity.server(), context = names.context, "forebay {}", env!("CARGO_PKG_VERSION"));
    let options = ClientOptions {
        connect_timeout: config.connect_timeout,
        answer_timeout: config.request_timeout,
        max_staleness: config.max_staleness,
    };
    let mut metrics = registry::root(env!("CARGO_PKG_VERSION"));
    let own = registry::own(&mut metrics);
    let serve_metrics = serve::Metrics::register(own);
    let upstream_metrics = upstream::Metrics::register(own);
    let server_metrics = server::Metrics::register(own);
    let fences = Fences::default();
    let stores = Registry::new(Budget::new(config.memory_budget), fences.clone());
    own.register_collector(Box::new(StoreMetrics::new(stores.clone())));

    let (client, renewal) = Client::new(identity.clone(), options, upstream_metrics.clone()).await?;
    kubeconfig::write(&config.write_kubeconfig, &files, &client_kubeconfig)?;
    info!(addr = %listener.address(), kubeconfig = %config.write_kubeconfig.display(), "proxy listening");
    let admin_url = format!("http://{}", admin_listener.address());
    info!(addr = %admin_listener.address(), "admin listening");

    let drain = Drain::new();
    let tasks = Tasks::new(drain.token());
    let readiness = Readiness::new();
    let alive = readiness.add("shutdown");
    alive.mark_ready();
    let upstream_seen = readiness.add("upstream-seen-once");

    let discovery = Discovery::new();
    let reflector_options = ReflectorOptions {
        page_size: config.list_page_size.get(),
        max_frame: config.max_frame_bytes,
        max_loads: config.max_initial_lists.get(),
    };
    let reflectors = Reflectors::new(
        client.clone(),
        discovery.clone(),
        stores.clone(),
        tasks.clone(),
        reflector_options,
        upstream_metrics.clone(),
    );
    let preload = Preload::new(&config.preload, config.max_staleness);
    let proxy = Proxy::new(serve::Parts {
        client: client.clone(),
        discovery: discovery.clone(),
        reflectors: reflectors.clone(),
        registry: stores.clone(),
        fences,
        hosts,
        token,
        tasks: tasks.clone(),
        drain: drain.token(),
        metrics: serve_metrics.clone(),
        options: serve_options(&config),
    });
    let admin = Admin::new(readiness, resources(stores, preload.clone()), Arc::new(metrics), &config);

    tasks.spawn("credentials", Class::Critical, renewal.run());
    tasks.spawn("discovery", Class::Critical, discovery.clone().run(client));
    tasks.spawn("idle", Class::BestEffort, reflectors.clone().close_idle(config.idle_timeout));
    tasks.spawn("preload", Class::BestEffort, preload.run(discovery, reflectors, upstream_seen));
    let limits = Limits::from(&config);
    let (tls, server_tasks, token) = (serving.server_config(), tasks.clone(), drain.token());
    tasks.spawn("listener", Class::Critical, listener.serve(tls, proxy, limits, server_metrics, server_tasks, token));
    tasks.spawn("admin", Class::Critical, admin.serve(admin_listener.into_socket(), tasks.clone(), drain.token()));

    let timing = Timing { delay: config.shutdown_delay_duration, grace: config.shutdown_grace_period };
    let metrics = serve_metrics;
    Ok(Running { drain, tasks, timing, metrics, upstream: upstream_metrics, started, alive, url, admin_url })
}

// === impl Running ===

impl Running {
    /// What upstream was spared so far.
    pub fn spared(&self) -> Spared {
        Spared {
            requests: self.metrics.savings(),
            own_reads: self.upstream.own_reads(),
            elapsed: self.started.elapsed(),
        }
    }

    /// Drains and ends it.
    ///
    /// # Errors
    ///
    /// When a critical task has failed.
    pub async fn stop(self) -> anyhow::Result<()> {
        let signals = Signals::install().context("can't catch signals")?;
        self.until(signals, std::future::ready(())).await
    }

    async fn until(self, signals: Signals, stop: impl Future<Output = ()>) -> anyhow::Result<()> {
        let Self { drain, tasks, timing, alive, .. } = self;
        let drained = supervise(signals, &drain, &tasks, timing, stop, || alive.mark_pending()).await?;
        // Whatever is left (reflectors, discovery, the admin port) has nobody to work for any more.
        drain.abort();
        if drained == Drained::Clean {
            info!("drained");
        }
        Ok(())
    }
}

/// Where upstream is described, and the files that must not be overwritten.
fn source(config: &Config) -> (Source, Vec<PathBuf>) {
    match &config.kubeconfig {
        Some(path) => (Source::File(path.clone()), vec![path.clone()]),
        None => (Source::Default, upstream::identity::default_files()),
    }
}

fn serve_options(config: &Config) -> serve::Options {
    let never = config.never.clone();
    let secrets = Gvr::new("", "v1", "secrets");
    serve::Options {
        hold_timeout: config.hold_timeout,
        on_hold_timeout: match config.on_hold_timeout {
            config::OnHoldTimeout::Reject => OnHoldTimeout::Reject,
            config::OnHoldTimeout::Forward => OnHoldTimeout::Forward,
        },
        max_holds: config.max_holds,
        fence_timeout: config.fence_timeout,
        max_staleness: config.max_staleness,
        request_timeout: config.request_timeout,
        max_frame: config.max_frame_bytes,
        never: Arc::new(move |gvr| never.iter().any(|selector| selector.matches(gvr))),
        cache_secrets: config.preload.iter().any(|selector| selector.matches(&secrets)),
    }
}

/// One readiness line a resource, and one for each preloaded resource that isn't known yet.
fn resources(stores: Registry, preload: Preload) -> Arc<dyn Fn() -> Vec<ResourceCheck> + Send + Sync> {
    Arc::new(move || {
        let mut checks: Vec<_> = stores.summaries().iter().map(|store| preload.check(store)).collect();
        checks.extend(preload.unresolved());
        checks
    })
}
