//! Runs the node of a test cluster, `kubelet/`: pods of its own run, and exec, attach, port-forward and logs reach it.

use std::time::Duration;

use crate::build::KUBELET;
use crate::control_plane::ControlPlane;
use crate::programs::GoClient;
use crate::users::Users;

const START_DEADLINE: Duration = Duration::from_secs(60);

/// A running node. It ends when this value is dropped, or with the test process.
#[derive(Debug)]
pub(crate) struct Kubelet {
    /// Name of its Node.
    pub(crate) node: String,
    _program: GoClient,
}

// === impl Kubelet ===

impl Kubelet {
    /// A node for pods that name it in their `spec.nodeName`.
    pub(crate) async fn start(plane: &ControlPlane) -> Self {
        Self::start_with(plane, &[]).await
    }

    /// A node that takes every pod of the cluster: for control planes of one test.
    pub(crate) async fn start_scheduling(plane: &ControlPlane) -> Self {
        Self::start_with(plane, &["--schedule"]).await
    }

    async fn start_with(plane: &ControlPlane, flags: &[&str]) -> Self {
        let node = plane.unique("node");
        let (kubeconfig, name) =
            (format!("--kubeconfig={}", plane.kubeconfig(&Users::rig()).display()), format!("--node={node}"));
        let args: Vec<&str> = [kubeconfig.as_str(), &name].into_iter().chain(flags.iter().copied()).collect();
        let mut program = GoClient::start_program(&KUBELET, &args, &[]).await;
        program.until("ready", START_DEADLINE).await;
        Self { node, _program: program }
    }
}
