//! Label and field selectors: the grammar tests use, with upstream's errors for the common mistakes.
//!
//! Field selectors know `metadata.name` and `metadata.namespace`, and for pods `spec.nodeName` and `status.phase`.

use super::{objects::Object, resource::Resource, status::Status};

/// A parsed pair of selectors.
#[derive(Clone, Debug, Default)]
pub(super) struct Selector {
    labels: Vec<LabelTerm>,
    fields: Vec<FieldTerm>,
}

#[derive(Clone, Debug)]
enum LabelTerm {
    Exists(String),
    Absent(String),
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Above(String, i64),
    Below(String, i64),
}

#[derive(Clone, Debug)]
struct FieldTerm {
    label: String,
    value: String,
    equal: bool,
}

// === impl Selector ===

impl Selector {
    pub(super) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, Status> {
        let labels = label_terms(labels).map_err(Status::bad_request)?;
        let fields = field_terms(resource, fields).map_err(Status::bad_request)?;
        Ok(Self { labels, fields })
    }

    /// Whether it selects everything because there is nothing in it.
    pub(super) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    /// The one name it allows, if it names one.
    pub(super) fn name(&self) -> Option<&str> {
        self.fields.iter().find(|t| t.equal && t.label == "metadata.name").map(|t| t.value.as_str())
    }

    pub(super) fn matches(&self, object: &Object) -> bool {
        self.labels.iter().all(|t| t.matches(object)) && self.fields.iter().all(|t| t.matches(object))
    }
}

impl LabelTerm {
    fn matches(&self, object: &Object) -> bool {
        let value = |key: &str| object.labels.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str());
        let number = |key: &str| value(key).and_then(|v| v.parse::<i64>().ok());
        match self {
            Self::Exists(key) => value(key).is_some(),
            Self::Absent(key) => value(key).is_none(),
            Self::In(key, values) => value(key).is_some_and(|v| values.iter().any(|w| w == v)),
            Self::NotIn(key, values) => value(key).is_none_or(|v| values.iter().all(|w| w != v)),
            Self::Above(key, bound) => number(key).is_some_and(|n| n > *bound),
            Self::Below(key, bound) => number(key).is_some_and(|n| n < *bound),
        }
    }
}

impl FieldTerm {
    fn matches(&self, object: &Object) -> bool {
        let (namespace, name) = object.namespace_and_name();
        let node;
        let value = match self.label.as_str() {
            "metadata.name" => name,
            "metadata.namespace" => namespace,
            label => {
                node = object.node();
                let path: Vec<&str> = label.split('.').collect();
                node.str_at(&path).unwrap_or_default()
            }
        };
        (value == self.value) == self.equal
    }
}

/// Splits at commas outside parentheses.
fn label_terms(text: &str) -> Result<Vec<LabelTerm>, String> {
    if text.trim().is_empty() {
        return Ok(Vec::new());
    }
    let mut terms = Vec::new();
    let mut depth = 0;
    let mut start = 0;
    for (at, c) in text.char_indices().chain([(text.len(), ',')]) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 || at == text.len() => {
                let term = text[start..at].trim();
                if term.is_empty() && start > 0 && at == text.len() {
                    return Err("found '', expected: identifier after ','".to_owned());
                } else if term.is_empty() {
                    return Err("found ',', expected: !, identifier, or 'end of string'".to_owned());
                }
                terms.push(label_term(term)?);
                start = at + 1;
            }
            _ => {}
        }
    }
    Ok(terms)
}

