//! A lock object like python-etcd's: a name, and an owner whose saved id finds the lock again after a restart.
//! `cargo run --example lock_object`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use bowline::testing::Cluster;
use bowline::{Compare, Error, Guard, LeaseId, LockError, Node, Rejection, Session};

/// A lock whose owner can return after a restart.
struct Lock {
    name: String,
    owner: Session,
    guard: Option<Guard>,
}

impl Lock {
    async fn new(node: &Node, name: &str) -> Result<Self, Error> {
        let owner = node.open_session().label(name).ttl(Duration::from_secs(60)).await?;
        Ok(Self { name: name.to_owned(), owner, guard: None })
    }

    /// Finds the lock of an owner from before a restart.
    async fn found_again(node: &Node, name: &str, id: LeaseId) -> Result<Self, Error> {
        let owner = node.resume_session(id).await?;
        Ok(Self { name: name.to_owned(), owner, guard: None })
    }

    fn id(&self) -> LeaseId {
        self.owner.lease()
    }

    /// Asks the store whether this owner's key exists.
    async fn is_acquired(&self) -> Result<bool, Error> {
        let mine = Compare::exists(format!("{}/{}", self.name, self.id()));
        Ok(self.owner.client().txn().when(mine).commit().await?.succeeded)
    }

    async fn acquire(&mut self, timeout: Duration) -> Result<(), LockError> {
        let call = self.owner.mutex(self.name.clone()).lock();
        self.guard = Some(call.deadline(timeout).await?);
        Ok(())
    }

    /// Succeeds also if the lock is not held any more.
    async fn release(mut self) -> Result<(), Error> {
        if let Some(guard) = self.guard.take() {
            guard.release().await?;
        }
        self.owner.close().await
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut cluster = Cluster::start(3).await?;
    let mut lock = Lock::new(cluster.node(0), "import").await?;
    lock.acquire(Duration::from_secs(3)).await?;
    let saved = lock.id().to_string();
    println!("acquired; the id {saved} is saved, and the program is killed");
    cluster.kill(0).await;
    drop(lock);

    cluster.restart(0).await?;
    let lock = Lock::found_again(cluster.node(0), "import", saved.parse()?).await?;
    println!("found again after the restart: acquired is {}", lock.is_acquired().await?);
    let other = cluster.node(1).session().await?.mutex("import").try_lock().await;
    println!("another one gets it: {}", other.is_ok());
    lock.release().await?;
    let other = cluster.node(1).session().await?.mutex("import").lock().await?;
    println!("another one gets it after the release: {}", other.is_held());

    let unknown = LeaseId::new(4_711).ok_or("no id")?;
    match Lock::found_again(cluster.node(0), "import", unknown).await {
        Err(Error::Rejected(Rejection::LeaseNotFound(id))) => println!("{id} is unknown"),
        _ => return Err("an id that nobody has found a lock".into()),
    }
    Ok(())
}
