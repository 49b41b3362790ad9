//! Election records in a store: the clients of etcd and ZooKeeper, where they are built in.
//!
//! - [`open`]: the register of one group, wherever its record is. The gateway and its sentinel use the same.
//! - `store_register`: a register over several nodes of a store, with one connection to each; `etcd` and `zookeeper`: one connection.
//! - `zookeeper::session`: an entry in a queue of ephemeral nodes, for the session latch.
//!
//! What is asked of a store, and what its answers mean, is decided in `mdgw-election`: nothing here knows a lease.

#![forbid(unsafe_code)]

use mdgw_election::{
    file::{FileRegister, group_directory},
    record_location::{RecordLocation, RecordLocationError},
    register::{Register, RegisterSender},
};
use mdgw_wire::identity::GroupId;

#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
pub mod store_register;
#[cfg(feature = "zookeeper")]
pub mod zookeeper;

/// Opens a group's record. With a store this returns at once; connections are made in the background.
///
/// # Errors
/// When the directory cannot be used, a file of credentials cannot be read, or this program was built without the
/// store's client.
pub fn open(
    location: &RecordLocation,
    group: GroupId,
    events: RegisterSender,
) -> Result<Box<dyn Register>, RecordLocationError> {
    match location {
        RecordLocation::File(directory) => {
            let directory = group_directory(directory, group);
            let opened = FileRegister::open(&directory, events);
            Ok(Box::new(opened.map_err(|source| RecordLocationError::Directory { directory, source })?))
        }
        #[cfg(feature = "etcd")]
        RecordLocation::Etcd(etcd) => Ok(Box::new(etcd::open(etcd, group, events)?)),
        #[cfg(not(feature = "etcd"))]
        RecordLocation::Etcd(_) => Err(RecordLocationError::NotCompiledIn("etcd")),
        #[cfg(feature = "zookeeper")]
        RecordLocation::ZooKeeper(zookeeper) => Ok(Box::new(zookeeper::open(zookeeper, group, events)?)),
        #[cfg(not(feature = "zookeeper"))]
        RecordLocation::ZooKeeper(_) => Err(RecordLocationError::NotCompiledIn("ZooKeeper")),
    }
}
