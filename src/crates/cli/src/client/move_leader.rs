//! `bowline move-leader`: transfers leadership to another member.

use clap::Args;

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::member::member_id;
use super::print::Output;
use super::print::users::Done;
use bowline_proto::etcdserverpb as pb;

/// Transfer leadership to another member
///
/// Finds the current leader among the --endpoints.
#[derive(Args, Debug)]
#[command(after_long_help = EXIT_CODES)]
pub(crate) struct MoveLeaderOptions {
    /// Id of the new leader in hexadecimal, as printed by `bowline member list`
    #[arg(value_name = "MEMBER", value_parser = member_id)]
    target: u64,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: MoveLeaderOptions,
) -> Result<(), Failure> {
    let mut last = None;
    for endpoint in &client.settings.endpoints {
        let one = client.of_one(endpoint);
        let call = async |link: Link| link.maintenance().status(pb::StatusRequest {}).await;
        let status = match one.ask(CallKind::Repeatable, call).await {
            Ok(status) => status,
            Err(failure) => {
                last = Some(failure);
                continue;
            }
        };
        let member = status.header.map(|header| header.member_id).unwrap_or_default();
        if status.leader != member {
            continue;
        }
        let request = pb::MoveLeaderRequest { target_id: options.target };
        let call = async |link: Link| link.maintenance().move_leader(request).await;
        let answer = one.ask(CallKind::Change, call).await?;
        let words = format!("Leadership transferred from {member:x} to {:x}", options.target);
        return output.show(&Done { words, header: answer.header });
    }
    Err(last.unwrap_or_else(|| {
        let asked = client.settings.endpoints.join(", ");
        Failure::Failed(format!("none of {asked} is the leader: pass the leader with --endpoints"))
    }))
}
