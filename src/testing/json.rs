//! A JSON tree that keeps the order of keys and prints like Go's `encoding/json`.
//!
//! `serde_json::Value` sorts keys and does not escape `<`, `>` and `&`; kube-apiserver's bytes need both differently.

use std::{borrow::Cow, fmt};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// One JSON value. Numbers are kept as the text Go would print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Node {
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A number, as printed.
    Number(String),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Node>),
    /// An object, in the order its keys were written.
    Object(Vec<(String, Node)>),
}

struct NodeVisitor;

// === impl Node ===

impl Node {
    /// Parses JSON text.
    ///
    /// # Errors
    /// The text is not one JSON value.
    pub fn parse(text: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(text)
    }

    /// The value under `key`, if this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Node> {
        match self {
            Self::Object(members) => members.iter().find(|(k, _)| k == key).map(|(_, v)| v),
            _ => None,
        }
    }

    /// The value at a path of keys.
    pub fn at(&self, path: &[&str]) -> Option<&Node> {
        path.iter().try_fold(self, |node, key| node.get(key))
    }

    /// The string at a path of keys.
    pub fn str_at(&self, path: &[&str]) -> Option<&str> {
        match self.at(path) {
            Some(Self::String(s)) => Some(s),
            _ => None,
        }
    }

    /// The object under `key`, created empty where there is none.
    pub fn object_mut(&mut self, key: &str) -> &mut Node {
        if !matches!(self.get(key), Some(Self::Object(_))) {
            self.set(key, Self::Object(Vec::new()));
        }
        let Self::Object(members) = self else { return self };
        let at = members.iter().position(|(k, _)| k == key).unwrap_or(0);
        &mut members[at].1
    }

    /// Sets a member, in place when the key exists, else at the end. Anything but an object becomes one.
    pub fn set(&mut self, key: &str, value: Node) {
        if !matches!(self, Self::Object(_)) {
            *self = Self::Object(Vec::new());
        }
        let Self::Object(members) = self else { return };
        match members.iter_mut().find(|(k, _)| k == key) {
            Some((_, old)) => *old = value,
            None => members.push((key.to_owned(), value)),
        }
    }

    /// Removes a member.
    pub fn remove(&mut self, key: &str) -> Option<Node> {
        let Self::Object(members) = self else { return None };
        let at = members.iter().position(|(k, _)| k == key)?;
        Some(members.remove(at).1)
    }

    /// Applies a JSON merge patch (RFC 7386).
    pub fn merge(&mut self, patch: &Node) {
        let Self::Object(changes) = patch else {
            *self = patch.clone();
            return;
        };
        if !matches!(self, Self::Object(_)) {
            *self = Self::Object(Vec::new());
        }
        for (key, change) in changes {
            match change {
                Self::Null => {
                    self.remove(key);
                }
                Self::Object(_) => self.object_mut(key).merge(change),
                _ => self.set(key, change.clone()),
            }
        }
    }

    /// Sorts the keys of every object, as Go prints maps.
    pub fn sort(&mut self) {
        match self {
            Self::Array(items) => items.iter_mut().for_each(Self::sort),
            Self::Object(members) => {
                members.sort_by(|a, b| a.0.cmp(&b.0));
                members.iter_mut().for_each(|(_, v)| v.sort());
            }
            _ => {}
        }
    }

    /// Moves the named keys to the front, in this order; the others keep theirs.
    pub fn order(&mut self, keys: &[&str]) {
        let Self::Object(members) = self else { return };
        members.sort_by_key(|(k, _)| keys.iter().position(|want| want == k).unwrap_or(keys.len()));
    }

    /// Compact text as Go prints it, without a newline.
    pub fn text(&self) -> String {
        let mut out = String::with_capacity(512);
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(b) => out.push_str(if *b { "true" } else { "false" }),
            Self::Number(n) => out.push_str(n),
            Self::String(s) => quote_into(s, out),
            Self::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    item.write(out);
                }
                out.push(']');
            }
            Self::Object(members) => {
                out.push('{');
                for (i, (key, value)) in members.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    quote_into(key, out);
                    out.push(':');
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

impl From<&str> for Node {
    /// A JSON string, not JSON text: see [`Node::parse`].
    fn from(s: &str) -> Self {
        Self::String(s.to_owned())
    }
}

impl From<serde_json::Value> for Node {
    fn from(value: serde_json::Value) -> Self {
        use serde_json::Value;
        match value {
            Value::Null => Self::Null,
            Value::Bool(b) => Self::Bool(b),
            Value::Number(n) => Self::Number(n.as_f64().filter(|_| n.is_f64()).map_or_else(|| n.to_string(), float)),
            Value::String(s) => Self::String(s),
            Value::Array(items) => Self::Array(items.into_iter().map(Self::from).collect()),
            Value::Object(members) => Self::Object(members.into_iter().map(|(k, v)| (k, Self::from(v))).collect()),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }

    fn visit_bool<E>(self, b: bool) -> Result<Node, E> {
        Ok(Node::Bool(b))
    }

    fn visit_i64<E>(self, n: i64) -> Result<Node, E> {
        Ok(Node::Number(n.to_string()))
    }

    fn visit_u64<E>(self, n: u64) -> Result<Node, E> {
        Ok(Node::Number(n.to_string()))
    }

    fn visit_f64<E>(self, n: f64) -> Result<Node, E> {
        Ok(Node::Number(float(n)))
    }

    fn visit_str<E>(self, s: &str) -> Result<Node, E> {
        Ok(Node::String(s.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut node = Node::Object(Vec::new());
        while let Some((key, value)) = map.next_entry::<Cow<'de, str>, Node>()? {
            node.set(&key, value);
        }
        Ok(node)
    }
}

/// A float as Go prints it: no fraction for whole numbers, an exponent below 1e-6 and from 1e21 on.
fn float(n: f64) -> String {
    let size = n.abs();
    if n == 0.0 {
        "0".to_owned()
    } else if (1e-6..1e21).contains(&size) {
        format!("{n}")
    } else {
        let text = format!("{n:e}");
        if size >= 1e21 { text.replace('e', "e+") } else { text }
    }
}

/// `s` as a JSON string literal with Go's escapes.
pub fn quote(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 2);
    quote_into(s, &mut out);
    out
}

fn quote_into(s: &str, out: &mut String) {
    use fmt::Write as _;
    out.push('"');
    for c in s.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\0'..='\u{1f}' | '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                // Writing to a String cannot fail.
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            _ => out.push(c),
        }
    }
    out.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_like_go() {
        for (given, want) in [
            (r#"{"b":1,"a":[true,null]}"#, r#"{"b":1,"a":[true,null]}"#),
            (r#"{"a":"<&>"}"#, "{\"a\":\"\\u003c\\u0026\\u003e\"}"),
            ("\"\\u0008\\u000c\\u0001\\u007f\\u2028/\"", "\"\\b\\f\\u0001\u{7f}\\u2028/\""),
            ("[1.0,1e21,0.0000001,-0.0,18446744073709551615]", "[1,1e+21,1e-7,0,18446744073709551615]"),
        ] {
            assert_eq!(Node::parse(given.as_bytes()).unwrap().text(), want);
        }
    }

    #[test]
    fn merge_patch_removes_nulls_and_keeps_order() {
        let mut node = Node::parse(br#"{"z":1,"a":{"x":1,"y":2}}"#).unwrap();
        node.merge(&Node::parse(br#"{"a":{"x":null,"w":3},"n":{"m":null}}"#).unwrap());
        assert_eq!(node.text(), r#"{"z":1,"a":{"y":2,"w":3},"n":{}}"#);
    }
}
