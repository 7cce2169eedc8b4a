//! `etcdserverpb.Maintenance`: status, hashes, leadership and alarms.

use std::pin::Pin;
use std::sync::Arc;

use bowline::{
    Client, KeyRange, NodeId, Revision,
    auth::UserClient,
    cluster::{Alarm, AlarmChange},
};
use tokio_stream::Stream;
use tonic::{Request, Response, Status};

use crate::alarms::{self, Alarms};
use crate::identity::Identity;
use crate::member::Member;
use crate::services::response_stream::ResponseStream;
use crate::services::snapshot::{Snapshots, send};
use crate::wire::{Reason, refused, revision};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::etcdserverpb::maintenance_server::Maintenance;
use pb::alarm_request::AlarmAction;
use pb::downgrade_request::DowngradeAction;

/// Number of rows hashed per page.
const PAGE_ROWS: u64 = 4096;

/// Minimum reported size of a state, one page. Clients would take 0 for a server that does not report the size.
const STATE_BYTES_MIN: u64 = 4096;

#[derive(Clone)]
pub(crate) struct MaintenanceService {
    pub(crate) member: Arc<Member>,
    pub(crate) alarms: Arc<Alarms>,
    pub(crate) snapshots: Arc<Snapshots>,
}

impl MaintenanceService {
    /// Raises or clears alarms. Permission is checked against the users and roles at the time of applying.
    async fn change_alarms(
        &self,
        who: &Identity,
        change: AlarmChange,
    ) -> Result<(Revision, Vec<pb::AlarmMember>), Status> {
        let who = self.member.again_root(who)?;
        let ask = |client: UserClient| {
            let change = change.clone();
            async move { client.change_alarms(change).await }
        };
        let changed = self.member.retry_while_outdated(&who, ask).await?;
        Ok((changed.revision, changed.alarms.into_iter().map(alarms::to_alarm_member).collect()))
    }
}

#[tonic::async_trait]
impl Maintenance for MaintenanceService {
    async fn alarm(
        &self,
        request: Request<pb::AlarmRequest>,
    ) -> Result<Response<pb::AlarmResponse>, Status> {
        let who = Identity::in_request(&request);
        let request = request.into_inner();
        let action = AlarmAction::try_from(request.action)
            .map_err(|_| Status::invalid_argument("bowline: unknown action of an alarm request"))?;
        let kind = pb::AlarmType::try_from(request.alarm).map(alarms::kind).map_err(|_| {
            Status::invalid_argument("bowline: unknown alarm type: use NOSPACE or CORRUPT")
        })?;
        let (revision, alarms) = match action {
            AlarmAction::Get => {
                // As in etcd, the request's member is ignored, so that alarms raised by others are visible.
                self.member.client().read_alarms().await.map_err(refused)?;
                let revision = self.member.client().revision();
                let is_wanted =
                    |alarm: &pb::AlarmMember| kind.is_none() || alarms::kind(alarm.alarm()) == kind;
                (revision, self.alarms.active().into_iter().filter(is_wanted).collect())
            }
            AlarmAction::Deactivate => {
                let change = alarms::ending(request.member_id, kind);
                let (revision, mut ended) = self.change_alarms(&who, change.clone()).await?;
                let own = self.alarms.clear_no_space(&change);
                ended.extend(own.filter(|own| !ended.contains(own)));
                (revision, ended)
            }
            AlarmAction::Activate => match kind {
                // As in etcd, an alarm request without a kind succeeds without effect.
                None => {
                    self.member.again_root(&who)?;
                    (self.member.client().revision(), Vec::new())
                }
                Some(kind) => {
                    let member = NodeId::new(request.member_id);
                    self.change_alarms(&who, AlarmChange::Raise(Alarm { member, kind })).await?
                }
            },
        };
        Ok(Response::new(pb::AlarmResponse { header: self.member.header(revision), alarms }))
    }

    async fn status(
        &self,
        _: Request<pb::StatusRequest>,
    ) -> Result<Response<pb::StatusResponse>, Status> {
        let header = self.member.header_now();
        let status = self.member.node().status();
        let metrics = self.member.node().metrics().snapshot();
        // The whole size counts as in use, because defragmentation would free nothing.
        let size = metrics.state_bytes.max(STATE_BYTES_MIN) as i64;
        let mut errors: Vec<String> =
            self.alarms.active().iter().map(pb::AlarmMember::description).collect();
        if !self.member.has_leader() {
            errors.insert(0, Reason::NoLeader.text());
        }
        Ok(Response::new(pb::StatusResponse {
            header,
            version: self.member.announced().server().to_owned(),
            db_size: size,
            leader: status.leader.map_or(0, NodeId::get),
            raft_index: status.commit.get(),
            raft_term: status.term.get(),
            raft_applied_index: status.applied.get(),
            errors,
            db_size_in_use: size,
            is_learner: self.member.is_learner(),
            storage_version: self.member.announced().cluster().to_owned(),
            db_size_quota: self.member.settings().quota_bytes.try_into().unwrap_or(i64::MAX),
            downgrade_info: Some(pb::DowngradeInfo::default()),
        }))
    }

    /// Does nothing: memory and files are freed continuously.
    async fn defragment(
        &self,
        _: Request<pb::DefragmentRequest>,
    ) -> Result<Response<pb::DefragmentResponse>, Status> {
        Ok(Response::new(pb::DefragmentResponse { header: None }))
    }

    async fn hash(
        &self,
        _: Request<pb::HashRequest>,
    ) -> Result<Response<pb::HashResponse>, Status> {
        let (hash, at) = hash_at(self.member.client(), None).await?;
        Ok(Response::new(pb::HashResponse { header: self.member.header(at), hash }))
    }

