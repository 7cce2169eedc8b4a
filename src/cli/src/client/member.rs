//! `bowline member`: who belongs to the cluster.

use clap::{Args, Subcommand};

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::cluster::MemberDone;
use super::quote;
use crate::generated::etcdserverpb as pb;

/// See and change who belongs to the cluster
#[derive(Args, Debug)]
pub(crate) struct MemberOptions {
    #[command(subcommand)]
    command: MemberCommand,
}

impl MemberOptions {
    /// Whether what it prints can be a table.
    pub(crate) fn has_table(&self) -> bool {
        matches!(self.command, MemberCommand::List { .. })
    }
}

#[derive(Subcommand, Debug)]
enum MemberCommand {
    /// List the members: id, status, name, addresses for members, for clients, whether it is a learner
    #[command(after_long_help = EXIT_CODES)]
    List {
        /// l: as the majority knows it; s: as the server that is asked does
        #[arg(long, value_name = "l|s", default_value = "l", value_parser = ["l", "s"])]
        consistency: String,
    },
    /// Add a member, which is then to be started
    #[command(after_long_help = EXIT_CODES)]
    Add {
        /// How it will be called
        name: String,
        /// Where the others will reach it, separated by commas
        #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
        /// Without a vote, until it is promoted
        #[arg(long)]
        learner: bool,
    },
    /// Remove a member for ever
    #[command(after_long_help = EXIT_CODES)]
    Remove {
        /// In hexadecimal, as `bowline member list` shows it
        #[arg(value_name = "MEMBER", value_parser = member_id)]
        id: u64,
    },
    /// Say where a member is reached by the others now
    #[command(after_long_help = EXIT_CODES)]
    Update {
        /// In hexadecimal
        #[arg(value_name = "MEMBER", value_parser = member_id)]
        id: u64,
        /// Where the others reach it, separated by commas
        #[arg(long, value_name = "URLS", value_delimiter = ',', required = true)]
        peer_urls: Vec<String>,
    },
    /// Give a learner its vote
    #[command(after_long_help = EXIT_CODES)]
    Promote {
        /// In hexadecimal
        #[arg(value_name = "MEMBER", value_parser = member_id)]
        id: u64,
    },
}

/// The command.
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
            let answer = client.ask(Effect::Change, call).await?;
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
            let answer = client.ask(Effect::Change, call).await?;
            done(id, "removed from", answer.header, answer.members)
        }
        MemberCommand::Update { id, peer_urls } => {
            let request = pb::MemberUpdateRequest { id, peer_ur_ls: peer_urls };
            let call = async |link: Link| link.cluster().member_update(request.clone()).await;
            let answer = client.ask(Effect::Change, call).await?;
            done(id, "updated in", answer.header, answer.members)
        }
        MemberCommand::Promote { id } => {
            let request = pb::MemberPromoteRequest { id };
            let call = async |link: Link| link.cluster().member_promote(request).await;
            let answer = client.ask(Effect::Change, call).await?;
            done(id, "promoted in", answer.header, answer.members)
        }
    };
    output.show(&done)
}

/// The members.
pub(crate) async fn members(
    client: &Client,
    linearizable: bool,
) -> Result<pb::MemberListResponse, Failure> {
    let request = pb::MemberListRequest { linearizable };
    let call = async |link: Link| link.cluster().member_list(request).await;
    client.ask(Effect::Repeatable, call).await
}

fn done(
    id: u64,
    what: &'static str,
    header: Option<pb::ResponseHeader>,
    members: Vec<pb::Member>,
) -> MemberDone {
    MemberDone { id, what, header, member: None, members, more: String::new() }
}

/// What the new member is to be started with.
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

/// A member's id as everybody writes it.
pub(crate) fn member_id(text: &str) -> Result<u64, String> {
    u64::from_str_radix(text, 16).map_err(|_| {
        "a member's id is meant, in hexadecimal, as `bowline member list` shows it".to_owned()
    })
}
