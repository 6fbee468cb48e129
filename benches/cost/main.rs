//! What forebay costs: CPU of a cached GET and LIST, memory, time to sync; each next to what it is to be compared with,
//! from one run.
//!
//! ```text
//! cargo bench --bench cost                                  about two minutes, and the release build before it
//! cargo bench --profile quick-release --bench cost          nearly the same figures, a fraction of the build
//! ... -- --rounds=5 --objects=100000 --without-kube-apiserver
//! ```
//!
//! How to read it. Absolute figures say more about the machine than about forebay: compare rows of one run. Every server
//! is a process of its own; the load comes from this one, over TLS on loopback.
//!
//! | row | is |
//! |---|---|
//! | CPU | user and system time of the server's own process, all threads, divided by the answers it gave meanwhile |
//! | x bare | that CPU over bare hyper's in the same round: the median of the rounds, with the lowest and highest |
//! | bare hyper | hyper over TLS that answers every request with one ready buffer: the floor for a Rust server |
//! | forebay | the real binary; GETs spread over the objects of one namespace, LISTs of that namespace |
//! | kube-apiserver | the real one at `resourceVersion=0`, its watch cache; the same 10,000 Deployments and no others |
//! | req/s, p50, p99 | of the closed loop; the load shares the cores with the server, so these are not the server's limit |
//! | memory | `VmRSS` of forebay right after its sync and at the end, `VmHWM` for the peak, over the objects' own JSON |
//! | sync | a first read, held until its answer, over reading the same streaming list and throwing it away |
//!
//! kube-apiserver is built from its Go modules on first use (some minutes), or taken from `KUBEBUILDER_ASSETS`, as for
//! the tests in `tests/cluster`; without either its rows say why they are missing.

#![allow(missing_docs, reason = "a program, not an interface")]
#![allow(clippy::disallowed_methods, reason = "the tasks of a bench need no supervisor")]

mod bare;
mod load;
mod plan;
mod report;
mod upstream;

#[path = "../shared/server.rs"]
#[allow(dead_code)]
mod server;
#[path = "../shared/target.rs"]
mod target;
#[path = "../shared/usage.rs"]
mod usage;

// The rig of the real control plane belongs to tests/cluster, whose modules name each other from the crate's root.
#[path = "../../tests/cluster/audit.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::expect_used)]
mod audit;
#[path = "../../tests/cluster/build.rs"]
#[allow(dead_code)]
mod build;
#[path = "../../tests/cluster/client.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::expect_used)]
mod client;
#[path = "../../tests/cluster/control_plane.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::expect_used)]
mod control_plane;
#[path = "../../tests/cluster/fixtures.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::needless_pass_by_value)]
mod fixtures;
#[path = "../../tests/cluster/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../../tests/cluster/users.rs"]
#[allow(dead_code, clippy::unwrap_used, clippy::expect_used, clippy::needless_pass_by_value)]
mod users;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand};

// The floor and the scripted upstream get what forebay has.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    #[command(flatten)]
    plan: plan::Options,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

/// What this binary is when it has started itself.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Bare { dir: PathBuf },
    #[command(hide = true)]
    Upstream { dir: PathBuf, namespaces: usize, count: usize },
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Fails only if there is a default already, and then it is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let servers = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match args.role {
        Some(Role::Bare { dir }) => servers?.block_on(bare::serve(&dir)),
        Some(Role::Upstream { dir, namespaces, count }) => servers?.block_on(upstream::serve(&dir, namespaces, count)),
        None => {
            drop(servers);
            // One thread of load leaves the other core to the server.
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(plan::run(&args.plan))
        }
    }
}
