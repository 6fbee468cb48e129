//! Credential plugins (`users[].user.exec`): run, and asked by the protocol `client.authentication.k8s.io` of client-go.
//!
//! kube's own runner is not used: it forgets when a client certificate expires, runs a plugin once for each thing asked,
//! and its errors hold the environment and all of the output, which may hold a token. None of that is told here.

use std::{process::Stdio, time::Duration};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::config::{ExecAuthCluster, ExecConfig, ExecInteractiveMode};
use serde::{Deserialize, Serialize};
use tokio::{process::Command, time::timeout};

/// What a plugin gave. No `Debug`: it is a secret.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Given {
    pub(super) token: Option<String>,
    /// PEM.
    pub(super) client_certificate_data: Option<String>,
    /// PEM.
    pub(super) client_key_data: Option<String>,
    expiration_timestamp: Option<Time>,
}

/// A plugin gave nothing. No part of what it wrote is in here.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("exec names no command")]
    NoCommand,
    #[error("{command}: can't be run: {source}")]
    Start { command: String, source: std::io::Error },
    #[error("{command}: exec plugin failed with {status}; run it by hand to see why")]
    Failed { command: String, status: std::process::ExitStatus },
    #[error("{command}: exec plugin did not end within {after:?}")]
    Hung { command: String, after: Duration },
    #[error("{command}: exec plugin printed no ExecCredential with a token or a client certificate")]
    Nothing { command: String },
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Question<'a> {
    kind: &'static str,
    api_version: Option<&'a str>,
    spec: Spec<'a>,
}

#[derive(Serialize)]
struct Spec<'a> {
    interactive: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    cluster: Option<&'a ExecAuthCluster>,
}

#[derive(Deserialize)]
struct Answer {
    status: Option<Given>,
}

/// Runs the plugin. `limit`: when nobody is there to answer what it may ask.
pub(super) async fn run(exec: &ExecConfig, limit: Option<Duration>) -> Result<Given, ExecError> {
    let name = exec.command.clone().ok_or(ExecError::NoCommand)?;
    // Later ones must not take keystrokes that are meant for whoever runs in the foreground.
    let interactive = limit.is_none() && exec.interactive_mode != Some(ExecInteractiveMode::Never);
    let question = Question {
        kind: "ExecCredential",
        api_version: exec.api_version.as_deref(),
        spec: Spec { interactive, cluster: exec.cluster.as_ref() },
    };
    let mut command = Command::new(&name);
    command.args(exec.args.iter().flatten()).kill_on_drop(true).stdout(Stdio::piped());
    for variable in exec.env.iter().flatten() {
        if let (Some(name), Some(value)) = (variable.get("name"), variable.get("value")) {
            command.env(name, value);
        }
    }
    command.env("KUBERNETES_EXEC_INFO", serde_json::to_string(&question).unwrap_or_default());
    if interactive {
        command.stdin(Stdio::inherit()).stderr(Stdio::inherit());
    } else {
        command.stdin(Stdio::null()).stderr(Stdio::null());
    }
    let running = command.output();
    let output = match limit {
        None => running.await,
        Some(after) => {
            let Ok(output) = timeout(after, running).await else {
                return Err(ExecError::Hung { command: name, after });
            };
            output
        }
    };
    let output = output.map_err(|source| ExecError::Start { command: name.clone(), source })?;
    if !output.status.success() {
        return Err(ExecError::Failed { command: name, status: output.status });
    }
    // YAML, of which JSON is a part: client-go takes both.
    let given = serde_saphyr::from_slice::<Answer>(&output.stdout).ok().and_then(|answer| answer.status);
    given.filter(Given::is_some).ok_or(ExecError::Nothing { command: name })
}

// === impl Given ===

impl Given {
    /// When to ask again: a while before it expires, so that no request is sent with what is about to.
    pub(super) fn lifetime(&self) -> Option<Duration> {
        let expires = std::time::SystemTime::from(self.expiration_timestamp.as_ref()?.0);
        let left = expires.duration_since(std::time::SystemTime::now()).unwrap_or_default();
        Some(left - (left / 4).min(Duration::from_secs(60)))
    }

    fn is_some(&self) -> bool {
        self.token.is_some() || (self.client_certificate_data.is_some() && self.client_key_data.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin(script: &str) -> ExecConfig {
        let config = serde_json::json!({
            "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never",
            "command": "sh", "args": ["-c", script], "env": [{"name": "WORD", "value": "sesame"}],
        });
        serde_json::from_value(config).unwrap()
    }

    async fn fails(script: &str, want: &str) {
        let error = run(&plugin(script), Some(Duration::from_secs(10))).await.err().unwrap().to_string();
        assert!(error.contains(want) && !error.contains("sesame"), "{script}: {error}");
    }

    #[tokio::test]
    async fn what_is_printed_is_read_and_nothing_of_it_told() {
        let script = r#"printf '{"status":{"token":"%s","expirationTimestamp":"2999-01-01T00:00:00Z"}}' $WORD"#;
        let given = run(&plugin(script), None).await.ok().unwrap();
        assert_eq!(given.token.as_deref(), Some("sesame"));
        assert!(given.lifetime().unwrap() > Duration::from_secs(86_400));
        let script = r#"echo "$KUBERNETES_EXEC_INFO" | grep -q '"interactive":false' && echo 'status: {token: a}'"#;
        let given = run(&plugin(script), None).await.ok().unwrap();
        assert_eq!((given.token.as_deref(), given.lifetime()), (Some("a"), None));
        fails("echo $WORD; echo $WORD >&2; exit 3", "sh: exec plugin failed with exit status: 3").await;
        fails("echo $WORD", "printed no ExecCredential").await;
        fails("echo '{\"status\":{}}'", "printed no ExecCredential").await;
        let hung = run(&plugin("sleep 60"), Some(Duration::from_millis(50))).await.err().unwrap().to_string();
        assert!(hung.contains("within 50ms"), "{hung}");
    }
}
