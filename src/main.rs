//! The binary: allocator, TLS provider, runtime, exit code. Everything else is the library's.

use std::{process::ExitCode, time::Duration};

use forebay::cli::{Exit, Invocation};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// For blocking work that nobody waits for any more, such as a name lookup.
const RUNTIME_SHUTDOWN: Duration = Duration::from_millis(100);

fn main() -> ExitCode {
    // Fails only if there is a default already, and then it is this one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let invocation = match Invocation::parse(std::env::args_os(), std::env::vars_os()) {
        Ok(invocation) => invocation,
        Err(exit) => return exit.report(),
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return Exit::Failure(error.into()).report(),
    };
    let ended = runtime.block_on(invocation.run());
    runtime.shutdown_timeout(RUNTIME_SHUTDOWN);
    ended.map_or_else(Exit::report, |()| ExitCode::SUCCESS)
}
