//! Keys of packet tags: read from their files, and kept apart from the keys that gateways share among themselves.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use mdgw_feeds::{
    identity::GroupId,
    published::tag::{TagKey, TagPolicy},
};
use mdgw_keys::{KeyBytes, KeyError};

use super::resolved::{ElectionConfig, OutputConfig, Resolved};

/// Why the keys of an output's tags cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TagKeyError {
    /// A key file cannot be read.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// A consumer that holds the key could vote, or act as a gateway on the pair link.
    #[error(
        "tag key {} is also the key of {}, which only gateways may hold: every consumer that checks tags holds the tag key; make another one",
        tag.display(), gateways.display()
    )]
    SharedWithGateways {
        /// The file of the tag key.
        tag: PathBuf,
        /// The gateways' key file.
        gateways: PathBuf,
    },
}

impl OutputConfig {
    /// Which tags packets of this output must have. Its gateways tag their packets with the first key.
    ///
    /// # Errors
    /// When a key file cannot be read.
    pub fn tag_policy(&self) -> Result<TagPolicy, KeyError> {
        let keys = self.tag_key_files.iter().map(|path| KeyBytes::load(path).map(|key| TagKey::new(&key.0)));
        Ok(TagPolicy { keys: keys.collect::<Result<_, _>>()?, accepts_untagged: self.accept_untagged })
    }
}

/// The policy of each group that is published.
///
/// # Errors
/// When a key file cannot be read, or its key is one that the gateways share.
pub(crate) fn tag_policies(config: &Resolved) -> Result<BTreeMap<GroupId, TagPolicy>, TagKeyError> {
    let mut policies = BTreeMap::new();
    for output in &config.outputs {
        let policy = output.tag_policy()?;
        for path in &output.tag_key_files {
            check_is_apart(path, config.election.as_ref())?;
        }
        policies.extend(output.groups.iter().map(|group| (*group, policy.clone())));
    }
    Ok(policies)
}

fn check_is_apart(tag: &Path, election: Option<&ElectionConfig>) -> Result<(), TagKeyError> {
    let key = KeyBytes::load(tag)?;
    let of_gateways = election.map(ElectionConfig::key_files).unwrap_or_default();
    // A gateways' key that cannot be read is reported by what uses it.
    match of_gateways.into_iter().find(|path| KeyBytes::load(path).is_ok_and(|other| other == key)) {
        Some(path) => Err(TagKeyError::SharedWithGateways { tag: tag.to_owned(), gateways: path.to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use mdgw_feeds::{drop_reason::DropReason, published::tag::TagUse};

    use super::*;

    pub(in crate::config) fn write_key(path: &Path, digits: &str) {
        fs::write(path, digits).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    }

    /// The shipped configuration for `quorum`, with its key and a tag key in `folder`.
    fn config(folder: &Path) -> Resolved {
        let text =
            include_str!("../../../../ops/config/quorum.toml").replace("/etc/mdgw", &folder.display().to_string());
        let mut config = Resolved::from_text(Path::new("quorum.toml"), &text).unwrap_or_else(|error| panic!("{error}"));
        config.outputs[0].tag_key_files = vec![folder.join("tag")];
        config
    }

    #[test]
    fn a_tag_key_is_needed_and_must_not_be_the_gateways_key() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        write_key(&folder.path().join("key"), &"0a".repeat(32));
        let missing = tag_policies(&config).unwrap_err().to_string();
        assert!(missing.contains("tag") && missing.contains("openssl rand -hex 32"), "{missing}");
        write_key(&folder.path().join("tag"), &"0A".repeat(32));
        let shared = tag_policies(&config).unwrap_err();
        assert!(matches!(shared, TagKeyError::SharedWithGateways { .. }), "{shared}");
        write_key(&folder.path().join("tag"), &"0b".repeat(32));
        let policies = tag_policies(&config).unwrap();
        let policy = &policies[&config.outputs[0].groups[0]];
        assert_eq!((policy.keys.len(), policy.check(TagUse::Published, b"")), (1, Err(DropReason::HeaderTruncated)));
    }

    #[test]
    fn without_key_files_every_packet_is_accepted() {
        let mut config = config(Path::new("/nonexistent"));
        config.outputs[0].tag_key_files.clear();
        assert!(tag_policies(&config).unwrap().values().all(|policy| policy.keys.is_empty()));
    }
}
