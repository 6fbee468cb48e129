//! The command that `exec` runs: its arguments, environment, signals and exit code.

use std::{
    ffi::OsString,
    fs, io,
    os::unix::{ffi::OsStrExt, process::ExitStatusExt},
    path::Path,
    process::ExitStatus,
};

use nix::{sys::signal::Signal, unistd::Pid};
use tokio::signal::unix::{SignalKind, signal};

use super::{Exit, exec::ACTIVE};
use crate::config::Environment;

/// Clients in some languages use `HTTPS_PROXY` for loopback unless told not to.
const LOOPBACK: [&str; 3] = ["127.0.0.1", "::1", "localhost"];

const PLACEHOLDER: &[u8] = b"{kubeconfig}";

/// A change of the environment: `None` removes the variable.
pub(super) type Change = (&'static str, Option<OsString>);

/// A running command.
#[derive(Debug)]
pub(super) struct Child {
    process: tokio::process::Child,
}

/// Signals caught for the child. From now on they don't end this process.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, tokio::signal::unix::Signal)>,
}

/// What the terminal sends to every process in its foreground, the child included.
const FROM_TERMINAL: [Signal; 3] = [Signal::SIGINT, Signal::SIGQUIT, Signal::SIGWINCH];
const RELAYED: [Signal; 7] = [
    Signal::SIGTERM,
    Signal::SIGINT,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGWINCH,
];

/// The user's shell.
pub(super) fn shell(env: &Environment) -> OsString {
    env.get("SHELL").filter(|shell| !shell.is_empty()).map_or_else(|| "/bin/sh".into(), OsString::from)
}

/// The command with `{kubeconfig}` replaced wherever it stands.
pub(super) fn with_kubeconfig(command: &[OsString], path: &Path) -> Vec<OsString> {
    command.iter().map(|part| replaced(part, path)).collect()
}

fn replaced(part: &OsString, path: &Path) -> OsString {
    let (mut rest, mut out) = (part.as_bytes(), Vec::new());
    while let Some(at) = memchr::memmem::find(rest, PLACEHOLDER) {
        out.extend_from_slice(&rest[..at]);
        out.extend_from_slice(path.as_os_str().as_bytes());
        rest = &rest[at + PLACEHOLDER.len()..];
    }
    out.extend_from_slice(rest);
    std::os::unix::ffi::OsStringExt::from_vec(out)
}

/// A `--kubeconfig` of the command's own that is not ours.
pub(super) fn own_kubeconfig(command: &[OsString], ours: &Path) -> Option<String> {
    let mut parts = command.iter().skip(1).map(|part| part.to_string_lossy());
    while let Some(part) = parts.next() {
        // What follows is for somebody else: `kubectl exec pod -- cmd --kubeconfig=...`.
        if part == "--" {
            return None;
        }
        let value = match part.trim_start_matches('-').split_once('=') {
            Some(("kubeconfig", value)) if part.starts_with('-') => Some(value.to_owned()),
            _ if part == "--kubeconfig" || part == "-kubeconfig" => parts.next().map(|value| value.into_owned()),
            _ => None,
        };
        if let Some(value) = value.filter(|value| Path::new(value) != ours) {
            return Some(value);
        }
    }
    None
}

/// What the child's environment differs in from ours.
pub(super) fn environment(env: &Environment, kubeconfig: &Path) -> Vec<Change> {
    let value = |name: &str| env.get(name).filter(|value| !value.trim().is_empty());
    let no_proxy = |name: &str, twin: &str| {
        // Whoever reads only the twin must find the same.
        let current = value(name).or_else(|| value(twin)).map_or("", String::as_str);
        let mut items: Vec<&str> = current.split(',').map(str::trim).filter(|item| !item.is_empty()).collect();
        if items.contains(&"*") {
            return current.to_owned();
        }
        items.extend(LOOPBACK.iter().filter(|address| !current.split(',').any(|item| item.trim() == **address)));
        items.join(",")
    };
    vec![
        ("KUBECONFIG", Some(kubeconfig.into())),
        ("NO_PROXY", Some(no_proxy("NO_PROXY", "no_proxy").into())),
        ("no_proxy", Some(no_proxy("no_proxy", "NO_PROXY").into())),
        // Java's fabric8 client takes it over any kubeconfig.
        ("KUBERNETES_MASTER", None),
        (ACTIVE, Some("1".into())),
    ]
}

