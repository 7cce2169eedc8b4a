//! Encoding of the request of a process to join a cluster, and of the reply.
//!
//! ```text
//! join ask    = version u8 | disk u128 | name bytes | address bytes | 0 | 1 name of a voter bytes
//! join answer = version u8 | 1 cluster u128, id, list of (member, disk u128), members
//!                          | 2 address bytes, empty if unknown | 3 why bytes | 4 why bytes
//! ```

use bytes::Bytes;

use super::{CodecError, Encode, Encoder, choice, decode_versioned, record};
use crate::model::{JoinAnswer, JoinAsk, Joined};

/// The format version that this build writes, and the newest version that it reads.
const VERSION: u8 = 1;

record!(JoinAsk, 19, { disk, name as limited, address as limited, replaces });

record!(Joined, 21, { cluster, node, founding, members });

choice!(JoinAnswer, "join answer", 2, {
    1 => Joined(joined),
    2 => NotLeader(address as or_empty),
    3 => Later(why),
    4 => Refused(why),
});

/// Appends the encoding of a join request.
pub(crate) fn encode_join_ask(ask: &JoinAsk, sink: &mut Vec<u8>) {
    let to = &mut Encoder::new(sink);
    to.byte(VERSION);
    ask.encode(to);
}

/// Decodes a join request and checks the lengths of its texts.
pub(crate) fn decode_join_ask(bytes: Bytes) -> Result<JoinAsk, CodecError> {
    let what = "join request";
    let ask: JoinAsk = decode_versioned(what, VERSION, bytes)?;
    let is_too_long = |text: &String| text.len() > JoinAsk::TEXT_BYTES_MAX;
    match ask.replaces.as_ref().is_some_and(is_too_long) {
        false => Ok(ask),
        true => Err(CodecError::Malformed { what, why: "a name is too long" }),
    }
}

/// Appends the encoding of the reply to a join request.
pub(crate) fn encode_join_answer(answer: &JoinAnswer, sink: &mut Vec<u8>) {
    let to = &mut Encoder::new(sink);
    to.byte(VERSION);
    answer.encode(to);
}

/// Decodes the reply to a join request.
pub(crate) fn decode_join_answer(bytes: Bytes) -> Result<JoinAnswer, CodecError> {
    decode_versioned("join reply", VERSION, bytes)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::model::{ClusterId, DiskId, Members, NodeId};

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
