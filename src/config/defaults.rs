//! Default values, as the text a user would write, with the reason for each number.
//!
//! They go through the same parsers as flags do, so a default can't be a value that a flag would refuse.

/// Loopback only: whoever reaches the port is asked for the token, but nobody else should even reach it.
pub(super) const BIND_ADDRESS: &str = "127.0.0.1";

/// Outside the ranges that meshes, kubelet and control-plane components use, and not 80, 8080 or 8001, which the
/// JavaScript client takes for plain HTTP.
pub(super) const SECURE_PORT: &str = "6480";

/// Loopback until someone decides to be scraped; in a pod the chart sets the pod's own address.
pub(super) const ADMIN_ADDRESS: &str = "127.0.0.1:6481";

/// Long enough for an initial list of 100,000 objects, and no longer than what kube-apiserver itself grants a request.
pub(super) const HOLD_TIMEOUT: &str = "60s";

/// A 503 with `Retry-After` slows clients down; forwarding is the stampede this program exists to prevent.
pub(super) const ON_HOLD_TIMEOUT: &str = "reject";

/// A held read costs a few kilobytes (its connection included), so all of these are some 50 MB at worst.
pub(super) const MAX_HOLDS: &str = "8192";

/// What kube-apiserver's watch cache waits for a fresh resource version before it gives up.
pub(super) const FENCE_TIMEOUT: &str = "3s";

/// Three pings, so that one lost packet sends no read upstream; below what clients of kube-apiserver's own caches see when
/// it is busy.
pub(super) const MAX_STALENESS: &str = "10s";

/// Leader election must never wait or be stale; events are written once and read by nobody.
pub(super) const NEVER: &str = "leases.coordination.k8s.io,events,events.events.k8s.io";

/// Three times the longest period at which controllers commonly look at everything again (10 minutes).
pub(super) const IDLE_TIMEOUT: &str = "30m";

/// etcd refuses requests above 1.5 MiB, but encoding and managed fields swell; a frame above this is not a Kubernetes
/// object any more.
pub(super) const MAX_FRAME_BYTES: &str = "8Mi";

/// client-go's own page size.
pub(super) const LIST_PAGE_SIZE: &str = "500";

/// More lists at once don't finish sooner: upstream's own encoder is the bottleneck, and its memory the victim.
pub(super) const MAX_INITIAL_LISTS: &str = "4";

/// HTTP/1.1 clients hold one connection for each watch; a large controller has some hundreds.
pub(super) const MAX_CONNECTIONS: &str = "4096";

/// Go clients put everything on one HTTP/2 connection, and others than Go's stall at the limit: more than `MAX_HOLDS`, so
/// that however many reads are held, a lease still finds a stream.
pub(super) const MAX_CONCURRENT_STREAMS: &str = "10000";

/// Go's client takes three round trips and no thought for a handshake; a peer that takes longer is not one.
pub(super) const HANDSHAKE_TIMEOUT: &str = "10s";

/// kube-apiserver's own (`ReadHeaderTimeout`) is 32 s.
pub(super) const HEADER_TIMEOUT: &str = "32s";

/// kube-apiserver's own.
pub(super) const MAX_HEADER_BYTES: &str = "1Mi";

/// Pods get 30 s by default; this leaves time for what is stopped after us.
pub(super) const SHUTDOWN_GRACE_PERIOD: &str = "10s";

/// A sidecar has no load balancer in front that would have to notice.
pub(super) const SHUTDOWN_DELAY_DURATION: &str = "0s";

/// kube-apiserver's own limit for a request that is not long-running.
pub(super) const REQUEST_TIMEOUT: &str = "60s";

/// Covers a lost SYN (1 s, 3 s, 7 s) on a path that works.
pub(super) const CONNECT_TIMEOUT: &str = "10s";

/// Start, stop, trouble and refusals.
pub(super) const VERBOSITY: &str = "0";

/// What a person reads in a terminal, and what klog's users know.
pub(super) const LOGGING_FORMAT: &str = "text";
