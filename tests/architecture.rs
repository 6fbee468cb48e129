//! Reads the sources and fails on what the compiler lets pass: an import that goes up or sideways, a crate where it has
//! no business, a file that has grown too large, a file that does not say what it is for.
//!
//! Paths are found in the tokens of a file, not in its text: `crate::`, `super::` and, in the binary, `forebay::`
//! wherever they stand (`use` items, groups, paths in expressions and types, `pub(in ...)`, macros). Comments, strings
//! and characters are skipped. Unit tests below `src` count like any other code: a test that has to reach up a layer
//! stands in the wrong file. `tests/` and `benches/` see the crate from outside and may use all of it; only their size
//! and their doc are looked at.
//!
//! A code line is a line with at least one token on it: blank lines and lines of comment alone don't count, lines of
//! unit tests and of a string over several lines do.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

/// Above this a file does more than one thing.
const MAX_CODE_LINES: usize = 600;

/// The layers of DESIGN section 9 and ARCHITECTURE.md, lowest first. An import goes to the own folder or to a lower
/// line; the three parts of the top layer are lines of their own, since they are stacked too.
const LAYERS: [&[&str]; 10] = [
    &["api"],
    &["config", "lifecycle", "telemetry"],
    &["store"],
    &["request", "upstream"],
    &["route"],
    &["serve"],
    &["server", "admin"],
    &["app"],
    &["cli"],
    &["main", "lib"],
];

/// The scripted upstream stands beside the layers: it imports `api` alone, and only the demo's folder imports it.
const TESTING: &str = "testing";
const TESTING_MAY_IMPORT: &str = "api";
const MAY_IMPORT_TESTING: &str = "cli";

/// Folders that promise to do without I/O, without async, or without HTTP.
const FOREIGN: [(&str, &[&str]); 4] = [
    ("api", &["tokio", "http", "hyper", "kube"]),
    ("store", &["http", "hyper", "kube"]),
    ("request", &["tokio", "hyper", "kube"]),
    ("route", &["tokio", "hyper", "kube"]),
];

#[test]
fn the_sources_keep_to_the_architecture() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in ["src", "tests", "benches"] {
        rust_files(&root.join(folder), &mut files);
    }
    assert!(files.len() > 100, "only {} files found below {}", files.len(), root.display());
    let mut edges = 0;
    let mut problems = Vec::new();
    for file in &files {
        let path = file.strip_prefix(root).unwrap().to_str().unwrap();
        let text = fs::read_to_string(file).unwrap();
        edges += Source::new(path, &text).edges().len();
        problems.extend(check(path, &text));
    }
    assert!(edges > 100, "only {edges} imports found: the reader is broken");
    assert!(problems.is_empty(), "\n{}\n", problems.join("\n"));
}

fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            rust_files(&path, files);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            files.push(path);
        }
    }
}

/// Everything wrong with one file, each with its place.
fn check(path: &str, text: &str) -> Vec<String> {
    let source = Source::new(path, text);
    let mut problems = Vec::new();
    let lines = source.code_lines();
    if lines > MAX_CODE_LINES {
        problems.push(format!("{path}: {lines} code lines, at most {MAX_CODE_LINES}: split it by duty"));
    }
    // `foo/tests.rs` is part of `foo.rs`.
    let documented = text.trim_start().starts_with("//!") || path.ends_with("/tests.rs");
    if !documented {
        problems.push(format!("{path}: does not begin with a //! doc that says what it is for"));
    }
    let Some(folder) = source.module.first().cloned().or_else(|| root_file(path)) else { return problems };
    if rank(&folder).is_none() && folder != TESTING {
        problems
            .push(format!("{path}: {folder} has no layer; give it one in tests/architecture.rs and ARCHITECTURE.md"));
        return problems;
    }
    for Edge { line, to } in source.edges() {
        if let Some(why) = forbidden(&folder, &to) {
            problems.push(format!("{path}:{line}: {folder} imports {to}: {why}"));
        }
    }
    for (_, crates) in FOREIGN.iter().filter(|(of, _)| *of == folder) {
        for (line, name) in source.crates().filter(|(_, name)| crates.contains(name)) {
            problems.push(format!("{path}:{line}: {folder} uses the crate {name}, which is for other layers"));
        }
    }
    problems
}

