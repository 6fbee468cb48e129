//! Who forebay is to upstream: server, CA and credentials, from a kubeconfig or from the pod's service account, and the
//! names a client's kubeconfig must keep.
//!
//! kube does the parsing. Two of its habits are not ours: debug overrides from the environment are never applied, and a
//! kubeconfig that forebay wrote itself is refused (reading it would make forebay its own upstream). What the files that
//! are named here hold is read in `credentials`.

use std::path::{Path, PathBuf};

use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig, KubeconfigError},
};

use super::error::chain;

/// The extension that marks a kubeconfig as written by forebay.
pub const OWN_KUBECONFIG_MARK: &str = "forebay.dev/proxy";

/// Where to find upstream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This kubeconfig file.
    File(PathBuf),
    /// The service account mounted into the pod.
    InCluster,
    /// What kubectl would use: `$KUBECONFIG`, else `~/.kube/config`; without any of these files the pod's service account.
    Default,
}

/// A resolved identity. No `Debug` of what is in it: it may be secret.
#[derive(Clone)]
pub struct Identity {
    pub(super) config: Config,
    /// All files it depends on.
    pub(super) files: Vec<PathBuf>,
    /// Where it came from.
    source: Source,
    /// Names and namespace for the kubeconfig that clients get.
    pub names: Names,
}

/// The names tools print and select by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Context.
    pub context: String,
    /// Cluster.
    pub cluster: String,
    /// User.
    pub user: String,
    /// Namespace of the context, where it sets one.
    pub namespace: Option<String>,
}

/// No upstream identity can be had. Each message says what, where and what to do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kubeconfig can't be read or used.
    #[error("upstream kubeconfig {place}: {message}")]
    Kubeconfig {
        /// Path, or how it was searched for.
        place: String,
        /// What is wrong.
        message: String,
    },
    /// The kubeconfig is forebay's own.
    #[error("upstream kubeconfig {place} was written by forebay itself; name the cluster's own with --kubeconfig")]
    OwnKubeconfig {
        /// Its path.
        place: String,
    },
    /// Not in a pod, or without a service account.
    #[error("no kubeconfig found, and not in a cluster ({message}); name a kubeconfig with --kubeconfig")]
    InCluster {
        /// What is missing.
        message: String,
    },
    /// The server URL can't be used.
    #[error("upstream server {url:?} is not a URL like https://host:6443")]
    Server {
        /// The URL as written.
        url: String,
    },
    /// `tls-server-name` is no name.
    #[error("tls-server-name {name:?} is neither a DNS name nor an IP address")]
    ServerName {
        /// The name as written.
        name: String,
    },
    /// The upstream proxy can't be used.
    #[error("upstream {message}")]
    Proxy {
        /// What is wrong with it.
        message: String,
    },
    /// Another server is named than at the start.
    #[error("upstream kubeconfig {place} names another server, {url}; restart forebay to follow it")]
    Moved {
        /// Its path.
        place: String,
        /// The URL it names now.
        url: String,
    },
    /// Token file, client certificate or exec plugin failed.
    #[error("upstream credentials: {message}")]
    Credentials {
        /// What failed; never a credential.
        message: String,
    },
    /// CA or client certificate can't be used.
    #[error("upstream TLS: {message}")]
    Tls {
        /// What failed.
        message: String,
    },
}

// === impl Identity ===

