//! What people do today with other lock services, done here: each test is a walk-through that is told
//! for another system, with its outcome. `docs/coming-from` has the pages to them.

mod etcd;
mod properties;
mod python_etcd;
mod redis;
mod sequencers;
mod sql;
mod zookeeper;
