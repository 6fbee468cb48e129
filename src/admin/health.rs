//! Health answers in the format of kube-apiserver, to the letter: operators' scripts know it.
//!
//! Pure: checks and a query in, a status and a text out. One extension: a check may have a detail, shown in brackets
//! after its line (`[-]cache-sync/v1/pods failed: reason withheld (120/2000 objects, 350/s, 5s left)`).

use std::collections::BTreeSet;

use http::StatusCode;

/// The state of one check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Check {
    /// Name in the output, in `?exclude=` and in the path.
    pub(super) name: String,
    /// Passed, or not asked for.
    pub(super) ok: bool,
    /// What a person wants to know besides.
    pub(super) detail: Option<String>,
}

/// What to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) body: String,
    /// Checks that failed and were not excluded, for the log.
    pub(super) failed: Vec<String>,
}

// === impl Check ===

impl Check {
    /// A check without a detail.
    pub(super) fn new(name: impl Into<String>, ok: bool) -> Self {
        Self { name: name.into(), ok, detail: None }
    }
}

// === impl Answer ===

impl Answer {
    fn ok(body: String) -> Self {
        Self { status: StatusCode::OK, body, failed: Vec::new() }
    }
}

/// All checks of an endpoint (`livez`, `readyz`, `healthz`), with `?verbose` and `?exclude=` from the query.
pub(super) fn all(endpoint: &str, checks: &[Check], query: &str) -> Answer {
    let mut excluded: BTreeSet<String> = values(query, "exclude").collect();
    let mut lines = String::new();
    let mut failed = Vec::new();
    for check in checks {
        let name = &check.name;
        if excluded.remove(name) {
            lines.push_str(&format!("[+]{name} excluded: ok\n"));
            continue;
        }
        lines.push_str(&match check.ok {
            true => format!("[+]{name} ok"),
            false => format!("[-]{name} failed: reason withheld"),
        });
        if let Some(detail) = &check.detail {
            lines.push_str(&format!(" ({detail})"));
        }
        lines.push('\n');
        if !check.ok {
            failed.push(name.clone());
        }
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        lines.push_str(&format!("warn: some health checks cannot be excluded: no matches for {}\n", names.join(",")));
    }
    if !failed.is_empty() {
        let body = format!("{lines}{endpoint} check failed\n");
        return Answer { status: StatusCode::INTERNAL_SERVER_ERROR, body, failed };
    }
    match values(query, "verbose").next() {
        Some(_) => Answer::ok(format!("{lines}{endpoint} check passed\n")),
        None => Answer::ok("ok".to_owned()),
    }
}

/// One check by its name, the rest of the path; `None` if there is no such check.
pub(super) fn one(checks: &[Check], name: &str) -> Option<Answer> {
    let check = checks.iter().find(|check| check.name == name)?;
    if check.ok {
        return Some(Answer::ok("ok".to_owned()));
    }
    let reason = check.detail.as_deref().unwrap_or("not ready");
    Some(Answer {
        status: StatusCode::INTERNAL_SERVER_ERROR,
        body: format!("internal server error: {reason}\n"),
        failed: vec![check.name.clone()],
    })
}

/// Decoded values of a query parameter; one without `=` has an empty value.
fn values<'q>(query: &'q str, name: &'q str) -> impl Iterator<Item = String> + 'q {
    query.split('&').filter_map(move |pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key) == name).then(|| decode(value))
    })
}

fn decode(text: &str) -> String {
    percent_encoding::percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// kube-apiserver's own cases, and ours.
    #[test]
    fn the_format_is_kube_apiservers() {
        let good = [Check::new("ping", true)];
        let bad = [Check::new("ping", true), Check::new("bad", false)];
        let detail = |ok| Check { detail: Some("3/4 objects".into()), ..Check::new("cache-sync/v1/pods", ok) };
        let (syncing, synced) = ([detail(false)], [detail(true)]);
        for (checks, query, status, body) in [
            (&good[..], "", 200, "ok"),
            (&good, "verbose", 200, "[+]ping ok\nreadyz check passed\n"),
            (&good, "verbose=false", 200, "[+]ping ok\nreadyz check passed\n"),
            (&good, "exclude=dontexist", 200, "ok"),
            (
                &good,
                "verbose=true&exclude=x&exclude=a%22",
                200,
                "[+]ping ok\nwarn: some health checks cannot be excluded: no matches for \"a\\\"\",\"x\"\nreadyz check passed\n",
            ),
            (&bad, "", 500, "[+]ping ok\n[-]bad failed: reason withheld\nreadyz check failed\n"),
            (&bad, "exclude=bad", 200, "ok"),
            (&bad, "verbose&exclude=bad", 200, "[+]ping ok\n[+]bad excluded: ok\nreadyz check passed\n"),
            (&syncing, "", 500, "[-]cache-sync/v1/pods failed: reason withheld (3/4 objects)\nreadyz check failed\n"),
            (&syncing, "exclude=cache-sync%2Fv1%2Fpods", 200, "ok"),
            (&synced, "verbose", 200, "[+]cache-sync/v1/pods ok (3/4 objects)\nreadyz check passed\n"),
        ] {
            let answer = all("readyz", checks, query);
            assert_eq!((answer.status.as_u16(), answer.body.as_str()), (status, body), "{query}");
        }
    }

    #[test]
    fn a_single_check_by_its_path() {
        let checks = [Check::new("ping", true), Check::new("cache-sync/v1/pods", false)];
        assert_eq!(one(&checks, "ping").map(|answer| answer.body).as_deref(), Some("ok"));
        let answer = one(&checks, "cache-sync/v1/pods").expect("known");
        assert_eq!((answer.status.as_u16(), answer.body.as_str()), (500, "internal server error: not ready\n"));
        assert_eq!(one(&checks, "pods"), None);
    }
}
