//! What people do today with other lock services, done here: each test is a walk-through that is told
//! for another system, with its outcome. `docs/coming-from` has the pages to them.

#[path = "walkthroughs/etcd.rs"]
mod etcd;
#[path = "walkthroughs/properties.rs"]
mod properties;
#[path = "walkthroughs/redis.rs"]
mod redis;
#[path = "walkthroughs/sequencers.rs"]
mod sequencers;
#[path = "walkthroughs/sql.rs"]
mod sql;
mod stage;
#[path = "walkthroughs/zookeeper.rs"]
mod zookeeper;
