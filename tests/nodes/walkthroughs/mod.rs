//! Tests of typical tasks that other lock services are used for. Each test is a walk-through of a task described for
//! another system, with its outcome. `docs/coming-from` has the corresponding pages.

mod etcd;
mod properties;
mod python_etcd;
mod redis;
mod sequencers;
mod sql;
mod zookeeper;
