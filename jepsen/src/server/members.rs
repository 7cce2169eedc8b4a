//! Operator calls to a member: querying the leader and the members, transferring leadership, and saving snapshots.

use std::sync::atomic::{AtomicUsize, Ordering};

use tonic::transport::Channel;

use super::{Clients, Miss, pb};
use crate::calls::Reply;
use crate::wire::Answer;
use pb::cluster_client::ClusterClient;
use pb::maintenance_client::MaintenanceClient;

impl Clients {
    fn maintenance(&self) -> MaintenanceClient<Channel> {
        MaintenanceClient::new(self.channel.clone())
    }

    /// Returns the leader that the member knows.
    pub(super) async fn status(&self) -> Result<Answer, Miss> {
        let status = self.maintenance().status(pb::StatusRequest {}).await?.into_inner();
        let own = status.header.map_or(0, |header| header.member_id);
        let leader = Some(status.leader).filter(|leader| *leader != 0);
        Ok(Answer::Status { leads: leader == Some(own), term: status.raft_term, leader })
    }

    async fn list_members(&self) -> Result<Vec<pb::Member>, Miss> {
        let request = pb::MemberListRequest { linearizable: true };
        let mut client = ClusterClient::new(self.channel.clone());
        Ok(client.member_list(request).await?.into_inner().members)
    }

    pub(super) async fn members(&self) -> Result<Reply, Miss> {
        let members = self.list_members().await?;
        let (learners, voters): (Vec<_>, Vec<_>) =
            members.into_iter().partition(|member| member.is_learner);
        let names = |members: Vec<pb::Member>| members.into_iter().map(|member| member.name);
        let (voters, learners) = (names(voters).collect(), names(learners).collect());
        Ok(Reply::Members { voters, learners, joint: false })
    }

    /// If the member leads, asks it to transfer leadership. Tries each of the other members in turn.
    pub(super) async fn transfer(&self) -> Result<Reply, Miss> {
        static TURN: AtomicUsize = AtomicUsize::new(0);
        let status = self.maintenance().status(pb::StatusRequest {}).await?.into_inner();
        let own = status.header.map_or(0, |header| header.member_id);
        let others: Vec<u64> = (self.list_members().await?.iter())
            .filter(|member| member.id != own && !member.is_learner)
            .map(|member| member.id)
            .collect();
        let turn = TURN.fetch_add(1, Ordering::Relaxed);
        let Some(target_id) = others.get(turn % others.len().max(1)).copied() else {
            return Err(Miss::Refused("no other member".to_owned()));
        };
        self.maintenance().move_leader(pb::MoveLeaderRequest { target_id }).await?;
        Ok(Reply::Done { revision: 0 })
    }

    /// Writes a snapshot to a file as clients of etcd do, followed by the hash.
    pub(super) async fn back_up(&self, file: &str) -> Result<Reply, Miss> {
        let mut parts = self.maintenance().snapshot(pb::SnapshotRequest {}).await?.into_inner();
        let mut bytes = Vec::new();
        while let Some(part) = parts.message().await? {
            bytes.extend_from_slice(&part.blob);
        }
        let failed = |error: std::io::Error| Miss::Refused(format!("cannot write {file}: {error}"));
        std::fs::write(file, bytes).map_err(failed)?;
        Ok(Reply::Done { revision: 0 })
    }
}
