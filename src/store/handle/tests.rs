use std::time::Duration;

use crate::api::gvr::Scope;

use super::*;

fn object(ns: &str, name: &str, rv: u64) -> (String, Object) {
    let text = format!(
        "{{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"{ns}\",\"uid\":\"u-{name}\",\
         \"resourceVersion\":\"{rv}\",\"labels\":{{\"app\":\"{name}\"}}}}}}\n"
    );
    Object::from_stored(text.into_bytes().into_boxed_slice()).unwrap()
}

fn form() -> ListForm {
    ListForm::new("PodList".into(), "Pod", "v1".into(), false)
}

fn load(writer: &mut Writer, rv: u64, objects: &[(&str, &str, u64)]) -> Result<(), Error> {
    let mut relist = writer.begin_relist();
    for (ns, name, rv) in objects {
        let (key, object) = object(ns, name, *rv);
        relist.stage(&key, object);
    }
    writer.commit(relist, form(), ResourceVersion(rv))
}

fn keys(reader: &Reader, scope: &Scope) -> Vec<String> {
    reader.snapshot().unwrap().scoped(scope).map(|(key, _)| key.to_string()).collect()
}

#[test]
fn nothing_is_readable_before_the_first_complete_load() {
    let (mut writer, reader) = pair(&Budget::default());
    assert!(reader.snapshot().is_none());
    assert_eq!(reader.status().phase, Phase::Syncing);
    let (key, early) = object("a", "x", 3);
    assert_eq!(writer.apply([Change::Put(key, early)], ResourceVersion(3)), Err(Error::NotLoaded));
    assert!(reader.snapshot().is_none());
    load(&mut writer, 9, &[]).unwrap();
    assert!(reader.snapshot().unwrap().is_empty());
    assert_eq!(reader.status(), Status { phase: Phase::Synced, rv: ResourceVersion(9) });
}

#[test]
fn order_and_namespace_ranges_are_upstreams() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 9, &[("a", "x", 1), ("a0", "x", 2), ("a-b", "x", 3), ("a", "b", 4)]).unwrap();
    assert_eq!(keys(&reader, &Scope::All), ["a-b/x", "a/b", "a/x", "a0/x"]);
    assert_eq!(keys(&reader, &Scope::Namespace("a".into())), ["a/b", "a/x"]);
    assert_eq!(keys(&reader, &Scope::Namespace("".into())), [""; 0]);
}

#[test]
fn a_relist_drops_what_it_lacks_and_shares_what_did_not_change() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 9, &[("a", "x", 1), ("a", "y", 2)]).unwrap();
    let before = reader.snapshot().unwrap();
    load(&mut writer, 12, &[("a", "x", 1), ("a", "z", 11)]).unwrap();
    let after = reader.snapshot().unwrap();
    assert!(Arc::ptr_eq(before.get("a/x").unwrap(), after.get("a/x").unwrap()));
    assert_eq!(keys(&reader, &Scope::All), ["a/x", "a/z"]);
    // A reader that holds the old snapshot still sees it whole.
    assert!(before.get("a/y").is_some());
    let sum: usize = after.scoped(&Scope::All).map(|(_, object)| object.size()).sum();
    assert_eq!(after.bytes(), sum as u64);
}

#[test]
fn a_relist_behind_what_was_served_is_refused() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 9, &[("a", "x", 1)]).unwrap();
    let err = load(&mut writer, 8, &[]).unwrap_err();
    assert_eq!(err, Error::WentBack { got: ResourceVersion(8), held: ResourceVersion(9) });
    assert_eq!(keys(&reader, &Scope::All), ["a/x"]);
    writer.reset();
    assert!(reader.snapshot().is_none());
    load(&mut writer, 3, &[]).unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(3));
}

