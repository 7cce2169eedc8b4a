//! `etcdserverpb.Cluster`: who the members are, and changes of them.

use std::sync::Arc;

use bowline::{KeyRange, MemberRole, NodeId};
use tonic::{Request, Response, Status};

use super::member::Member;
use super::wire::{Reason, refused};
use crate::generated::etcdserverpb as pb;
use crate::generated::etcdserverpb::cluster_server::Cluster;

/// The service.
#[derive(Clone)]
pub(super) struct ClusterService(pub(super) Arc<Member>);

impl ClusterService {
    /// All members as this replica has them.
    fn members(&self) -> Vec<pb::Member> {
        let scheme = self.0.options().peer_scheme();
        let members = self.0.node().members();
        let members = members.rows().iter().map(|(id, member)| pb::Member {
            id: id.get(),
            client_ur_ls: member.endpoints.clone(),
            peer_ur_ls: vec![format!("{scheme}{}", member.destination())],
            is_learner: member.role == MemberRole::Learner,
            name: member.name.clone(),
        });
        members.collect()
    }

    /// As etcd says it: without a revision.
    fn header(&self) -> Option<pb::ResponseHeader> {
        self.0.header(bowline::Revision(0))
    }
}

fn known(id: u64) -> Result<NodeId, Status> {
    NodeId::new(id).ok_or_else(|| Reason::MemberNotFound.into())
}

/// Where a member is to be reached.
#[derive(Clone, Copy)]
struct Place<'a> {
    /// `http://` or `https://`.
    scheme: &'a str,
    address: &'a str,
}

/// The address in the URL of a member: there is one.
fn place(urls: &[String]) -> Result<Place<'_>, Status> {
    let [url] = urls else { return Err(Reason::BadUrls.into()) };
    let place = ["http://", "https://"].iter().find_map(|scheme| {
        let address = url.strip_prefix(scheme)?.trim_end_matches('/');
        Some(Place { scheme, address })
    });
    place.ok_or_else(|| Reason::BadUrls.into())
}

/// Whether connections between members are encrypted is said by the members' own flags, the same for all. A URL that asks
/// for encryption where there is none would be answered with OK and change nothing of that.
fn check_scheme(place: Place<'_>, cluster: &str) -> Result<(), Status> {
    if place.scheme != cluster && cluster == "http://" {
        return Err(Status::failed_precondition(
            "the members of this cluster use http://: to move to https://, restart one after the other with certificates, \
             https:// in its URLs and --peer-tls-migration, and then again without that flag \
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

    /// Keeps a place for whoever joins with this URL: it does not vote before it is there and has caught up.
    async fn member_add(
        &self,
        request: Request<pb::MemberAddRequest>,
    ) -> Result<Response<pb::MemberAddResponse>, Status> {
        self.0.administered_by(&request).await?;
        let pb::MemberAddRequest { peer_ur_ls: urls, is_learner } = request.into_inner();
        let place = place(&urls)?;
        check_scheme(place, self.0.options().peer_scheme())?;
        let address = place.address;
        let taken =
            |member: &bowline::Member| [&*member.address, member.destination()].contains(&address);
        if self.0.node().members().rows().values().any(taken) {
            return Err(Reason::UrlsTaken.into());
        }
        let role = if is_learner { MemberRole::Learner } else { MemberRole::Voter };
        let id = self.0.node().keep_place(address, role).await.map_err(refused)?;
        let (header, members) = (self.header(), self.members());
        // Said of it is what it is to become, which is what `etcdctl member add` prints; the list says what it is.
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

    /// Where a member is going to be: it is looked for there too.
    async fn member_update(
        &self,
        request: Request<pb::MemberUpdateRequest>,
    ) -> Result<Response<pb::MemberUpdateResponse>, Status> {
        self.0.administered_by(&request).await?;
        let pb::MemberUpdateRequest { id, peer_ur_ls: urls } = request.into_inner();
        let (id, place) = (known(id)?, place(&urls)?);
        let scheme = self.0.options().peer_scheme();
        check_scheme(place, scheme)?;
        let members = self.0.node().members();
        let known = members.get(id).map(bowline::Member::destination);
        if place.scheme != scheme && known == Some(place.address) {
            return Err(Status::failed_precondition(
                "the members of this cluster use https://: they cannot be changed to http:// one after the other",
            ));
        }
        self.0.node().move_member(id, place.address).await.map_err(refused)?;
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
