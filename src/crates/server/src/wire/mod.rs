//! Converts between etcd's protocol and the library's types. Requests are checked as etcd checks them. The functions
//! here do no I/O.

mod answer;
mod check;
mod error;
mod request;

pub(crate) use answer::{
    delete_response, event, key_value, put_response, range_response, txn_response,
};
pub(crate) use check::{
    check_delete, check_put, check_range, check_range_stream, check_size, check_txn,
};
pub(crate) use error::{Reason, access_refused, refused};
pub(crate) use request::{
    bounds, compare, is_local, is_long_delete, is_long_txn, key_range, lease_id, only_reads, op,
    put, revision, sort,
};
