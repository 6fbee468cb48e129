use crate::store::{ListForm, Object};

use super::*;

const RV: ResourceVersion = ResourceVersion(9);

fn key(resource: &str) -> StoreKey {
    StoreKey { gvr: Gvr::new("", "v1", resource), scope: Scope::All }
}

/// `n` objects of about 1000 bytes.
fn stage(relist: &mut crate::store::Relist, n: usize) {
    for n in 0..n {
        let text = format!(
            "{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"{n}\",\"uid\":\"{n}\",\"resourceVersion\":\"1\",\
             \"annotations\":{{\"text\":\"{}\"}}}}}}\n",
            "x".repeat(900)
        );
        let (key, object) = Object::from_stored(text.into_bytes().into_boxed_slice()).unwrap();
        relist.stage(&key, object);
    }
}

fn commit(writer: &mut Writer, relist: crate::store::Relist) {
    writer.commit(relist, ListForm::new("PodList".into(), "Pod", "v1".into(), false), RV).unwrap();
}

fn load(writer: &mut Writer, n: usize) {
    let mut relist = writer.begin_relist();
    stage(&mut relist, n);
    commit(writer, relist);
}

/// A registry with room for about 100 such objects.
fn registry() -> Registry {
    Registry::new(Budget::new(Some(130_000)), Fences::default())
}

async fn eviction(writer: &Writer) -> Eviction {
    tokio::time::timeout(Duration::from_secs(1), writer.evicted()).await.unwrap()
}

async fn stays(writer: &Writer) -> bool {
    tokio::time::timeout(Duration::from_secs(1), writer.evicted()).await.is_err()
}

#[test]
fn what_is_held_and_loaded_is_counted_once_and_given_back() {
    let registry = Registry::default();
    let (_, writer) = registry.open(&key("pods"));
    let mut writer = writer.unwrap();
    load(&mut writer, 50);
    let held = registry.budget().used();
    assert!((50_000..80_000).contains(&held), "{held} bytes for 50 objects of 1 KB");
    let mut relist = writer.begin_relist();
    stage(&mut relist, 50);
    let more = registry.budget().used() - held;
    assert!(more < held / 10, "a relist without changes takes {more} bytes beside {held}");
    relist.unstage("7");
    relist.unstage("7");
    commit(&mut writer, relist);
    assert!(registry.budget().used() < held);
    let mut other = writer.begin_relist();
    stage(&mut other, 1);
    drop(other);
    load(&mut writer, 1);
    assert!((1_000..2_000).contains(&registry.budget().used()));
    writer.refuse(403);
    assert_eq!(registry.budget().used(), 0);
    load(&mut writer, 1);
    drop(writer);
    assert_eq!(registry.budget().used(), 0);
}

#[tokio::test(start_paused = true)]
async fn only_stores_that_nobody_reads_are_idle() {
    let registry = Registry::default();
    let limit = Duration::from_secs(100);
    let open = |resource| registry.open(&key(resource));
    let (unread, read, pinned, reading) = (open("unread"), open("read"), open("pinned"), open("reading"));
    pinned.0.pin();
    drop((unread.0, pinned.0));
    tokio::time::advance(Duration::from_secs(99)).await;
    read.0.mark_read();
    drop(read.0);
    registry.close_idle(limit);
    assert_eq!(registry.summaries().len(), 4, "not yet");
    tokio::time::advance(Duration::from_secs(1)).await;
    registry.close_idle(limit);
    assert_eq!(eviction(unread.1.as_ref().unwrap()).await, Eviction::Idle(limit));
    assert!(registry.reader(&key("unread")).is_none());
    for (resource, (_, writer)) in [("read", (0, read.1)), ("pinned", (0, pinned.1)), ("reading", (0, reading.1))] {
        assert!(registry.reader(&key(resource)).is_some() && stays(&writer.unwrap()).await, "{resource}");
    }
    let again = registry.open(&key("unread"));
    assert!(again.1.is_some(), "the next read opens it anew");
    registry.close(&key("unread"), unread.1.as_ref().unwrap());
    assert!(registry.reader(&key("unread")).is_some(), "which the end of the old one does not undo");
    drop(reading.0);
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_read_gives_way() {
    let registry = registry();
    let open = |resource| registry.open(&key(resource)).1.unwrap();
    let (mut old, mut older, mut busy, mut new) = (open("old"), open("older"), open("busy"), open("new"));
    for writer in [&mut old, &mut older, &mut busy] {
        load(writer, 30);
    }
    tokio::time::advance(Duration::from_secs(10)).await;
    registry.reader(&key("old")).unwrap().mark_read();
    registry.close_idle(Duration::from_secs(3600));
    tokio::time::advance(GIVES_WAY).await;
    registry.reader(&key("busy")).unwrap().mark_read();
    assert!(registry.admit(&key("new")));
    load(&mut new, 40);
    assert!(registry.admit(&key("new")));
    assert!(matches!(eviction(&older).await, Eviction::Crowded { bytes } if bytes > 30_000));
    assert!(stays(&old).await && stays(&busy).await && stays(&new).await);
    assert!(registry.reader(&key("older")).is_none());
    assert!(registry.gave_way(&key("older")).is_some(), "there is no room for it");
    assert!(registry.gave_way(&key("old")).is_none());
    drop(new);
    assert!(registry.gave_way(&key("older")).is_none(), "now there is");
}

#[tokio::test(start_paused = true)]
async fn without_an_idle_one_the_largest_load_goes() {
    let registry = registry();
    let open = |resource| registry.open(&key(resource)).1.unwrap();
    let (mut held, mut large, small) = (open("held"), open("large"), open("small"));
    load(&mut held, 60);
    let (mut loading, mut other) = (large.begin_relist(), small.begin_relist());
    stage(&mut loading, 30);
    stage(&mut other, 25);
    assert!(registry.admit(&key("small")), "another one goes, which is larger");
    assert!(matches!(eviction(&large).await, Eviction::OverBudget { bytes, used } if bytes > 30_000 && used > 130_000));
    assert!(registry.admit(&key("small")), "what is about to go counts no more");
    assert!(stays(&held).await && stays(&small).await);
    assert!(registry.reader(&key("large")).is_some(), "it stays known as too large");
    drop(loading);
    large.over_budget();
    assert_eq!(registry.reader(&key("large")).unwrap().status().phase, Phase::OverBudget);
    let mut again = large.begin_relist();
    stage(&mut again, 40);
    assert!(!registry.admit(&key("large")), "it counts again");
    drop((again, other));
    // Growing by events, with no load under way, it is the one that grows.
    let (_, writer) = registry.open(&key("growing"));
    let mut growing = writer.unwrap();
    load(&mut growing, 45);
    assert!(!registry.admit(&key("growing")));
    assert!(matches!(eviction(&growing).await, Eviction::OverBudget { .. }));
    assert!(stays(&held).await);
}
