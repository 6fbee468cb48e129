//! `forebay demo`: the same controller restart without and with forebay, on a synthetic cluster.

/// Runs the demo on the terminal.
///
/// # Errors
///
/// When the demo can't be run.
pub async fn run() -> anyhow::Result<()> {
    anyhow::bail!("the demo is not built into this binary")
}
