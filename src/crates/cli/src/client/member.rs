//! `bowline member`: lists and changes the members of the cluster.

use clap::{Args, Subcommand};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::cluster::MemberDone;
use super::quote;
use bowline_proto::etcdserverpb as pb;

/// List and change cluster members
#[derive(Args, Debug)]
pub(crate) struct MemberOptions {
    #[command(subcommand)]
    command: MemberCommand,
}

impl MemberOptions {
    /// Returns whether the output can be a table.
    pub(crate) fn has_table(&self) -> bool {
        matches!(self.command, MemberCommand::List { .. })
    }
}

#[derive(Subcommand, Debug)]
enum MemberCommand {
    /// List members: id, status, name, peer URLs, client URLs, whether it is a learner
    #[command(after_long_help = EXIT_CODES)]
    List {
        /// Consistency: l (confirmed by a majority) or s (may be outdated: the contacted server's own view)
        #[arg(long, value_name = "l|s", default_value = "l", value_parser = ["l", "s"])]
        consistency: String,
    },
    /// Add a member (start its server afterwards)
    #[command(after_long_help = EXIT_CODES)]
    Add {
        /// Name of the new member
        name: String,
        /// Comma-separated URLs at which the other members will reach the new member
        #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
        /// Add the member as a non-voting learner
        #[arg(long)]
        learner: bool,
    },
    /// Remove a member permanently
    #[command(after_long_help = EXIT_CODES)]
    Remove {
        /// Member id in hexadecimal, as printed by `bowline member list`
        #[arg(value_name = "MEMBER", value_parser = member_id)]
        id: u64,
    },
    /// Update a member's peer URLs
    #[command(after_long_help = EXIT_CODES)]
    Update {
        /// Member id in hexadecimal
        #[arg(value_name = "MEMBER", value_parser = member_id)]
        id: u64,
        /// Comma-separated new URLs at which the other members reach this member
        #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
    },
    /// Promote a learner to a voting member
    #[command(after_long_help = EXIT_CODES)]
    Promote {
        /// Member id in hexadecimal
        #[arg(value_name = "MEMBER", value_parser = member_id)]
        id: u64,
    },
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: MemberOptions,
) -> Result<(), Failure> {
    let done = match options.command {
        MemberCommand::List { consistency } => {
            return output.show(&members(client, consistency == "l").await?);
        }
        MemberCommand::Add { name, peer_urls, learner } => {
            let request =
                pb::MemberAddRequest { peer_ur_ls: peer_urls.clone(), is_learner: learner };
            let call = async |link: Link| link.cluster().member_add(request.clone()).await;
            let answer = client.ask(CallKind::Change, call).await?;
            let id = answer.member.as_ref().map(|member| member.id).unwrap_or_default();
            let more = environment(&name, id, &peer_urls, &answer.members);
            let pb::MemberAddResponse { header, member, members } = answer;
            let is_learner = member.as_ref().is_some_and(|member| member.is_learner);
            let what = if is_learner { "added as learner to" } else { "added to" };
            MemberDone { id, what, header, member, members, more }
        }
        MemberCommand::Remove { id } => {
            let request = pb::MemberRemoveRequest { id };
            let call = async |link: Link| link.cluster().member_remove(request).await;
            let answer = client.ask(CallKind::Change, call).await?;
            done(id, "removed from", answer.header, answer.members)
        }
        MemberCommand::Update { id, peer_urls } => {
            let request = pb::MemberUpdateRequest { id, peer_ur_ls: peer_urls };
            let call = async |link: Link| link.cluster().member_update(request.clone()).await;
            let answer = client.ask(CallKind::Change, call).await?;
            done(id, "updated in", answer.header, answer.members)
        }
        MemberCommand::Promote { id } => {
            let request = pb::MemberPromoteRequest { id };
            let call = async |link: Link| link.cluster().member_promote(request).await;
            let answer = client.ask(CallKind::Change, call).await?;
            done(id, "promoted in", answer.header, answer.members)
        }
    };
    output.show(&done)
}

pub(crate) async fn members(
    client: &Client,
    linearizable: bool,
) -> Result<pb::MemberListResponse, Failure> {
    let request = pb::MemberListRequest { linearizable };
    let call = async |link: Link| link.cluster().member_list(request).await;
    client.ask(CallKind::Repeatable, call).await
}

fn done(
    id: u64,
    what: &'static str,
    header: Option<pb::ResponseHeader>,
    members: Vec<pb::Member>,
) -> MemberDone {
    MemberDone { id, what, header, member: None, members, more: String::new() }
}

/// Returns the environment variables for starting the new member.
fn environment(name: &str, id: u64, urls: &[String], members: &[pb::Member]) -> String {
    let entries = members.iter().flat_map(|member| {
        let name = if member.id == id { name } else { member.name.as_str() };
        member.peer_ur_ls.iter().map(move |url| format!("{name}={url}"))
    });
    let quoted = |text: &str| quote::go(text.as_bytes());
    format!(
        "\nETCD_NAME={}\nETCD_INITIAL_CLUSTER={}\nETCD_INITIAL_ADVERTISE_PEER_URLS={}\n\
         ETCD_INITIAL_CLUSTER_STATE=\"existing\"",
        quoted(name),
        quoted(&entries.collect::<Vec<_>>().join(",")),
        quoted(&urls.join(",")),
    )
}

/// Parses a member id in hexadecimal.
pub(crate) fn member_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| {
        "expected a member ID in hexadecimal, as printed by `bowline member list`".to_owned()
    })
}
