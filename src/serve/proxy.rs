//! The life of a request, on one screen: who calls, what is asked, who answers, what becomes of it.

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header};
use hyper::body::{Body as _, Incoming};
use tokio::time::Instant;

use crate::{
    api::{
        gvr::{Gvr, Scope},
        resource_version::ResourceVersion,
        status::Status,
    },
    lifecycle::{drain::DrainToken, tasks::Tasks},
    request::{
        admission::Hosts,
        caller::{Caller, Identity, Token},
        hop,
        info::{self, RequestInfo, Verb},
        negotiate,
        options::ReadOptions,
    },
    route::{self, Decision, Read, Reason, Want},
    store::{Fence, Fences, Phase, Reader, Registry, StoreKey},
    telemetry::{self, AccessEvent},
    upstream::{self, Client, Demand, Discovery, Reflectors, discovery::Entry},
};

use super::{
    Body,
    cached::{self, Answer},
    error::{self, Refusal},
    forward::{Forwarder, Manner},
    held::{self, Held, Holds},
    metrics::{Metrics, Outcome},
    observe::{Act, Subject},
    record::Record,
};

/// A store that may be behind is given this long to prove a negative answer before upstream is asked.
const NEGATIVE_WAIT: Duration = Duration::from_millis(100);

/// Upstream was heard on the resource within this time: its stream is delivering, and may be behind.
const DELIVERING: Duration = Duration::from_secs(2);

/// What ends a read whose hold timed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnHoldTimeout {
    /// 503 with `Retry-After`.
    Reject,
    /// Ask upstream.
    Forward,
}

/// How requests are answered.
#[derive(Clone)]
pub struct Options {
    /// Longest hold.
    pub hold_timeout: Duration,
    /// What ends a hold that timed out.
    pub on_hold_timeout: OnHoldTimeout,
    /// Reads held at once.
    pub max_holds: usize,
    /// Longest wait for a fence.
    pub fence_timeout: Duration,
    /// How old an answer from a store may be while upstream can be reached.
    pub max_staleness: Duration,
    /// Longest wait for the head of a forwarded answer that is no stream.
    pub request_timeout: Duration,
    /// Largest watch frame looked at, in bytes.
    pub max_frame: usize,
    /// Resources that are never cached.
    pub never: Arc<dyn Fn(&Gvr) -> bool + Send + Sync>,
    /// Secrets may be cached although no client has listed them.
    pub cache_secrets: bool,
}

/// What the proxy is put together from.
pub struct Parts {
    /// Upstream.
    pub client: Client,
    /// What it serves.
    pub discovery: Discovery,
    /// Starts caches.
    pub reflectors: Reflectors,
    /// The caches.
    pub registry: Registry,
    /// What clients have been shown.
    pub fences: Fences,
    /// What requests may be addressed to.
    pub hosts: Hosts,
    /// forebay's own credential for its clients.
    pub token: Token,
    /// Where tasks run.
    pub tasks: Tasks,
    /// When to stop.
    pub drain: DrainToken,
    /// Metrics of this module.
    pub metrics: Metrics,
    /// How requests are answered.
    pub options: Options,
}

/// Answers requests. Cheap to clone.
#[derive(Clone)]
pub struct Proxy {
    inner: Arc<Inner>,
}

struct Inner {
    parts: Parts,
    forwarder: Forwarder,
    holds: Holds,
}

/// A response with what is recorded of it.
struct Answered {
    response: Response<Body>,
    outcome: Outcome,
    reason: &'static str,
    rv: Option<ResourceVersion>,
    waited: Duration,
}

/// What the request is, once parsed.
struct Asked {
    info: RequestInfo,
    options: ReadOptions,
    entry: Option<Entry>,
    own_identity: bool,
    upgrade: Option<HeaderValue>,
}

// === impl Proxy ===

impl Proxy {
    /// Puts the proxy together.
    pub fn new(parts: Parts) -> Self {
        let forwarder = Forwarder {
            client: parts.client.clone(),
            tasks: parts.tasks.clone(),
            drain: parts.drain.clone(),
            head_timeout: parts.options.request_timeout,
            max_frame: parts.options.max_frame,
        };
        let held_now = parts.metrics.held_now();
        let limits = held::Limits {
            max_holds: parts.options.max_holds,
            fence_timeout: parts.options.fence_timeout,
            max_staleness: parts.options.max_staleness,
        };
        let holds = Holds::new(limits, parts.client.reach().clone(), parts.drain.clone(), held_now);
        Self { inner: Arc::new(Inner { parts, forwarder, holds }) }
    }

