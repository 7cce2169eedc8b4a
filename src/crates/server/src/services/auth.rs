//! `etcdserverpb.Auth`: users, roles and logins. The permission to change users and roles is checked when the change
//! is applied.

use std::sync::Arc;

use bowline::{
    auth::{Access, AccessChange, AccessGrant, AuthError, ROOT, Rights, Secret, UserClient},
    kv::RangeEnd,
};
use tonic::{Request, Response, Status};

use crate::identity::Identity;
use crate::member::Member;
use crate::services::password::Passwords;
use crate::wire::{Reason, access_refused, key_range, refused};
use authpb::permission::Type;
use bowline_proto::authpb;
use bowline_proto::etcdserverpb as pb;
use bowline_proto::etcdserverpb::auth_server::Auth;

/// Length of the key that signs tokens, in bytes.
const KEY_BYTES: usize = 32;

#[derive(Clone)]
pub(crate) struct AuthService {
    pub(crate) member: Arc<Member>,
    pub(crate) passwords: Arc<Passwords>,
}

impl AuthService {
    async fn change(
        &self,
        who: &Identity,
        change: AccessChange,
    ) -> Result<Option<pb::ResponseHeader>, Status> {
        let ask = |client: UserClient| {
            let change = change.clone();
            async move { client.change_access(change).await }
        };
        let revision = self.member.retry_while_outdated(who, ask).await?;
        Ok(self.member.header(revision))
    }

    /// Returns users and roles, if the caller may see them according to the same table. The table against which the
    /// request's headers were checked may be older, and the caller's token may have expired since then.
    async fn table(
        &self,
        who: &Identity,
        also: impl Fn(&Access) -> bool,
    ) -> Result<(Option<pb::ResponseHeader>, Arc<Access>), Status> {
        let (header, access) = self.current().await?;
        let who = who.again(&access, self.member.tokens())?;
        match access.is_root(&who.caller()) {
            Err(AuthError::Denied) if also(&access) => {}
            checked => checked.map_err(access_refused)?,
        }
        Ok((header, access))
    }

    /// Returns users and roles, and a response header whose revision is not newer than the table. The header is
    /// created first, so the table contains every change before the header's revision.
    async fn current(&self) -> Result<(Option<pb::ResponseHeader>, Arc<Access>), Status> {
        self.member.client().read_access().await.map_err(refused)?;
        let header = self.member.header_now();
        Ok((header, self.member.client().access()))
    }

    /// Returns the hash to store for a password in a request. As in etcd, an empty password gets an empty hash, with
    /// which no login succeeds.
    async fn secret(&self, password: String, hashed: &str) -> Result<Secret, Status> {
        if !hashed.is_empty() {
            let hash = base64(hashed).ok_or(Reason::AuthFailed)?;
            return self.passwords.accept_hash(hash);
        }
        match password.is_empty() {
            true => Ok(Secret::default()),
            false => self.passwords.hash(password).await,
        }
    }
}

fn base64(text: &str) -> Option<Vec<u8>> {
    use base64::prelude::{BASE64_STANDARD, Engine as _};
    BASE64_STANDARD.decode(text).ok()
}

/// Converts a grant. A permission for a single key has no end.
fn permission(grant: &AccessGrant) -> authpb::Permission {
    let perm_type = match grant.rights {
        Rights::Read => Type::Read,
        Rights::Write => Type::Write,
        Rights::ReadWrite => Type::Readwrite,
    };
    let range_end = match grant.range.end() {
        RangeEnd::Single => Vec::new(),
        RangeEnd::Before(end) => end.to_vec(),
        RangeEnd::Unbounded => vec![0],
    };
    authpb::Permission { perm_type: perm_type.into(), key: grant.range.start().to_vec(), range_end }
}

/// The permission of the role `root`.
fn everything() -> authpb::Permission {
    let perm_type = Type::Readwrite.into();
    authpb::Permission { perm_type, key: Vec::new(), range_end: vec![0] }
}

fn named(name: String, empty: Reason) -> Result<String, Status> {
    if name.is_empty() { Err(empty.into()) } else { Ok(name) }
}

#[tonic::async_trait]
impl Auth for AuthService {
    async fn auth_enable(
        &self,
        request: Request<pb::AuthEnableRequest>,
    ) -> Result<Response<pb::AuthEnableResponse>, Status> {
        let mut key = vec![0; KEY_BYTES];
        ring::rand::SecureRandom::fill(&ring::rand::SystemRandom::new(), &mut key).map_err(
            |_| Status::internal("bowline: the operating system provides no random numbers"),
        )?;
        let change = AccessChange::Enable { secret: Secret::new(key) };
        let header = self.change(&Identity::in_request(&request), change).await?;
        Ok(Response::new(pb::AuthEnableResponse { header }))
    }