fn label_term(term: &str) -> Result<LabelTerm, String> {
    let wrong = |what: &str| format!("unable to parse requirement: {what}");
    if let Some(key) = term.strip_prefix('!') {
        return if key.starts_with('!') || key.is_empty() {
            Err(wrong(&format!("found '{}', expected: identifier", key.get(..1).unwrap_or_default())))
        } else {
            Ok(LabelTerm::Absent(key.trim().to_owned()))
        };
    }
    let set = |text: &str| {
        let values = text.trim().strip_prefix('(')?.strip_suffix(')')?;
        Some(values.split(',').map(|v| v.trim().to_owned()).collect::<Vec<_>>())
    };
    if let Some((key, rest)) = term.split_once(char::is_whitespace) {
        let (key, rest) = (key.to_owned(), rest.trim());
        if let Some(values) = rest.strip_prefix("notin") {
            let values = set(values).ok_or_else(|| wrong("found '', expected: ',' or ')'"))?;
            return Ok(LabelTerm::NotIn(key, values));
        }
        if let Some(values) = rest.strip_prefix("in") {
            let values = set(values).ok_or_else(|| wrong("found '', expected: ',' or ')'"))?;
            return Ok(LabelTerm::In(key, values));
        }
    }
    let operator = term.find(['=', '!', '<', '>']).and_then(|at| {
        let here = ["!=", "==", "=", ">", "<"].into_iter().find(|o| term[at..].starts_with(o))?;
        Some((&term[..at], here, &term[at + here.len()..]))
    });
    if let Some((key, operator, value)) = operator {
        let (key, value) = (key.trim().to_owned(), value.trim());
        if value.starts_with(['=', '!', '<', '>']) {
            return Err(wrong(&format!("found '{}', expected: identifier", &value[..1])));
        }
        let bound = || {
            value.parse().map_err(|_| {
                wrong(&format!(
                    "values[0]: Invalid value: {value:?}: for 'Gt', 'Lt' operators, the value must be an integer"
                ))
            })
        };
        return Ok(match operator {
            "!=" => LabelTerm::NotIn(key, vec![value.to_owned()]),
            ">" => LabelTerm::Above(key, bound()?),
            "<" => LabelTerm::Below(key, bound()?),
            _ => LabelTerm::In(key, vec![value.to_owned()]),
        });
    }
    match term.split_once(char::is_whitespace) {
        Some((_, rest)) => {
            let rest = rest.trim();
            Err(wrong(&format!("found '{rest}', expected: in, notin, =, ==, !=, gt, lt")))
        }
        None => Ok(LabelTerm::Exists(term.to_owned())),
    }
}

fn field_terms(resource: &Resource, text: &str) -> Result<Vec<FieldTerm>, String> {
    let mut terms = Vec::new();
    for term in text.split(',').filter(|t| !t.is_empty()) {
        let (label, value, equal) = if let Some((label, value)) = term.split_once("!=") {
            (label, value, false)
        } else if let Some((label, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
            (label, value, true)
        } else {
            return Err(format!("invalid selector: '{text}'; can't understand '{term}'"));
        };
        if label.is_empty() && value.is_empty() && equal {
            continue;
        }
        let pods = *resource.gvr.resource == *"pods";
        let known = match label {
            "metadata.name" => true,
            "metadata.namespace" => !resource.custom || resource.namespaced,
            "spec.nodeName" | "status.phase" => pods,
            _ => false,
        };
        if !known {
            return Err(if pods || resource.custom {
                format!("field label not supported: {label}")
            } else {
                format!("{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\"")
            });
        }
        terms.push(FieldTerm { label: label.to_owned(), value: value.to_owned(), equal });
    }
    Ok(terms)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Node;

    fn object() -> Object {
        let text = br#"{"metadata":{"namespace":"x","name":"n","uid":"u","labels":{"app":"web","size":"3"}},"spec":{"nodeName":"n1"}}"#;
        Object::new(&Resource::pods(), &Node::parse(text).unwrap(), 1)
    }

    #[test]
    fn selectors_select() {
        for (labels, fields, want) in [
            ("", "", true),
            ("app=web", "", true),
            ("app==web,size>2", "", true),
            ("size<3", "", false),
            ("app!=web", "", false),
            ("other!=web", "", true),
            ("app in (a, web)", "", true),
            ("app notin (a,web)", "", false),
            ("!other,app", "", true),
            ("other", "", false),
            ("", "metadata.name=n", true),
            ("", "metadata.name!=n", false),
            ("", ",,metadata.namespace==x", true),
            ("", "spec.nodeName=n1", true),
            ("", "status.phase=Running", false),
        ] {
            let selector = Selector::parse(&Resource::pods(), labels, fields).unwrap_or_else(|s| panic!("{s:?}"));
            assert_eq!(selector.matches(&object()), want, "{labels} {fields}");
        }
    }

    #[test]
    fn mistakes_get_upstreams_words() {
        let maps = Resource::config_maps();
        for (labels, fields, want) in [
            ("pos>=2", "", "unable to parse requirement: found '=', expected: identifier"),
            ("pos=1,", "", "found '', expected: identifier after ','"),
            ("!!", "", "unable to parse requirement: found '!', expected: identifier"),
            ("", "metadata.name", "invalid selector: 'metadata.name'; can't understand 'metadata.name'"),
            ("", "zz=1", "\"zz\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""),
        ] {
            let got = Selector::parse(&maps, labels, fields).err().map(|s| s.message);
            assert_eq!(got.as_deref(), Some(want));
        }
    }
}
