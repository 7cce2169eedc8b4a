//! The files of a node that is joining a cluster, before it has a state. The first file contains
//! the disk id with which the node asks to join. The second file contains the answer. Until the
//! node has a state, the answer is its only information about the other members.
//!
//! ```text
//! JOINING = disk u128, little endian
//! JOINED  = CRC-32 of the rest u32, little endian | join answer
//! ```

use std::collections::BTreeMap;
use std::io;
use std::path::Path;

use crate::codec;
use crate::env::{Env, OpenMode, replace};
use crate::model::{self, ClusterId, DiskId, JoinAnswer, NodeId};

use crate::node::settings::Contact;

/// File with the disk id of a node that has asked to join and has no log yet.
const JOINING: &str = "JOINING";

/// File with the answer to the join request, for a node that has a log and no state yet.
const JOINED: &str = "JOINED";

/// Returns the disk id of a node that is about to join. The id is drawn only once, so that a node that asks again
/// after a crash becomes one member and not two.
///
/// # Errors
/// Returns the error of the disk.
pub(crate) fn disk_to_join(env: &Env, dir: &Path) -> io::Result<DiskId> {
    env.disk.create_dir(dir)?;
    if let Some(bytes) = read(env, dir, JOINING)? {
        let id = bytes.try_into().map_err(|_| {
            let why = format!("{} is damaged: remove the directory", dir.join(JOINING).display());
            io::Error::new(io::ErrorKind::InvalidData, why)
        })?;
        return Ok(DiskId(u128::from_le_bytes(id)));
    }
    let disk = DiskId(env.entropy.next_u128());
    replace(&*env.disk, &dir.join(JOINING), &disk.0.to_le_bytes())?;
    Ok(disk)
}

/// Returns whether a join from this directory was begun and not completed. If so, the node asks again with the same
/// disk id and receives the same answer.
pub(crate) fn is_joining(env: &Env, dir: &Path) -> bool {
    env.disk.open(&dir.join(JOINING), OpenMode::Read).is_ok()
}

/// Removes the file with the disk id, because the log now contains the disk id and the founders. If
/// the file remains, the node asks to join once more at its next start.
pub(in crate::node) fn has_log(env: &Env, dir: &Path) {
    remove(env, dir, JOINING);
}

/// Writes the answer to disk before the node has a log. On return the file is durable.
///
/// # Errors
/// Returns the error of the disk.
pub(crate) fn save_answer(env: &Env, dir: &Path, joined: &model::Joined) -> io::Result<()> {
    let mut answer = Vec::new();
    codec::encode_join_answer(&JoinAnswer::Joined(joined.clone()), &mut answer);
    let bytes = [&crc32fast::hash(&answer).to_le_bytes()[..], &answer].concat();
    replace(&*env.disk, &dir.join(JOINED), &bytes)
}

/// Returns the members in the answer, if the answer is for this member and is still needed. An
/// unreadable file counts as absent. This member must then wait until other members contact it.
pub(crate) fn saved_contacts(
    env: &Env,
    dir: &Path,
    (node, cluster): (NodeId, ClusterId),
) -> BTreeMap<NodeId, Contact> {
    let Ok(Some(bytes)) = read(env, dir, JOINED) else { return BTreeMap::new() };
    let Some((checksum, answer)) = bytes.split_at_checked(4) else { return BTreeMap::new() };
    if crc32fast::hash(answer).to_le_bytes() != checksum {
        return BTreeMap::new();
    }
    match codec::decode_join_answer(answer.to_vec().into()) {
        Ok(JoinAnswer::Joined(joined)) if (joined.node, joined.cluster) == (node, cluster) => {
            contacts(&joined)
        }
        _ => BTreeMap::new(),
    }
}

/// Returns the names and addresses of the members in an answer.
pub(crate) fn contacts(joined: &model::Joined) -> BTreeMap<NodeId, Contact> {
    let contact = |member: &model::Member| Contact {
        name: member.name.clone(),
        address: member.address.clone(),
    };
    joined.members.rows().iter().map(|(id, member)| (*id, contact(member))).collect()
}

/// Removes the answer after the node has started with its own state.
pub(in crate::node) fn has_state(env: &Env, dir: &Path) {
    remove(env, dir, JOINED);
}

fn read(env: &Env, dir: &Path, name: &str) -> io::Result<Option<Vec<u8>>> {
    let file = match env.disk.open(&dir.join(name), OpenMode::Read) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = vec![0; file.len()? as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(Some(bytes))
}

fn remove(env: &Env, dir: &Path, name: &str) {
    if env.disk.remove(&dir.join(name)).is_ok() {
        drop(env.disk.sync_dir(dir));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::Arc;

    use super::*;
    use crate::model::Members;
    use crate::sim::SimDisk;

    #[test]
    fn join_record_is_valid_only_for_its_node_and_undamaged() {
        let env = Env { disk: Arc::new(SimDisk::new(1)), ..Env::real() };
        let (dir, node) = (Path::new("/data"), |id| NodeId::new(id).unwrap());
        env.disk.create_dir(dir).unwrap();
        let founding = [(node(1), DiskId(7))].into();
        let members = Members::founded(&founding);
        let joined = model::Joined { cluster: ClusterId(9), node: node(2), founding, members };
        let whom =
            |node| saved_contacts(&env, dir, (node, ClusterId(9))).into_keys().collect::<Vec<_>>();
        assert_eq!(whom(node(2)), []);
        save_answer(&env, dir, &joined).unwrap();
        assert_eq!((whom(node(2)), whom(node(3))), (vec![node(1)], vec![]));
        let whole = read(&env, dir, JOINED).unwrap().unwrap();
        for at in 0..whole.len() {
            let mut flipped = whole.clone();
            flipped[at] ^= 1;
            for damaged in [&whole[..at], &flipped] {
                replace(&*env.disk, &dir.join(JOINED), damaged).unwrap();
                assert_eq!(whom(node(2)), [], "damaged at {at}");
            }
        }
        save_answer(&env, dir, &joined).unwrap();
        has_state(&env, dir);
        assert_eq!(whom(node(2)), []);
    }
}
