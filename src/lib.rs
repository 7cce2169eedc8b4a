//! Bowline: see the README.

pub mod env;
pub mod model;
