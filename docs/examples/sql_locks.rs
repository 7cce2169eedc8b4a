//! The usual locks in a SQL database: a unique key, a row locked for an update, a version column.
//! `cargo run --example sql_locks`

#![allow(clippy::print_stdout, reason = "an example shows what it does")]

use bowline::testing::Cluster;
use bowline::{Client, Error, Op, Session, coordination::CasOutcome};

fn number(value: &[u8]) -> i64 {
    std::str::from_utf8(value).ok().and_then(|text| text.parse().ok()).unwrap_or(0)
}

/// `INSERT` under a unique key.
async fn claim(kv: &Client, owner: &str) -> Result<(), Error> {
    match kv.put_if_absent("jobs/nightly", owner.to_owned()).await? {
        CasOutcome::Done { .. } => println!("  {owner} has the job"),
        CasOutcome::Lost { row } => {
            let by = row.map(|row| String::from_utf8_lossy(&row.value).into_owned());
            println!("  {owner} does not: {} has", by.unwrap_or_default());
        }
    }
    Ok(())
}

/// `SELECT ... FOR UPDATE`, work, `COMMIT`: writes several rows in one step.
async fn transfer(session: Session) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let kv = session.client();
    let guard = session.mutex("locks/accounts").lock().await?;
    let balance = async |key: &str| {
        Ok::<_, Error>(kv.get(key.to_owned()).await?.map_or(0, |row| number(&row.value)))
    };
    let (from, to) = (balance("accounts/a").await?, balance("accounts/b").await?);
    guard
        .txn()
        .then(Op::put("accounts/a", (from - 10).to_string()))
        .then(Op::put("accounts/b", (to + 10).to_string()))
        .commit()
        .await?;
    guard.release().await?;
    Ok(())
}

/// `UPDATE ... WHERE version = ?`, retried until it succeeds.
async fn sell(kv: Client) -> Result<(), Error> {
    let one_less = |old: Option<&[u8]>| (old.map_or(0, number) - 1).to_string();
    kv.cell("stock").update(one_less).await.map(drop)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let cluster = Cluster::start(3).await?;
    let kv = cluster.node(0).client();

    println!("a unique key:");
    claim(&cluster.node(0).client(), "worker 0").await?;
    claim(&cluster.node(1).client(), "worker 1").await?;

    println!("a row locked for an update:");
    kv.put("accounts/a", "100").await?;
    let mut transfers = Vec::new();
    for i in 0..6 {
        transfers.push(tokio::spawn(transfer(cluster.node(i % 3).session().await?)));
    }
    for transfer in transfers {
        transfer.await??;
    }
    let (a, b) = (kv.get("accounts/a").await?, kv.get("accounts/b").await?);
    let balance = |row: Option<bowline::KeyValue>| row.map_or(0, |row| number(&row.value));
    println!("  a has {}, b has {}", balance(a), balance(b));

    println!("a version column:");
    kv.put("stock", "30").await?;
    let mut sales = Vec::new();
    for i in 0..12 {
        sales.push(tokio::spawn(sell(cluster.node(i % 3).client())));
    }
    for sale in sales {
        sale.await??;
    }
    println!("  {} in stock", balance(kv.get("stock").await?));
    Ok(())
}
