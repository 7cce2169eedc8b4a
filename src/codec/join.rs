//! Encoding of the request of a process to join a cluster, and of the reply.
//!
//! ```text
//! join ask    = version u8 | disk u128 | name bytes | address bytes | 0 | 1 name of a voter bytes
//! join answer = version u8 | 1 cluster u128, id, list of (member, disk u128), members
//!                          | 2 address bytes, empty if unknown | 3 why bytes | 4 why bytes
//! ```

use bytes::Bytes;

use super::message::{decode_founding, encode_founding};
use super::{CodecError, Decode, Decoder, Encode, Encoder};
use crate::model::{ClusterId, DiskId, JoinAnswer, JoinAsk, Joined, Members, NodeId};

/// The format version that this build writes. It is also the newest version that this build reads.
const VERSION: u8 = 1;

/// Appends the encoding of a join request.
pub(crate) fn encode_join_ask(ask: &JoinAsk, sink: &mut Vec<u8>) {
    let mut to = Encoder::new(sink);
    to.byte(VERSION);
    to.fixed_u128(ask.disk.0);
    to.bytes(ask.name.as_bytes());
    to.bytes(ask.address.as_bytes());
    match &ask.replaces {
        None => to.byte(0),
        Some(voter) => {
            to.byte(1);
            to.bytes(voter.as_bytes());
        }
    }
}

/// Decodes a join request and checks the lengths of its texts.
pub(crate) fn decode_join_ask(bytes: Bytes) -> Result<JoinAsk, CodecError> {
    let mut from = Decoder::new("join request", bytes);
    from.version(VERSION)?;
    let ask = JoinAsk {
        disk: DiskId(from.fixed_u128()?),
        name: from.text()?,
        address: from.text()?,
        replaces: (from.flags("join", 1)? == 1).then(|| from.text()).transpose()?,
    };
    let texts = [&ask.name, &ask.address].into_iter().chain(&ask.replaces);
    if texts.into_iter().any(|text| text.len() > JoinAsk::TEXT_BYTES_MAX) {
        return Err(from.malformed("a name or an address is too long"));
    }
    from.finish()?;
    Ok(ask)
}

/// Appends the encoding of the reply to a join request.
pub(crate) fn encode_join_answer(answer: &JoinAnswer, sink: &mut Vec<u8>) {
    let mut to = Encoder::new(sink);
    to.byte(VERSION);
    match answer {
        JoinAnswer::Joined(Joined { cluster, node, founding, members }) => {
            to.byte(1);
            to.fixed_u128(cluster.0);
            to.number(node.get());
            encode_founding(founding, &mut to);
            members.encode(&mut to);
        }
        JoinAnswer::NotLeader(address) => {
            to.byte(2);
            to.bytes(address.as_deref().unwrap_or_default().as_bytes());
        }
        JoinAnswer::Later(why) => {
            to.byte(3);
            to.bytes(why.as_bytes());
        }
        JoinAnswer::Refused(why) => {
            to.byte(4);
            to.bytes(why.as_bytes());
        }
    }
}

/// Decodes the reply to a join request.
pub(crate) fn decode_join_answer(bytes: Bytes) -> Result<JoinAnswer, CodecError> {
    let mut from = Decoder::new("join reply", bytes);
    from.version(VERSION)?;
    let answer = match from.byte()? {
        1 => JoinAnswer::Joined(Joined {
            cluster: ClusterId(from.fixed_u128()?),
            node: NodeId::decode(&mut from)?,
            founding: decode_founding(&mut from)?,
            members: Members::decode(&mut from)?,
        }),
        2 => JoinAnswer::NotLeader(Some(from.text()?).filter(|address| !address.is_empty())),
        3 => JoinAnswer::Later(from.text()?),
        4 => JoinAnswer::Refused(from.text()?),
        found => return Err(CodecError::Newer { what: "join answer", found: found.into() }),
    };
    from.finish()?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn ask(text: usize, replaces: Option<&str>) -> JoinAsk {
        JoinAsk {
            disk: DiskId(7 << 100),
            name: "n".repeat(text),
            address: "h:1".to_owned(),
            replaces: replaces.map(str::to_owned),
        }
    }

    fn asked(ask: &JoinAsk) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode_join_ask(ask, &mut bytes);
        bytes
    }

    fn answers() -> Vec<JoinAnswer> {
        let node = |id| NodeId::new(id).expect("not 0");
        let founding: BTreeMap<_, _> = [(node(1), DiskId(1)), (node(2), DiskId(2 << 64))].into();
        let members = Members::founded(&founding);
        vec![
            JoinAnswer::Joined(Joined { cluster: ClusterId(9), node: node(4), founding, members }),
            JoinAnswer::NotLeader(None),
            JoinAnswer::NotLeader(Some("b:2".to_owned())),
            JoinAnswer::Later("busy".to_owned()),
            JoinAnswer::Refused("no".to_owned()),
        ]
    }

    #[test]
    fn join_messages_round_trip() {
        for ask in [ask(1, None), ask(512, Some("b")), ask(0, Some(""))] {
            assert_eq!(decode_join_ask(asked(&ask).into()), Ok(ask));
        }
        for answer in answers() {
            let mut bytes = Vec::new();
            encode_join_answer(&answer, &mut bytes);
            assert_eq!(decode_join_answer(bytes.clone().into()), Ok(answer.clone()));
            for end in 0..bytes.len() {
                let cut = decode_join_answer(bytes[..end].to_vec().into());
                assert!(cut.as_ref().is_ok_and(|cut| *cut != answer) || cut.is_err());
            }
        }
    }

    #[test]
    fn overlong_truncated_or_newer_join_request_is_rejected() {
        assert!(decode_join_ask(asked(&ask(513, None)).into()).is_err());
        let right = asked(&ask(3, Some("b")));
        for end in 0..right.len() {
            assert!(decode_join_ask(right[..end].to_vec().into()).is_err(), "{end}");
        }
        let newer = [&[2], &right[1..]].concat();
        assert!(matches!(decode_join_ask(newer.into()), Err(CodecError::NewerVersion { .. })));
        assert!(decode_join_ask([&right[..], &[0]].concat().into()).is_err());
    }

    #[test]
    fn join_format_is_frozen() {
        let bytes = asked(&JoinAsk { disk: DiskId(1), ..ask(2, Some("b")) });
        let frozen = b"\x01\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\x02nn\x03h:1\x01\x01b";
        assert_eq!(bytes, frozen, "{}", bytes.escape_ascii());
    }
}