#[test]
fn events_move_the_version_and_never_back() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 9, &[("a", "x", 1)]).unwrap();
    let (key, new) = object("a", "x", 12);
    writer.apply([Change::Put(key, new), Change::Remove("a/none".into())], ResourceVersion(12)).unwrap();
    writer.apply([], ResourceVersion(5)).unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(12));
    writer.apply([Change::Remove("a/x".into())], ResourceVersion(15)).unwrap();
    let snapshot = reader.snapshot().unwrap();
    assert_eq!((snapshot.len(), snapshot.bytes(), snapshot.rv), (0, 0, ResourceVersion(15)));
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_by_value_by_deadline_or_by_the_writers_end() {
    let (mut writer, reader) = pair(&Budget::default());
    let soon = || Instant::now() + Duration::from_secs(3);
    assert_eq!(reader.wait(soon(), |status| status.rv >= ResourceVersion(5)).await, Waited::TimedOut);
    let waiting = reader.clone();
    let (waited, ()) = tokio::join!(waiting.wait(soon(), |status| status.rv >= ResourceVersion(5)), async {
        load(&mut writer, 4, &[]).unwrap();
        tokio::task::yield_now().await;
        writer.apply([], ResourceVersion(7)).unwrap();
    });
    assert_eq!(waited, Waited::Reached(Status { phase: Phase::Synced, rv: ResourceVersion(7) }));
    let (waited, ()) = tokio::join!(waiting.wait(soon(), |status| status.phase == Phase::Stopped), async {
        drop(writer);
    });
    assert_eq!(waited, Waited::Reached(Status { phase: Phase::Stopped, rv: ResourceVersion(0) }));
}

#[test]
fn a_claim_moves_the_store_on_only_if_it_holds_that_very_state() {
    let (mut writer, reader) = pair(&Budget::default());
    let digest = |objects: &[(&str, u64)]| {
        let mut digest = Digest::default();
        objects.iter().for_each(|(key, rv)| digest.add(key, ResourceVersion(*rv)));
        digest
    };
    // A client's list ends before our own load does.
    reader.claim(digest(&[("a/x", 1), ("a/y", 2)]), ResourceVersion(20));
    load(&mut writer, 9, &[("a", "x", 1), ("a", "y", 2)]).unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(20));
    // Another state, then the right one: only that proves anything.
    reader.claim(digest(&[("a/x", 1), ("a/y", 30)]), ResourceVersion(31));
    writer.check_claim().unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(20));
    let (key, y) = object("a", "y", 30);
    writer.apply([Change::Put(key, y)], ResourceVersion(30)).unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(31));
    writer.apply([Change::Remove("a/x".into())], ResourceVersion(40)).unwrap();
    reader.claim(digest(&[("a/y", 30)]), ResourceVersion(45));
    writer.check_claim().unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(45));
    writer.reset();
    load(&mut writer, 3, &[("a", "y", 30)]).unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(3), "a claim of the old history is forgotten with it");
}

#[test]
fn events_from_before_a_claimed_version_are_not_shown_under_it() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 9, &[("a", "x", 1)]).unwrap();
    let mut digest = Digest::default();
    digest.add("a/x", ResourceVersion(1));
    // Between 9 and 20 an object came and went: the claimed state is the held one.
    reader.claim(digest, ResourceVersion(20));
    writer.check_claim().unwrap();
    let (key, ghost) = object("a", "ghost", 12);
    writer.apply([Change::Put(key, ghost)], ResourceVersion(12)).unwrap();
    assert_eq!((keys(&reader, &Scope::All), reader.status().rv), (vec!["a/x".to_owned()], ResourceVersion(20)));
    // A claim that comes meanwhile moves nothing on: what is gathered is not that state.
    reader.claim(digest, ResourceVersion(21));
    writer.check_claim().unwrap();
    assert_eq!(reader.status().rv, ResourceVersion(20));
    writer.apply([Change::Remove("a/ghost".into())], ResourceVersion(15)).unwrap();
    let (key, y) = object("a", "y", 25);
    writer.apply([Change::Put(key, y)], ResourceVersion(25)).unwrap();
    assert_eq!(
        (keys(&reader, &Scope::All), reader.status().rv),
        (vec!["a/x".to_owned(), "a/y".to_owned()], ResourceVersion(25))
    );
}

