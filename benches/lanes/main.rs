//! What passing through forebay costs, and what urgent requests wait for.
//!
//! ```text
//! cargo bench --bench lanes                                 a few minutes, and the release build before it
//! cargo bench --profile quick-release --bench lanes         nearly the same figures, a fraction of the build
//! ... -- --rounds=5 --objects=100000 --only=lanes|added
//! ```
//!
//! How to read it. Absolute figures say more about the machine than about forebay: compare rows of one run, and look at the
//! spread over the rounds. Every server is a process of its own; the load comes from this one, over TLS on loopback.
//!
//! **Lanes**: a lease is written again and again, with a pause of 2 ms, on one HTTP/2 connection on which the same client
//! reads a list of 100,000 objects after the other. Through forebay meanwhile another 100,000 objects sync, and 1,000
//! reads of them are held on that connection. Directly meanwhile a client syncs the same objects over a connection of
//! its own (it reads the initial events and throws them away), and 900 watches are open on the connection. The third row
//! is forebay with nothing else going on.
//!
//! **Added**: the same requests to the scripted upstream directly, through nginx (one worker, HTTP/1.1 both sides, kept-alive
//! connections, no buffering) and through forebay. CPU is that of the proxy's own process for each request; added is the
//! difference of the medians (p50) and of the 99th percentiles to the direct row in the same round. A watch event counts
//! from the moment its write is sent (directly to upstream) to its arrival. nginx is Debian's, unpacked into
//! `~/.cache/forebay/tools` on first use; where it can't be had its rows say why.

#![allow(missing_docs, reason = "a program, not an interface")]
#![allow(clippy::disallowed_methods, reason = "the tasks of a bench need no supervisor")]

mod added;
mod figures;
mod lanes;
mod link;
mod nginx;
mod servers;

#[path = "../../tests/cluster/process.rs"]
#[allow(dead_code)]
mod process;
#[path = "../shared/server.rs"]
#[allow(dead_code)]
mod server;
#[path = "../shared/target.rs"]
mod target;
#[path = "../shared/usage.rs"]
#[allow(dead_code)]
mod usage;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Parser, Subcommand, ValueEnum};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Debug, Parser)]
struct Args {
    #[command(subcommand)]
    role: Option<Role>,
    /// Rounds of everything.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Objects in each of the two resources.
    #[arg(long, default_value_t = 100_000)]
    objects: usize,
    /// One table alone.
    #[arg(long)]
    only: Option<Table>,
    /// `cargo bench` passes it.
    #[arg(long, hide = true)]
    bench: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Table {
    Lanes,
    Added,
}

/// What this binary is when it has started itself.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Upstream { dir: PathBuf, count: usize },
}

fn main() -> Result<()> {
    let args = Args::parse();
    // Fails only if there is a default already, and then it is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        if let Some(Role::Upstream { dir, count }) = args.role {
            return servers::upstream(&dir, count).await;
        }
        if args.only != Some(Table::Added) {
            lanes::run(args.rounds, args.objects).await?;
        }
        if args.only != Some(Table::Lanes) {
            added::run(args.rounds).await?;
        }
        Ok(())
    })
}