    /// Answers one request.
    pub async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        let begun = Instant::now();
        // Both are shared, not copied: most requests write no event.
        let (method, uri) = (request.method().clone(), request.uri().clone());
        let user_agent = request.headers().get(header::USER_AGENT).cloned();
        let info = info::parse(&method, request.uri().path(), request.uri().query());
        let gvr = info.resource().map(|path| path.gvr.clone());
        let verb = info.verb;
        let label = verb_label(verb);

        let (answered, known) = self.inner.answer(request, info, begun).await;
        let Answered { mut response, outcome, reason, rv, waited } = answered;
        let metrics = &self.inner.parts.metrics;
        let read = matches!(verb, Verb::Get | Verb::List);
        metrics.answered(label, read, gvr.as_ref().filter(|_| known), outcome, reason);
        let status = response.status().as_u16();
        let record = Record {
            begun,
            method,
            verb: label,
            gvr,
            uri,
            user_agent,
            outcome,
            reason,
            status,
            rv,
            waited,
            bytes: 0,
            metrics: metrics.clone(),
            event: AccessEvent::enabled(outcome.as_str(), status),
        };
        *response.body_mut() = std::mem::replace(response.body_mut(), Body::empty()).recorded(Box::new(record));
        response
    }

    /// Answers what is no readable request: with this code, for this reason.
    pub fn unreadable(&self, code: StatusCode, why: &str) -> Response<Body> {
        let refusal = Refusal::Unreadable;
        self.inner.parts.metrics.answered(telemetry::Verb::Other, false, None, Outcome::Rejected, refusal.as_str());
        tracing::info!(code = code.as_u16(), why, "request refused unread");
        error::response(&error::of_unreadable(code, why))
    }
}

// === impl Inner ===

impl Inner {
    /// The answer, and whether discovery knows the resource.
    ///
    /// Whatever waits for long or for upstream is boxed, here and below: a future is as large as the largest it may await,
    /// and is moved several times, so a hit would pay for all of them.
    async fn answer(&self, mut request: Request<Incoming>, info: RequestInfo, begun: Instant) -> (Answered, bool) {
        let refuse = |refusal, status: Status| (Answered::refused(refusal, &status), false);
        if let Err(inadmissible) = self.parts.hosts.admit(request.version(), request.uri(), request.headers()) {
            let (refusal, status) = error::of_inadmissible(inadmissible);
            return refuse(refusal, status);
        }
        let identity = match Identity::of(request.headers(), &self.parts.token) {
            Ok(identity) => identity,
            Err(error) => return refuse(Refusal::HopByHop, Status::bad_request(error.to_string())),
        };
        let (caller, impersonates) = (identity.caller, identity.impersonates);
        if caller == Caller::Anonymous {
            return refuse(Refusal::Anonymous, Status::unauthorized());
        }
        let upgrade = hop::upgrade_protocol(request.headers());
        if let Err(error) = hop::strip_hop_by_hop(request.headers_mut()) {
            return refuse(Refusal::HopByHop, Status::bad_request(error.to_string()));
        }

        let options = ReadOptions::parse(request.uri().query());
        let local = caller == Caller::Local;
        let mut asked = Asked { info, options, entry: None, own_identity: local, upgrade };
        let decision = self.decide(&request, &mut asked, impersonates, begun).await;
        let known = asked.entry.is_some();
        let answered = match decision {
            Ok(Decision::Cache(read)) => {
                match self.cached(&read, &asked.options, request.headers(), false, begun).await {
                    Err(Reason::Stale) => return (Box::pin(self.stale(request, asked, &read, begun)).await, known),
                    answered => answered,
                }
            }
            Ok(Decision::Forward(reason)) => Err(reason),
            Err(refusal) => {
                let unknown = || "forebay has not learned yet what the API server serves; try again".to_owned();
                self.not_held(refusal, 1, unknown, begun)
            }
        };
        match answered {
            Ok(answered) => (answered, known),
            Err(reason) => (Box::pin(self.forward(request, asked, reason)).await, known),
        }
    }

