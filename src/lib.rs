//! Bowline: see the README.

#[allow(dead_code, unused_imports, reason = "used by the stages that follow")]
mod codec;
pub mod env;
#[doc(hidden)]
pub mod machine;
pub mod model;
#[cfg(any(test, feature = "sim"))]
pub mod sim;
#[allow(dead_code, unused_imports, reason = "used by the stages that follow")]
mod transport;
pub mod watch;