// === impl Child ===

impl Child {
    /// Starts the command on our terminal.
    ///
    /// Codes as shells give them: 127 if there is no such command, 126 if it can't be run.
    pub(super) fn start(command: &[OsString], changes: Vec<Change>) -> Result<Self, Exit> {
        let [program, arguments @ ..] = command else { return Err(Exit::Usage("expected a command".to_owned())) };
        let mut process = tokio::process::Command::new(program);
        process.args(arguments);
        for (name, value) in changes {
            match value {
                Some(value) => process.env(name, value),
                None => process.env_remove(name),
            };
        }
        process.spawn().map(|process| Self { process }).map_err(|error| {
            eprintln!("error: can't run {}: {error}", program.to_string_lossy());
            Exit::Code(if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
        })
    }

    /// Relays signals until the command ends; its exit code, 128 + n if signal n ended it.
    pub(super) async fn wait(mut self, mut signals: Signals) -> io::Result<u8> {
        loop {
            tokio::select! {
                ended = self.process.wait() => return ended.map(code),
                signal = signals.next() => self.relay(signal),
            }
        }
    }

    fn relay(&self, signal: Signal) {
        if FROM_TERMINAL.contains(&signal) && in_foreground() {
            // The terminal has told the child too. Twice would read as "now, at once".
            return;
        }
        let pid = self.process.id().and_then(|pid| i32::try_from(pid).ok());
        if let Some(pid) = pid
            && let Err(error) = nix::sys::signal::kill(Pid::from_raw(pid), signal)
        {
            tracing::warn!(%signal, %error, "can't relay a signal");
        }
    }
}

fn code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Is our process group the terminal's foreground group? Without a terminal it is not.
fn in_foreground() -> bool {
    fs::read_to_string("/proc/self/stat").is_ok_and(|stat| is_foreground(&stat))
}

/// Compares `pgrp` and `tpgid` of proc(5): the third and the sixth field after the name.
fn is_foreground(stat: &str) -> bool {
    let fields = stat.rsplit_once(')').map(|(_, rest)| rest.split_ascii_whitespace().collect::<Vec<_>>());
    fields.is_some_and(|fields| fields.len() > 5 && fields[2] == fields[5])
}

// === impl Signals ===

impl Signals {
    pub(super) fn install() -> io::Result<Self> {
        let stream = |kind: Signal| Ok((kind, signal(SignalKind::from_raw(kind as i32))?));
        Ok(Self { streams: RELAYED.into_iter().map(stream).collect::<io::Result<_>>()? })
    }

