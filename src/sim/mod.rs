//! A deterministic world: a whole cluster, its machines and its network on one thread, driven by a
//! seed.

#[allow(dead_code, reason = "used by the world that follows")]
mod clock;
mod disk;
#[allow(dead_code, reason = "used by the world that follows")]
mod executor;
#[allow(dead_code, reason = "used by the world that follows")]
mod net;
#[allow(dead_code, reason = "used by the world that follows")]
mod plan;
#[allow(dead_code, reason = "used by the world that follows")]
mod point;
mod rng;
#[allow(dead_code, reason = "used by the world that follows")]
mod trace;
#[allow(dead_code, reason = "used by the world that follows")]
mod truth;
mod violation;

pub use disk::SimDisk;
pub use net::NetConditions;
pub use rng::Rng;
pub use violation::Violation;
