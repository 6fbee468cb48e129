//! The one table of settings: flag, environment twin, file key, default and help text all come from here.

use super::defaults;

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The flag without dashes, kebab-case. The other names are derived from it.
    pub(crate) name: &'static str,
    /// What stands for the value in the help.
    pub(crate) value: &'static str,
    /// Default as text; `None` if it is computed or there is none (then `help` says so).
    pub(crate) default: Option<&'static str>,
    /// May be given several times, and takes comma-separated lists.
    pub(crate) many: bool,
    /// Heading in the help.
    pub(crate) section: &'static str,
    /// One or two sentences.
    pub(crate) help: &'static str,
}

const UPSTREAM: &str = "Upstream (the kube-apiserver)";
const SERVING: &str = "Serving (what clients connect to)";
const CACHE: &str = "Cache and holds";
const PROCESS: &str = "Process";

const fn one(
    section: &'static str,
    name: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting { name, value, default, many: false, section, help }
}

const fn many(
    section: &'static str,
    name: &'static str,
    value: &'static str,
    default: Option<&'static str>,
    help: &'static str,
) -> Setting {
    Setting { name, value, default, many: true, section, help }
}

/// Every setting, in the order of the help.
#[rustfmt::skip]
pub(crate) const SETTINGS: &[Setting] = &[
    one(UPSTREAM, "kubeconfig", "PATH", None,
        "Kubeconfig of the kube-apiserver. Default: $KUBECONFIG, then ~/.kube/config, then the pod's service account."),
    one(UPSTREAM, "context", "NAME", None,
        "Context in that kubeconfig. Default: its current-context."),
    one(UPSTREAM, "connect-timeout", "DURATION", Some(defaults::CONNECT_TIMEOUT),
        "How long a connection to the kube-apiserver may take, TLS included."),
    one(UPSTREAM, "request-timeout", "DURATION", Some(defaults::REQUEST_TIMEOUT),
        "How long the kube-apiserver may take to start answering a forwarded request. Watches, logs and exec have no \
         limit."),
    one(UPSTREAM, "list-page-size", "N", Some(defaults::LIST_PAGE_SIZE),
        "Objects in a page where the kube-apiserver has no streaming lists."),
    one(UPSTREAM, "max-initial-lists", "N", Some(defaults::MAX_INITIAL_LISTS),
        "Resources listed at the same time when caches start."),
    one(UPSTREAM, "max-frame-bytes", "BYTES", Some(defaults::MAX_FRAME_BYTES),
        "Largest object or watch event taken into the cache, like 8Mi."),

    one(SERVING, "bind-address", "IP", Some(defaults::BIND_ADDRESS),
        "Loopback address to listen on: 127.0.0.1 or ::1."),
    one(SERVING, "secure-port", "PORT", Some(defaults::SECURE_PORT),
        "HTTPS port. 0: the kernel chooses, see the written kubeconfig."),
    one(SERVING, "write-kubeconfig", "PATH", None,
        "Where to write the kubeconfig for clients (mode 0600). Default: forebay/kubeconfig in $XDG_RUNTIME_DIR, else \
         in a folder of your own under the temporary directory."),
    one(SERVING, "max-connections", "N", Some(defaults::MAX_CONNECTIONS),
        "Client connections at the same time. Above it, new ones wait."),
    one(SERVING, "max-concurrent-streams", "N", Some(defaults::MAX_CONCURRENT_STREAMS),
        "Requests at the same time on one HTTP/2 connection. More wait at the client."),
    one(SERVING, "handshake-timeout", "DURATION", Some(defaults::HANDSHAKE_TIMEOUT),
        "How long a client's TLS handshake may take, and after it the first bytes of HTTP/2."),
    one(SERVING, "header-timeout", "DURATION", Some(defaults::HEADER_TIMEOUT),
        "How long the headers of a request may take once their first byte has come. Idle connections have two minutes."),
    one(SERVING, "max-header-bytes", "BYTES", Some(defaults::MAX_HEADER_BYTES),
        "Largest request headers, from 8Ki to 16Mi."),

    many(CACHE, "preload", "RESOURCES", None,
        "Resources to cache from the start; /readyz waits for them. Like pods,deployments.apps or apps/v1/deployments. \
         All others are cached from their first read on."),
    many(CACHE, "never", "RESOURCES", Some(defaults::NEVER),
        "Resources that are always forwarded. Replaces the default."),
    one(CACHE, "hold-timeout", "DURATION", Some(defaults::HOLD_TIMEOUT),
        "How long a read waits for its cache to sync. 0s: not at all."),
    one(CACHE, "on-hold-timeout", "reject|forward", Some(defaults::ON_HOLD_TIMEOUT),
        "What then: 503 with Retry-After, or ask the kube-apiserver."),
    one(CACHE, "max-holds", "N", Some(defaults::MAX_HOLDS),
        "Reads held at the same time. Above it a read that would have to wait gets 429 with Retry-After."),
    one(CACHE, "fence-timeout", "DURATION", Some(defaults::FENCE_TIMEOUT),
        "How long a read waits for the cache to catch up with the client's own writes before it is forwarded."),
    one(CACHE, "max-staleness", "DURATION", Some(defaults::MAX_STALENESS),
        "How old an answer from the cache may be while the kube-apiserver can be reached: if it was last heard longer ago, \
         reads are forwarded."),
    one(CACHE, "memory-budget", "BYTES|none", None,
        "Memory all caches may take together, like 256Mi. A resource that has no room is forwarded. Default: 60% of the \
         cgroup's memory limit, where there is one; else none."),
    one(CACHE, "idle-timeout", "DURATION", Some(defaults::IDLE_TIMEOUT),
        "A cache that nobody has read for so long is dropped, unless it is preloaded. 0s: never."),

    one(PROCESS, "admin-address", "IP:PORT", Some(defaults::ADMIN_ADDRESS),
        "Plain HTTP for /livez, /readyz, /metrics and /configz. Port 0: the kernel chooses."),
    one(PROCESS, "shutdown-grace-period", "DURATION", Some(defaults::SHUTDOWN_GRACE_PERIOD),
        "How long requests in flight may take after SIGTERM."),
    one(PROCESS, "shutdown-delay-duration", "DURATION", Some(defaults::SHUTDOWN_DELAY_DURATION),
        "How long to go on serving after SIGTERM while /readyz already fails."),
    one(PROCESS, "v", "0-10", Some(defaults::VERBOSITY),
        "Log verbosity: 0 start, stop and trouble, 2 a line for each request, 5 everything."),
    one(PROCESS, "logging-format", "text|json", Some(defaults::LOGGING_FORMAT),
        "Format of the log on stderr."),
];

