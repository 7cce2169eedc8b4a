//! Values of the program's own types in place of bytes: calls that encode what they write, and
//! decode what they read.
//!
//! ```text
//!   Typed ──▶ put, get, range, watch, cached      a value in each key below a prefix
//!     ├─────▶ TypedCell                           one value that is changed by compare-and-set
//!     └─────▶ TypedQueue ──▶ TypedTaker           items of a work queue
//!                       └──▶ TypedWorker          a loop that takes them
//! ```
//!
//! Typed calls add nothing to what is stored: a value is the bytes that its [`Codec`] produces, and
//! clients in other languages can read it. A row that cannot be decoded is reported with its key and
//! its bytes ([`DecodeError`](crate::kv::DecodeError)), and never ends a stream.

pub(crate) mod cached;
pub(crate) mod cell;
pub(crate) mod codec;
pub(crate) mod keys;
pub(crate) mod queue;
pub(crate) mod watch;
pub(crate) mod worker;