    async fn auth_disable(
        &self,
        request: Request<pb::AuthDisableRequest>,
    ) -> Result<Response<pb::AuthDisableResponse>, Status> {
        let header = self.change(&Identity::in_request(&request), AccessChange::Disable).await?;
        Ok(Response::new(pb::AuthDisableResponse { header }))
    }

    async fn auth_status(
        &self,
        _: Request<pb::AuthStatusRequest>,
    ) -> Result<Response<pb::AuthStatusResponse>, Status> {
        let (header, access) = self.current().await?;
        let (enabled, auth_revision) = (access.is_enabled(), access.revision());
        Ok(Response::new(pb::AuthStatusResponse { header, enabled, auth_revision }))
    }

    async fn authenticate(
        &self,
        request: Request<pb::AuthenticateRequest>,
    ) -> Result<Response<pb::AuthenticateResponse>, Status> {
        let pb::AuthenticateRequest { name, password } = request.into_inner();
        let (header, access) = self.current().await?;
        if !access.is_enabled() {
            return Err(Reason::AuthNotEnabled.into());
        }
        let hash = access.users().get(&name).and_then(|user| user.password.clone());
        if !self.passwords.matches(password, hash.as_ref()).await? {
            return Err(Reason::AuthFailed.into());
        }
        // The token is made from the table against which the password was checked. If the table has changed since
        // then, the token is rejected when it is used.
        let token = self.member.tokens().make(&name, &access)?;
        Ok(Response::new(pb::AuthenticateResponse { header, token }))
    }

    async fn user_add(
        &self,
        request: Request<pb::AuthUserAddRequest>,
    ) -> Result<Response<pb::AuthUserAddResponse>, Status> {
        let who = Identity::in_request(&request);
        let pb::AuthUserAddRequest { name, password, options, hashed_password } =
            request.into_inner();
        let user = named(name, Reason::NoUser)?;
        let who = self.member.again_root(&who)?;
        let password = match options.is_some_and(|options| options.no_password) {
            true => None,
            false => Some(self.secret(password, &hashed_password).await?),
        };
        // The caller is identified again, because hashing may have taken long.
        let who = self.member.again_root(&who)?;
        let header = self.change(&who, AccessChange::AddUser { user, password }).await?;
        Ok(Response::new(pb::AuthUserAddResponse { header }))
    }

    async fn user_get(
        &self,
        request: Request<pb::AuthUserGetRequest>,
    ) -> Result<Response<pb::AuthUserGetResponse>, Status> {
        let who = Identity::in_request(&request);
        let name = request.into_inner().name;
        let (header, access) = self.table(&who, |_| who.user() == Some(&name)).await?;
        let user = access.users().get(&name).ok_or(Reason::UserNotFound)?;
        let roles = user.roles.iter().cloned().collect();
        Ok(Response::new(pb::AuthUserGetResponse { header, roles }))
    }

    async fn user_list(
        &self,
        request: Request<pb::AuthUserListRequest>,
    ) -> Result<Response<pb::AuthUserListResponse>, Status> {
        let (header, access) = self.table(&Identity::in_request(&request), |_| false).await?;
        let users = access.users().keys().cloned().collect();
        Ok(Response::new(pb::AuthUserListResponse { header, users }))
    }

    async fn user_delete(
        &self,
        request: Request<pb::AuthUserDeleteRequest>,
    ) -> Result<Response<pb::AuthUserDeleteResponse>, Status> {
        let who = Identity::in_request(&request);
        let change = AccessChange::DeleteUser(request.into_inner().name);
        let header = self.change(&who, change).await?;
        Ok(Response::new(pb::AuthUserDeleteResponse { header }))
    }

    async fn user_change_password(
        &self,
        request: Request<pb::AuthUserChangePasswordRequest>,
    ) -> Result<Response<pb::AuthUserChangePasswordResponse>, Status> {
        let who = Identity::in_request(&request);
        let pb::AuthUserChangePasswordRequest { name: user, password, hashed_password } =
            request.into_inner();
        let who = self.member.again_root(&who)?;
        let password = self.secret(password, &hashed_password).await?;
        // The caller is identified again, because hashing may have taken long.
        let who = self.member.again_root(&who)?;
        // As in etcd, a user who was created without a password logs in by certificate and cannot get a password.
        // Whether the user has a password is decided from a table at least as new as the revision against which the
        // change is checked.
        let ask = |client: UserClient| {
            let (user, password) = (user.clone(), password.clone());
            async move {
                let access = self.member.client().read_access().await?;
                let has_one = access.users().get(&user).is_none_or(|user| user.password.is_some());
                let password = has_one.then_some(password);
                client.change_access(AccessChange::SetPassword { user, password }).await
            }
        };
        let header = self.member.header(self.member.retry_while_outdated(&who, ask).await?);
        Ok(Response::new(pb::AuthUserChangePasswordResponse { header }))
    }

