//! nginx as a reverse proxy, for comparison.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::{
    net::TcpStream,
    time::{Instant, sleep},
};

use crate::{process::Process, server::Server, target::Target, usage::Usage};

/// Debian's nginx, unpacked and not installed: installing it would start it.
const UNPACK: &str = r#"
set -e
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
chmod 755 "$scratch"
cd "$scratch"
apt-get download -q nginx >/dev/null 2>&1 || { apt-get update -qq && apt-get download -q nginx >/dev/null; }
dpkg-deb -x nginx_*.deb unpacked
mkdir -p "$(dirname "$1")"
install -m 755 unpacked/usr/sbin/nginx "$1.$$"
mv "$1.$$" "$1"
"#;

/// A running nginx.
pub(crate) struct Nginx {
    _process: Process,
    pub(crate) usage: Usage,
    pub(crate) target: Target,
}

// === impl Nginx ===

impl Nginx {
    /// One worker on a port of the kernel's choice, in front of `upstream`.
    pub(crate) async fn start(dir: &Path, upstream: &Server) -> Result<Self> {
        let program = program()?;
        let ca = {
            let mut params = CertificateParams::default();
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            CertifiedIssuer::self_signed(params, KeyPair::generate()?)?
        };
        let key = KeyPair::generate()?;
        let leaf = CertificateParams::new(vec![Ipv4Addr::LOCALHOST.to_string()])?.signed_by(&key, &ca)?;
        fs::write(dir.join("nginx.crt"), leaf.pem())?;
        fs::write(dir.join("nginx.key"), key.serialize_pem())?;
        // Free a moment ago; nginx takes no socket that is bound already.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        fs::write(dir.join("nginx.conf"), configuration(dir, address, upstream.target.address))?;
        let args = ["-p".to_owned(), dir.display().to_string(), "-c".to_owned(), "nginx.conf".to_owned()];
        let mut process = Process::start("nginx", dir, &program, &args, &[])?;
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).await.is_err() {
            ensure!(process.exited().is_none(), "nginx ended at once:\n{}", process.log_tail(10));
            ensure!(Instant::now() < deadline, "nginx does not listen:\n{}", process.log_tail(10));
            sleep(Duration::from_millis(10)).await;
        }
        let pid = process.pid().context("nginx has no pid")?;
        let target = Target::new(address, upstream.target.bearer.clone(), ca.pem().as_bytes())?;
        Ok(Self { _process: process, usage: Usage::of(pid), target })
    }
}

/// `master_process off`: one process does it all, so that its CPU is found under its pid.
fn configuration(dir: &Path, own: SocketAddr, upstream: SocketAddr) -> String {
    let dir = dir.display();
    format!(
        "daemon off; master_process off; pid {dir}/nginx.pid; error_log stderr warn;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n\
           access_log off; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fcgi;\n\
           uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi; keepalive_requests 1000000;\n\
           upstream api {{ server {upstream}; keepalive 64; keepalive_requests 1000000; }}\n\
           server {{\n\
             listen {own} ssl; ssl_certificate nginx.crt; ssl_certificate_key nginx.key;\n\
             location / {{\n\
               proxy_pass https://api; proxy_http_version 1.1; proxy_set_header Connection \"\"; proxy_set_header Host $host;\n\
               proxy_buffering off; proxy_request_buffering off; proxy_ssl_session_reuse on;\n\
             }}\n\
           }}\n\
         }}\n"
    )
}

fn program() -> Result<PathBuf> {
    let cache = match std::env::var_os("XDG_CACHE_HOME").filter(|cache| !cache.is_empty()) {
        Some(cache) => PathBuf::from(cache),
        None => {
            PathBuf::from(std::env::var_os("HOME").context("neither $XDG_CACHE_HOME nor $HOME is set")?).join(".cache")
        }
    };
    let program = cache.join("forebay/tools/nginx");
    if !program.is_file() {
        let output = Command::new("bash").args(["-c", UNPACK, "unpack"]).arg(&program).output()?;
        if !output.status.success() {
            bail!("apt-get gives no nginx: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
    }
    Ok(program)
}