impl Identity {
    /// Resolves an identity. Reads files only; exec plugins run when the client is built.
    pub async fn load(source: &Source, context: Option<&str>) -> Result<Self, Error> {
        let mut files = Vec::new();
        let (place, kubeconfig) = match source {
            Source::InCluster => return Self::in_cluster(),
            Source::File(path) => {
                files.push(path.clone());
                (path.display().to_string(), read(path)?)
            }
            Source::Default if default_files().iter().all(|file| !file.exists()) => {
                return Self::in_cluster();
            }
            Source::Default => {
                files = default_files();
                let place = "from KUBECONFIG or ~/.kube/config".to_owned();
                let read = Kubeconfig::read().map_err(|error| kubeconfig_error(&place, &error))?;
                (place, read)
            }
        };
        let marked = |list: &Option<Vec<kube::config::NamedExtension>>| {
            list.iter().flatten().any(|extension| extension.name == OWN_KUBECONFIG_MARK)
        };
        let names = names(&place, &kubeconfig, context)?;
        // On the cluster the mark survives merging and flattening.
        let cluster = kubeconfig.clusters.iter().find(|named| named.name == names.cluster);
        let cluster_marks = cluster.and_then(|named| named.cluster.as_ref()).map(|cluster| &cluster.extensions);
        if marked(&kubeconfig.extensions) || cluster_marks.is_some_and(marked) {
            return Err(Error::OwnKubeconfig { place });
        }
        let cluster = cluster.and_then(|named| named.cluster.as_ref());
        let own_proxy = cluster.and_then(|cluster| cluster.proxy_url.clone()).filter(|url| !url.is_empty());
        files.extend(cluster.and_then(|cluster| cluster.certificate_authority.clone()).map(PathBuf::from));
        let options = KubeConfigOptions { context: Some(names.context.clone()), ..Default::default() };
        let mut config = Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| kubeconfig_error(&place, &error))?;
        if own_proxy.is_none() {
            // kube takes HTTPS_PROXY from the environment whatever NO_PROXY says; only the kubeconfig's word counts.
            config.proxy_url = None;
        }
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            let message = "its certificate-authority has no certificate; expected PEM".to_owned();
            return Err(Error::Kubeconfig { place, message });
        }
        let auth = &config.auth_info;
        let named = [&auth.token_file, &auth.client_certificate, &auth.client_key];
        files.extend(named.into_iter().flatten().map(PathBuf::from));
        Ok(Self { config, names, files, source: source.clone() })
    }

    /// The same identity as its files describe it now: the same context, and the same server.
    pub(super) async fn reload(&self) -> Result<Self, Error> {
        let fresh = Self::load(&self.source, Some(&self.names.context)).await?;
        let (old, new) = (&self.config, &fresh.config);
        if old.cluster_url != new.cluster_url || old.proxy_url != new.proxy_url {
            let place = self.files.first().map(|file| file.display().to_string()).unwrap_or_default();
            return Err(Error::Moved { place, url: fresh.server() });
        }
        Ok(fresh)
    }

    /// A program is asked for the credentials.
    pub(super) fn has_plugin(&self) -> bool {
        self.config.auth_info.exec.is_some() || self.config.auth_info.auth_provider.is_some()
    }

    /// The server clients were pointed at before, without credentials: for logs.
    pub fn server(&self) -> String {
        self.config.cluster_url.to_string()
    }

    fn in_cluster() -> Result<Self, Error> {
        let config = Config::incluster_env().map_err(|error| Error::InCluster { message: chain(&error) })?;
        let names = Names {
            context: "in-cluster".into(),
            cluster: "in-cluster".into(),
            user: "service-account".into(),
            namespace: Some(config.default_namespace.clone()),
        };
        if config.root_cert.as_ref().is_some_and(Vec::is_empty) {
            return Err(Error::InCluster { message: "the service account's ca.crt has no certificate".to_owned() });
        }
        let files =
            config.auth_info.token_file.iter().map(PathBuf::from).chain(config.root_cert_file.clone()).collect();
        // A kubeconfig that appears later is somebody else's.
        Ok(Self { config, names, files, source: Source::InCluster })
    }
}

// === impl Error ===

impl Error {
    /// Why kube can't make headers of the credentials.
    pub(super) fn credentials(error: &kube::Error) -> Self {
        Self::Credentials { message: chain(error) }
    }

    /// Why kube can't set up TLS.
    pub(super) fn tls(error: &kube::Error) -> Self {
        Self::Tls { message: chain(error) }
    }
}

impl std::fmt::Debug for Identity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Identity").field("source", &self.source).field("names", &self.names).finish_non_exhaustive()
    }
}

/// The files of [`Source::Default`], whether they exist or not.
pub fn default_files() -> Vec<PathBuf> {
    let listed = std::env::var_os("KUBECONFIG").unwrap_or_default();
    let listed: Vec<_> = std::env::split_paths(&listed).filter(|path| !path.as_os_str().is_empty()).collect();
    if listed.is_empty() {
        std::env::home_dir().map(|home| home.join(".kube/config")).into_iter().collect()
    } else {
        listed
    }
}

fn read(path: &Path) -> Result<Kubeconfig, Error> {
    Kubeconfig::read_from(path).map_err(|error| kubeconfig_error(&path.display().to_string(), &error))
}

