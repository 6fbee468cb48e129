//! The kubeconfig for clients: written whole or not at all, readable by its owner alone.
//!
//! It keeps the names of upstream's context, cluster, user and namespace, because tools print them and select by them,
//! and holds nothing else of upstream's: no `proxy-url`, no `tls-server-name`, no credentials. It carries a mark by which
//! forebay knows its own files: with one of them for its upstream it would ask itself.

use std::{
    fs::{self, DirBuilder},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt},
    path::{Path, PathBuf},
};

use base64::{Engine, prelude::BASE64_STANDARD};

use crate::upstream::identity::OWN_KUBECONFIG_MARK;

/// What the file says.
#[derive(Clone, Copy)]
pub struct ClientKubeconfig<'a> {
    /// Name of the context, also the current one.
    pub context: &'a str,
    /// Name of the cluster.
    pub cluster: &'a str,
    /// Name of the user.
    pub user: &'a str,
    /// Namespace of the context, if it has one.
    pub namespace: Option<&'a str>,
    /// `https://127.0.0.1:6480`.
    pub server: &'a str,
    /// The CA that signed the serving certificate.
    pub ca_pem: &'a str,
    /// The bearer token.
    pub token: &'a str,
}

/// The file can't be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// It is the file upstream's address was read from.
    #[error("{} is the kubeconfig of the kube-apiserver and would be overwritten; choose another --write-kubeconfig", .0.display())]
    IsUpstreams(PathBuf),
    /// The folder is another user's, who could put another file there.
    #[error("{} belongs to another user; choose another --write-kubeconfig", .0.display())]
    ForeignFolder(PathBuf),
    /// The path names no file.
    #[error("{} is not a path of a file; choose another --write-kubeconfig", .0.display())]
    NotAFile(PathBuf),
    /// The system refused.
    #[error("can't write the kubeconfig {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// Writes the file with mode 0600, and missing folders with 0700. Readers see the old file or the new one.
