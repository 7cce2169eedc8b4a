//! `bowline alarm`: what is wrong with the cluster's room or its copies.

use clap::{Args, Subcommand};

use super::connect::{Client, Effect, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use crate::generated::etcdserverpb as pb;
use pb::alarm_request::AlarmAction;

/// See alarms, and end them
#[derive(Args, Debug)]
pub(crate) struct AlarmOptions {
    #[command(subcommand)]
    command: AlarmCommand,
}

#[derive(Subcommand, Debug)]
enum AlarmCommand {
    /// List the alarms that were raised for the cluster (NOSPACE, CORRUPT), and what is wrong with the server that is asked
    #[command(after_long_help = EXIT_CODES)]
    List,
    /// End all alarms that are listed; what Bowline finds wrong by itself ends by itself, and comes back while it is so
    #[command(after_long_help = EXIT_CODES)]
    Disarm,
}

/// The command.
pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: AlarmOptions,
) -> Result<(), Failure> {
    let ask = async |effect, action: AlarmAction, alarm: &pb::AlarmMember| {
        let pb::AlarmMember { member_id, alarm } = *alarm;
        let request = pb::AlarmRequest { action: action.into(), member_id, alarm };
        client.ask(effect, async |link: Link| link.maintenance().alarm(request).await).await
    };
    let all = pb::AlarmMember::default();
    let mut listed = ask(Effect::Repeatable, AlarmAction::Get, &all).await?;
    if let AlarmCommand::Disarm = options.command {
        let mut ended = Vec::new();
        for alarm in &listed.alarms {
            let answer = ask(Effect::Settled, AlarmAction::Deactivate, alarm).await?;
            listed.header = answer.header;
            ended.extend(answer.alarms);
        }
        listed.alarms = ended;
    }
    output.show(&listed)
}
