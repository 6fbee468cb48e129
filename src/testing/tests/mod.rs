//! The server as its clients see it: every behaviour and every fault, over real sockets.

mod client;
mod faults;
mod reads;
mod watches;
mod writes;

use std::time::Duration;

use serde_json::{Value, json};

use super::{ApiServer, Builder, StartError};
use client::Client;

/// Nothing here takes longer unless something is broken.
const LIMIT: Duration = Duration::from_secs(10);

async fn start() -> (ApiServer, Client) {
    start_with(ApiServer::builder()).await.unwrap()
}

async fn start_with(builder: Builder) -> Result<(ApiServer, Client), StartError> {
    let server = builder.start().await?;
    let client = Client::new(&server, false);
    Ok((server, client))
}

fn config_map(namespace: &str, name: &str) -> Value {
    json!({"metadata": {"namespace": namespace, "name": name, "labels": {"name": name}}, "data": {"a": "1"}})
}