    async fn hash_kv(
        &self,
        request: Request<pb::HashKvRequest>,
    ) -> Result<Response<pb::HashKvResponse>, Status> {
        let asked = revision(request.into_inner().revision);
        let now = self.member.client().revision();
        let (hash, at) = hash_at(self.member.client(), asked).await?;
        let compacted = self.member.node().metrics().snapshot().compacted_revision;
        Ok(Response::new(pb::HashKvResponse {
            header: self.member.header(now.max(at)),
            hash,
            // As in etcd, -1 is reported before the first compaction.
            compact_revision: if compacted == 0 { -1 } else { compacted as i64 },
            hash_revision: at.get() as i64,
        }))
    }

    type SnapshotStream = Pin<Box<dyn Stream<Item = Result<pb::SnapshotResponse, Status>> + Send>>;

    async fn snapshot(
        &self,
        request: Request<pb::SnapshotRequest>,
    ) -> Result<Response<Self::SnapshotStream>, Status> {
        let taken = self.snapshots.take().await?;
        // The snapshot may be newer than the permission that was checked, so the permission is checked again.
        self.member.again_root(&Identity::in_request(&request))?;
        Ok(Response::new(ResponseStream::by(|answers| async move { send(taken, &answers).await })))
    }

    async fn move_leader(
        &self,
        request: Request<pb::MoveLeaderRequest>,
    ) -> Result<Response<pb::MoveLeaderResponse>, Status> {
        self.member.administered_by(&request).await?;
        let target = NodeId::new(request.into_inner().target_id).ok_or(Reason::BadTransferee)?;
        let status = self.member.node().status();
        if status.leader != Some(status.id) {
            return Err(Reason::NotLeader.into());
        }
        let voter = status.members.iter().find(|member| member.id == target);
        if voter.is_none_or(|member| member.role != bowline::cluster::MemberRole::Voter) {
            return Err(Reason::BadTransferee.into());
        }
        self.member.node().transfer_leadership(Some(target)).await.map_err(refused)?;
        Ok(Response::new(pb::MoveLeaderResponse { header: None }))
    }

    /// Downgrades are not supported.
    async fn downgrade(
        &self,
        request: Request<pb::DowngradeRequest>,
    ) -> Result<Response<pb::DowngradeResponse>, Status> {
        let request = request.into_inner();
        let is_version = {
            let parts: Vec<_> = request.version.split('.').collect();
            (2..=3).contains(&parts.len()) && parts.iter().all(|part| part.parse::<u32>().is_ok())
        };
        match DowngradeAction::try_from(request.action) {
            // As in etcd, cancelling succeeds even if no downgrade is in progress.
            Ok(DowngradeAction::Cancel) => {
                let version = self.member.announced().short().to_owned();
                Ok(Response::new(pb::DowngradeResponse {
                    header: self.member.header_now(),
                    version,
                }))
            }
            Ok(_) if !is_version => Err(Reason::DowngradeFormat.into()),
            Ok(_) => Err(Reason::DowngradeTarget.into()),
            Err(_) => {
                Err(Status::invalid_argument("bowline: unknown action of a downgrade request"))
            }
        }
    }
}

/// Returns a hash of all keys at a revision, or at the newest one. It is the same on all members. Reads page by page.
async fn hash_at(client: &Client, asked: Option<Revision>) -> Result<(u32, Revision), Status> {
    let at = asked.unwrap_or_else(|| client.revision());
    let mut hash = Crc::default();
    // The prefix gives an empty store a nonzero hash, because JSON omits zeros.
    hash.part(b"bowline");
    let mut from = KeyRange::all();
    loop {
        // The page is read without the count, because counting would scan all following rows for each page.
        let page = client.range(from).revision(at).limit(PAGE_ROWS).skip_count().local();
        let page = page.await.map_err(refused)?;
        for row in &page.kvs {
            hash.part(&row.key);
            hash.part(&row.value);
            for number in [row.create_revision.get(), row.mod_revision.get(), row.version] {
                hash.part(&number.to_be_bytes());
            }
            hash.part(&row.lease.map_or(0, bowline::LeaseId::get).to_be_bytes());
        }
        match page.kvs.last() {
            Some(last) if page.more => {
                from = KeyRange::starting_at([&last.key[..], b"\0"].concat())
            }
            _ => return Ok((hash.0.finalize(), at)),
        }
        // The reads never wait, so yield explicitly to other tasks.
        tokio::task::yield_now().await;
    }
}

#[derive(Default)]
struct Crc(crc32fast::Hasher);

impl Crc {
    fn part(&mut self, part: &[u8]) {
        self.0.update(&(part.len() as u64).to_be_bytes());
        self.0.update(part);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use bowline::{Blocking, Config, Node, Put};

    use super::*;

    #[test]
    fn hash_of_many_keys_yields_between_pages() {
        let dir = tempfile::tempdir().unwrap();
        let node = Node::start(Config::new(dir.path(), "solo")).block().unwrap();
        let client = node.client();
        for number in 0..90 {
            let put = |own: u32| Put::new(format!("k{number:02}{own:02}"), "v");
            let txn = (0..100).fold(client.txn(), |txn, own| txn.then(put(own)));
            txn.commit().block().unwrap();
        }
        let mut hash = pin!(hash_at(&client, None));
        let mut turns = 0;
        let ended = loop {
            match hash.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(ended) => break ended,
                Poll::Pending => turns += 1,
            }
        };
        assert_eq!(ended.unwrap().1, client.revision());
        assert_eq!(turns, 9000 / PAGE_ROWS);
    }
}
