//! Random values for tests. The same seed gives the same values.
//!
//! Small and extreme numbers are drawn often, lists are short, and every variant and every optional
//! field occurs.

use bytes::Bytes;
use std::time::Duration;

use crate::model::*;

/// A source of random values.
pub(crate) struct Sample {
    state: u64,
}

impl Sample {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The splitmix64 generator.
    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn flip(&mut self) -> bool {
        self.next() & 1 == 1
    }

    fn number(&mut self) -> u64 {
        match self.below(5) {
            0 => 0,
            1 => self.below(300),
            2 => 1 << self.below(64),
            3 => u64::MAX - self.below(2),
            _ => self.next(),
        }
    }

    fn positive(&mut self) -> u64 {
        self.number().max(1)
    }

    fn maybe<T>(&mut self, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.flip().then(|| make(self))
    }

    fn list<T>(&mut self, len_below: u64, mut make: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(len_below)).map(|_| make(self)).collect()
    }

    pub(crate) fn bytes(&mut self) -> Bytes {
        let len = match self.below(8) {
            0 => 0,
            1 => 200 + self.below(200),
            _ => self.below(20),
        };
        (0..len).map(|_| self.next() as u8).collect()
    }

    fn node(&mut self) -> NodeId {
        NodeId::new(self.positive()).expect("not 0")
    }

    fn lease(&mut self) -> LeaseId {
        LeaseId::new(self.positive()).expect("not 0")
    }

    fn revision(&mut self) -> Revision {
        Revision(self.number())
    }

    fn keys(&mut self) -> KeyRange {
        match self.below(3) {
            0 => KeyRange::key(self.bytes()),
            1 => KeyRange::between(self.bytes(), self.bytes()),
            _ => KeyRange::starting_at(self.bytes()),
        }
    }

    fn put(&mut self) -> Put {
        Put {
            key: self.bytes(),
            value: if self.flip() { PutValue::Set(self.bytes()) } else { PutValue::Keep },
            lease: match self.below(3) {
                0 => PutLease::None,
                1 => PutLease::Attach(self.lease()),
                _ => PutLease::Keep,
            },
            prev_kv: self.flip(),
        }
    }

    fn delete(&mut self) -> Delete {
        Delete { range: self.keys(), prev_kv: self.flip() }
    }

    fn range(&mut self) -> Range {
        let target = match self.below(5) {
            0 => SortTarget::Key,
            1 => SortTarget::Version,
            2 => SortTarget::Create,
            3 => SortTarget::Mod,
            _ => SortTarget::Value,
        };
        let order = if self.flip() { SortOrder::Ascend } else { SortOrder::Descend };
        Range {
            range: self.keys(),
            revision: self.maybe(Self::revision),
            limit: self.maybe(Self::number),
            sort: Sort { target, order },
            keys_only: self.flip(),
            count_only: self.flip(),
            bounds: RevisionBounds {
                mod_min: self.maybe(Self::revision),
                mod_max: self.maybe(Self::revision),
                create_min: self.maybe(Self::revision),
                create_max: self.maybe(Self::revision),
            },
        }
    }

    fn compare(&mut self) -> Compare {
        Compare {
            range: self.keys(),
            target: match self.below(5) {
                0 => CompareTarget::Version(self.number()),
                1 => CompareTarget::Create(self.revision()),
                2 => CompareTarget::Mod(self.revision()),
                3 => CompareTarget::Value(self.bytes()),
                _ => CompareTarget::Lease(self.number()),
            },
            op: match self.below(4) {
                0 => CompareOp::Equal,
                1 => CompareOp::NotEqual,
                2 => CompareOp::Greater,
                _ => CompareOp::Less,
            },
        }
    }

    fn txn(&mut self, depth: u64) -> Txn {
        Txn {
            compares: self.list(4, Self::compare),
            success: self.list(4, |sample| sample.op(depth)),
            failure: self.list(3, |sample| sample.op(depth)),
        }
    }

    fn op(&mut self, depth: u64) -> Op {
        match self.below(if depth < 4 { 4 } else { 3 }) {
            0 => Op::Range(self.range()),
            1 => Op::Put(self.put()),
            2 => Op::Delete(self.delete()),
            _ => Op::Txn(self.txn(depth + 1)),
        }
    }

    pub(crate) fn command(&mut self) -> Command {
        match self.below(12) {
            10 => Command::Alarm(self.alarm_change()),
            11 => Command::Move { member: self.node(), address: self.text() },
            8 => Command::Access(self.access_change()),
            9 => {
                let user = self.maybe(Self::text);
                let caller = Caller { user, revision: self.number() };
                match self.command() {
                    Command::As(_, command) => Command::As(caller, command),
                    command => Command::As(caller, Box::new(command)),
                }
            }
            0 => Command::Put(self.put()),
            1 => Command::Delete(self.delete()),
            2 => Command::Txn(self.txn(1)),
            3 => Command::Compact(self.revision()),
            4 => Command::Grant {
                id: self.maybe(Self::lease),
                ttl: Duration::from_millis(self.number()),
                session: self.maybe(|sample| SessionInfo {
                    label: sample
                        .list(9, |sample| char::from(b'a' + sample.below(26) as u8))
                        .iter()
                        .collect(),
                    own: sample.flip(),
                }),
            },
            5 => Command::Revoke(self.lease()),
            6 => Command::Announce(MemberAttributes {
                name: self.text(),
                address: self.text(),
                endpoints: self.list(2, Self::text),
            }),
            _ => Command::Raise(ClusterVersion(self.number())),
        }
    }

    fn text(&mut self) -> String {
        self.list(9, |sample| char::from(b'a' + sample.below(26) as u8)).into_iter().collect()
    }

    fn snapshot(&mut self) -> SnapshotId {
        SnapshotId {
            index: LogIndex(self.number()),
            term: Term(self.number()),
            bytes: self.number(),
            checksum: self.next(),
        }
    }

    fn disk(&mut self) -> DiskId {
        DiskId(u128::from(self.next()) << 64 | u128::from(self.next()))
    }

    pub(crate) fn member_change(&mut self) -> MemberChange {
        match self.below(6) {
            0 => MemberChange::Add {
                id: self.node(),
                disk: self.disk(),
                name: self.text(),
                address: self.text(),
                replaces: self.maybe(Self::node),
            },
            1 => MemberChange::Promote(self.node()),
            2 => MemberChange::Remove(self.node()),
            3 => MemberChange::Replace { old: self.node(), new: self.node() },
            4 => MemberChange::Take {
                id: self.node(),
                disk: self.disk(),
                name: self.text(),
                address: self.text(),
            },
            _ => MemberChange::LeaveJoint,
        }
    }

    fn membership_request(&mut self) -> MembershipRequest {
        match self.below(4) {
            0 => MembershipRequest::Add {
                disk: self.disk(),
                name: self.text(),
                address: self.text(),
                replaces: self.maybe(Self::node),
            },
            1 => MembershipRequest::Promote(self.node()),
            2 => MembershipRequest::Keep { address: self.text(), votes: self.below(2) == 0 },
            _ => MembershipRequest::Remove(self.node()),
        }
    }

    fn membership_error(&mut self) -> MembershipError {
        let count = |sample: &mut Self| sample.below(100) as usize;
        match self.below(13) {
            0 => MembershipError::Unknown(self.node()),
            1 => MembershipError::Voter(self.node()),
            2 => MembershipError::NotVoter(self.node()),
            3 => MembershipError::NameTaken(self.text()),
            4 => MembershipError::TooMany(count(self)),
            5 => MembershipError::TooManyVoters(count(self)),
            6 => MembershipError::LastVoter(self.node()),
            7 => MembershipError::Pending,
            8 => MembershipError::LosesQuorum {
                active: count(self),
                voters: count(self),
                needed: count(self),
            },
            9 => MembershipError::NotCaughtUp(self.node()),
            10 => MembershipError::NotNext(self.node()),
            11 => MembershipError::BadAddress(self.text()),
            _ => MembershipError::NotJoint,
        }
    }

    fn member_answer(&mut self) -> MemberAnswer {
        match self.below(3) {
            0 => MemberAnswer::Done { id: self.node(), index: LogIndex(self.number()) },
            1 => MemberAnswer::NotLeader(self.maybe(Self::node)),
            _ => MemberAnswer::Refused(self.membership_error()),
        }
    }

    fn window(&mut self) -> AckWindow {
        let mut at = self.below(1000);
        let mut open = Vec::new();
        for _ in 0..self.below(4) {
            let end = at + 1 + self.below(100);
            open.push(at..end);
            at = end + 1 + self.below(100_000);
        }
        AckWindow { frontier: at, open }
    }

    fn proposal(&mut self) -> Proposal {
        Proposal {
            node: self.node(),
            incarnation: Incarnation(self.number()),
            window: self.window(),
            requests: self.list(5, |sample| (sample.number(), sample.command())),
        }
    }

    pub(crate) fn items(&mut self) -> Vec<Item> {
        self.list(4, |sample| match sample.below(3) {
            0 => Item::Expire { term: Term(sample.number()), leases: sample.list(9, Self::lease) },
            _ => Item::Proposal(sample.proposal()),
        })
    }

    fn row(&mut self) -> KeyValue {
        KeyValue {
            key: self.bytes(),
            value: self.bytes(),
            create_revision: self.revision(),
            mod_revision: self.revision(),
            version: self.number(),
            lease: self.maybe(Self::lease),
        }
    }

    fn put_reply(&mut self) -> PutReply {
        PutReply { revision: self.revision(), prev: self.maybe(Self::row) }
    }

    fn delete_reply(&mut self) -> DeleteReply {
        DeleteReply {
            revision: self.revision(),
            deleted: self.number(),
            prev_kvs: self.list(3, Self::row),
        }
    }

    fn txn_reply(&mut self, depth: u64) -> TxnReply {
        let kinds = if depth < 3 { 4 } else { 3 };
        TxnReply {
            revision: self.revision(),
            succeeded: self.flip(),
            results: self.list(4, |sample| match sample.below(kinds) {
                0 => TxnResult::Put(sample.put_reply()),
                1 => TxnResult::Delete(sample.delete_reply()),
                2 => TxnResult::Range(RangeReply {
                    revision: sample.revision(),
                    kvs: sample.list(3, Self::row),
                    more: sample.flip(),
                    count: sample.number(),
                }),
                _ => TxnResult::Txn(sample.txn_reply(depth + 1)),
            }),
        }
    }

    fn time(&mut self) -> Duration {
        Duration::new(self.number(), self.below(1_000_000_000) as u32)
    }

    fn rejection(&mut self) -> Rejection {
        let size = |sample: &mut Self| sample.number() as usize;
        match self.below(20) {
            19 => Rejection::AddressTaken(self.node()),
            16 => Rejection::Alarm(self.alarm().kind),
            17 => Rejection::TooManyAlarms { max: size(self) },
            18 => Rejection::TooManyKeys { max: size(self) },
            0 => Rejection::EmptyKey,
            1 => Rejection::KeyNotFound,
            2 => Rejection::Compacted { asked: self.revision(), compacted: self.revision() },
            3 => Rejection::Future { asked: self.revision(), newest: self.revision() },
            4 => Rejection::LeaseNotFound(self.lease()),
            5 => Rejection::LeaseExists(self.lease()),
            6 => Rejection::LeaseTtl { asked: self.time(), max: self.time() },
            7 => Rejection::DuplicateKey(self.bytes()),
            8 => Rejection::TooManyOps { count: size(self), max: size(self) },
            9 => Rejection::TooDeep { max: size(self) },
            10 => Rejection::KeyTooLarge { bytes: size(self), max: size(self) },
            11 => Rejection::ValueTooLarge { bytes: size(self), max: size(self) },
            12 => Rejection::RequestTooLarge { bytes: size(self), max: size(self) },
            13 => Rejection::Closed,
            14 => Rejection::Access(AuthError::Outdated),
            _ => Rejection::NotMember(self.node()),
        }
    }

    fn outcome(&mut self) -> Outcome {
        let revision = self.revision();
        Ok(match self.below(10) {
            9 => Reply::Alarms { revision, alarms: self.list(3, Self::alarm) },
            0 => Reply::Put(self.put_reply()),
            1 => Reply::Delete(self.delete_reply()),
            2 => Reply::Txn(self.txn_reply(1)),
            3 => Reply::Compacted { revision },
            4 => Reply::Grant(GrantReply { revision, id: self.lease(), ttl: self.time() }),
            5 => Reply::Revoke(RevokeReply { revision, deleted: self.number() }),
            6 => Reply::Noted { revision },
            7 => Reply::AppliedBefore { revision },
            _ => return Err(self.rejection()),
        })
    }

    fn members(&mut self) -> Members {
        let member = |sample: &mut Self| Member {
            disk: sample.disk(),
            name: sample.text(),
            address: sample.text(),
            moves_to: sample.maybe(Self::text),
            endpoints: sample.list(2, Self::text),
            role: if sample.flip() { MemberRole::Voter } else { MemberRole::Learner },
            replaces: sample.maybe(Self::node),
            since: LogIndex(sample.number()),
        };
        let id = |sample: &mut Self| NodeId::new(1 + sample.below(99)).expect("not 0");
        let rows = self.list(5, |sample| (id(sample), member(sample))).into_iter().collect();
        let outgoing = self.list(3, id).into_iter().collect();
        Members::from_parts(rows, outgoing, 100 + self.below(9)).expect("ids below 100")
    }

    fn secret(&mut self) -> Secret {
        Secret::new(self.bytes())
    }

    fn access_grant(&mut self) -> AccessGrant {
        let rights = [Rights::Read, Rights::Write, Rights::ReadWrite][self.below(3) as usize];
        AccessGrant { range: self.keys(), rights }
    }

    fn access_change(&mut self) -> AccessChange {
        let (user, role) = (self.text(), self.text());
        match self.below(11) {
            0 => AccessChange::Enable { secret: self.secret() },
            1 => AccessChange::Disable,
            2 => AccessChange::AddUser { user, password: self.maybe(Self::secret) },
            3 => AccessChange::DeleteUser(user),
            4 => AccessChange::SetPassword { user, password: self.maybe(Self::secret) },
            5 => AccessChange::GrantRole { user, role },
            6 => AccessChange::RevokeRole { user, role },
            7 => AccessChange::AddRole(role),
            8 => AccessChange::DeleteRole(role),
            9 => AccessChange::Grant { role, grant: self.access_grant() },
            _ => AccessChange::Revoke { role, range: self.keys() },
        }
    }

    /// Applies random changes to an empty table.
    fn access(&mut self) -> Access {
        let mut access = Access::default();
        for change in self.list(9, Self::access_change) {
            // Most of the random changes are rejected. But the names are very short, so some
            // changes name an existing user or role.
            let _ = access.apply(change);
        }
        access
    }

    fn alarm(&mut self) -> Alarm {
        let member = self.maybe(|sample| NodeId::new(1 + sample.below(4)).expect("not 0"));
        Alarm { member, kind: [AlarmKind::NoSpace, AlarmKind::Corrupt][self.below(2) as usize] }
    }

    fn alarm_change(&mut self) -> AlarmChange {
        match self.below(4) {
            0 => AlarmChange::Raise(self.alarm()),
            1 => AlarmChange::End(self.alarm()),
            2 => AlarmChange::EndAllOf(self.node()),
            _ => AlarmChange::EndAll,
        }
    }

    /// Applies random changes to an empty table.
    fn alarms(&mut self) -> Alarms {
        let mut alarms = Alarms::default();
        for change in self.list(9, Self::alarm_change) {
            alarms.apply(&change).expect("few");
        }
        alarms
    }

    pub(crate) fn head(&mut self) -> StateHead {
        StateHead {
            version: ClusterVersion(self.number()),
            index: LogIndex(self.number()),
            term: Term(self.number()),
            revision: self.revision(),
            compacted: self.maybe(|sample| Revision(sample.below(1 << 63))),
            past: self.next(),
            next_lease: self.number(),
            members: self.members(),
            access: self.access(),
            alarms: self.alarms(),
            digest: self.next(),
        }
    }

    pub(crate) fn snapshot_record(&mut self) -> SnapshotRecord {
        match self.below(5) {
            0 => SnapshotRecord::Rows(self.list(5, Self::row)),
            1 => SnapshotRecord::Changes(self.list(5, |sample| match sample.flip() {
                true => RowChange::Put(sample.row()),
                false => RowChange::Delete { revision: sample.revision(), key: sample.bytes() },
            })),
            2 => SnapshotRecord::Leases(self.list(5, |sample| {
                let session = sample.maybe(|sample| {
                    let info = SessionInfo { label: sample.text(), own: sample.flip() };
                    (sample.node(), Incarnation(sample.number()), info)
                });
                LeaseRow { id: sample.lease(), ttl: sample.time(), session }
            })),
            3 => SnapshotRecord::Lives(self.list(5, |sample| LifeRow {
                node: sample.node(),
                incarnation: Incarnation(sample.number()),
                window: sample.window(),
            })),
            _ => SnapshotRecord::DedupTable(self.list(5, |sample| {
                let (node, incarnation) = (sample.node(), Incarnation(sample.number()));
                let id = RequestId { node, incarnation, seq: sample.number() };
                (id, sample.outcome())
            })),
        }
    }

    fn hello(&mut self) -> Hello {
        Hello {
            cluster: ClusterId(u128::from(self.next()) << 64 | u128::from(self.next())),
            from: self.node(),
            to: self.node(),
            disk: DiskId(self.next().into()),
            incarnation: Incarnation(self.number()),
            standing: match self.flip() {
                true => FoundingState::Blank,
                false => FoundingState::Founded(
                    self.list(8, |sample| (sample.node(), DiskId(sample.next().into())))
                        .into_iter()
                        .collect(),
                ),
            },
            since: LogIndex(self.number()),
            address: self.text(),
            supported_version: ClusterVersion(self.number()),
        }
    }

    pub(crate) fn message(&mut self) -> PeerMessage {
        let (round, incarnation) = (self.number(), Incarnation(self.number()));
        match self.below(19) {
            0 => PeerMessage::Hello(self.hello()),
            1 => PeerMessage::Raft(self.bytes()),
            2 => PeerMessage::Propose(self.proposal()),
            3 => PeerMessage::ProposeRejected {
                incarnation,
                seqs: self.list(9, Self::number),
                why: match self.below(6) {
                    0 => ProposeRejection::NotLeader(None),
                    1 => ProposeRejection::NotLeader(Some(self.node())),
                    2 => ProposeRejection::Busy,
                    3 => ProposeRejection::QuotaExceeded,
                    4 => ProposeRejection::NoSpace,
                    _ => ProposeRejection::Diverged,
                },
            },
            4 => PeerMessage::ReadAsk { round, incarnation },
            5 => {
                let index = self.maybe(|sample| LogIndex(sample.number()));
                PeerMessage::ReadAnswer { round, incarnation, index }
            }
            17 => PeerMessage::LeaseAsk {
                round,
                incarnation,
                renew: self.list(9, Self::lease),
                look: self.list(9, Self::lease),
            },
            18 => PeerMessage::LeaseAnswer {
                round,
                incarnation,
                living: self.list(9, |sample| {
                    let left = Duration::from_millis(sample.number());
                    LeaseLife { lease: sample.lease(), left }
                }),
                gone: self.list(9, Self::lease),
            },
            6 => PeerMessage::Renew { round, incarnation, leases: self.list(9, Self::lease) },
            7 => PeerMessage::Renewed {
                round,
                incarnation,
                renewed: self.list(9, Self::lease),
                gone: self.list(9, Self::lease),
            },
            8 => PeerMessage::Digest { index: LogIndex(self.number()), digest: self.next() },
            9 => PeerMessage::SnapshotAsk { id: self.snapshot(), offset: self.number() },
            10 => PeerMessage::SnapshotPart {
                id: self.snapshot(),
                offset: self.number(),
                data: self.bytes(),
            },
            11 => PeerMessage::SnapshotGone { id: self.snapshot() },
            12 => PeerMessage::SnapshotWanted { least: LogIndex(self.number()) },
            13 => PeerMessage::SnapshotHere { id: self.snapshot() },
            14 => PeerMessage::MemberAsk {
                round,
                incarnation,
                membership_request: self.membership_request(),
            },
            15 => PeerMessage::MemberAnswer { round, incarnation, answer: self.member_answer() },
            _ => PeerMessage::Space { low: self.flip() },
        }
    }
}