#[test]
fn contradictions_are_applied_and_told() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 9, &[("a", "x", 1), ("a", "y", 2)]).unwrap();
    let add = |name, rv| {
        let (key, object) = object("a", name, rv);
        Change::Add(key, object)
    };
    let put = |name, rv| {
        let (key, object) = object("a", name, rv);
        Change::Put(key, object)
    };
    let remove = |name: &str| Change::Remove(format!("a/{name}"));
    let mut rv = 9;
    for (change, key, what) in [
        (add("new", 10), "a/new", None),
        (add("new", 10), "a/new", None),
        (put("x", 12), "a/x", None),
        (put("x", 12), "a/x", None),
        (remove("new"), "a/new", None),
        (add("x", 15), "a/x", Some("added_known")),
        (put("z", 16), "a/z", Some("modified_unknown")),
        (remove("none"), "a/none", Some("deleted_unknown")),
    ] {
        rv += 1;
        let label = format!("{change:?}");
        let told = writer.apply([change], ResourceVersion(rv)).unwrap();
        let want: Vec<_> = what.map(|what| Contradiction { key: key.to_owned(), what }).into_iter().collect();
        assert_eq!(told, want, "{label}");
    }
    assert_eq!(keys(&reader, &Scope::All), ["a/x", "a/y", "a/z"]);
    assert_eq!(reader.snapshot().unwrap().get("a/x").unwrap().rv(), ResourceVersion(15));
    // Deleted, then modified: it can't have been the same one.
    let told = writer.apply([remove("y"), put("y", 30)], ResourceVersion(30)).unwrap();
    assert_eq!(told, [Contradiction { key: "a/y".into(), what: "modified_unknown" }]);
}

/// Objects that did not change are held once, however often everything is loaded.
#[test]
fn a_relist_takes_a_third_more_at_most_and_leaves_nothing_when_it_fails() {
    const COUNT: usize = 3_000;
    let (mut writer, reader) = pair(&Budget::default());
    let names: Vec<String> = (0..COUNT).map(|n| format!("pod-{n:06}-{}", "x".repeat(600))).collect();
    let fill = |relist: &mut Relist, changed: usize| {
        for (n, name) in names.iter().enumerate() {
            let (key, object) = object("team", name, if n < changed { 500 } else { 7 });
            relist.stage(&key, object);
        }
    };
    let mut first = writer.begin_relist();
    fill(&mut first, 0);
    writer.commit(first, form(), ResourceVersion(100)).unwrap();
    let before = reader.snapshot().unwrap();
    let held = writer.held.memory;

    let mut relist = writer.begin_relist();
    fill(&mut relist, COUNT / 10);
    let mut distinct = std::collections::HashMap::new();
    for (_, object) in relist.live.objects.iter().chain(relist.fresh.objects.iter()) {
        distinct.insert(Arc::as_ptr(object), object.size() as u64);
    }
    let peak: u64 = distinct.values().sum();
    assert!(peak as f64 <= 1.15 * before.bytes() as f64, "{peak} bytes of objects for {}", before.bytes());
    assert!((held + relist.own) as f64 <= 1.3 * held as f64, "{} more than {held}", relist.own);

    drop(relist);
    assert!(Arc::ptr_eq(&before, &reader.snapshot().unwrap()), "a load that fails changes nothing");
    assert_eq!(writer.held.memory, held);
}

/// Found by whoever it is, at once: a batch that was on its way may not bring the lost history back.
#[tokio::test]
async fn a_distrusted_store_answers_no_more_until_it_was_reset_and_loaded() {
    let (mut writer, reader) = pair(&Budget::default());
    load(&mut writer, 100, &[("a", "x", 90)]).unwrap();
    assert!(tokio::time::timeout(Duration::from_millis(1), writer.distrusted()).await.is_err());
    reader.distrust();
    reader.distrust();
    let lost = Status { phase: Phase::Syncing, rv: ResourceVersion(0) };
    assert_eq!(reader.status(), lost);
    let (key, late) = object("a", "y", 101);
    writer.apply([Change::Add(key, late)], ResourceVersion(101)).unwrap();
    load(&mut writer, 102, &[("a", "x", 90)]).unwrap();
    assert_eq!(reader.status(), lost, "what was under way is of the old history");
    writer.distrusted().await;
    writer.reset();
    assert!(tokio::time::timeout(Duration::from_millis(1), writer.distrusted()).await.is_err(), "one reset is enough");
    load(&mut writer, 9, &[("a", "x", 8)]).unwrap();
    assert_eq!(reader.status(), Status { phase: Phase::Synced, rv: ResourceVersion(9) });
    // Reads that are forwarded for another reason go on to be.
    writer.refuse(403);
    reader.distrust();
    assert_eq!(reader.status().phase, Phase::Refused(403));
}
