//! `bowline role`: lists and changes roles.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use bytes::Bytes;
use clap::{Args, Subcommand, ValueEnum};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::users::{Done, Names, Role};
use super::range::Keys;
use bowline_proto::authpb::Permission;
use bowline_proto::authpb::permission::Type;
use bowline_proto::etcdserverpb as pb;

/// List and change roles
#[derive(Args, Debug)]
pub(crate) struct RoleOptions {
    #[command(subcommand)]
    command: RoleCommand,
}

#[derive(Subcommand, Debug)]
enum RoleCommand {
    /// Add a role without permissions
    #[command(after_long_help = EXIT_CODES)]
    Add {
        /// Name of the role
        name: String,
    },
    /// Delete a role
    #[command(after_long_help = EXIT_CODES)]
    Delete {
        /// Name of the role
        name: String,
    },
    /// Show the permissions of a role
    #[command(after_long_help = EXIT_CODES)]
    Get {
        /// Name of the role
        name: String,
    },
    /// List the roles
    #[command(after_long_help = EXIT_CODES)]
    List,
    /// Grant a role access to keys
    #[command(after_long_help = EXIT_CODES)]
    GrantPermission {
        /// Name of the role
        role: String,
        /// Kind of access
        #[arg(value_enum, ignore_case = true)]
        kind: Kind,
        #[command(flatten)]
        keys: Keys,
    },
    /// Revoke access that was granted for exactly the same key or range
    #[command(after_long_help = EXIT_CODES)]
    RevokePermission {
        /// Name of the role
        role: String,
        #[command(flatten)]
        keys: Keys,
    },
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Kind {
    Read,
    Write,
    Readwrite,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: RoleOptions,
) -> Result<(), Failure> {
    let (words, header) = match options.command {
        RoleCommand::Add { name } => {
            let words = format!("Role {name} created");
            let request = pb::AuthRoleAddRequest { name };
            let call = async |link: Link| link.auth().role_add(request.clone()).await;
            (words, client.ask(CallKind::Change, call).await?.header)
        }
        RoleCommand::Delete { name } => {
            let words = format!("Role {name} deleted");
            let request = pb::AuthRoleDeleteRequest { role: name };
            let call = async |link: Link| link.auth().role_delete(request.clone()).await;
            (words, client.ask(CallKind::Change, call).await?.header)
        }
        RoleCommand::Get { name } => return output.show(&get(client, name).await?),
        RoleCommand::List => {
            let call = async |link: Link| link.auth().role_list(pb::AuthRoleListRequest {}).await;
            let answer = client.ask(CallKind::Repeatable, call).await?;
            let (header, names) = (answer.header, answer.roles);
            return output.show(&Names { header, what: "roles", names });
        }
        RoleCommand::GrantPermission { role, kind, keys } => {
            let (key, range_end) = keys.range()?;
            let kind = match kind {
                Kind::Read => Type::Read,
                Kind::Write => Type::Write,
                Kind::Readwrite => Type::Readwrite,
            };
            let perm =
                Permission { perm_type: kind.into(), key: key.into(), range_end: range_end.into() };
            let words = format!("Role {role} updated");
            let request = pb::AuthRoleGrantPermissionRequest { name: role, perm: Some(perm) };
            let call = async |link: Link| link.auth().role_grant_permission(request.clone()).await;
            (words, client.ask(CallKind::Change, call).await?.header)
        }
        RoleCommand::RevokePermission { role, keys } => {
            let (key, range_end) = keys.range()?;
            let words = revoked(&role, &key, &range_end);
            let request = pb::AuthRoleRevokePermissionRequest { role, key, range_end };
            let call = async |link: Link| link.auth().role_revoke_permission(request.clone()).await;
            (words, client.ask(CallKind::Change, call).await?.header)
        }
    };
    output.show(&Done { words, header })
}

fn revoked(role: &str, key: &Bytes, end: &Bytes) -> String {
    let text = |bytes: &Bytes| OsString::from_vec(bytes.to_vec()).to_string_lossy().into_owned();
    let key = text(key);
    match &end[..] {
        b"" => format!("Permission of key {key} is revoked from role {role}"),
        b"\0" => format!("Permission of range [{key}, <open ended> is revoked from role {role}"),
        _ => format!("Permission of range [{key}, {}) is revoked from role {role}", text(end)),
    }
}

/// Returns the permissions of a role.
pub(crate) async fn get(client: &Client, name: String) -> Result<Role, Failure> {
    let request = pb::AuthRoleGetRequest { role: name.clone() };
    let call = async |link: Link| link.auth().role_get(request.clone()).await;
    Ok(Role { name, answer: client.ask(CallKind::Repeatable, call).await? })
}