    async fn decide(
        &self,
        request: &Request<Incoming>,
        asked: &mut Asked,
        impersonates: bool,
        begun: Instant,
    ) -> Result<Decision, Refusal> {
        let negotiated = negotiate::negotiate(request.headers(), asked.options.pretty.as_deref(), true);
        let format = match (negotiated.format, negotiated.error_format) {
            (negotiate::Format::Json, other) => other,
            (other, _) => other,
        };
        let facts = |asked: &Asked| {
            let facts = route::Facts {
                info: &asked.info,
                options: &asked.options,
                format,
                local: asked.own_identity,
                impersonates,
                no_cache: request.headers().get(header::CACHE_CONTROL).is_some(),
                upgrade: asked.upgrade.is_some(),
                has_body: !request.body().is_end_stream(),
            };
            route::decide(&facts, asked.entry.as_ref(), &*self.parts.options.never)
        };
        let Some(gvr) = asked.info.resource().map(|path| path.gvr.clone()) else { return Ok(facts(asked)) };
        let discovery = &self.parts.discovery;
        asked.entry = discovery.lookup(&gvr);
        let decision = facts(asked);
        if !matches!(decision, Decision::Forward(Reason::Unknown)) {
            return Ok(decision);
        }
        if discovery.catalog().is_some() {
            // Not in this scope, either: it may have come back in another one.
            discovery.refresh();
            return Ok(decision);
        }
        // At the very start nothing is known to be cacheable yet. What the cache could answer is held for it.
        let limit = self.hold_limit(&asked.options).saturating_sub(begun.elapsed());
        Box::pin(self.holds.until(discovery.known_within(limit))).await?;
        asked.entry = discovery.lookup(&gvr);
        Ok(facts(asked))
    }

    /// Asks upstream, since the store's life is not proven; if upstream does not answer, what is held does, and says how
    /// old it is.
    async fn stale(&self, request: Request<Incoming>, asked: Asked, read: &Read, begun: Instant) -> Answered {
        let patience = self.parts.options.max_staleness;
        let (headers, options) = (request.headers().clone(), asked.options.clone());
        let unanswered = tokio::select! {
            answered = self.forward(request, asked, Reason::Stale) => match answered.outcome {
                Outcome::Rejected => answered,
                _ => return answered,
            },
            () = self.parts.client.reach().lost(patience) => {
                let (refusal, status) = error::of_absence();
                Answered::refused(refusal, &status)
            }
        };
        self.cached(read, &options, &headers, true, begun).await.unwrap_or(unanswered)
    }

    /// Answers from the cache, or tells why upstream must. `unanswered`: upstream was asked already, in vain.
    async fn cached(
        &self,
        read: &Read,
        options: &ReadOptions,
        headers: &HeaderMap,
        unanswered: bool,
        begun: Instant,
    ) -> Result<Answered, Reason> {
        let fence = self.parts.fences.of(&read.gvr);
        let deadline = begun + self.hold_limit(options);
        let reader = self.store(read)?;
        let held = self.holds.until_ready(&reader, &fence, read, unanswered, deadline).await;
        let (snapshot, waited) = match held {
            Held::Ready { snapshot, waited } => (snapshot, waited),
            Held::Forward(reason) => {
                match reason {
                    Reason::WriteInDoubt => self.probe(&fence, read, &reader),
                    Reason::Conflict => {
                        self.probe(&fence, read, &reader);
                        reader.want_progress();
                    }
                    Reason::Behind | Reason::Stale => reader.want_progress(),
                    _ => {}
                }
                return Err(reason);
            }
            Held::Refuse(refusal) => {
                let progress = reader.progress();
                let seconds = progress.time_left().map_or(1, |left| left.as_secs().clamp(1, 30));
                let loading = || {
                    let of = progress.expected().map_or(String::new(), |total| format!(" of {total}"));
                    let (resource, loaded) = (read.gvr.group_resource(), progress.loaded());
                    format!("forebay's cache of {resource} is still loading: {loaded}{of} objects so far; try again")
                };
                return self.not_held(refusal, u32::try_from(seconds).unwrap_or(1), loading, begun);
            }
        };
        let (answer, snapshot) = match cached::answer(read, &snapshot).await {
            // What has come into being since is not known here: a store that may have missed it proves no absence.
            Answer::Nothing(_) if reader.age() > self.parts.options.max_staleness => return Err(Reason::Stale),
            Answer::Nothing(response) if self.proves(snapshot.rv) => (Answer::Found(response), snapshot),
            Answer::Nothing(_) => {
                let snapshot = Box::pin(self.proof(&reader)).await.ok_or(Reason::Negative)?;
                (cached::answer(read, &snapshot).await, snapshot)
            }
            answer => (answer, snapshot),
        };
        let mut response = match answer {
            Answer::Found(response) | Answer::Nothing(response) => response,
            Answer::OverLimit => return Err(Reason::Paging),
        };
        let rv = snapshot.rv;
        match &read.want {
            Want::Collection { .. } => fence.raise_bookmark(rv),
            Want::Object { key, .. } => match snapshot.get(key) {
                Some(object) => fence.raise(object.rv()),
                None => fence.raise_absence(rv),
            },
            Want::Refusal(_) => {}
        }
        let age = reader.age();
        let (outcome, how, reason) = if waited {
            self.parts.metrics.held_for(begun.elapsed());
            (Outcome::Held, "held", "sync")
        } else if age > self.parts.options.max_staleness {
            (Outcome::Hit, "stale", "upstream_away")
        } else {
            (Outcome::Hit, "hit", "fresh")
        };
        cached::mark(&mut response, how, rv, age);
        cached::identify(headers, &mut response);
        let waited = if waited { begun.elapsed() } else { Duration::ZERO };
        Ok(Answered { response, outcome, reason, rv: Some(rv), waited })
    }

