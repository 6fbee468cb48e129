//! `forebay-kube-rs NAMESPACE WIDGETS`: what a kube-rs program does. It lists, gets, creates, patches and watches config maps,
//! then works as an operator until each Widget has its child and its status. It tells what it saw as JSON lines, without
//! anything that differs between two runs. The cluster is that of $KUBECONFIG.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::{StreamExt as _, TryStreamExt as _};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt as _};
use serde_json::{Value, json};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut args = std::env::args().skip(1);
    let (Some(namespace), Some(widgets)) = (args.next(), args.next()) else { bail!("usage: NAMESPACE WIDGETS") };
    let client = Client::try_default().await?;
    tokio::time::timeout(LIMIT, config_maps(&client, &namespace)).await.context("config maps")??;
    tokio::time::timeout(LIMIT, operator(&client, &namespace, widgets.parse()?)).await.context("operator")?
}

fn tell(what: &str, value: impl Into<Value>) {
    println!("{}", json!({"what": what, "value": value.into()}));
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    let object = json!({"metadata": {"name": name, "labels": {"client": "kube-rs"}}, "data": {"k": value}});
    serde_json::from_value(object).expect("a config map")
}

fn shown(map: &ConfigMap) -> Value {
    json!([map.name_any(), map.data])
}

async fn config_maps(client: &Client, namespace: &str) -> Result<()> {
    let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let ours = ListParams::default().labels("client=kube-rs");
    tell("none", api.list(&ours).await?.items.len());
    for n in 0..5 {
        api.create(&PostParams::default(), &config_map(&format!("cm-{n}"), "new")).await?;
        tell("read after create", shown(&api.get(&format!("cm-{n}")).await?));
    }
    tell("no such object", api.get_opt("nobody").await?.is_none());
    match api.create(&PostParams::default(), &config_map("cm-0", "again")).await {
        Err(kube::Error::Api(status)) => tell("created twice", json!([status.code, status.reason])),
        other => bail!("created twice: {other:?}"),
    }
    let list = api.list(&ours).await?;
    tell("list", list.items.iter().map(shown).collect::<Vec<_>>());
    let version = list.metadata.resource_version.context("the list's version")?;

    let events = api.watch(&WatchParams::default().labels("client=kube-rs"), &version).await?;
    for (name, value) in [("cm-1", "merged"), ("cm-2", "merged")] {
        let patch = Patch::Merge(json!({"data": {"k": value}}));
        api.patch(name, &PatchParams::default(), &patch).await?;
        tell("read after patch", shown(&api.get(name).await?));
    }
    let applied = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm-5", "labels": {"client": "kube-rs"}}, "data": {"k": "applied"}});
    api.patch("cm-5", &PatchParams::apply("forebay-kube-rs").force(), &Patch::Apply(applied)).await?;
    api.delete("cm-3", &DeleteParams::default()).await?;
    tell("read after delete", api.get_opt("cm-3").await?.is_none());
    let seen: Vec<WatchEvent<ConfigMap>> = events.take(4).try_collect().await?;
    for event in seen {
        match event {
            WatchEvent::Added(map) => tell("added", shown(&map)),
            WatchEvent::Modified(map) => tell("modified", shown(&map)),
            WatchEvent::Deleted(map) => tell("deleted", shown(&map)),
            other => bail!("unexpected event {other:?}"),
        }
    }
    let pages = ListParams::default().labels("client=kube-rs").limit(2);
    let page = api.list(&pages).await?;
    let token = page.metadata.continue_.context("a continue token")?;
    let next = api.list(&pages.continue_token(&token)).await?;
    tell("two pages", page.items.iter().chain(&next.items).map(shown).collect::<Vec<_>>());
    Ok(())
}

#[derive(Debug, thiserror::Error)]
#[error(transparent)]
struct Failed(#[from] kube::Error);

struct Context {
    widgets: Api<DynamicObject>,
    children: Api<ConfigMap>,
}

/// kube-rs's own runtime: a watcher with a store, and a queue.
async fn operator(client: &Client, namespace: &str, expected: usize) -> Result<()> {
    let kind = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("test.forebay.dev", "v1", "Widget"), "widgets");
    let widgets = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, &kind);
    let children = Api::<ConfigMap>::namespaced(client.clone(), namespace);
    let context = Arc::new(Context { widgets: widgets.clone(), children: children.clone() });
    let mut work = Box::pin(
        Controller::new_with(widgets.clone(), watcher::Config::default(), kind)
            .owns(children, watcher::Config::default())
            .run(
                reconcile,
                |_, error, _| {
                    eprintln!("{error}");
                    Action::requeue(Duration::from_millis(100))
                },
                context,
            ),
    );
    let ready = |widget: &DynamicObject| widget.data["status"]["phase"] == "Ready";
    while widgets.list(&ListParams::default()).await?.items.iter().filter(|w| ready(w)).count() < expected {
        work.next().await.context("the controller has ended")?.ok();
    }
    let mut done: Vec<_> = widgets
        .list(&ListParams::default())
        .await?
        .items
        .iter()
        .map(|w| json!([w.name_any(), w.data["status"]]))
        .collect();
    done.sort_by_key(Value::to_string);
    tell("reconciled", done);
    Ok(())
}

async fn reconcile(widget: Arc<DynamicObject>, context: Arc<Context>) -> Result<Action, Failed> {
    let name = format!("child-of-{}", widget.name_any());
    if context.children.get_opt(&name).await?.is_none() {
        let mut child = config_map(&name, "child");
        child.labels_mut().clear();
        child.owner_references_mut().push(OwnerReference {
            api_version: "test.forebay.dev/v1".into(),
            kind: "Widget".into(),
            name: widget.name_any(),
            uid: widget.uid().unwrap_or_default(),
            controller: Some(true),
            ..Default::default()
        });
        context.children.create(&PostParams::default(), &child).await?;
    }
    if widget.data["status"]["phase"] != "Ready" {
        let patch = Patch::Merge(json!({"status": {"phase": "Ready", "child": name}}));
        context.widgets.patch_status(&widget.name_any(), &PatchParams::default(), &patch).await?;
    }
    Ok(Action::await_change())
}
