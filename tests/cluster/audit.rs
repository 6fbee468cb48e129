//! The API server's audit log: the ground truth of what reached upstream.
//!
//! Each request has one `RequestReceived` line, which the server writes before it handles the request. So a request whose
//! answer has been seen is in the log, without waiting. `ResponseComplete` lines add the status code, a moment later.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufRead as _, BufReader, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The policy that the entries below rely on.
pub(crate) const POLICY: &str =
    "apiVersion: audit.k8s.io/v1\nkind: Policy\nomitStages: [ResponseStarted]\nrules:\n- level: Metadata\n";

/// One request that reached the API server.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    #[serde(rename = "auditID")]
    id: String,
    stage: String,
    /// get, list, watch, create, update, patch, delete, deletecollection.
    pub(crate) verb: String,
    #[serde(default)]
    pub(crate) user_agent: String,
    #[serde(rename = "requestURI")]
    pub(crate) uri: String,
    /// RFC 3339, UTC, with microseconds.
    #[serde(rename = "requestReceivedTimestamp")]
    received: String,
    user: UserInfo,
    #[serde(default)]
    object_ref: ObjectRef,
    response_status: Option<ResponseStatus>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct UserInfo {
    #[serde(default)]
    username: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ObjectRef {
    #[serde(default)]
    resource: String,
    #[serde(default)]
    subresource: String,
    #[serde(default)]
    namespace: String,
    #[serde(default)]
    name: String,
}

#[derive(Clone, Debug, Deserialize)]
struct ResponseStatus {
    #[serde(default)]
    code: u16,
}

/// A place in the log; what follows it belongs to whoever took the mark, and to the tests running beside.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mark(u64);

/// The audit logs of all API servers of a control plane.
#[derive(Debug)]
pub(crate) struct Audit {
    logs: Vec<PathBuf>,
}

// === impl Entry ===

impl Entry {
    pub(crate) fn user(&self) -> &str {
        &self.user.username
    }

    pub(crate) fn resource(&self) -> &str {
        &self.object_ref.resource
    }

    pub(crate) fn subresource(&self) -> &str {
        &self.object_ref.subresource
    }

    pub(crate) fn namespace(&self) -> &str {
        &self.object_ref.namespace
    }

    pub(crate) fn name(&self) -> &str {
        &self.object_ref.name
    }

    /// 0 until the answer is complete.
    pub(crate) fn code(&self) -> u16 {
        self.response_status.as_ref().map_or(0, |status| status.code)
    }

    /// A LIST, or a watch that begins with the whole state.
    pub(crate) fn is_list(&self) -> bool {
        self.verb == "list" || self.is_watch_list()
    }

    /// A LIST from its beginning, not one of its further pages.
    pub(crate) fn is_first_page(&self) -> bool {
        self.is_list() && !self.uri.contains("continue=")
    }

    pub(crate) fn is_watch_list(&self) -> bool {
        self.verb == "watch" && self.uri.contains("sendInitialEvents=true")
    }
}

// === impl Audit ===

impl Audit {
    pub(crate) fn new(logs: Vec<PathBuf>) -> Self {
        Self { logs }
    }

    /// The end of the log now (of the first API server's, for control planes with one).
    pub(crate) fn mark(&self) -> Mark {
        Mark(std::fs::metadata(&self.logs[0]).map_or(0, |meta| meta.len()))
    }

    /// Every request so far.
    pub(crate) fn entries(&self) -> Vec<Entry> {
        self.logs.iter().flat_map(|log| read(log, 0)).collect()
    }

    /// Requests received after the mark, by one of the users of this test, say.
    pub(crate) fn since(&self, mark: Mark, keep: impl Fn(&Entry) -> bool) -> Vec<Entry> {
        read(&self.logs[0], mark.0).into_iter().filter(keep).collect()
    }

    /// How many requests so far are of that kind.
    pub(crate) fn count(&self, keep: impl Fn(&Entry) -> bool) -> usize {
        self.entries().iter().filter(|entry| keep(entry)).count()
    }
}

/// The most of these requests that arrived within one second of the clock.
pub(crate) fn peak_per_second(entries: &[Entry]) -> usize {
    let mut seconds = HashMap::<&str, usize>::new();
    for entry in entries {
        *seconds.entry(entry.received.split('.').next().unwrap_or("")).or_default() += 1;
    }
    seconds.into_values().max().unwrap_or(0)
}

fn read(log: &Path, from: u64) -> Vec<Entry> {
    let Ok(mut file) = File::open(log) else { return Vec::new() };
    file.seek(SeekFrom::Start(from)).unwrap();
    let mut lines = BufReader::new(file);
    let (mut entries, mut codes) = (Vec::<Entry>::new(), HashMap::new());
    let mut line = String::new();
    loop {
        line.clear();
        // A last line without its end is still being written.
        if lines.read_line(&mut line).unwrap() == 0 || !line.ends_with('\n') {
            break;
        }
        let entry: Entry = serde_json::from_str(&line).unwrap_or_else(|e| panic!("audit line {line}: {e}"));
        match entry.stage.as_str() {
            "RequestReceived" => entries.push(entry),
            _ => drop(codes.insert(entry.id, entry.response_status)),
        }
    }
    for entry in &mut entries {
        entry.response_status = codes.remove(&entry.id).flatten();
    }
    entries
}
