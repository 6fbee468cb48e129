//! The command line: what each command takes, and what it ends with.
//!
//! Exit codes: 0 fine, 1 it went wrong, 2 it was asked for wrongly; `exec` ends with its command's own. A wrong
//! invocation is answered by one line on stderr that says what to do. This is the only folder that knows the process's
//! environment; it is handed on as a value.

mod child;
#[cfg(feature = "testing")]
pub mod demo;
mod exec;
mod proxy;
pub mod report;
mod run;
mod wait;

use std::{ffi::OsString, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand, error::ErrorKind};

use crate::config::Environment;

/// Version of the program, as printed and reported in metrics.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

const OVERVIEW: &str = "\
A sidecar in front of kube-apiserver: answers GET and LIST from its own watch-fed cache, holds reads until that cache \
has synced, and forwards everything else untouched.";

const EXAMPLES: &str = "\
Examples:
  # What it does, without a cluster
  forebay demo

  # Run a controller through the cache, with the cluster of your current context
  forebay exec -- ./my-controller

  # A shell in which kubectl, helm and everything else go through it
  forebay exec

  # As a sidecar: ready once pods and deployments are cached
  forebay run --preload=pods,deployments.apps --write-kubeconfig=/run/forebay/kubeconfig";

/// A command line that has been understood, and the environment it was given in.
#[derive(Debug)]
pub struct Invocation {
    command: Command,
    env: Environment,
}

/// How a command ends, if not well.
#[derive(Debug)]
pub enum Exit {
    /// Asked for wrongly: code 2.
    Usage(String),
    /// Went wrong: code 1.
    Failure(anyhow::Error),
    /// Text asked for (`--help`, `--version`): code 0.
    Text(String),
    /// The whole help, because there was nothing else to say: code 2.
    Help(String),
    /// A code of someone else, who has said all there is to say.
    Code(u8),
}

#[derive(Debug, Parser)]
#[command(name = "forebay", version, about = OVERVIEW, after_help = EXAMPLES)]
#[command(subcommand_required = true, arg_required_else_help = true, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy in the foreground.
    Run(run::Run),
    /// Run a command, or a shell, through the proxy, and say at the end what the kube-apiserver was spared.
    Exec(exec::Exec),
    #[cfg(feature = "testing")]
    Demo(demo::DemoArgs),
    /// Wait until a running forebay is ready, and show what it waits for.
    Wait(wait::Wait),
    /// Print the version.
    Version(Version),
}

#[derive(Debug, clap::Args)]
struct Version {
    /// Format: text or json.
    #[arg(short, long, value_name = "FORMAT", default_value = "text", value_parser = ["text", "json"])]
    output: String,
}

// === impl Invocation ===

impl Invocation {
    /// Understands a command line.
    ///
    /// # Errors
    ///
    /// The text or the one line to print instead, with the code to end with.
    pub fn parse(
        args: impl IntoIterator<Item = OsString>,
        env: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<Self, Exit> {
        let text = |text: OsString| text.to_string_lossy().into_owned();
        let env = env.into_iter().map(|(name, value)| (text(name), text(value))).collect();
        let command = Cli::command().try_get_matches_from(args).and_then(|matches| Cli::from_arg_matches(&matches));
        Ok(Self { command: command.map_err(Exit::from)?.command, env })
    }

    /// Does what was asked for.
    ///
    /// # Errors
    ///
    /// How it ended, if not well.
    pub async fn run(self) -> Result<(), Exit> {
        match self.command {
            Command::Run(run) => Box::pin(run.run(&self.env)).await,
            Command::Exec(exec) => Box::pin(exec.run(&self.env)).await,
            #[cfg(feature = "testing")]
            Command::Demo(demo) => Box::pin(demo.run()).await.map_err(Exit::Failure),
            Command::Wait(wait) => wait.run(&self.env).await,
            Command::Version(version) => Err(Exit::Text(version.text())),
        }
    }
}

// === impl Version ===

impl Version {
    fn text(&self) -> String {
        if self.output == "json" {
            let platform = format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH);
            return format!("{}\n", serde_json::json!({ "version": VERSION, "platform": platform }));
        }
        format!("forebay {VERSION}\n")
    }
}

// === impl Exit ===

impl Exit {
    /// Prints what there is to say, and gives the code to end with.
    pub fn report(self) -> ExitCode {
        match self {
            Self::Text(text) => {
                // A closed pipe (`--help | head`) is no failure.
                let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_bytes());
                ExitCode::SUCCESS
            }
            Self::Help(text) => {
                eprint!("{text}");
                ExitCode::from(2)
            }
            Self::Usage(line) => {
                eprintln!("error: {line}");
                ExitCode::from(2)
            }
            Self::Failure(error) => {
                eprintln!("error: {error:#}");
                ExitCode::FAILURE
            }
            Self::Code(code) => ExitCode::from(code),
        }
    }
}

impl From<clap::Error> for Exit {
    /// clap says it in paragraphs; one line is enough.
    fn from(error: clap::Error) -> Self {
        let text = error.render().to_string();
        match error.kind() {
            ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => Self::Text(text),
            ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => Self::Help(text),
            _ => {
                let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                let mut line = lines.next().unwrap_or_default().trim_start_matches("error: ").to_owned();
                for tip in lines.filter_map(|line| line.strip_prefix("tip: ")) {
                    line = format!("{line}; {tip}");
                }
                Self::Usage(format!("{line} (see forebay --help, forebay COMMAND --help)"))
            }
        }
    }
}

impl From<anyhow::Error> for Exit {
    fn from(error: anyhow::Error) -> Self {
        Self::Failure(error)
    }
}

impl From<crate::config::Errors> for Exit {
    fn from(errors: crate::config::Errors) -> Self {
        Self::Usage(errors.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Invocation, Exit> {
        Invocation::parse(std::iter::once(&"forebay").chain(args).map(OsString::from), [])
    }

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn wrong_invocations_are_one_line_with_a_way_out() {
        for (args, want) in [
            (
                &["run", "--secure-prt=1"][..],
                "unexpected argument '--secure-prt' found; a similar argument exists: '--secure-port'",
            ),
            (&["rum"], "unrecognized subcommand 'rum'; a similar subcommand exists: 'run'"),
            (&["run", "--context"], "a value is required for '--context <NAME>'"),
            (&["wait", "--timeout=5"], "invalid value '5' for '--timeout <DURATION>': expected a duration with a unit"),
            (&["version", "-o", "yaml"], "invalid value 'yaml' for '--output <FORMAT>'"),
        ] {
            let Err(Exit::Usage(line)) = parse(args) else { panic!("{args:?}") };
            assert!(line.starts_with(want) && line.lines().count() == 1, "{line}");
        }
    }

    #[test]
    fn help_teaches() {
        let Err(Exit::Text(help)) = parse(&["run", "--help"]) else { panic!("no help") };
        for want in ["--secure-port <PORT>", "[default: 6480]", "FOREBAY_SECURE_PORT", "Examples:", "Cache and holds:"]
        {
            assert!(help.contains(want), "{want} is not in\n{help}");
        }
        assert!(matches!(parse(&[]), Err(Exit::Help(help)) if help.contains("forebay exec -- ./my-controller")));
    }
}