///
/// # Errors
///
/// When `path` is one of `upstream`'s files (links followed), when its folder may be someone else's, or when the
/// system refuses.
pub fn write(path: &Path, upstream: &[PathBuf], kubeconfig: &ClientKubeconfig<'_>) -> Result<(), WriteError> {
    if let Ok(existing) = path.canonicalize() {
        if existing.is_dir() {
            return Err(WriteError::NotAFile(path.to_owned()));
        }
        if upstream.iter().any(|other| other.canonicalize().is_ok_and(|other| other == existing)) {
            return Err(WriteError::IsUpstreams(path.to_owned()));
        }
    }
    if path.file_name().is_none() {
        return Err(WriteError::NotAFile(path.to_owned()));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let wrong = |source| WriteError::Io { path: path.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(wrong)?;
    let mut file = tempfile::Builder::new().prefix(".kubeconfig-").tempfile_in(folder).map_err(wrong)?;
    let own_uid = file.as_file().metadata().map_err(wrong)?.uid();
    if may_be_foreign(folder, own_uid).map_err(wrong)? {
        return Err(WriteError::ForeignFolder(folder.to_owned()));
    }
    // tempfile makes its files with mode 0600.
    file.write_all(text(kubeconfig).as_bytes()).map_err(wrong)?;
    file.persist(path).map_err(|error| wrong(error.error))?;
    Ok(())
}

/// In a folder where everyone may make entries (/tmp), an entry of someone else's may be a trap.
fn may_be_foreign(folder: &Path, own_uid: u32) -> io::Result<bool> {
    const STICKY_FOR_ALL: u32 = 0o1002;
    let folder = folder.canonicalize()?;
    let Some(parent) = folder.parent() else { return Ok(false) };
    let shared = fs::metadata(parent)?.mode() & STICKY_FOR_ALL == STICKY_FOR_ALL;
    Ok(shared && fs::metadata(&folder)?.uid() != own_uid)
}

/// The YAML. Names are quoted as JSON quotes them, which YAML's double quotes understand.
fn text(kubeconfig: &ClientKubeconfig<'_>) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let namespace = kubeconfig.namespace.map(|ns| format!("    namespace: {}\n", quoted(ns))).unwrap_or_default();
    format!(
        "# Written by forebay at its start. Address, CA and token are good while that process runs.\n\
         apiVersion: v1\n\
         kind: Config\n\
         clusters:\n\
         - name: {cluster}\n  \
           cluster:\n    \
             server: {server}\n    \
             certificate-authority-data: {ca}\n    \
             extensions:\n    \
             - name: {OWN_KUBECONFIG_MARK}\n      \
               extension: {{}}\n\
         contexts:\n\
         - name: {context}\n  \
           context:\n    \
             cluster: {cluster}\n    \
             user: {user}\n\
         {namespace}\
         current-context: {context}\n\
         extensions:\n\
         - name: {OWN_KUBECONFIG_MARK}\n  \
           extension: {{}}\n\
         users:\n\
         - name: {user}\n  \
           user:\n    \
             token: {token}\n",
        cluster = quoted(kubeconfig.cluster),
        context = quoted(kubeconfig.context),
        user = quoted(kubeconfig.user),
        server = quoted(kubeconfig.server),
        token = quoted(kubeconfig.token),
        ca = BASE64_STANDARD.encode(kubeconfig.ca_pem),
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;
    use crate::upstream::{Identity, identity::Source};

    const KUBECONFIG: ClientKubeconfig<'static> = ClientKubeconfig {
        context: "kind: \"a\"",
        cluster: "arn:aws:eks:eu-1:1:cluster/x",
        user: "übung\n#",
        namespace: Some("team-1"),
        server: "https://127.0.0.1:6480",
        ca_pem: "-----BEGIN CERTIFICATE-----\n",
        token: "secret",
    };

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("metadata").mode() & 0o7777
    }

    #[test]
    fn names_survive_and_kube_reads_it() {
        let parsed = kube::config::Kubeconfig::from_yaml(&text(&KUBECONFIG)).expect("kubeconfig");
        assert_eq!(parsed.current_context.as_deref(), Some(KUBECONFIG.context));
        assert_eq!(parsed.contexts[0].name, KUBECONFIG.context);
        let context = parsed.contexts[0].context.as_ref().expect("context");
        assert_eq!(context.cluster, KUBECONFIG.cluster);
        assert_eq!(context.user.as_deref(), Some(KUBECONFIG.user));
        assert_eq!(context.namespace.as_deref(), KUBECONFIG.namespace);
        assert_eq!(parsed.clusters[0].name, KUBECONFIG.cluster);
        let cluster = parsed.clusters[0].cluster.as_ref().expect("cluster");
        assert_eq!(cluster.server.as_deref(), Some(KUBECONFIG.server));
        assert_eq!(cluster.certificate_authority_data.as_deref(), Some("LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0tCg=="));
        assert_eq!(parsed.auth_infos[0].name, KUBECONFIG.user);
        let extensions = parsed.extensions.expect("extensions");
        assert_eq!(extensions[0].name, OWN_KUBECONFIG_MARK);
        let none = text(&ClientKubeconfig { namespace: None, ..KUBECONFIG });
        assert!(!none.contains("namespace"), "{none}");
    }

    #[test]
    fn modes_are_private_and_nothing_is_left_beside_it() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("a/b/kubeconfig");
        write(&path, &[], &KUBECONFIG).expect("write");
        assert_eq!((mode(&path), mode(path.parent().expect("parent"))), (0o600, 0o700));
        // Again: replaced as a whole.
        write(&path, &[], &ClientKubeconfig { token: "new", ..KUBECONFIG }).expect("write");
        assert!(fs::read_to_string(&path).expect("read").contains("token: \"new\""));
        assert_eq!(fs::read_dir(path.parent().expect("parent")).expect("list").count(), 1);
    }

    #[tokio::test]
    async fn forebay_does_not_take_it_for_upstreams() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("kubeconfig");
        write(&path, &[], &KUBECONFIG).expect("write");
        let error = Identity::load(&Source::File(path), None).await.expect_err("refused");
        assert!(error.to_string().contains("was written by forebay itself"), "{error}");
    }

    #[test]
    fn upstreams_own_file_is_refused_through_links_too() {
        let temp = tempfile::tempdir().expect("temp");
        let (upstream, link) = (temp.path().join("config"), temp.path().join("link"));
        fs::write(&upstream, "mine").expect("write");
        symlink(&upstream, &link).expect("link");
        for path in [&upstream, &link] {
            let error = write(path, std::slice::from_ref(&upstream), &KUBECONFIG).expect_err("refused");
            assert!(matches!(error, WriteError::IsUpstreams(_)), "{error}");
        }
        assert_eq!(fs::read_to_string(&upstream).expect("read"), "mine");
        // A missing upstream file is nobody's.
        write(&temp.path().join("new"), &[temp.path().join("missing")], &KUBECONFIG).expect("write");
    }

    #[test]
    fn what_cannot_be_a_file_is_named() {
        let temp = tempfile::tempdir().expect("temp");
        let error = write(temp.path(), &[], &KUBECONFIG).expect_err("a folder").to_string();
        assert!(error.ends_with("is not a path of a file; choose another --write-kubeconfig"), "{error}");
        let file = temp.path().join("file");
        fs::write(&file, "").expect("write");
        let error = write(&file.join("kubeconfig"), &[], &KUBECONFIG).expect_err("below a file");
        assert!(matches!(error, WriteError::Io { .. }), "{error}");
    }
}
