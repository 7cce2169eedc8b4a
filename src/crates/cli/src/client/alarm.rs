//! `bowline alarm`: lists and clears the cluster's space and corruption alarms.

use clap::{Args, Subcommand};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use bowline_proto::etcdserverpb as pb;
use pb::alarm_request::AlarmAction;

/// List or clear alarms
#[derive(Args, Debug)]
pub(crate) struct AlarmOptions {
    #[command(subcommand)]
    command: AlarmCommand,
}

#[derive(Subcommand, Debug)]
enum AlarmCommand {
    /// List raised alarms (NOSPACE, CORRUPT) and problems that the contacted server has detected
    #[command(after_long_help = EXIT_CODES)]
    List,
    /// Clear all listed alarms (a problem that a Bowline server detected stays listed until the problem is fixed)
    #[command(after_long_help = EXIT_CODES)]
    Disarm,
}

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
    let mut listed = ask(CallKind::Repeatable, AlarmAction::Get, &all).await?;
    if let AlarmCommand::Disarm = options.command {
        let mut ended = Vec::new();
        for alarm in &listed.alarms {
            let answer = ask(CallKind::Settled, AlarmAction::Deactivate, alarm).await?;
            listed.header = answer.header;
            ended.extend(answer.alarms);
        }
        listed.alarms = ended;
    }
    output.show(&listed)
}
