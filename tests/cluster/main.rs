//! forebay against a real control plane: etcd and kube-apiserver, started by the tests themselves.
//!
//! One binary, so that its tests share one control plane. The programs are built from their Go modules on first use
//! (`build`), or taken from `KUBEBUILDER_ASSETS`. What reached the API server is read from its audit log (`audit`).

#![allow(clippy::disallowed_methods, reason = "tests spawn tasks without a supervisor")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]
#![allow(clippy::needless_pass_by_value, reason = "bodies built in place read better by value")]

mod audit;
mod build;
mod client;
mod control_plane;
mod fixtures;
mod forebay;
mod kubelet;
mod pair;
mod process;
mod programs;
mod toy;
mod users;

mod aggregated;
mod bytes;
mod cases;
mod chaos;
mod cold_start;
mod compression;
mod controller_manager;
mod controller_runtime;
mod crds;
mod exec;
mod informers;
mod kubectl;
mod main_job;
#[path = "../readme/markdown.rs"]
#[allow(dead_code, reason = "tests/readme uses the rest of it")]
mod markdown;
mod other_clients;
mod outages;
mod read_your_writes;
mod readme;
mod smoke;