// === impl Setting ===

impl Setting {
    /// The setting with this flag name.
    pub(crate) fn named(name: &str) -> Option<&'static Self> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// `FOREBAY_SECURE_PORT`.
    pub(crate) fn variable(&self) -> String {
        variable(self.name)
    }

    /// `securePort`.
    pub(crate) fn key(&self) -> String {
        let mut key = String::new();
        let mut upper = false;
        for c in self.name.chars() {
            match c {
                '-' => upper = true,
                c if upper => {
                    key.push(c.to_ascii_uppercase());
                    upper = false;
                }
                c => key.push(c),
            }
        }
        key
    }
}

/// The environment twin of a flag.
pub(crate) fn variable(flag: &str) -> String {
    format!("FOREBAY_{}", flag.replace('-', "_").to_ascii_uppercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_derive_from_the_flag() {
        let port = Setting::named("secure-port").expect("setting");
        assert_eq!((port.key().as_str(), port.variable().as_str()), ("securePort", "FOREBAY_SECURE_PORT"));
        let v = Setting::named("v").expect("setting");
        assert_eq!((v.key().as_str(), v.variable().as_str()), ("v", "FOREBAY_V"));
    }

    #[test]
    fn no_name_twice_and_every_help_is_a_sentence() {
        for (i, setting) in SETTINGS.iter().enumerate() {
            assert!(!SETTINGS[..i].iter().any(|other| other.name == setting.name), "{}", setting.name);
            assert!(setting.help.ends_with('.'), "{}", setting.name);
        }
    }

    // A Service called `forebay` makes kubelet set FOREBAY_PORT, FOREBAY_SERVICE_HOST and so on in every container.
    #[test]
    fn no_twin_collides_with_service_links() {
        for setting in SETTINGS {
            let variable = setting.variable();
            assert!(!variable.starts_with("FOREBAY_PORT") && !variable.starts_with("FOREBAY_SERVICE_"), "{variable}");
        }
    }
}