    /// The next signal. Cancel safe.
    async fn next(&mut self) -> Signal {
        std::future::poll_fn(|cx| {
            for (kind, stream) in &mut self.streams {
                if stream.poll_recv(cx).is_ready() {
                    return std::task::Poll::Ready(*kind);
                }
            }
            std::task::Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn os(parts: &[&str]) -> Vec<OsString> {
        parts.iter().map(OsString::from).collect()
    }

    fn env(pairs: &[(&str, &str)]) -> Environment {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn the_placeholder_becomes_the_path_wherever_it_stands() {
        let command =
            with_kubeconfig(&os(&["a", "--k={kubeconfig}", "{kubeconfig}:{kubeconfig}", "{kube}"]), "/k".as_ref());
        assert_eq!(command, os(&["a", "--k=/k", "/k:/k", "{kube}"]));
    }

    #[test]
    fn a_kubeconfig_of_the_commands_own_is_noticed() {
        for (command, want) in [
            (&["c", "--kubeconfig=/x"][..], Some("/x")),
            (&["c", "--kubeconfig", "/x"], Some("/x")),
            (&["c", "-kubeconfig=/x"], Some("/x")),
            (&["c", "--kubeconfig", "/ours"], None),
            (&["c", "--kubeconfig=/ours"], None),
            (&["c", "exec", "pod", "--", "d", "--kubeconfig=/x"], None),
            (&["c", "kubeconfig=/x", "--kubeconfig-dir=/x"], None),
        ] {
            assert_eq!(own_kubeconfig(&os(command), "/ours".as_ref()).as_deref(), want, "{command:?}");
        }
    }

    #[test]
    fn the_environment_keeps_loopback_out_of_proxies() {
        for (given, upper, lower) in [
            (&[][..], "127.0.0.1,::1,localhost", "127.0.0.1,::1,localhost"),
            (&[("NO_PROXY", "corp, ,localhost")], "corp,localhost,127.0.0.1,::1", "corp,localhost,127.0.0.1,::1"),
            (&[("NO_PROXY", "a"), ("no_proxy", "b")], "a,127.0.0.1,::1,localhost", "b,127.0.0.1,::1,localhost"),
            (&[("no_proxy", "*")], "*", "*"),
        ] {
            let changes = environment(&env(given), "/k".as_ref());
            let value = |name| changes.iter().find(|change| change.0 == name).map(|change| change.1.clone());
            assert_eq!(value("NO_PROXY"), Some(Some(upper.into())), "{given:?}");
            assert_eq!(value("no_proxy"), Some(Some(lower.into())), "{given:?}");
            assert_eq!(value("KUBECONFIG"), Some(Some("/k".into())));
            assert_eq!(value("KUBERNETES_MASTER"), Some(None));
            assert_eq!(value(ACTIVE), Some(Some("1".into())));
        }
    }

    #[test]
    fn codes_are_the_shells() {
        assert_eq!(code(ExitStatus::from_raw(0)), 0);
        assert_eq!(code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code(ExitStatus::from_raw(15)), 143);
    }

    /// The relay through this very process: its handlers are in place, so the signal ends nobody but the child.
    #[tokio::test]
    async fn signals_reach_the_child_and_its_code_comes_back() {
        let temp = tempfile::tempdir().expect("temp");
        let ready = temp.path().join("ready");
        let script = format!("trap 'exit 7' USR1; : > {}; while :; do sleep 0.02; done", ready.display());
        let signals = Signals::install().expect("signals");
        let child = Child::start(&os(&["/bin/sh", "-c", &script]), Vec::new()).expect("start");
        let raised = async {
            while !ready.exists() {
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
            nix::sys::signal::raise(Signal::SIGUSR1).expect("raise");
        };
        let waited = async { tokio::join!(child.wait(signals), raised).0.expect("wait") };
        let code = tokio::time::timeout(std::time::Duration::from_secs(20), waited).await.expect("in time");
        assert_eq!(code, 7);
    }

    #[tokio::test]
    async fn a_command_that_cannot_start_has_the_shells_code() {
        for (program, want) in [("/nonexistent", 127), ("/", 126)] {
            let Err(Exit::Code(code)) = Child::start(&os(&[program]), Vec::new()) else { panic!("{program} starts") };
            assert_eq!(code, want);
        }
    }

    #[test]
    fn the_foreground_is_the_terminals_own_group() {
        assert!(is_foreground("7 (a) b) S 1 50 50 34816 50 4194560"));
        assert!(!is_foreground("7 (a) S 1 50 50 34816 60 4194560"));
        assert!(!is_foreground("7 (a) S 1 50 50 0 -1 4194560"));
        assert!(!is_foreground(""));
    }
}
