//! A record of the counter values that lock holders wrote. Its check finds values that were lost or written out of
//! order.

use tonic::transport::Channel;

use bowline_proto::etcdserverpb as pb;
use pb::kv_client::KvClient;

/// How long to wait before a retry.
const AGAIN: std::time::Duration = std::time::Duration::from_millis(10);

/// One increment: the holder read the counter and wrote it plus one, protected only by the lock.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Count {
    /// The revision at which the counter was written.
    pub(crate) put: i64,
    /// The value that was written.
    pub(crate) value: i64,
    /// The revision at which the holder's key was created: the order of the lock queue.
    pub(crate) created: i64,
}

/// Checks the counts of all holders: none was lost, and none was made by a holder out of order.
pub(crate) fn verify(mut counts: Vec<Count>, counter: i64) -> Result<(), String> {
    counts.sort_unstable();
    for (at, count) in counts.iter().enumerate() {
        if count.value != at as i64 + 1 {
            return Err(format!("an increment is lost or doubled: {count:?} is number {}", at + 1));
        }
        if count.created >= count.put {
            return Err(format!("{count:?} was counted before the place was taken"));
        }
    }
    for pair in counts.windows(2) {
        if pair[0].created > pair[1].created {
            return Err(format!(
                "two held at a time, or out of turn: {:?}, {:?}",
                pair[0], pair[1]
            ));
        }
    }
    if counts.len() as i64 != counter {
        return Err(format!("{} counts, and the counter says {counter}", counts.len()));
    }
    Ok(())
}

/// Returns a key's value as a number, its mod revision and its create revision. Returns zeros if the key does not
/// exist.
pub(crate) async fn row(channel: &Channel, key: &str) -> (i64, i64, i64) {
    loop {
        let range = pb::RangeRequest { key: key.to_owned().into(), ..Default::default() };
        if let Ok(reply) = KvClient::new(channel.clone()).range(range).await {
            let rows = reply.into_inner().kvs;
            let Some(row) = rows.first() else { return (0, 0, 0) };
            let text = std::str::from_utf8(&row.value).unwrap();
            let value = if text.is_empty() { 0 } else { text.parse().unwrap_or(0) };
            return (value, row.mod_revision, row.create_revision);
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// Increments the counter once, as the holder of `key`. If the outcome of a put is not known, the counter is read
/// again: no other client writes it.
pub(crate) async fn count(channel: &Channel, key: &str, counter: &str) -> Count {
    let (_, _, created) = row(channel, key).await;
    let value = row(channel, counter).await.0 + 1;
    loop {
        let text = value.to_string().into();
        let put =
            pb::PutRequest { key: counter.to_owned().into(), value: text, ..Default::default() };
        if let Ok(reply) = KvClient::new(channel.clone()).put(put).await {
            let put = reply.into_inner().header.unwrap().revision;
            return Count { put, value, created };
        }
        let (found, put, _) = row(channel, counter).await;
        if found == value {
            return Count { put, value, created };
        }
    }
}

#[test]
fn ledger_with_lost_duplicate_or_reordered_entries_is_rejected() {
    let count = |put, value, created| Count { put, value, created };
    let good = vec![count(3, 1, 2), count(9, 3, 5), count(7, 2, 5)];
    assert_eq!(verify(good.clone(), 3), Ok(()));
    for bad in [
        vec![count(3, 1, 2), count(7, 1, 5), count(9, 2, 5)],
        vec![count(3, 1, 2), count(7, 3, 5), count(9, 4, 5)],
        vec![count(3, 1, 4)],
        vec![count(7, 1, 5), count(8, 2, 2), count(9, 3, 6)],
        vec![count(3, 1, 2), count(9, 2, 5)],
    ] {
        verify(bad.clone(), 3).expect_err(&format!("{bad:?}"));
    }
}