/// Why `from` must not import `to`, if so.
fn forbidden(from: &str, to: &str) -> Option<&'static str> {
    if to == "*" {
        return Some("a glob of the crate root hides where things come from");
    }
    if from == to || from == "lib" {
        return None;
    }
    if from == TESTING {
        return (to != TESTING_MAY_IMPORT).then_some("the scripted upstream must not share forebay's ideas");
    }
    if to == TESTING {
        return (from != MAY_IMPORT_TESTING).then_some("only the demo may run the scripted upstream");
    }
    match (rank(from), rank(to)) {
        (_, None) => Some("there is no such folder"),
        (Some(own), Some(other)) if other < own => None,
        (own, other) if own == other => Some("they are of the same layer, and do not know each other"),
        _ => Some("it is of a higher layer"),
    }
}

fn rank(folder: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&folder))
}

/// `src/main.rs` and `src/lib.rs` are the crate roots.
fn root_file(path: &str) -> Option<String> {
    path.strip_prefix("src/")?.strip_suffix(".rs").map(str::to_owned)
}

// --- the reader ---

/// A token of Rust, as far as paths need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    Word(&'a str),
    /// `::`
    Colons,
    Punct(char),
    /// A number, a string, a character, a lifetime.
    Literal,
}

/// A file, its tokens with their lines, and the module it is.
struct Source<'a> {
    module: Vec<String>,
    /// In the binary the library is a crate like any other.
    binary: bool,
    tokens: Vec<(usize, Token<'a>)>,
    /// Lines with a token on them.
    lines: BTreeSet<usize>,
}

/// The file mentions something of this top folder. `*` is everything there is.
#[derive(Debug, PartialEq, Eq)]
struct Edge {
    line: usize,
    to: String,
}

impl<'a> Source<'a> {
    fn new(path: &str, text: &'a str) -> Self {
        let mut lexer = Lexer { text, at: 0, line: 1, lines: BTreeSet::new() };
        let mut tokens = Vec::new();
        while let Some(token) = lexer.next() {
            tokens.push(token);
        }
        Self { module: module_of(path), binary: path == "src/main.rs", tokens, lines: lexer.lines }
    }

    fn code_lines(&self) -> usize {
        self.lines.len()
    }

    fn token(&self, at: usize) -> Option<Token<'a>> {
        self.tokens.get(at).map(|(_, token)| *token)
    }

    /// Names that begin a path or a `use` and may be crates.
    fn crates(&self) -> impl Iterator<Item = (usize, &'a str)> {
        self.tokens.iter().enumerate().filter_map(|(at, (line, token))| match token {
            Token::Word(name) if self.token(at + 1) == Some(Token::Colons) => {
                (!self.continues(at)).then_some((*line, *name))
            }
            _ => None,
        })
    }

    /// Whether the word here goes on with a path. `use ::name` begins one.
    fn continues(&self, at: usize) -> bool {
        let before = |n| at.checked_sub(n).and_then(|at| self.token(at));
        before(1) == Some(Token::Colons) && before(2) != Some(Token::Word("use"))
    }

    /// Every top folder this file mentions, its own included.
    fn edges(&self) -> Vec<Edge> {
        let mut edges = Vec::new();
        let mut module = self.module.clone();
        // Inline modules that are open, each with the depth of braces it began at.
        let mut open = Vec::new();
        let mut depth = 0usize;
        let mut at = 0;
        while at < self.tokens.len() {
            match self.token(at) {
                Some(Token::Punct('{')) => {
                    if let (Some(Token::Word("mod")), Some(Token::Word(name))) = (
                        at.checked_sub(2).and_then(|at| self.token(at)),
                        at.checked_sub(1).and_then(|at| self.token(at)),
                    ) {
                        open.push(depth);
                        module.push(name.to_owned());
                    }
                    depth += 1;
                }
                Some(Token::Punct('}')) => {
                    depth = depth.saturating_sub(1);
                    if open.last() == Some(&depth) {
                        open.pop();
                        module.pop();
                    }
                }
                Some(Token::Word(word)) if self.begins_path(at, word) => {
                    at = self.follow(at, &module, &mut edges);
                    continue;
                }
                _ => {}
            }
            at += 1;
        }
        edges
    }

    /// Whether an anchored path begins here; what continues one has been followed already.
    fn begins_path(&self, at: usize, word: &str) -> bool {
        let anchored = matches!(word, "crate" | "super" | "self") || (self.binary && word == "forebay");
        // `use crate as x;` would hide every path behind a name.
        let renamed = word == "crate" && self.token(at + 1) == Some(Token::Word("as"));
        anchored && !self.continues(at) && (self.token(at + 1) == Some(Token::Colons) || renamed)
    }

    /// Follows the tree of a path from `at`; `base` is the module its first word stands in. Gives the place after it.
    fn follow(&self, mut at: usize, base: &[String], edges: &mut Vec<Edge>) -> usize {
        let mut base = base.to_vec();
        loop {
            let Some((line, token)) = self.tokens.get(at) else { return at };
            let mut edge = |to: &str| edges.push(Edge { line: *line, to: to.to_owned() });
            match token {
                Token::Word("crate" | "forebay") => {
                    base.clear();
                    if self.token(at + 1) == Some(Token::Word("as")) {
                        edge("*");
                    }
                }
                Token::Word("super") => drop(base.pop()),
                Token::Word("self") => {}
                Token::Word(name) => {
                    edge(base.first().map_or(name, String::as_str));
                    return at + 1;
                }
                Token::Punct('*') => {
                    edge(base.first().map_or("*", String::as_str));
                    return at + 1;
                }
                Token::Punct('{') => return self.follow_group(at + 1, &base, edges),
                _ => return at,
            }
            at += 1;
            if self.token(at) != Some(Token::Colons) {
                return at;
            }
            at += 1;
        }
    }

    /// The branches of a group, up to its closing brace.
    fn follow_group(&self, mut at: usize, base: &[String], edges: &mut Vec<Edge>) -> usize {
        loop {
            at = self.follow(at, base, edges);
            // The rest of the branch, groups in it included: it is below a folder already.
            let mut depth = 0;
            loop {
                match self.token(at) {
                    None => return at,
                    Some(Token::Punct('{')) => depth += 1,
                    Some(Token::Punct('}')) if depth == 0 => return at + 1,
                    Some(Token::Punct('}')) => depth -= 1,
                    Some(Token::Punct(',')) if depth == 0 => break,
                    _ => {}
                }
                at += 1;
            }
            at += 1;
        }
    }
}

