//! Text to types. Every problem is collected; only a configuration without any becomes a [`Config`].

use std::{
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use super::{
    Config, Environment, Errors, Flags, ResourceSelector, cgroup,
    error::{Invalid, Problem},
    parse::{self, Expected},
    raw::{self, Layers, Origin},
};

/// Builds the configuration from flags, the environment and the file one of them names.
///
/// `presets` are defaults of the calling command, by flag name: `exec` takes ports from the kernel.
///
/// # Errors
///
/// Every problem found, with its place, the value, and what was expected.
pub fn load(flags: &Flags, env: &Environment, presets: &[(&'static str, &str)]) -> Result<Config, Errors> {
    let mut problems = Vec::new();
    let layers = raw::stack(flags, env, presets, &mut problems);
    let mut loader = Loader { layers: &layers, problems };
    let config = loader.config(env);
    match config {
        Some(config) if loader.problems.is_empty() => Ok(config),
        _ => Err(Errors(loader.problems)),
    }
}

struct Loader<'a> {
    layers: &'a Layers,
    problems: Vec<Problem>,
}

// === impl Loader ===

impl Loader<'_> {
    /// `None` if a setting has no usable value; its problem is then noted. Fields come before any `?`, so that all of
    /// them are looked at.
    fn config(&mut self, env: &Environment) -> Option<Config> {
        let kubeconfig = self.optional("kubeconfig", path);
        let context = self.optional("context", non_empty);
        let write_kubeconfig = self.optional("write-kubeconfig", path);
        let bind_address = self.one("bind-address", parse::loopback);
        let secure_port = self.one("secure-port", parse::port);
        let admin_address = self.one("admin-address", socket_address);
        let connect_timeout = self.one("connect-timeout", positive_duration);
        let request_timeout = self.one("request-timeout", positive_duration);
        let list_page_size = self.one("list-page-size", |text| parse::at_least_one(text, 100_000));
        let max_initial_lists = self.one("max-initial-lists", |text| parse::at_least_one(text, 1_000));
        let max_frame_bytes = self.one("max-frame-bytes", parse::bytes);
        let max_connections = self.one("max-connections", |text| parse::at_least_one(text, 1_000_000));
        let max_concurrent_streams = self.one("max-concurrent-streams", |text| parse::at_least_one(text, 1_000_000));
        let handshake_timeout = self.one("handshake-timeout", positive_duration);
        let header_timeout = self.one("header-timeout", positive_duration);
        let max_header_bytes = self.one("max-header-bytes", header_bytes);
        let preload = self.resources("preload");
        let never = self.resources("never");
        let hold_timeout = self.one("hold-timeout", parse::duration);
        let on_hold_timeout = self.one("on-hold-timeout", parse::on_hold_timeout);
        let max_holds = self.one("max-holds", |text| parse::within(text, 0, 1_000_000));
        let fence_timeout = self.one("fence-timeout", parse::duration);
        let max_staleness = self.one("max-staleness", positive_duration);
        let memory_budget = self.optional("memory-budget", parse::memory_budget);
        let idle_timeout = self.one("idle-timeout", parse::duration);
        let shutdown_grace_period = self.one("shutdown-grace-period", parse::duration);
        let shutdown_delay_duration = self.one("shutdown-delay-duration", parse::duration);
        let v = self.one("v", |text| parse::within(text, 0, 10));
        let logging_format = self.one("logging-format", parse::logging_format);

        for wanted in &preload {
            if let Some(refused) = never.iter().find(|refused| refused.overlaps(wanted)) {
                self.invalid(
                    "preload",
                    wanted.to_string(),
                    format!("expected resources that --never ({refused}) allows"),
                );
            }
        }
        if let (Some(upstream), Some(written)) = (&kubeconfig, &write_kubeconfig)
            && upstream == written
        {
            let expected = "expected another file than --kubeconfig, which it would overwrite".to_owned();
            self.invalid("write-kubeconfig", written.display().to_string(), expected);
        }
        Some(Config {
            kubeconfig,
            context,
            connect_timeout: connect_timeout?,
            request_timeout: request_timeout?,
            list_page_size: list_page_size?,
            max_initial_lists: max_initial_lists?,
            max_frame_bytes: max_frame_bytes?,
            bind_address: bind_address?,
            secure_port: secure_port?,
            write_kubeconfig: write_kubeconfig.unwrap_or_else(|| default_kubeconfig(env)),
            max_connections: max_connections?,
            max_concurrent_streams: max_concurrent_streams?,
            handshake_timeout: handshake_timeout?,
            header_timeout: header_timeout?,
            max_header_bytes: max_header_bytes?,
            preload,
            never,
            hold_timeout: hold_timeout?,
            on_hold_timeout: on_hold_timeout?,
            max_holds: max_holds?,
            fence_timeout: fence_timeout?,
            max_staleness: max_staleness?,
            memory_budget: memory_budget.unwrap_or_else(|| cgroup::budget(Path::new("/"))),
            idle_timeout: idle_timeout?,
            admin_address: admin_address?,
            shutdown_grace_period: shutdown_grace_period?,
            shutdown_delay_duration: shutdown_delay_duration?,
            v: v?,
            logging_format: logging_format?,
        })
    }

    fn one<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, Expected>) -> Option<T> {
        let value = self.layers.get(name)?.values.last()?;
        parse(value).map_err(|expected| self.invalid(name, value.clone(), expected)).ok()
    }

    fn optional<T>(&mut self, name: &'static str, parse: impl Fn(&str) -> Result<T, Expected>) -> Option<T> {
        self.one(name, parse)
    }

    /// Comma-separated and repeated, each once, in the order given.
    fn resources(&mut self, name: &'static str) -> Vec<ResourceSelector> {
        let mut selectors = Vec::new();
        let Some(raw) = self.layers.get(name) else { return selectors };
        for item in raw.values.iter().flat_map(|value| value.split(',')).map(str::trim).filter(|item| !item.is_empty())
        {
            match item.parse::<ResourceSelector>() {
                Ok(selector) if selectors.contains(&selector) => {}
                Ok(selector) => selectors.push(selector),
                Err(error) => self.invalid(name, item.to_owned(), error.to_string()),
            }
        }
        selectors
    }

    fn invalid(&mut self, setting: &'static str, value: String, expected: Expected) {
        let origin = self.layers.get(setting).map_or(Origin::Default, |raw| raw.origin.clone());
        self.problems.push(Invalid { setting, origin, value, expected }.into());
    }
}