fn kubeconfig_error(place: &str, error: &KubeconfigError) -> Error {
    let message = match error {
        KubeconfigError::ReadConfig(source, path) => format!("can't read {}: {source}", path.display()),
        KubeconfigError::FindPath => "there is none; name one with --kubeconfig".to_owned(),
        error => chain(error),
    };
    // YAML errors quote the file over several lines, and the file may hold a token: the first line says where.
    Error::Kubeconfig { place: place.to_owned(), message: message.lines().next().unwrap_or_default().to_owned() }
}

/// Finds the context, its cluster and its user, so that a missing one is named before anything is tried.
fn names(place: &str, kubeconfig: &Kubeconfig, context: Option<&str>) -> Result<Names, Error> {
    let fail = |message: String| Error::Kubeconfig { place: place.to_owned(), message };
    let known: Vec<&str> = kubeconfig.contexts.iter().map(|context| context.name.as_str()).collect();
    let Some(wanted) = context.or(kubeconfig.current_context.as_deref()).filter(|name| !name.is_empty()) else {
        return Err(fail(format!("no current-context; choose one of {known:?} with --context")));
    };
    let found = kubeconfig.contexts.iter().find(|named| named.name == wanted);
    let Some(found) = found.and_then(|named| named.context.as_ref()) else {
        return Err(fail(format!("no context {wanted:?}; it has {known:?}")));
    };
    if !kubeconfig.clusters.iter().any(|cluster| cluster.name == found.cluster) {
        return Err(fail(format!("context {wanted:?} names cluster {:?}, which is missing", found.cluster)));
    }
    let user = found.user.clone().unwrap_or_default();
    if !user.is_empty() && !kubeconfig.auth_infos.iter().any(|known| known.name == user) {
        return Err(fail(format!("context {wanted:?} names user {user:?}, which is missing")));
    }
    Ok(Names {
        context: wanted.to_owned(),
        cluster: found.cluster.clone(),
        user: if user.is_empty() { "forebay".to_owned() } else { user },
        namespace: found.namespace.clone(),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const GOOD: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u, namespace: n}}]\n\
        clusters: [{name: k, cluster: {server: 'https://127.0.0.1:1', proxy-url: 'http://127.0.0.1:2'}}]\nusers: [{name: u, user: {token: sesame}}]\n";

    async fn load(yaml: &str, context: Option<&str>) -> Result<Identity, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(yaml.as_bytes()).unwrap();
        let source = Source::File(file.path().to_owned());
        Identity::load(&source, context).await.map_err(|error| error.to_string())
    }

    #[tokio::test]
    async fn names_are_kept_and_the_proxy_is_the_kubeconfigs() {
        let identity = load(GOOD, None).await.unwrap();
        let want = Names { context: "c".into(), cluster: "k".into(), user: "u".into(), namespace: Some("n".into()) };
        assert_eq!(identity.names, want);
        assert_eq!(identity.config.proxy_url.unwrap().to_string(), "http://127.0.0.1:2/");
    }

    #[tokio::test]
    async fn each_fault_is_one_line_that_names_it() {
        let missing = Source::File("/nonexistent/kubeconfig".into());
        let error = Identity::load(&missing, None).await.err().unwrap().to_string();
        assert!(error.contains("/nonexistent/kubeconfig") && error.contains("No such file"), "{error}");
        for (yaml, context, wants) in [
            (GOOD.replace("current-context: c\n", ""), None, vec!["no current-context", "\"c\"", "--context"]),
            (GOOD.to_owned(), Some("x"), vec!["no context \"x\"", "\"c\""]),
            (GOOD.replace("name: k", "name: z"), None, vec!["cluster \"k\""]),
            (GOOD.replace("name: u,", "name: z,"), None, vec!["user \"u\""]),
            (
                format!("{GOOD}extensions: [{{name: forebay.dev/proxy, extension: {{}}}}]\n"),
                None,
                vec!["forebay itself"],
            ),
            ("clusters: [oops: {".to_owned(), None, vec!["upstream kubeconfig"]),
            (GOOD.replace("https://127.0.0.1:1", "::nonsense::"), None, vec!["upstream kubeconfig"]),
        ] {
            let error = load(&yaml, context).await.err().unwrap();
            assert_eq!(error.lines().count(), 1, "{error}");
            assert!(wants.iter().all(|want| error.contains(want)), "{error} lacks one of {wants:?}");
            assert!(!error.contains("sesame"), "{error}");
        }
    }
}
