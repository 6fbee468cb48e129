//! The README's shell blocks that need an API server, run as they stand there.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::build::KUBECTL;
use crate::control_plane::ControlPlane;
use crate::fixtures::{create_all, deployment, in_namespace};
use crate::markdown;
use crate::process::Scratch;
use crate::users::{Role, Users};

const LIMIT: Duration = Duration::from_secs(120);

/// Stands for the reader's controller: does what its flags say with the kubeconfig it was given.
const CONTROLLER: &str = r#"#!/bin/sh
case "$1 $2 $3" in
    --kubeconfig=/*" --kube-api-qps=500 --kube-api-burst=1000") ;;
    *) echo "my-controller: $*" >&2; exit 1 ;;
esac
kubectl "$1" get --raw /apis/apps/v1/deployments >/dev/null
exec kubectl "$1" get --raw /apis/apps/v1/deployments
"#;

/// What the block leaves running ends with it, whatever happens in between.
const BEFORE: &str = "trap 'kill $(jobs -p) 2>/dev/null || true; wait' EXIT\n";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_blocks_for_a_real_cluster_work() {
    let plane = ControlPlane::shared();
    let namespace = plane.namespace("readme").await;
    let path = in_namespace("/apis/apps/v1/deployments", &namespace);
    create_all(&plane.client(&Users::rig()), vec![(path, deployment("readme"))]).await;
    let scratch = Scratch::new().unwrap();
    let folder = scratch.path();
    let kubectl = tokio::task::spawn_blocking(|| KUBECTL.path()).await.unwrap().unwrap_or_else(|why| panic!("{why}"));
    fs::create_dir(folder.join("bin")).unwrap();
    symlink(kubectl, folder.join("bin/kubectl")).unwrap();
    symlink(env!("CARGO_BIN_EXE_forebay"), folder.join("bin/forebay")).unwrap();
    fs::write(folder.join("my-controller"), CONTROLLER).unwrap();
    fs::set_permissions(folder.join("my-controller"), fs::Permissions::from_mode(0o755)).unwrap();
    let programs = format!("{}:{}", folder.join("bin").display(), std::env::var("PATH").unwrap());

    let blocks = markdown::shell_blocks(&markdown::readme());
    let blocks = blocks.iter().filter(|block| block.run_by.as_deref() == Some("tests/cluster"));
    let mut told = String::new();
    for block in blocks {
        // Bound and closed again: free, as far as anybody can tell.
        let admin = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).unwrap().to_string();
        let script = format!("{BEFORE}{}", block.script.replace("127.0.0.1:6481", &admin));
        let command = Command::new("bash")
            .args(["-euo", "pipefail", "-c", &script])
            .current_dir(folder)
            .env("PATH", &programs)
            .env("HOME", folder)
            .env("XDG_RUNTIME_DIR", folder)
            .env("KUBECONFIG", plane.kubeconfig(&plane.user(Role::Editor)))
            .env("FOREBAY_SECURE_PORT", "0")
            .env("FOREBAY_ADMIN_ADDRESS", &admin)
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(LIMIT, command).await;
        let output = output.unwrap_or_else(|_| panic!("README.md:{}: not done after {LIMIT:?}", block.line)).unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(output.status.success(), "README.md:{}: {}:\n{script}\n{text}", block.line, output.status);
        told.push_str(&text);
    }
    for want in [
        "deployment.apps/readme\n",
        " requests in ",
        " answered from the cache",
        "reads reached the kube-apiserver",
        "[+]cache-sync/apps/v1/deployments ok (",
        "readyz check passed",
    ] {
        assert!(told.contains(want), "{want:?} is not in what the blocks of the README say:\n{told}");
    }
}
