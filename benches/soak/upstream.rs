//! The upstream of the soak: scripted, lively, and now and then away.

use std::time::Duration;

use anyhow::Result;
use forebay::testing::{ApiServer, Gate, Hold, Resource, watch};
use rand::RngExt as _;
use tokio::time::{Instant, sleep};

/// Where clients read: a collection, and its name for the scripted server.
pub(crate) const COLLECTIONS: [(&str, &str); 3] =
    [("/api/v1/pods", "pods"), ("/api/v1/configmaps", "configmaps"), ("/apis/apps/v1/deployments", "deployments.apps")];

/// Changes a second.
const CHANGES: u32 = 10;

/// How long it stays away: longer than a first retry, shorter than what clients wait.
const AWAY: Duration = Duration::from_secs(3);

pub(crate) struct Upstream {
    server: ApiServer,
    gate: Gate,
}

/// A resource that exists for a minute.
pub(crate) struct ShortLived {
    resource: Resource,
    pub(crate) path: String,
    /// What forebay's metrics call it.
    pub(crate) label: String,
}

// === impl Upstream ===

impl Upstream {
    pub(crate) async fn start(objects: usize) -> Result<Self> {
        let server = ApiServer::builder().keep_requests(0).history(10_000).start().await?;
        let world = server.world();
        world.fill_pods(10, objects)?;
        world.fill_config_maps(10, objects)?;
        world.fill_deployments(10, objects)?;
        let gate = Gate::start(server.addr()).await?;
        Ok(Self { server, gate })
    }

    pub(crate) fn kubeconfig(&self) -> String {
        self.server.kubeconfig_yaml_via(&format!("https://{}", self.gate.addr()))
    }

    /// Objects change for this long; one in ten is deleted and made anew.
    pub(crate) async fn lively(&self, time: Duration) -> Result<()> {
        let world = self.server.world();
        let until = Instant::now() + time;
        let keys: Vec<_> = COLLECTIONS.iter().map(|(_, name)| world.keys(name)).collect();
        while Instant::now() < until {
            let which = rand::rng().random_range(0..keys.len());
            let (name, keys) = (COLLECTIONS[which].1, &keys[which]);
            let key = &keys[rand::rng().random_range(0..keys.len())];
            if rand::rng().random_bool(0.1) {
                let text = world.text(name, key);
                if let Some(text) = text.and_then(|text| serde_json::from_slice::<serde_json::Value>(&text).ok()) {
                    world.delete(name, key)?;
                    world.create(name, text)?;
                }
            } else {
                world.touch(name, key)?;
            }
            sleep(Duration::from_secs(1) / CHANGES).await;
        }
        Ok(())
    }

    /// A restart, as its clients see it.
    pub(crate) async fn outage(&self, compacted: bool) {
        self.gate.refuse(true);
        self.gate.cut();
        sleep(AWAY).await;
        if compacted {
            self.server.world().compact();
        }
        self.gate.refuse(false);
    }

    /// A resource with a few objects, whose lists by forebay are held.
    pub(crate) fn new_resource(&self, n: u32) -> Result<(ShortLived, Hold)> {
        let name = format!("things{n}");
        let resource = Resource::custom("soak.example.com", "v1", &name, &format!("Thing{n}"));
        self.server.world().register(resource.clone());
        self.server.world().fill_custom(&name, 2, 20)?;
        let own = watch(&name).streaming().user_agent("forebay/");
        let hold = self.server.on(own).hold();
        let path = format!("/apis/soak.example.com/v1/{name}");
        Ok((ShortLived { resource, path, label: format!(r#"resource="{name}""#) }, hold))
    }

    pub(crate) fn remove(&self, short_lived: &ShortLived) {
        self.server.clear_rules();
        self.server.world().unregister(&short_lived.resource.gvr.to_string());
    }
}
