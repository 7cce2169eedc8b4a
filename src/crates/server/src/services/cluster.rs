//! `etcdserverpb.Cluster`: lists and changes the members.

use std::collections::BTreeSet;
use std::sync::Arc;

use bowline::{KeyRange, NodeId, cluster::MemberRole};
use tonic::{Request, Response, Status};

use crate::member::Member;
use crate::wire::{Reason, refused};
use bowline_proto::etcdserverpb as pb;
use bowline_proto::etcdserverpb::cluster_server::Cluster;

#[derive(Clone)]
pub(crate) struct ClusterService(pub(crate) Arc<Member>);

impl ClusterService {
    /// Returns all members as this replica knows them.
    fn members(&self) -> Vec<pb::Member> {
        let scheme = self.0.settings().peer_scheme();
        let members = self.0.node().members();
        let members = members.rows().iter().map(|(id, member)| pb::Member {
            id: id.get(),
            client_ur_ls: member.endpoints.clone(),
            peer_ur_ls: urls(scheme, member.destination()),
            is_learner: member.role == MemberRole::Learner,
            name: member.name.clone(),
        });
        members.collect()
    }

    /// Rejects a learner beyond `--max-learners`. A future voter does not count.
    fn check_learners(&self) -> Result<(), Status> {
        let members = self.0.node().members();
        let stays = |member: &&bowline::cluster::Member| {
            member.role == MemberRole::Learner && member.replaces.is_none()
        };
        let count = members.rows().values().filter(stays).count();
        match self.0.settings().learners.max {
            Some(most) if count >= most => Err(Reason::TooManyLearners.into()),
            _ => Ok(()),
        }
    }

    /// Returns a header without a revision, as etcd does.
    fn header(&self) -> Option<pb::ResponseHeader> {
        self.0.header(bowline::Revision(0))
    }
}

fn known(id: u64) -> Result<NodeId, Status> {
    NodeId::new(id).ok_or_else(|| Reason::MemberNotFound.into())
}

/// The peer addresses of a member.
struct Place {
    /// `http://` or `https://`, the same for all URLs.
    scheme: &'static str,
    /// Comma-separated, as the library expects them.
    addresses: String,
}

/// Extracts the addresses from the URLs of a member.
fn place(urls: &[String]) -> Result<Place, Status> {
    let (mut scheme, mut addresses) = (None, BTreeSet::new());
    for url in urls {
        let known = ["http://", "https://"].into_iter();
        let mut found = known.filter_map(|scheme| Some((scheme, url.strip_prefix(scheme)?)));
        let (own, address) = found.next_back().ok_or(Reason::BadUrls)?;
        if scheme.is_some_and(|scheme| scheme != own) {
            return Err(Reason::BadUrls.into());
        }
        scheme = Some(own);
        addresses.insert(address.trim_end_matches('/'));
    }
    let addresses = addresses.into_iter().collect::<Vec<_>>().join(",");
    Ok(Place { scheme: scheme.ok_or(Reason::BadUrls)?, addresses })
}

/// Converts addresses in the library's form to URLs.
fn urls(scheme: &str, addresses: &str) -> Vec<String> {
    addresses.split(',').map(|address| format!("{scheme}{address}")).collect()
}

/// Rejects a URL with another scheme than the cluster's. Whether members encrypt their connections is set by their own
/// flags, the same for all. Without this check, a request for encryption would succeed and change nothing.
fn check_scheme(place: &Place, cluster: &str) -> Result<(), Status> {
    if place.scheme != cluster && cluster == "http://" {
        return Err(Status::failed_precondition(
            "the members of this cluster use http://: to move to https://, restart each member with certificates, \
             https:// URLs and --peer-tls-migration, and then again without that flag \
             (docs/operating/certificates.md)",
        ));
    }
    Ok(())
}

