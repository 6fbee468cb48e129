//! `forebay exec`: a command, or a shell, with its own proxy.
//!
//! ```text
//! temporary folder -> proxy on ports of the kernel's choice -> child -> report -> drain -> folder gone
//! ```
//!
//! The child inherits the terminal. Its exit code is ours.

use std::{ffi::OsString, fs::Permissions, os::unix::fs::PermissionsExt, path::PathBuf};

use anyhow::Context;

use super::{
    Exit,
    child::{self, Child},
    proxy, report,
    run::log_format,
};
use crate::{
    config::{Environment, Flags},
    telemetry::logging,
};

/// Set for the child; whoever finds it does not start another proxy in front of this one.
pub(super) const ACTIVE: &str = "FOREBAY_ACTIVE";

/// Both ports from the kernel: several may run side by side.
const PRESETS: [(&str, &str); 2] = [("secure-port", "0"), ("admin-address", "127.0.0.1:0")];

const EXAMPLES: &str = "\
The command gets KUBECONFIG (same context, cluster, user and namespace names as yours), loopback in NO_PROXY, and
FOREBAY_ACTIVE=1. Signals reach it, its exit code is returned. {kubeconfig} in its arguments becomes the path.

Examples:
  forebay exec -- ./my-controller --leader-elect=false
  forebay exec --context=prod -- ./my-controller --kubeconfig={kubeconfig}
  forebay exec --preload=pods -- kubectl get pods -A -w
  forebay exec        # a shell";

/// Arguments of `exec`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES, override_usage = "forebay exec [FLAGS] [-- COMMAND [ARGUMENTS]...]")]
pub(super) struct Exec {
    #[command(flatten)]
    flags: Flags,
    /// The command and its arguments. Without one: $SHELL.
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

// === impl Exec ===

impl Exec {
    pub(super) async fn run(self, env: &Environment) -> Result<(), Exit> {
        if env.contains_key(ACTIVE) {
            return Err(Exit::Usage(format!(
                "already inside forebay exec ({ACTIVE} is set): run the command as it is, or unset {ACTIVE}"
            )));
        }
        let mut config = crate::config::load(&self.flags, env, &PRESETS)?;
        let logging = match config.v {
            0 => logging::init_quiet(log_format(&config)),
            v => logging::init(log_format(&config), v),
        };
        logging.map_err(|error| Exit::Failure(error.into()))?;

        let folder = private_folder(env).map_err(Exit::Failure)?;
        config.write_kubeconfig = folder.path().join("kubeconfig");
        let kubeconfig = config.write_kubeconfig.clone();
        // Before the proxy starts, so that a signal in between does not leave the folder behind.
        let signals = child::Signals::install().context("can't catch signals").map_err(Exit::Failure)?;
        let proxy = proxy::start(config).await.map_err(Exit::Failure)?;

        let shell = self.command.is_empty();
        let command = if shell { vec![child::shell(env)] } else { self.command };
        let command = child::with_kubeconfig(&command, &kubeconfig);
        if let Some(other) = child::own_kubeconfig(&command, &kubeconfig) {
            eprintln!(
                "forebay: warning: the command has its own --kubeconfig ({other}) and will not use forebay; write \
                 --kubeconfig={{kubeconfig}}"
            );
        }
        if shell {
            eprintln!("forebay: a shell whose KUBECONFIG is {}; leave it with exit", kubeconfig.display());
        }
        let ended = match Child::start(&command, child::environment(env, &kubeconfig)) {
            Ok(child) => child.wait(signals).await.context("can't wait for the command").map_err(Exit::Failure),
            Err(exit) => Err(exit),
        };
        // Counted before the drain: what a drain forwards is nobody's doing.
        let savings = proxy.savings();
        if let Err(error) = proxy.stop().await {
            tracing::warn!("proxy: {error:#}");
        }
        let code = ended?;
        eprint!("{}", report::text(&savings));
        drop(folder);
        if code == 0 { Ok(()) } else { Err(Exit::Code(code)) }
    }
}

/// A fresh folder for this user alone, in memory where the system offers that.
fn private_folder(env: &Environment) -> anyhow::Result<tempfile::TempDir> {
    let set = |name: &str| env.get(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let parent = set("XDG_RUNTIME_DIR").filter(|path| path.is_dir()).or_else(|| set("TMPDIR")).unwrap_or("/tmp".into());
    tempfile::Builder::new()
        .prefix("forebay-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&parent)
        .with_context(|| format!("can't make a temporary folder in {}", parent.display()))
}
