//! Output of responses about users and roles.

use super::json::Object;
use super::{Page, Show, header_json};
use crate::client::quote;
use bowline_client::prefix_end;
use bowline_proto::authpb::Permission;
use bowline_proto::authpb::permission::Type;
use bowline_proto::etcdserverpb as pb;

/// A message about a completed change.
pub(crate) struct Done {
    pub(crate) words: String,
    pub(crate) header: Option<pb::ResponseHeader>,
}

impl Show for Done {
    fn simple(&self, page: &mut Page) {
        page.line(&self.words);
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
    }

    fn json(&self) -> String {
        Object::default().object("header", header_json(&self.header)).end()
    }
}

/// The output of `bowline auth status`: whether authentication is on.
pub(crate) struct Asks(pub(crate) pb::AuthStatusResponse);

impl Show for Asks {
    fn simple(&self, page: &mut Page) {
        page.line(format!("Authentication Status: {}", self.0.enabled));
        page.line(format!("AuthRevision: {}", self.0.auth_revision));
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.0.header);
        page.field("Enabled", self.0.enabled);
        page.field("AuthRevision", self.0.auth_revision);
    }

    fn json(&self) -> String {
        let object = Object::default().object("header", header_json(&self.0.header));
        let object = if self.0.enabled { object.raw("enabled", true) } else { object };
        object.number("authRevision", self.0.auth_revision).end()
    }
}

/// A list of user or role names.
pub(crate) struct Names {
    pub(crate) header: Option<pb::ResponseHeader>,
    /// `users` or `roles`.
    pub(crate) what: &'static str,
    pub(crate) names: Vec<String>,
}

impl Show for Names {
    fn simple(&self, page: &mut Page) {
        for name in &self.names {
            page.line(name);
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.header);
        let names: String =
            self.names.iter().map(|name| format!(" {}", quote::go(name.as_bytes()))).collect();
        let title = if self.what == "roles" { "Roles" } else { "Users" };
        page.line(format!("\"{title}\" :{names}"));
    }

    fn json(&self) -> String {
        let object = Object::default().object("header", header_json(&self.header));
        object.list(self.what, self.names.iter().map(|name| quote::json(name))).end()
    }
}

/// A user and its roles.
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) answer: pb::AuthUserGetResponse,
}

impl Show for User {
    fn simple(&self, page: &mut Page) {
        page.line(format!("User: {}", self.name));
        let roles: String = self.answer.roles.iter().map(|role| format!(" {role}")).collect();
        page.line(format!("Roles:{roles}"));
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.answer.header);
        page.quoted("Name", &self.name);
        for role in &self.answer.roles {
            page.quoted("Role", role);
        }
    }

    fn json(&self) -> String {
        let object = Object::default().object("header", header_json(&self.answer.header));
        object.list("roles", self.answer.roles.iter().map(|role| quote::json(role))).end()
    }
}

/// A role and its permissions.
pub(crate) struct Role {
    pub(crate) name: String,
    pub(crate) answer: pb::AuthRoleGetResponse,
}

fn permission_line(permission: &Permission) -> Vec<u8> {
    let Permission { key, range_end: end, .. } = permission;
    match end.as_slice() {
        [] => [b"\t", key.as_slice()].concat(),
        end => {
            let mut line = match end {
                b"\0" => [b"\t[", key.as_slice(), b", <open ended>"].concat(),
                end => [b"\t[", key.as_slice(), b", ", end, b")"].concat(),
            };
            // Like etcdctl 3.6, do not mark "all keys" as a prefix.
            if !key.is_empty() && prefix_end(key) == end {
                line.extend_from_slice(&[b" (prefix ", key.as_slice(), b")"].concat());
            }
            line
        }
    }
}

impl Show for Role {
    fn simple(&self, page: &mut Page) {
        page.line(format!("Role {}", self.name));
        for (title, kinds) in [
            ("KV Read:", [Type::Read, Type::Readwrite]),
            ("KV Write:", [Type::Write, Type::Readwrite]),
        ] {
            page.line(title);
            for permission in
                self.answer.perm.iter().filter(|perm| kinds.contains(&perm.perm_type()))
            {
                page.line(permission_line(permission));
            }
        }
    }

    fn fields(&self, page: &mut Page) {
        page.header(&self.answer.header);
        for permission in &self.answer.perm {
            // etcdctl prints two spaces here.
            page.line(format!("\"PermType\" :  {}", permission.perm_type().as_str_name()));
            page.quoted("Key", &permission.key);
            page.quoted("RangeEnd", &permission.range_end);
        }
    }

    fn json(&self) -> String {
        let permission = |permission: &Permission| {
            Object::default()
                .number("permType", permission.perm_type)
                .bytes("key", &permission.key)
                .bytes("range_end", &permission.range_end)
                .end()
        };
        let object = Object::default().object("header", header_json(&self.answer.header));
        object.list("perm", self.answer.perm.iter().map(permission)).end()
    }
}