/// `src/api/json/mod.rs` is `api::json`; the crate roots and what is not below `src` have no module.
fn module_of(path: &str) -> Vec<String> {
    let Some(path) = path.strip_prefix("src/") else { return Vec::new() };
    let path = path.strip_suffix(".rs").unwrap_or(path);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if matches!(path, "main" | "lib") { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

struct Lexer<'a> {
    text: &'a str,
    at: usize,
    line: usize,
    lines: BTreeSet<usize>,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Takes this many bytes and notes their lines.
    fn take(&mut self, bytes: usize) -> &'a str {
        let taken = &self.rest()[..bytes];
        self.lines.insert(self.line);
        for _ in taken.matches('\n') {
            self.line += 1;
            self.lines.insert(self.line);
        }
        self.at += bytes;
        taken
    }

    /// The next token and its line.
    fn next(&mut self) -> Option<(usize, Token<'a>)> {
        self.skip_blank();
        let line = self.line;
        let rest = self.rest();
        let first = rest.chars().next()?;
        let token = if let Some(bytes) = string(rest).or_else(|| quote(rest)) {
            self.take(bytes);
            Token::Literal
        } else if first.is_alphabetic() || first == '_' {
            let word = rest.strip_prefix("r#").unwrap_or(rest);
            let length = word.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(word.len());
            self.take(rest.len() - word.len());
            Token::Word(self.take(length))
        } else if first.is_ascii_digit() {
            // `1.0` is two numbers and a dot here, `0..9` too: neither is a path.
            self.take(rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len()));
            Token::Literal
        } else if rest.starts_with("::") {
            self.take(2);
            Token::Colons
        } else {
            self.take(first.len_utf8());
            Token::Punct(first)
        };
        Some((line, token))
    }

    /// Blanks and comments, which make no line a code line.
    fn skip_blank(&mut self) {
        loop {
            let rest = self.rest();
            let blank = match rest {
                _ if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
                _ if rest.starts_with("/*") => block_comment(rest),
                _ => rest.len() - rest.trim_start().len(),
            };
            if blank == 0 {
                return;
            }
            self.line += rest[..blank].matches('\n').count();
            self.at += blank;
        }
    }
}

/// Length of a block comment; they nest.
fn block_comment(text: &str) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at < text.len() {
        match &text.as_bytes()[at..] {
            [b'/', b'*', ..] => (depth, at) = (depth + 1, at + 2),
            [b'*', b'/', ..] => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

/// Length of a string, its prefix (`b`, `c`, `r`, hashes) included.
fn string(text: &str) -> Option<usize> {
    let prefix = text.find(|c| !matches!(c, 'b' | 'c' | 'r'))?;
    let raw = text[..prefix].contains('r');
    let hashes = text[prefix..].len() - text[prefix..].trim_start_matches('#').len();
    let start = prefix + hashes;
    if prefix > 2 || (hashes > 0 && !raw) || !text[start..].starts_with('"') {
        return None;
    }
    let body = &text[start + 1..];
    if raw {
        let end = format!("\"{}", "#".repeat(hashes));
        return Some(body.find(&end).map_or(text.len(), |at| start + 1 + at + end.len()));
    }
    let mut escaped = false;
    for (at, c) in body.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => return Some(start + 1 + at + 1),
            _ => {}
        }
    }
    Some(text.len())
}