#[tonic::async_trait]
impl Cluster for ClusterService {
    async fn member_list(
        &self,
        request: Request<pb::MemberListRequest>,
    ) -> Result<Response<pb::MemberListResponse>, Status> {
        if request.into_inner().linearizable {
            let read = self.0.client().range(KeyRange::key("\0")).count_only();
            read.await.map_err(refused)?;
        }
        let (header, members) = (self.header(), self.members());
        Ok(Response::new(pb::MemberListResponse { header, members }))
    }

    /// Reserves a member for the server that will join with this URL. It gets its vote only after it has joined and
    /// caught up.
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        self.0.administered_by(&request).await?;
        let pb::MemberAddRequest { peer_ur_ls: urls, is_learner } = request.into_inner();
        let place = place(&urls)?;
        check_scheme(&place, self.0.settings().peer_scheme())?;
        let wanted = |address: &str| place.addresses.split(',').any(|one| one == address);
        let taken = |member: &bowline::cluster::Member| {
            let known = [&*member.address, member.destination()].into_iter();
            known.flat_map(|list| list.split(',')).any(wanted)
        };
        if self.0.node().members().rows().values().any(taken) {
            return Err(Reason::UrlsTaken.into());
        }
        if is_learner {
            self.check_learners()?;
        }
        let role = if is_learner { MemberRole::Learner } else { MemberRole::Voter };
        let id = self.0.node().reserve_member(&place.addresses, role).await.map_err(refused)?;
        let (header, members) = (self.header(), self.members());
        // The response describes the role that the member will get, because `etcdctl member add` prints that role. The
        // member list contains the current role.
        let member = members.iter().find(|member| member.id == id.get());
        let member = member.map(|member| pb::Member { is_learner, ..member.clone() });
        Ok(Response::new(pb::MemberAddResponse { header, member, members }))
    }

    async fn member_remove(
        &self,
        request: Request<pb::MemberRemoveRequest>,
    ) -> Result<Response<pb::MemberRemoveResponse>, Status> {
        self.0.administered_by(&request).await?;
        let id = known(request.into_inner().id)?;
        if self.members().iter().all(|member| member.id != id.get()) {
            return Err(Reason::MemberNotFound.into());
        }
        self.0.node().remove_member(id).await.map_err(refused)?;
        let (header, members) = (self.header(), self.members());
        Ok(Response::new(pb::MemberRemoveResponse { header, members }))
    }

    /// Updates the address at which a member will be reached; the others try the new address in addition.
    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.0.administered_by(&request).await?;
        let pb::MemberUpdateRequest { id, peer_ur_ls: urls } = request.into_inner();
        let (id, place) = (known(id)?, place(&urls)?);
        let scheme = self.0.settings().peer_scheme();
        check_scheme(&place, scheme)?;
        let members = self.0.node().members();
        let known = members.get(id).map(bowline::cluster::Member::destination);
        if place.scheme != scheme && known == Some(&*place.addresses) {
            return Err(Status::failed_precondition(
                "the members of this cluster use https://, which cannot be changed to http:// member by member",
            ));
        }
        self.0.node().move_member(id, place.addresses).await.map_err(refused)?;
        let (header, members) = (self.header(), self.members());
        Ok(Response::new(pb::MemberUpdateResponse { header, members }))
    }

    async fn member_promote(
        &self,
        request: Request<pb::MemberPromoteRequest>,
    ) -> Result<Response<pb::MemberPromoteResponse>, Status> {
        self.0.administered_by(&request).await?;
        let id = known(request.into_inner().id)?;
        let members = self.members();
        let member = members.iter().find(|member| member.id == id.get());
        let member = member.ok_or(Reason::MemberNotFound)?;
        if !member.is_learner {
            return Err(Reason::NotLearner.into());
        }
        self.0.node().promote(id).await.map_err(refused)?;
        let (header, members) = (self.header(), self.members());
        Ok(Response::new(pb::MemberPromoteResponse { header, members }))
    }
}
