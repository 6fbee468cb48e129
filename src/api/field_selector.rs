//! Field selectors: upstream's grammar and its error texts.
//!
//! Terms joined by commas: `field=value`, `field==value`, `field!=value`. Blanks count. In values a backslash escapes
//! backslash, comma and equals sign, and nothing else. Empty terms are skipped.
//!
//! Which fields a kind can be selected by is not known here, and neither are the values of most of them: the caller
//! serves a selector only if it [is about metadata](FieldSelector::only_metadata), and must know that some kinds refuse
//! `metadata.namespace` (nodes and other cluster-scoped kinds with fields of their own, cluster-scoped custom
//! resources).

use super::label_selector::ParseError;

/// A parsed field selector. The default is the empty one, which matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSelector {
    requirements: Vec<Requirement>,
}

/// One term.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// The field's label, as written: `metadata.name`.
    pub field: String,
    /// How it is compared.
    pub op: Op,
    /// The value, unescaped.
    pub value: String,
}

/// How a field is compared with a value. An absent field is the empty string.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// `=` or `==`.
    Equals,
    /// `!=`.
    NotEquals,
}

const NAME: &str = "metadata.name";
const NAMESPACE: &str = "metadata.namespace";

// === impl FieldSelector ===

impl FieldSelector {
    /// Parses the value of a `fieldSelector` parameter. All errors are [`ParseError::Known`]; seen from a live server
    /// but for that of a lone backslash at the end, which is from reading the source.
    pub fn parse(text: &str) -> Result<Self, ParseError> {
        let mut terms = split_terms(text);
        // Upstream sorts the terms first, which decides what is complained about, and which name is "the" name.
        terms.sort_unstable();
        let mut requirements = Vec::with_capacity(terms.len());
        for term in terms.into_iter().filter(|term| !term.is_empty()) {
            let Some((field, op, value)) = split_term(term) else {
                return Err(ParseError::Known(format!("invalid selector: '{text}'; can't understand '{term}'")));
            };
            let value = unescape(value)?;
            // Upstream drops what says nothing about nothing: a lone `=` selects everything.
            if !(field.is_empty() && value.is_empty()) {
                requirements.push(Requirement { field: field.to_owned(), op, value });
            }
        }
        Ok(Self { requirements })
    }

    /// There is nothing to match.
    pub fn is_everything(&self) -> bool {
        self.requirements.is_empty()
    }

    /// All terms, in upstream's order. Every one must hold.
    pub fn requirements(&self) -> &[Requirement] {
        &self.requirements
    }

    /// Only `metadata.name` and `metadata.namespace` are asked about (or nothing).
    pub fn only_metadata(&self) -> bool {
        self.requirements.iter().all(|requirement| matches!(requirement.field.as_str(), NAME | NAMESPACE))
    }

    /// `metadata.namespace` is asked about, in whatever way. Some kinds refuse that.
    pub fn mentions_namespace(&self) -> bool {
        self.requirements.iter().any(|requirement| requirement.field == NAMESPACE)
    }

    /// The one name an object can have, if there is a term that fixes it. Other terms may still exclude it.
    pub fn exact_name(&self) -> Option<&str> {
        self.exact(NAME)
    }

    /// The one namespace an object can be in, if there is a term that fixes it.
    pub fn exact_namespace(&self) -> Option<&str> {
        self.exact(NAMESPACE)
    }

    /// Whether an object of this name and namespace (empty for cluster-scoped kinds) is selected, as far as metadata
    /// goes: decisive only if [`Self::only_metadata`].
    pub fn matches_metadata(&self, namespace: &str, name: &str) -> bool {
        self.requirements.iter().all(|requirement| {
            let actual = match requirement.field.as_str() {
                NAME => name,
                NAMESPACE => namespace,
                _ => return true,
            };
            (actual == requirement.value) == (requirement.op == Op::Equals)
        })
    }

    fn exact(&self, field: &str) -> Option<&str> {
        let fixes = |requirement: &&Requirement| requirement.field == field && requirement.op == Op::Equals;
        self.requirements.iter().find(fixes).map(|requirement| requirement.value.as_str())
    }
}

/// Splits at commas that no backslash stands in front of.
fn split_terms(text: &str) -> Vec<&str> {
    let mut terms = Vec::new();
    let (mut start, mut escaped) = (0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b',' => {
                terms.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    terms.push(&text[start..]);
    terms
}

/// Splits at the first operator. There are no escapes on the left side.
fn split_term(term: &str) -> Option<(&str, Op, &str)> {
    let at = term.find("!=").into_iter().chain(term.find('=')).min()?;
    let (field, rest) = term.split_at(at);
    let (op, value) = if let Some(value) = rest.strip_prefix("!=") {
        (Op::NotEquals, value)
    } else {
        (Op::Equals, rest.strip_prefix("==").or_else(|| rest.strip_prefix('='))?)
    };
    Some((field, op, value))
}

fn unescape(raw: &str) -> Result<String, ParseError> {
    let mut value = String::with_capacity(raw.len());
    let mut chars = raw.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped @ ('\\' | ',' | '=')) => value.push(escaped),
                other => {
                    let sequence: String = other.into_iter().collect();
                    return Err(ParseError::Known(format!(
                        "invalid field selector: invalid escape sequence: \\{sequence}"
                    )));
                }
            },
            ',' | '=' => {
                let number = u32::from(c);
                return Err(ParseError::Known(format!(
                    "invalid field selector: unescaped character in value: {number}"
                )));
            }
            _ => value.push(c),
        }
    }
    Ok(value)
}

#[cfg(test)]
mod tests;