    async fn user_grant_role(
        &self,
        request: Request<pb::AuthUserGrantRoleRequest>,
    ) -> Result<Response<pb::AuthUserGrantRoleResponse>, Status> {
        let who = Identity::in_request(&request);
        let pb::AuthUserGrantRoleRequest { user, role } = request.into_inner();
        let header = self.change(&who, AccessChange::GrantRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserGrantRoleResponse { header }))
    }

    async fn user_revoke_role(
        &self,
        request: Request<pb::AuthUserRevokeRoleRequest>,
    ) -> Result<Response<pb::AuthUserRevokeRoleResponse>, Status> {
        let who = Identity::in_request(&request);
        let pb::AuthUserRevokeRoleRequest { name: user, role } = request.into_inner();
        let header = self.change(&who, AccessChange::RevokeRole { user, role }).await?;
        Ok(Response::new(pb::AuthUserRevokeRoleResponse { header }))
    }

    async fn role_add(
        &self,
        request: Request<pb::AuthRoleAddRequest>,
    ) -> Result<Response<pb::AuthRoleAddResponse>, Status> {
        let who = Identity::in_request(&request);
        let role = named(request.into_inner().name, Reason::NoRole)?;
        let header = self.change(&who, AccessChange::AddRole(role)).await?;
        Ok(Response::new(pb::AuthRoleAddResponse { header }))
    }

    async fn role_get(
        &self,
        request: Request<pb::AuthRoleGetRequest>,
    ) -> Result<Response<pb::AuthRoleGetResponse>, Status> {
        let who = Identity::in_request(&request);
        let name = request.into_inner().role;
        let has = |access: &Access| {
            let user = who.user().and_then(|user| access.users().get(user));
            user.is_some_and(|user| user.roles.contains(&name))
        };
        let (header, access) = self.table(&who, has).await?;
        let role = access.roles().get(&name).ok_or(Reason::RoleNotFound)?;
        let perm = match name == ROOT {
            true => vec![everything()],
            false => role.iter().map(permission).collect(),
        };
        Ok(Response::new(pb::AuthRoleGetResponse { header, perm }))
    }

    async fn role_list(
        &self,
        request: Request<pb::AuthRoleListRequest>,
    ) -> Result<Response<pb::AuthRoleListResponse>, Status> {
        let (header, access) = self.table(&Identity::in_request(&request), |_| false).await?;
        let roles = access.roles().keys().cloned().collect();
        Ok(Response::new(pb::AuthRoleListResponse { header, roles }))
    }

    async fn role_delete(
        &self,
        request: Request<pb::AuthRoleDeleteRequest>,
    ) -> Result<Response<pb::AuthRoleDeleteResponse>, Status> {
        let who = Identity::in_request(&request);
        let change = AccessChange::DeleteRole(request.into_inner().role);
        let header = self.change(&who, change).await?;
        Ok(Response::new(pb::AuthRoleDeleteResponse { header }))
    }

    async fn role_grant_permission(
        &self,
        request: Request<pb::AuthRoleGrantPermissionRequest>,
    ) -> Result<Response<pb::AuthRoleGrantPermissionResponse>, Status> {
        let who = Identity::in_request(&request);
        let pb::AuthRoleGrantPermissionRequest { name: role, perm } = request.into_inner();
        let perm = perm.ok_or(Reason::NoPermission)?;
        let rights = match Type::try_from(perm.perm_type) {
            Ok(Type::Read) => Rights::Read,
            Ok(Type::Write) => Rights::Write,
            Ok(Type::Readwrite) => Rights::ReadWrite,
            Err(_) => {
                return Err(Status::invalid_argument(format!(
                    "bowline: unknown permission type {}: use READ (0), WRITE (1) or READWRITE (2)",
                    perm.perm_type
                )));
            }
        };
        let grant =
            AccessGrant { range: key_range(perm.key.into(), perm.range_end.into()), rights };
        let header = self.change(&who, AccessChange::Grant { role, grant }).await?;
        Ok(Response::new(pb::AuthRoleGrantPermissionResponse { header }))
    }

    async fn role_revoke_permission(
        &self,
        request: Request<pb::AuthRoleRevokePermissionRequest>,
    ) -> Result<Response<pb::AuthRoleRevokePermissionResponse>, Status> {
        let who = Identity::in_request(&request);
        let pb::AuthRoleRevokePermissionRequest { role, key, range_end } = request.into_inner();
        let change = AccessChange::Revoke { role, range: key_range(key, range_end) };
        let header = self.change(&who, change).await?;
        Ok(Response::new(pb::AuthRoleRevokePermissionResponse { header }))
    }
}
