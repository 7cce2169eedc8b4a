//! Feature flags: an example of a service that embeds Bowline, with axum. Three processes keep the
//! flags in a replicated store inside themselves. Each process answers every request. One of them
//! at a time also does a background job: it switches flags off when their time has come.
//!
//! | module | contents |
//! |---|---|
//! | [`settings`] | configuration from the environment |
//! | [`flags`] | what the service stores |
//! | [`http`] | routes and handlers |
//! | [`error`] | how errors become HTTP responses |
//! | [`sweeper`] | the job that only the elected leader runs |
//! | [`service`] | start, and shutdown in the right order |

pub mod error;
pub mod flags;
pub mod http;
pub mod service;
pub mod settings;
pub mod sweeper;
