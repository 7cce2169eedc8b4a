//! `bowline user`: lists and changes users.

use clap::{Args, Subcommand};

use super::connect::{CallKind, Client, Link};
use super::failure::{EXIT_CODES, Failure};
use super::print::Output;
use super::print::users::{Done, Names, User};
use super::terminal::{read_line, secret};
use bowline_proto::authpb::UserAddOptions;
use bowline_proto::etcdserverpb as pb;

/// List and change users
#[derive(Args, Debug)]
pub(crate) struct UserOptions {
    #[command(subcommand)]
    command: UserCommand,
}

#[derive(Subcommand, Debug)]
enum UserCommand {
    /// Add a user
    #[command(after_long_help = EXIT_CODES)]
    Add {
        /// Name of the user, or NAME:PASSWORD; prompts for the password if omitted
        #[arg(value_name = "NAME[:PASSWORD]")]
        name: String,
        /// Password of the new user
        #[arg(long, value_name = "PASSWORD")]
        new_user_password: Option<String>,
        /// Allow login only by certificate
        #[arg(long)]
        no_password: bool,
        #[command(flatten)]
        how: How,
    },
    /// Delete a user
    #[command(after_long_help = EXIT_CODES)]
    Delete {
        /// Name of the user
        name: String,
    },
    /// Show the roles of a user
    #[command(after_long_help = EXIT_CODES)]
    Get {
        /// Name of the user
        name: String,
        /// Also print the permissions of the roles
        #[arg(long)]
        detail: bool,
    },
    /// List the users
    #[command(after_long_help = EXIT_CODES)]
    List,
    /// Change a user's password
    #[command(after_long_help = EXIT_CODES)]
    Passwd {
        /// Name of the user
        name: String,
        #[command(flatten)]
        how: How,
    },
    /// Grant a role to a user
    #[command(after_long_help = EXIT_CODES)]
    GrantRole {
        /// Name of the user
        #[arg(value_name = "USER")]
        name: String,
        /// Name of the role
        role: String,
    },
    /// Revoke a role from a user
    #[command(after_long_help = EXIT_CODES)]
    RevokeRole {
        /// Name of the user
        #[arg(value_name = "USER")]
        name: String,
        /// Name of the role
        role: String,
    },
}

#[derive(Args, Clone, Copy, Debug)]
struct How {
    /// Prompt for the password at the terminal (false: read it as a line from standard input)
    #[arg(long, value_name = "BOOL", default_value_t = true, num_args = 0..=1, require_equals = true,
          default_missing_value = "true", action = clap::ArgAction::Set,
          value_parser = crate::usage::parse_bool)]
    interactive: bool,
}

pub(crate) async fn run(
    client: &Client,
    output: Output,
    options: UserOptions,
) -> Result<(), Failure> {
    let (words, header) = match options.command {
        UserCommand::Add { name, new_user_password, no_password, how } => {
            let given = new_user_password.filter(|password| !password.is_empty());
            let (name, password) = match (name.split_once(':'), given) {
                // Without a password, a colon is part of the name.
                _ if no_password => (name, String::new()),
                (_, Some(password)) => (name, password),
                (Some((name, password)), None) => (name.to_owned(), password.to_owned()),
                (None, None) => {
                    let password = new_password(&name, how)?;
                    (name, password)
                }
            };
            if name.is_empty() {
                return Err(Failure::Usage("empty user name is not allowed".to_owned()));
            }
            let options = Some(UserAddOptions { no_password });
            let hashed_password = String::new();
            let request =
                pb::AuthUserAddRequest { name: name.clone(), password, options, hashed_password };
            let call = async |link: Link| link.auth().user_add(request.clone()).await;
            let answer = client.ask(CallKind::Change, call).await?;
            (format!("User {name} created"), answer.header)
        }
        UserCommand::Delete { name } => {
            let request = pb::AuthUserDeleteRequest { name: name.clone() };
            let call = async |link: Link| link.auth().user_delete(request.clone()).await;
            let answer = client.ask(CallKind::Change, call).await?;
            (format!("User {name} deleted"), answer.header)
        }
        UserCommand::Get { name, detail } => return get(client, output, name, detail).await,
        UserCommand::List => {
            let call = async |link: Link| link.auth().user_list(pb::AuthUserListRequest {}).await;
            let answer = client.ask(CallKind::Repeatable, call).await?;
            let (header, names) = (answer.header, answer.users);
            return output.show(&Names { header, what: "users", names });
        }
        UserCommand::Passwd { name, how } => {
            let password = new_password(&name, how)?;
            let hashed_password = String::new();
            let request = pb::AuthUserChangePasswordRequest { name, password, hashed_password };
            let call = async |link: Link| link.auth().user_change_password(request.clone()).await;
            let answer = client.ask(CallKind::Change, call).await?;
            ("Password updated".to_owned(), answer.header)
        }
        UserCommand::GrantRole { name: user, role } => {
            let words = format!("Role {role} is granted to user {user}");
            let request = pb::AuthUserGrantRoleRequest { user, role };
            let call = async |link: Link| link.auth().user_grant_role(request.clone()).await;
            (words, client.ask(CallKind::Change, call).await?.header)
        }
        UserCommand::RevokeRole { name: user, role } => {
            let words = format!("Role {role} is revoked from user {user}");
            let request = pb::AuthUserRevokeRoleRequest { name: user, role };
            let call = async |link: Link| link.auth().user_revoke_role(request.clone()).await;
            (words, client.ask(CallKind::Change, call).await?.header)
        }
    };
    output.show(&Done { words, header })
}

async fn get(client: &Client, output: Output, name: String, detail: bool) -> Result<(), Failure> {
    let request = pb::AuthUserGetRequest { name: name.clone() };
    let call = async |link: Link| link.auth().user_get(request.clone()).await;
    let answer = client.ask(CallKind::Repeatable, call).await?;
    if !detail {
        return output.show(&User { name, answer });
    }
    output.say(format!("User: {name}"))?;
    for role in answer.roles {
        output.say("")?;
        output.show(&super::role::get(client, role).await?)?;
    }
    Ok(())
}

/// Reads a new password. At the terminal, the user types the password twice. Otherwise the password is one line of
/// standard input. As in etcdctl, only a typed password must not be empty, because a user with an empty password
/// cannot log in.
fn new_password(name: &str, how: How) -> Result<String, Failure> {
    if !how.interactive {
        return read_line()
            .map_err(|error| Failure::Local("cannot read the password".to_owned(), error));
    }
    let password = secret(&format!("Password of {name}: "))?;
    if password.is_empty() {
        let why = "the password is empty: to add a user without a password, use --no-password";
        return Err(Failure::Usage(why.to_owned()));
    }
    if secret(&format!("Type password of {name} again for confirmation: "))? != password {
        return Err(Failure::Usage("given passwords are different".to_owned()));
    }
    Ok(password)
}
