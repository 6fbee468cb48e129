//! Reads what the README promises: its shell blocks, each with the comment that says where it is run, and its tables.

use std::{collections::BTreeMap, fs, path::Path};

/// A fenced block of shell, and where it is run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    /// Line of the fence, for messages.
    pub(crate) line: usize,
    /// The text between the fences.
    pub(crate) script: String,
    /// From the comment right above: `<!-- run by tests/cluster -->` gives `tests/cluster`; `None` without one.
    pub(crate) run_by: Option<String>,
    /// From `<!-- not run: it needs a cluster of yours -->`.
    pub(crate) not_run: Option<String>,
}

pub(crate) fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Every block that begins with ```` ```sh ````.
pub(crate) fn shell_blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut above = "";
    let mut lines = text.lines().enumerate();
    while let Some((at, line)) = lines.next() {
        if line == "```sh" {
            let comment = |start: &str| Some(above.strip_prefix(start)?.strip_suffix("-->")?.trim().to_owned());
            let script = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```");
            blocks.push(Block {
                line: at + 1,
                script: script.map(|line| format!("{line}\n")).collect(),
                run_by: comment("<!-- run by "),
                not_run: comment("<!-- not run: "),
            });
        } else if line.starts_with("```") {
            // Another language: to its end.
            lines.by_ref().find(|(_, line)| *line == "```");
        }
        above = line;
    }
    blocks
}

/// Rows of all tables below the heading `## title`, by the code in their first cell without its backticks; the value is
/// the rest of the row, cells trimmed.
pub(crate) fn table(text: &str, title: &str) -> BTreeMap<String, Vec<String>> {
    let heading = format!("\n## {title}\n");
    let section = text.split_once(&heading).unwrap_or_else(|| panic!("no heading {heading:?}")).1;
    let section = section.split_once("\n## ").map_or(section, |(section, _)| section);
    let mut rows = BTreeMap::new();
    for line in section.lines().filter(|line| line.starts_with("| `")) {
        // `\|` is a bar inside a cell.
        let line = line.trim_matches('|').replace("\\|", "\u{1}");
        let mut cells = line.split('|').map(|cell| cell.trim().replace('\u{1}', "|"));
        let key = cells.next().unwrap_or_default().trim_matches('`').to_owned();
        assert!(rows.insert(key.clone(), cells.collect()).is_none(), "{key} is in the tables of {title} twice");
    }
    rows
}

#[test]
fn blocks_and_tables_are_found() {
    let text = "<!-- run by x/y -->\n```sh\na\n\nb\n```\n\n```text\n```sh\nno\n```\n```sh\nc\n```\n<!-- not run: why -->\n```sh\n```\n";
    let block = |line, script: &str, run_by: Option<&str>, not_run: Option<&str>| Block {
        line,
        script: script.to_owned(),
        run_by: run_by.map(str::to_owned),
        not_run: not_run.map(str::to_owned),
    };
    let want =
        [block(2, "a\n\nb\n", Some("x/y"), None), block(12, "c\n", None, None), block(16, "", None, Some("why"))];
    assert_eq!(shell_blocks(text), want);
    let text = "# A\n\n## B\n| x | y |\n|---|---|\n| `a` | b\\|c | d |\n\n## C\n| `e` | f |\n";
    assert_eq!(table(text, "B"), [("a".to_owned(), vec!["b|c".to_owned(), "d".to_owned()])].into());
}
