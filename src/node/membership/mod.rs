//! The members: founding a cluster, joining one, and their identities and addresses.

pub(super) mod founding;
pub(super) mod identity;
pub(super) mod joining;
pub(super) mod peer_rejections;
pub(super) mod roster;