fn path(text: &str) -> Result<PathBuf, Expected> {
    if text.is_empty() { Err("expected a path".to_owned()) } else { Ok(PathBuf::from(text)) }
}

fn non_empty(text: &str) -> Result<String, Expected> {
    if text.is_empty() { Err("expected a name".to_owned()) } else { Ok(text.to_owned()) }
}

fn socket_address(text: &str) -> Result<SocketAddr, Expected> {
    text.parse().map_err(|_| "expected an address and a port, like 127.0.0.1:6481 or [::1]:6481".to_owned())
}

/// A timeout of nothing would fail every request.
fn positive_duration(text: &str) -> Result<std::time::Duration, Expected> {
    match parse::duration(text)? {
        duration if duration.is_zero() => Err("expected a duration above zero, like 10s".to_owned()),
        duration => Ok(duration),
    }
}

/// HTTP needs some, and each connection may use them.
fn header_bytes(text: &str) -> Result<u32, Expected> {
    let bytes = parse::bytes(text)?;
    let fits = u32::try_from(bytes).ok().filter(|bytes| (8 << 10..=16 << 20).contains(bytes));
    fits.ok_or_else(|| "expected a size from 8Ki to 16Mi".to_owned())
}

/// In the user's own runtime folder; without one, in a folder that carries the user's id, because the temporary
/// directory is shared.
fn default_kubeconfig(env: &Environment) -> PathBuf {
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty());
    if let Some(runtime) = set("XDG_RUNTIME_DIR") {
        return Path::new(runtime).join("forebay/kubeconfig");
    }
    let uid = std::fs::metadata("/proc/self").map(|own| own.uid().to_string()).unwrap_or_else(|_| "user".to_owned());
    Path::new(set("TMPDIR").map_or("/tmp", String::as_str)).join(format!("forebay-{uid}/kubeconfig"))
}