/// Length of a character (`'a'`, `b'\''`) or of a lifetime (`'a`).
fn quote(text: &str) -> Option<usize> {
    let prefix = usize::from(text.starts_with("b'"));
    let body = text[prefix..].strip_prefix('\'')?;
    let mut chars = body.char_indices();
    let (_, first) = chars.next()?;
    if first == '\\' {
        chars.next()?;
        let (end, _) = chars.find(|(_, c)| *c == '\'')?;
        return Some(prefix + 1 + end + 1);
    }
    match chars.next() {
        Some((end, '\'')) => Some(prefix + 1 + end + 1),
        _ => {
            let end = body.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(body.len());
            Some(prefix + 1 + end)
        }
    }
}

// --- the checker can fail ---

#[cfg(test)]
mod tests {
    use super::*;

    const DOC: &str = "//! A file.\n";

    /// Problems of a documented source at this path, without their place.
    fn problems(path: &str, source: &str) -> Vec<String> {
        let found = check(path, &format!("{DOC}{source}"));
        found.into_iter().map(|problem| problem.split_once(": ").unwrap().1.to_owned()).collect()
    }

    fn imports(path: &str, source: &str) -> Vec<String> {
        Source::new(path, source).edges().into_iter().map(|edge| edge.to).collect()
    }

    #[test]
    fn an_import_that_goes_up_or_sideways_is_found_wherever_it_stands() {
        for (path, source, from, to) in [
            ("src/api/gvr.rs", "use crate::store::Object;", "api", "store"),
            ("src/store/mod.rs", "pub use crate::serve::Body as B;", "store", "serve"),
            ("src/route/decide.rs", "use crate::{api::gvr::Gvr, serve::Body};", "route", "serve"),
            ("src/route/decide.rs", "use crate::{api::{gvr::{Gvr, Scope}, x}, server};", "route", "server"),
            ("src/request/info.rs", "use crate::upstream::Client;", "request", "upstream"),
            ("src/upstream/client.rs", "use crate::{request::hop};", "upstream", "request"),
            ("src/config/load.rs", "use crate::telemetry::X;", "config", "telemetry"),
            ("src/server/mod.rs", "use crate::admin::X;", "server", "admin"),
            ("src/app/mod.rs", "use crate::cli::report;", "app", "cli"),
            ("src/serve/proxy.rs", "use crate::testing::ApiServer;", "serve", "testing"),
            ("src/app/mod.rs", "use crate::testing::ApiServer;", "app", "testing"),
            ("src/testing/world.rs", "use crate::store::Store;", "testing", "store"),
            ("src/main.rs", "use forebay::testing::ApiServer;", "main", "testing"),
            ("src/store/a.rs", "fn f() -> u8 { let x = 'c'; crate::route::decide(x) }", "store", "route"),
            ("src/store/a.rs", "fn f(x: &'a dyn crate::serve::T) {}", "store", "serve"),
            ("src/store/a.rs", "m!(crate::serve::x);", "store", "serve"),
            ("src/store/a.rs", "pub(in crate::serve) fn f() {}", "store", "serve"),
            ("src/store/a.rs", "#[cfg(test)]\nmod tests { use crate::serve::Body; }", "store", "serve"),
            ("src/store/mod.rs", "use super::route::decide;", "store", "route"),
            ("src/store/a.rs", "use super::super::route::decide;", "store", "route"),
            ("src/store/a.rs", "use super::{b, super::{api::c, route::decide}};", "store", "route"),
            ("src/store/a.rs", "mod tests { fn f() {} use super::super::super::route; }", "store", "route"),
            ("src/store/a.rs", "use self::super::super::route;", "store", "route"),
            ("src/store/a.rs", "use crate::r#serve::X;", "store", "serve"),
            ("src/store/a.rs", "use ::std::x; use crate :: /* why */ serve::X;", "store", "serve"),
        ] {
            let found = problems(path, source);
            let want = format!("{from} imports {to}: ");
            assert!(found.len() == 1 && found[0].starts_with(&want), "{path}: {source}: {found:?}");
        }
    }

