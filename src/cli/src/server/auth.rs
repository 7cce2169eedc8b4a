//! `etcdserverpb.Auth`: there are no users and no roles yet, and this service says so. What clients ask to find out
//! whether there are any is answered.

use std::sync::Arc;

use tonic::{Request, Response, Status};

use super::member::Member;
use super::wire::Reason;
use crate::generated::etcdserverpb as pb;
use crate::generated::etcdserverpb::auth_server::Auth;

/// The service.
#[derive(Clone)]
pub(super) struct AuthService(pub(super) Arc<Member>);

fn not_yet<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented(
        "bowline: users and roles are not offered yet: let only those reach it who may do everything",
    ))
}

/// Methods that are not there yet.
macro_rules! not_yet {
    ($($method:ident: $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Auth for AuthService {
            async fn auth_status(
                &self,
                _: Request<pb::AuthStatusRequest>,
            ) -> Result<Response<pb::AuthStatusResponse>, Status> {
                let (header, enabled) = (self.0.header_now(), false);
                Ok(Response::new(pb::AuthStatusResponse { header, enabled, auth_revision: 1 }))
            }

            async fn authenticate(
                &self,
                _: Request<pb::AuthenticateRequest>,
            ) -> Result<Response<pb::AuthenticateResponse>, Status> {
                Err(Reason::AuthNotEnabled.into())
            }

            /// It is off, so that there is nothing to do.
            async fn auth_disable(
                &self,
                _: Request<pb::AuthDisableRequest>,
            ) -> Result<Response<pb::AuthDisableResponse>, Status> {
                Ok(Response::new(pb::AuthDisableResponse { header: self.0.header_now() }))
            }

            $(async fn $method(
                &self,
                _: Request<pb::$request>,
            ) -> Result<Response<pb::$response>, Status> {
                not_yet()
            })*
        }
    };
}

not_yet! {
    auth_enable: AuthEnableRequest => AuthEnableResponse;
    user_add: AuthUserAddRequest => AuthUserAddResponse;
    user_get: AuthUserGetRequest => AuthUserGetResponse;
    user_list: AuthUserListRequest => AuthUserListResponse;
    user_delete: AuthUserDeleteRequest => AuthUserDeleteResponse;
    user_change_password: AuthUserChangePasswordRequest => AuthUserChangePasswordResponse;
    user_grant_role: AuthUserGrantRoleRequest => AuthUserGrantRoleResponse;
    user_revoke_role: AuthUserRevokeRoleRequest => AuthUserRevokeRoleResponse;
    role_add: AuthRoleAddRequest => AuthRoleAddResponse;
    role_get: AuthRoleGetRequest => AuthRoleGetResponse;
    role_list: AuthRoleListRequest => AuthRoleListResponse;
    role_delete: AuthRoleDeleteRequest => AuthRoleDeleteResponse;
    role_grant_permission: AuthRoleGrantPermissionRequest => AuthRoleGrantPermissionResponse;
    role_revoke_permission: AuthRoleRevokePermissionRequest => AuthRoleRevokePermissionResponse;
}
