//! `forebay run`: the proxy in the foreground.

use super::{Exit, VERSION};
use crate::{
    app,
    config::{Config, Environment, Flags, TextOrJson},
    telemetry::logging,
};

const EXAMPLES: &str = "\
Each flag has an environment twin (--secure-port: FOREBAY_SECURE_PORT) and a key in the --config file (securePort).
Flags win over the environment, the environment over the file, the file over the defaults.

Examples:
  # The cluster of your current context; then: export KUBECONFIG=<the path it prints>
  forebay run

  # Another context, everything a controller reads cached before it starts
  forebay run --context=prod --preload=deployments.apps,pods,configmaps

  # Check a configuration and print it in full
  forebay run --config=forebay.yaml --dry-run";

/// Arguments of `run`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Run {
    #[command(flatten)]
    flags: Flags,
    /// Check the configuration, print it in full (it can be used as a --config file), and end.
    #[arg(long, help_heading = "Configuration")]
    dry_run: bool,
}

// === impl Run ===

impl Run {
    pub(super) async fn run(self, env: &Environment) -> Result<(), Exit> {
        let config = crate::config::load(&self.flags, env, &[])?;
        if self.dry_run {
            let yaml = serde_saphyr::to_string(&config).map_err(|error| Exit::Failure(error.into()))?;
            return Err(Exit::Text(yaml));
        }
        logging::init(log_format(&config), config.v).map_err(|error| Exit::Failure(error.into()))?;
        let effective = serde_json::to_string(&config).unwrap_or_default();
        tracing::info!(version = VERSION, config = effective, "forebay starts");
        app::run(config).await.map_err(Exit::Failure)
    }
}

/// The configuration's word for the log's format in the log's own type.
pub(super) fn log_format(config: &Config) -> logging::Format {
    match config.logging_format {
        TextOrJson::Text => logging::Format::Text,
        TextOrJson::Json => logging::Format::Json,
    }
}
