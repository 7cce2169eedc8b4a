//! `bowline auth`: turns authentication on and off.

use clap::{Args, Subcommand};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::users::Asks;
use bowline_proto::etcdserverpb as pb;

/// Name of the administrator, and of the role that the administrator must have.
const ROOT: &str = "root";

/// Turn authentication on or off
#[derive(Args, Debug)]
pub(crate) struct AuthOptions {
    #[command(subcommand)]
    command: AuthCommand,
}

#[derive(Subcommand, Debug)]
enum AuthCommand {
    /// Require authentication (a user `root` must exist and is granted the role `root`)
    #[command(after_long_help = EXIT_CODES)]
    Enable,
    /// Stop requiring authentication
    #[command(after_long_help = EXIT_CODES)]
    Disable,
    /// Show whether authentication is on
    #[command(after_long_help = EXIT_CODES)]
    Status,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: AuthOptions,
) -> Result<(), Failure> {
    match options.command {
        AuthCommand::Enable => {
            let enable = async |link: Link| link.auth().auth_enable(pb::AuthEnableRequest {}).await;
            match client.ask(CallKind::Settled, enable).await {
                Err(Failure::Refused(status)) if lacks_role(&status) => {
                    give_root(client).await?;
                    client.ask(CallKind::Settled, enable).await?
                }
                answer => answer?,
            };
            output.say("Authentication Enabled")
        }
        AuthCommand::Disable => {
            let call = async |link: Link| link.auth().auth_disable(pb::AuthDisableRequest {}).await;
            client.ask(CallKind::Settled, call).await?;
            output.say("Authentication Disabled")
        }
        AuthCommand::Status => {
            let call = async |link: Link| link.auth().auth_status(pb::AuthStatusRequest {}).await;
            let answer = client.ask(CallKind::Repeatable, call).await?;
            output.show(&Asks(answer))
        }
    }
}

fn lacks_role(status: &tonic::Status) -> bool {
    status.message().contains("root user does not have root role")
}

async fn give_root(client: &Client) -> Result<(), Failure> {
    let role = pb::AuthRoleAddRequest { name: ROOT.to_owned() };
    let call = async |link: Link| link.auth().role_add(role.clone()).await;
    match client.ask(CallKind::Settled, call).await {
        Err(Failure::Refused(status)) if status.message().contains("already exists") => {}
        answer => drop(answer?),
    }
    let grant = pb::AuthUserGrantRoleRequest { user: ROOT.to_owned(), role: ROOT.to_owned() };
    let call = async |link: Link| link.auth().user_grant_role(grant.clone()).await;
    client.ask(CallKind::Settled, call).await.map(drop)
}