    /// The store that may answer this read; a namespaced grant is served by a store of that namespace.
    fn store(&self, read: &Read) -> Result<Reader, Reason> {
        let all = StoreKey { gvr: read.gvr.clone(), scope: Scope::All };
        let secret = read.gvr.group.is_empty() && &*read.gvr.resource == "secrets";
        if secret
            && !self.parts.options.cache_secrets
            && matches!(read.want, Want::Object { .. })
            && self.parts.registry.reader(&all).is_none()
        {
            return Err(Reason::Secret);
        }
        let reader = self.parts.reflectors.ensure(&all, Demand::Held);
        match (reader.status().phase, &read.scope) {
            (Phase::Refused(_), Scope::Namespace(_)) => {
                let key = StoreKey { gvr: read.gvr.clone(), scope: read.scope.clone() };
                Ok(self.parts.reflectors.ensure(&key, Demand::Held))
            }
            _ => Ok(reader),
        }
    }

    /// A negative answer is proven by a store that has reached everything any client has been shown.
    fn proves(&self, rv: ResourceVersion) -> bool {
        rv >= self.parts.fences.shown()
    }

    /// Waits a moment for a store that is behind but delivering.
    async fn proof(&self, reader: &Reader) -> Option<Arc<crate::store::Snapshot>> {
        if reader.progress().silence() > DELIVERING {
            return None;
        }
        let shown = self.parts.fences.shown();
        let until = |status: &crate::store::Status| status.phase != Phase::Synced || status.rv >= shown;
        reader.wait(Instant::now() + NEGATIVE_WAIT, until).await;
        reader.snapshot().filter(|snapshot| snapshot.rv >= shown)
    }

    /// The answer to a read that could not be held to its end, or why upstream gives it.
    fn not_held(
        &self,
        refusal: Refusal,
        retry: u32,
        why: impl FnOnce() -> String,
        begun: Instant,
    ) -> Result<Answered, Reason> {
        self.parts.metrics.held_for(begun.elapsed());
        let status = match refusal {
            Refusal::HoldTimeout if self.parts.options.on_hold_timeout == OnHoldTimeout::Forward => {
                return Err(Reason::HoldTimeout);
            }
            Refusal::HoldTimeout => Status::service_unavailable(why(), Some(retry)),
            Refusal::Shutdown => Status::service_unavailable("forebay is shutting down", Some(1)),
            _ => Status::too_many_requests("forebay holds as many reads as it may (--max-holds)", retry),
        };
        let mut answered = Answered::refused(refusal, &status);
        answered.waited = begun.elapsed();
        Ok(answered)
    }

    /// Finds out upstream's version after a write whose effect is unknown. One probe a resource at a time; a failed one
    /// is repeated by the next read that needs it.
    fn probe(&self, fence: &Arc<Fence>, read: &Read, reader: &Reader) {
        let Some(claim) = fence.claim_probe() else { return };
        let (client, fence, gvr, scope) =
            (self.parts.client.clone(), fence.clone(), read.gvr.clone(), read.scope.clone());
        let (registry, held) = (self.parts.registry.clone(), reader.status().rv);
        self.parts.tasks.spawn_connection(async move {
            let told = upstream::consistent_rv(&client, &gvr, &scope).await;
            if told.as_ref().is_ok_and(|rv| *rv < held) {
                tracing::warn!(resource = %gvr, "upstream's history went back; loading everything anew");
                registry.distrust();
            }
            if let Err(error) = &told {
                tracing::warn!(%error, resource = %gvr, "reads stay upstream");
            }
            fence.end_probe(claim, told.ok());
        });
    }

