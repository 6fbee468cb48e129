//! How much of the memory that this process may use is given to caches by default.
//!
//! The limit is the cgroup's: v2's `memory.max`, which holds for all descendants, or v1's `memory.limit_in_bytes`. In a
//! container the hierarchy begins at its own cgroup, whatever `/proc/self/cgroup` says.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Caches get 60 %. The rest is for what they do not count: the program itself (some 20 MB), what the allocator holds
/// beside it (about a tenth), held reads and connections (50 MB at worst, see `--max-holds`), bodies on their way, and old
/// states that slow clients still read from.
const SHARE: (u64, u64) = (3, 5);

/// v1 says "no limit" with a number near 2^63, cut to whole pages.
const NO_LIMIT: u64 = 1 << 60;

/// The default budget in bytes, if there is a limit. `root` is `/`.
pub(super) fn budget(root: &Path) -> Option<u64> {
    limit(root).map(|limit| limit / SHARE.1 * SHARE.0)
}

fn limit(root: &Path) -> Option<u64> {
    let groups = fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut limits = Vec::new();
    for line in groups.lines() {
        // `0::/path` is v2, `7:memory:/path` (perhaps with other controllers) v1.
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else { continue };
        let (mount, file) = match controllers {
            "" => ("sys/fs/cgroup", "memory.max"),
            names if names.split(',').any(|name| name == "memory") => ("sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            _ => continue,
        };
        let (mount, own) = (root.join(mount), PathBuf::from(path.trim_start_matches('/')));
        // Every ancestor limits as well; the last is the mount itself.
        limits.extend(own.ancestors().filter_map(|group| read(&mount.join(group).join(file))));
    }
    limits.into_iter().min()
}

fn read(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok().filter(|limit| *limit < NO_LIMIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().expect("folder");
        for (file, text) in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().expect("parent")).expect("folders");
            fs::write(path, text).expect("file");
        }
        root
    }

    #[test]
    fn the_smallest_limit_on_the_way_up_counts() {
        for (what, files, want) in [
            ("no cgroups", &[][..], None),
            ("v2 without a limit", &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "max\n")], None),
            (
                "v2 in a container",
                &[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1000\n")],
                Some(1000),
            ),
            (
                "v2, limited above",
                &[
                    ("proc/self/cgroup", "0::/a/b\n"),
                    ("sys/fs/cgroup/a/b/memory.max", "max\n"),
                    ("sys/fs/cgroup/a/memory.max", "500\n"),
                    ("sys/fs/cgroup/c/memory.max", "1\n"),
                ],
                Some(500),
            ),
            (
                "a container that sees the host's path",
                &[("proc/self/cgroup", "0::/kubepods/x\n"), ("sys/fs/cgroup/memory.max", "700\n")],
                Some(700),
            ),
            (
                "v1",
                &[
                    ("proc/self/cgroup", "4:cpu,cpuacct:/x\n3:memory:/x\n"),
                    ("sys/fs/cgroup/memory/x/memory.limit_in_bytes", "300\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                Some(300),
            ),
            (
                "v1 without a limit",
                &[
                    ("proc/self/cgroup", "3:memory:/\n"),
                    ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ],
                None,
            ),
        ] {
            let root = tree(files);
            assert_eq!(limit(root.path()), want, "{what}");
        }
        let root = tree(&[("proc/self/cgroup", "0::/\n"), ("sys/fs/cgroup/memory.max", "1000\n")]);
        assert_eq!(budget(root.path()), Some(600));
    }
}