    #[test]
    fn the_whole_crate_at_once_is_no_import() {
        for source in ["use crate::*;", "use crate as all;", "use super::super::*;"] {
            let found = problems("src/store/a.rs", source);
            assert!(found.len() == 1 && found[0].contains("imports *: a glob"), "{source}: {found:?}");
        }
    }

    #[test]
    fn what_is_allowed_is_not_found() {
        for (path, source) in [
            ("src/store/a.rs", "use crate::{api::gvr::Gvr, lifecycle::Tasks, store::b::{c, d}};"),
            ("src/store/a.rs", "use super::{b, *}; mod tests { use super::*; mod more { use super::super::b; } }"),
            ("src/store/a.rs", "pub(crate) fn f() {} pub(super) fn g() {} pub(in crate::store) fn h() {}"),
            ("src/store/a.rs", "/// [`crate::serve`]\n// crate::serve::x\n/* crate::serve /* deep */ crate::serve */"),
            (
                "src/store/a.rs",
                r####"const A: &str = "crate::serve\" crate::serve"; const B: &str = r#"" crate::serve"#;"####,
            ),
            ("src/store/a.rs", r#"const A: [char; 3] = ['"', '\'', '\u{22}']; const B: u8 = b'"'; fn f<'a>() {}"#),
            ("src/cli/demo.rs", "use crate::testing::ApiServer;"),
            ("src/testing/world.rs", "use crate::api::gvr::Gvr; use super::log;"),
            ("src/cli/exec.rs", "use crate::app;"),
            ("src/main.rs", "use forebay::cli::Exit;"),
            ("src/lib.rs", "pub mod api; pub mod testing;"),
            ("tests/it/main.rs", "use forebay::testing::ApiServer; use crate::rig::Rig;"),
        ] {
            assert_eq!(problems(path, source), Vec::<String>::new(), "{path}: {source}");
        }
    }

    #[test]
    fn paths_are_followed_to_the_top_folder() {
        let source = "use crate::{a::{b, c}, d, e::*, f as g, self::h}; fn x() { i::j; crate::k::l() }";
        assert_eq!(imports("src/store/x.rs", source), ["a", "d", "e", "f", "h", "k"]);
        assert_eq!(imports("src/store/x.rs", "mod y { use super::z; } use super::z;"), ["store", "store"]);
    }

    #[test]
    fn a_crate_of_another_layer_is_found() {
        for (path, source) in [
            ("src/api/gvr.rs", "use tokio::time::Instant;"),
            ("src/store/a.rs", "fn f() -> http::StatusCode {}"),
            ("src/route/mod.rs", "use hyper::{Request};"),
            ("src/request/info.rs", "use ::tokio::fs;"),
        ] {
            let found = problems(path, source);
            assert!(found.len() == 1 && found[0].contains("uses the crate"), "{path}: {source}: {found:?}");
        }
        assert_eq!(problems("src/store/a.rs", "use tokio::sync::watch; fn http() { a::http::b() }"), [""; 0]);
    }

    #[test]
    fn a_folder_without_a_layer_is_found() {
        assert!(problems("src/helper/mod.rs", "")[0].starts_with("helper has no layer"));
        assert!(problems("src/helper.rs", "")[0].starts_with("helper has no layer"));
        assert!(problems("src/app/mod.rs", "use crate::helper::x;")[0].ends_with("there is no such folder"));
    }

    #[test]
    fn a_file_above_the_limit_is_found_and_only_code_counts() {
        let code = |lines: usize| "let a = 1;\n".repeat(lines);
        let idle = "\n// a comment\n/* one\n\ntwo */\n".repeat(100);
        assert_eq!(problems("src/store/a.rs", &(idle.clone() + &code(600))), [""; 0]);
        let found = problems("src/store/a.rs", &(idle + &code(601)));
        assert_eq!(found, ["601 code lines, at most 600: split it by duty"]);
        assert_eq!(problems("tests/it/x.rs", &code(601)).len(), 1);
        assert_eq!(Source::new("x.rs", "a // b\n\n/* c */ d\n\"e\n\nf\"\n//\n").code_lines(), 5);
    }

    #[test]
    fn a_file_without_a_doc_is_found() {
        for (text, want) in [("use std::fs;\n", 1), ("/// An item's.\nfn f() {}\n", 1), ("\n//! A file's.\n", 0)] {
            assert_eq!(check("src/store/a.rs", text).len(), want, "{text}");
        }
        assert_eq!(check("src/store/handle/tests.rs", "use super::*;\n"), [""; 0]);
    }
}