    async fn forward(&self, request: Request<Incoming>, asked: Asked, reason: Reason) -> Answered {
        // Whatever may have an effect: a command that is run over a WebSocket is asked for with a GET.
        let write = !request.method().is_safe() || asked.upgrade.is_some();
        let manner = Manner {
            own_identity: asked.own_identity,
            long_running: asked.info.is_long_running(),
            subject: self.subject(&asked, request.uri().query()),
        };
        let audit_id = request.headers().get("audit-id").cloned();
        match self.forwarder.forward(request, asked.upgrade, manner).await {
            Ok(response) => Answered {
                response,
                outcome: Outcome::Forwarded,
                reason: reason.as_str(),
                rv: None,
                waited: Duration::ZERO,
            },
            Err(failure) => {
                let (refusal, status) = error::of_failure(&failure, write);
                let mut answered = Answered::refused(refusal, &status);
                if let Some(id) = audit_id {
                    answered.response.headers_mut().insert("audit-id", id);
                }
                answered
            }
        }
    }

    /// What is looked at in a forwarded answer: only resources that can be cached have fences worth raising.
    fn subject(&self, asked: &Asked, query: Option<&str>) -> Option<Subject> {
        let path = asked.info.resource()?;
        let core = path.gvr.group.is_empty();
        // A legacy binding is a write to its pod.
        let bindings = core && &*path.gvr.resource == "bindings" && is_write(asked.info.verb);
        let gvr = if bindings { Gvr::new("", "v1", "pods") } else { path.gvr.clone() };
        // What is never cached has no reads that could be behind; leases would only make negative answers unprovable.
        if !bindings && (!asked.entry.as_ref()?.cacheable || (self.parts.options.never)(&gvr)) {
            return None;
        }
        let subresource = path.subresource.as_deref();
        let selected = asked.options.label_selector.is_some() || asked.options.field_selector.is_some();
        let whole = path.namespace.is_none() && !selected && !asked.options.irregular;
        let act = match asked.info.verb {
            verb if is_write(verb) => {
                // A dry run writes nothing (a DELETE's body may say otherwise); a token request stores nothing.
                let dry_run = verb != Verb::Delete
                    && verb != Verb::DeleteCollection
                    && query.is_some_and(|query| query.split('&').any(|pair| pair == "dryRun=All"));
                if dry_run || subresource == Some("token") {
                    return None;
                }
                let opaque = bindings
                    || verb == Verb::DeleteCollection
                    || matches!(subresource, Some("eviction" | "binding" | "finalize"));
                Act::Write { opaque }
            }
            // These carry the version of their parent.
            Verb::Get if matches!(subresource, None | Some("status" | "scale" | "resize" | "ephemeralcontainers")) => {
                Act::Get
            }
            Verb::List => Act::List { whole: whole && asked.options.continue_token.is_none() },
            Verb::Watch => Act::Watch { whole: whole && asked.options.send_initial_events == Some(true) },
            _ => return None,
        };
        let key = path.name.as_ref().map(|name| match &path.namespace {
            Some(namespace) => format!("{namespace}/{name}"),
            None => name.to_string(),
        });
        let budgets = || self.parts.fences.of(&Gvr::new("policy", "v1", "poddisruptionbudgets"));
        let also = if subresource == Some("eviction") { vec![budgets()] } else { Vec::new() };
        let namespace = path.namespace.as_ref().map(|namespace| namespace.to_string());
        Some(Subject {
            fence: self.parts.fences.of(&gvr),
            also,
            key,
            namespace,
            registry: self.parts.registry.clone(),
            store: StoreKey { gvr, scope: Scope::All },
            act,
        })
    }

    /// How long a read may be held: the configured time, and never beyond what the client allows the whole request.
    fn hold_limit(&self, options: &ReadOptions) -> Duration {
        let own = self.parts.options.hold_timeout;
        // A tenth is kept for the answer to get back before the client gives up.
        options.timeout.map_or(own, |timeout| own.min(timeout.mul_f64(0.9)))
    }
}

// === impl Answered ===

impl Answered {
    fn refused(refusal: Refusal, status: &Status) -> Self {
        Self {
            response: error::response(status),
            outcome: Outcome::Rejected,
            reason: refusal.as_str(),
            rv: None,
            waited: Duration::ZERO,
        }
    }
}

fn is_write(verb: Verb) -> bool {
    matches!(verb, Verb::Create | Verb::Update | Verb::Patch | Verb::Delete | Verb::DeleteCollection)
}

fn verb_label(verb: Verb) -> telemetry::Verb {
    match verb {
        Verb::Get => telemetry::Verb::Get,
        Verb::List => telemetry::Verb::List,
        Verb::Watch => telemetry::Verb::Watch,
        Verb::Create => telemetry::Verb::Post,
        Verb::Update => telemetry::Verb::Put,
        Verb::Patch => telemetry::Verb::Patch,
        Verb::Delete | Verb::DeleteCollection => telemetry::Verb::Delete,
        Verb::Proxy => telemetry::Verb::Connect,
        Verb::Head | Verb::Other => telemetry::Verb::Other,
    }
}
